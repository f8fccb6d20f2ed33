"""Each agent as its users start it, on the shipped model. That model can't program: what is tested is that the agent and the
server understand each other."""

import subprocess

import pytest
from programs import AGENTS, start

TOOLS = {name: tool for name, (_, tool) in AGENTS.items() if tool}


def attempt(name, run, prompt):
    """What came of a turn; None if it had no end: the shipped model writes, or calls, on and on now and then."""
    for _ in range(3):
        run.notes.unlink(missing_ok=True)
        try:
            return start(name, run, prompt, 150)
        except subprocess.TimeoutExpired:
            if len(run.noted()) > 1:
                return None
    return None


@pytest.mark.parametrize("name, tool", TOOLS.items())
def test_a_turn_with_a_call_that_is_executed(daemon, place, name, tool):
    """The server is made to answer with a call of the tool `note`; the agent executes it and goes on with its result."""
    run = place(daemon(tool_choice=tool, strict_calls="true", thinking_budget="64"), lean=True)
    done = attempt(name, run, "Write a note.")
    said = done.stdout + done.stderr if done else "no end"
    # Where the model calls on and on, Qwen Code ends it.
    assert not done or done.returncode == 0 or "Loop detection halted the run" in said, said
    notes = run.noted()
    # A second call came after the result of the first.
    assert len(notes) >= (1 if done else 2), said
    for arguments in notes:
        assert arguments.keys() == {"word", "urgent"}, said
        assert arguments["word"] in ("left", "right") and isinstance(arguments["urgent"], bool), said


def test_aider_completes_a_turn(daemon, place):
    run = place(daemon())
    done = start("aider", run, "Add a docstring to add.")
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    assert "Tokens:" in said and "Error" not in said, said


@pytest.mark.parametrize("name", AGENTS)
def test_a_prompt_over_the_limit_is_told_to_the_user(daemon, place, name):
    run = place(daemon("--ctx", "512"))
    done = start(name, run, "Add a docstring to add. " * 100)
    said = done.stdout + done.stderr
    # Some say it in words of their own.
    assert any(words in said for words in ("512", "too long", "context window", "context limit")), said
