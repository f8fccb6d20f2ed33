"""LangChain's models for both APIs."""

import pydantic
import pytest
from langchain_anthropic import ChatAnthropic
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI

QUESTION = "Write a Python function that adds two numbers."


@tool
def edit(line: int, whole: bool) -> str:
    """Edit a file."""
    return f"{line} {whole}"


class Animal(pydantic.BaseModel):
    """An animal."""

    tame: bool
    legs: int = pydantic.Field(ge=0, le=100)


@pytest.fixture(params=["openai", "anthropic"])
def chat(server, request):
    options = {"model": "any", "api_key": "none", "max_retries": 0, "timeout": 60, "max_tokens": 200, "temperature": 0}
    if request.param == "openai":
        return ChatOpenAI(base_url=server.url + "/v1", stream_usage=True, **options)
    return ChatAnthropic(base_url=server.url, **options)


def test_a_stream_is_the_same_answer(chat):
    whole = chat.invoke(QUESTION)
    assert whole.text
    assert whole.usage_metadata["output_tokens"] > 0
    pieces = list(chat.stream(QUESTION))
    assert len(pieces) > 1
    joined = pieces[0]
    for piece in pieces[1:]:
        joined += piece
    assert joined.text == whole.text
    assert joined.usage_metadata["output_tokens"] == whole.usage_metadata["output_tokens"]


def test_a_forced_call_is_executed(chat):
    bound = chat.bind_tools([edit], tool_choice="edit", parallel_tool_calls=False)
    question = HumanMessage(QUESTION)
    answer = bound.invoke([question])
    (call,) = answer.tool_calls
    result = edit.invoke(call)
    assert isinstance(result, ToolMessage) and result.content == "{line} {whole}".format(**call["args"])
    assert chat.bind_tools([edit]).invoke([question, answer, result]).response_metadata


def test_answers_are_parsed_into_classes(chat):
    animal = chat.with_structured_output(Animal).invoke("Describe an animal.")
    assert 0 <= animal.legs <= 100
