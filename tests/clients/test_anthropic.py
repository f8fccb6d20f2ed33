"""The official Anthropic client for Python."""

import anthropic
import pytest

# The client has no parameter for it any more.
GREEDY = {"temperature": 0}
QUESTION = [{"role": "user", "content": "Write a Python function that adds two numbers."}]
EDIT = {
    "name": "edit",
    "description": "Edit a file",
    "input_schema": {
        "type": "object",
        "properties": {"path": {"type": "string", "maxLength": 20}, "line": {"type": "integer", "minimum": 1, "maximum": 99}},
        "required": ["path", "line"],
    },
}


@pytest.fixture
def claude(server):
    return anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0, timeout=60)


def ask(claude, **options):
    return claude.messages.create(**{"model": "any", "messages": QUESTION, "max_tokens": 48, "extra_body": GREEDY} | options)


def test_message(claude):
    answer = ask(claude)
    assert (answer.type, answer.role, answer.model) == ("message", "assistant", "any")
    assert answer.content[0].type == "text" and answer.content[0].text
    assert answer.stop_reason in ("end_turn", "max_tokens")
    assert 0 < answer.usage.output_tokens <= 48


def test_a_stream_is_the_same_message(claude):
    options = {"model": "any", "messages": QUESTION, "max_tokens": 48, "extra_body": GREEDY}
    whole = ask(claude, thinking={"type": "enabled", "budget_tokens": 1024})
    with claude.messages.stream(**options, thinking={"type": "enabled", "budget_tokens": 1024}) as stream:
        events = [event.type for event in stream]
        streamed = stream.get_final_message()
    assert [block.model_dump() for block in streamed.content] == [block.model_dump() for block in whole.content]
    assert streamed.stop_reason == whole.stop_reason
    assert streamed.usage.output_tokens == whole.usage.output_tokens
    assert events[0] == "message_start" and events[-1] == "message_stop"


def test_tokens_are_counted_as_they_are_used(claude):
    counted = claude.messages.count_tokens(model="any", messages=QUESTION, tools=[EDIT]).input_tokens
    usage = ask(claude, tools=[EDIT], max_tokens=1).usage
    assert counted == usage.input_tokens + usage.cache_read_input_tokens


@pytest.mark.parametrize("choice", [{"type": "any"}, {"type": "tool", "name": "edit"}])
def test_a_forced_call_and_its_result(claude, choice):
    choice = choice | {"disable_parallel_tool_use": True}
    answer = ask(claude, tools=[EDIT], tool_choice=choice, max_tokens=200)
    assert answer.stop_reason == "tool_use"
    (call,) = [block for block in answer.content if block.type == "tool_use"]
    assert call.name == "edit"
    assert isinstance(call.input["path"], str) and 1 <= call.input["line"] <= 99
    result = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call.id, "content": "done"}]}
    messages = [*QUESTION, {"role": "assistant", "content": answer.content}, result]
    assert ask(claude, tools=[EDIT], messages=messages).content


def test_a_prompt_over_the_limit_is_refused_in_the_words_that_clients_look_for(claude):
    with pytest.raises(anthropic.BadRequestError) as error:
        ask(claude, messages=[{"role": "user", "content": "word " * 200_000}])
    assert error.value.body["error"]["message"].startswith("prompt is too long: ")


def test_bad_requests_are_refused(claude):
    with pytest.raises(anthropic.BadRequestError):
        ask(claude, messages=[{"role": "nobody", "content": "x"}])
