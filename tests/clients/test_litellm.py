"""LiteLLM, by both kinds of provider that it can take this server for."""

import json
import os

# Else it looks for prices on the network when it is imported.
os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"

import litellm
import pytest

QUESTION = [{"role": "user", "content": "Write a Python function that adds two numbers."}]
PARAMETERS = {
    "type": "object",
    "properties": {"path": {"type": "string", "maxLength": 20}, "line": {"type": "integer", "minimum": 1, "maximum": 99}},
    "required": ["path", "line"],
}
EDIT = {"type": "function", "function": {"name": "edit", "description": "Edit a file", "parameters": PARAMETERS}}


@pytest.fixture(params=["openai", "anthropic"])
def ask(server, request):
    base = server.url + ("/v1" if request.param == "openai" else "")
    provider = {"model": f"{request.param}/any", "api_base": base, "api_key": "none", "num_retries": 0, "timeout": 60}

    def ask(**options):
        return litellm.completion(**provider | {"messages": QUESTION, "temperature": 0, "max_tokens": 48} | options)

    return ask


def said(message):
    """All that the model wrote, thinking included."""
    return (getattr(message, "reasoning_content", None) or "") + (message.content or "")


def test_a_stream_is_the_same_answer(ask):
    whole = ask()
    assert said(whole.choices[0].message)
    assert 0 < whole.usage.completion_tokens <= 48
    chunks = list(ask(stream=True, stream_options={"include_usage": True}))
    assert "".join(said(chunk.choices[0].delta) for chunk in chunks if chunk.choices) == said(whole.choices[0].message)
    rebuilt = litellm.stream_chunk_builder(chunks, messages=QUESTION)
    assert rebuilt.choices[0].finish_reason == whole.choices[0].finish_reason
    assert rebuilt.usage.completion_tokens == whole.usage.completion_tokens


def test_a_forced_call_and_its_result(ask):
    choice = {"type": "function", "function": {"name": "edit"}}
    answer = ask(tools=[EDIT], tool_choice=choice, parallel_tool_calls=False, max_tokens=200).choices[0]
    assert answer.finish_reason == "tool_calls"
    (call,) = answer.message.tool_calls
    assert call.function.name == "edit"
    assert 1 <= json.loads(call.function.arguments)["line"] <= 99
    result = {"role": "tool", "tool_call_id": call.id, "content": "done"}
    again = ask(tools=[EDIT], messages=[*QUESTION, answer.message.model_dump(), result])
    assert again.choices[0].finish_reason


def test_an_overflow_is_known_as_one(ask):
    with pytest.raises(litellm.ContextWindowExceededError):
        ask(messages=[{"role": "user", "content": "word " * 200_000}])
