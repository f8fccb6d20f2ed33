"""Each agent as its users start it, on the shipped model. That model can't program: what is tested is that the agent and the
server understand each other."""

import pytest
from programs import AGENTS, TASK, start

TOOLS = {name: tool for name, (_, tool) in AGENTS.items() if tool}


@pytest.mark.parametrize("name, tool", TOOLS.items())
def test_a_turn_with_a_call_that_is_executed(daemon, place, name, tool):
    """The server is made to answer with a call of the tool `note`; the agent executes it, and ends with what the model says to
    its result."""
    run = place(daemon(tool_choice=tool, strict_calls="true", thinking_budget="64", temperature="0"), lean=True)
    done = start(name, run, TASK)
    said = done.stdout + done.stderr
    assert done.returncode == 0 and done.stdout.strip(), said
    notes = run.noted()
    assert notes, said
    for arguments in notes:
        assert arguments.keys() == {"word", "urgent"}, said
        assert arguments["word"] in ("left", "right") and isinstance(arguments["urgent"], bool), said


def test_aider_completes_a_turn(daemon, place):
    run = place(daemon(temperature="0"))
    done = start("aider", run, "Add a docstring to add.")
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    assert "Tokens:" in said and "litellm." not in said, said


@pytest.mark.parametrize("name", AGENTS)
def test_a_prompt_over_the_limit_is_told_to_the_user(daemon, place, name):
    run = place(daemon("--ctx", "512"))
    done = start(name, run, "Add a docstring to add. " * 100)
    said = done.stdout + done.stderr
    # Some say it in words of their own.
    assert any(words in said for words in ("512", "too long", "context window", "context limit")), said
