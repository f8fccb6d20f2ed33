"""The official OpenAI client for Python: responses, forms of answers, forced calls."""

import json

import openai
import pydantic
import pytest

QUESTION = [{"role": "user", "content": "Describe an animal."}]
PARAMETERS = {
    "type": "object",
    "properties": {"path": {"type": "string", "maxLength": 20}, "line": {"type": "integer", "minimum": 1, "maximum": 99}},
    "required": ["path", "line"],
    "additionalProperties": False,
}


class Animal(pydantic.BaseModel):
    tame: bool
    legs: int = pydantic.Field(ge=0, le=100)


def test_a_response(client):
    answer = client.responses.create(model="any", input="Say hello.", temperature=0, max_output_tokens=30)
    assert answer.object == "response" and answer.status in ("completed", "incomplete")
    assert answer.usage.total_tokens == answer.usage.input_tokens + answer.usage.output_tokens


def test_a_stream_is_the_same_response(client):
    options = {"model": "any", "input": "Describe an animal.", "temperature": 0, "text_format": Animal}
    whole = client.responses.parse(**options)
    with client.responses.stream(**options) as stream:
        kinds = {event.type for event in stream}
        streamed = stream.get_final_response()
    assert streamed.output_text == whole.output_text
    assert {"response.created", "response.output_item.added", "response.output_text.delta", "response.completed"} <= kinds


def test_answers_are_parsed_into_classes(client):
    assert 0 <= client.responses.parse(model="any", input="Describe an animal.", text_format=Animal, temperature=0).output_parsed.legs <= 100
    # Without thinking, which may go on for long in what a small model draws.
    plain = {"chat_template_kwargs": {"enable_thinking": False}}
    answer = client.chat.completions.parse(
        model="any", messages=QUESTION, response_format=Animal, temperature=1.0, seed=7, extra_body=plain
    )
    assert 0 <= answer.choices[0].message.parsed.legs <= 100


def test_a_forced_call_and_its_result(client):
    tool = {"type": "function", "function": {"name": "edit", "parameters": PARAMETERS, "strict": True}}
    choice = {"type": "function", "function": {"name": "edit"}}
    options = {"model": "any", "tools": [tool], "temperature": 0, "max_tokens": 200}
    answer = client.chat.completions.create(
        **options, messages=QUESTION, tool_choice=choice, parallel_tool_calls=False
    ).choices[0]
    assert answer.finish_reason == "tool_calls"
    (call,) = answer.message.tool_calls
    assert 1 <= json.loads(call.function.arguments)["line"] <= 99
    result = {"role": "tool", "tool_call_id": call.id, "content": "done"}
    again = client.chat.completions.create(**options, messages=[*QUESTION, answer.message, result])
    assert again.choices[0].finish_reason


def test_a_conversation_goes_on_from_a_response(client):
    tool = {"type": "function", "name": "edit", "parameters": PARAMETERS, "strict": True}
    options = {"model": "any", "tools": [tool], "temperature": 0, "max_output_tokens": 200, "parallel_tool_calls": False}
    first = client.responses.create(**options, input="Edit.", tool_choice="required")
    (call,) = [item for item in first.output if item.type == "function_call"]
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "done"}
    second = client.responses.create(**options, input=[result], previous_response_id=first.id)
    assert second.usage.input_tokens > first.usage.input_tokens
    with pytest.raises(openai.BadRequestError) as error:
        client.responses.create(**options, input="x", previous_response_id="resp_none")
    assert error.value.param == "previous_response_id"
