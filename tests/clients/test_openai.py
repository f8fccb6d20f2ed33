"""The official OpenAI client for Python."""

import concurrent.futures

import openai
import pytest

QUESTION = [{"role": "user", "content": "Write a Python function that adds two numbers."}]


def ask(client, **options):
    return client.chat.completions.create(**{"model": "any", "messages": QUESTION, "temperature": 0, "max_tokens": 48} | options)


def said(message):
    """All that the model wrote, thinking included."""
    return (getattr(message, "reasoning_content", None) or "") + (message.content or "")


def test_models_lists_the_loaded_one(client):
    models = client.models.list().data
    assert len(models) == 1
    assert models[0].id


def test_chat(client):
    answer = ask(client)
    assert answer.object == "chat.completion"
    assert answer.model == "any"
    choice = answer.choices[0]
    assert choice.message.role == "assistant"
    assert said(choice.message)
    assert choice.finish_reason in ("stop", "length")
    usage = answer.usage
    assert usage.prompt_tokens > 0
    assert 0 < usage.completion_tokens <= 48
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens


def test_a_stream_is_the_same_answer_in_pieces(client):
    whole = ask(client)
    pieces, finish, usage = [], None, None
    for chunk in ask(client, stream=True, stream_options={"include_usage": True}):
        if chunk.usage:
            usage = chunk.usage
        for choice in chunk.choices:
            pieces.append(said(choice.delta))
            finish = choice.finish_reason or finish
    assert len([piece for piece in pieces if piece]) > 1
    assert "".join(pieces) == said(whole.choices[0].message)
    assert finish == whole.choices[0].finish_reason
    assert usage.completion_tokens == whole.usage.completion_tokens


def test_max_tokens_is_kept_and_said(client):
    answer = ask(client, max_tokens=5)
    assert answer.usage.completion_tokens == 5
    assert answer.choices[0].finish_reason == "length"


def test_completion(client):
    answer = client.completions.create(model="any", prompt="def add(a, b):\n", max_tokens=16, temperature=0)
    assert answer.object == "text_completion"
    assert answer.choices[0].text
    assert answer.usage.completion_tokens <= 16


def test_a_stream_of_a_completion_is_the_same_text(client):
    options = {"model": "any", "prompt": "def add(a, b):\n", "max_tokens": 16, "temperature": 0}
    whole = client.completions.create(**options)
    pieces = [chunk.choices[0].text for chunk in client.completions.create(**options, stream=True) if chunk.choices]
    assert "".join(pieces) == whole.choices[0].text


def test_a_seed_repeats_a_sampled_answer(client):
    answers = {said(ask(client, temperature=1.0, seed=seed).choices[0].message) for seed in (7, 7, 7)}
    assert len(answers) == 1
    others = {said(ask(client, temperature=1.0, seed=seed).choices[0].message) for seed in range(4)}
    assert len(others) > 1


def test_four_at_once_answer_as_one_alone(client):
    questions = [[{"role": "user", "content": f"Write a function that returns {number}."}] for number in range(4)]
    alone = [said(ask(client, messages=question).choices[0].message) for question in questions]
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        together = list(pool.map(lambda question: said(ask(client, messages=question).choices[0].message), questions))
    assert together == alone


@pytest.mark.parametrize(
    "options, param",
    [
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "nobody", "content": "x"}]}, "messages"),
        ({"temperature": -1}, "temperature"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"top_p": 2}, "top_p"),
    ],
)
def test_bad_requests_name_the_field(client, options, param):
    with pytest.raises(openai.BadRequestError) as error:
        ask(client, **options)
    assert error.value.status_code == 400
    assert error.value.param.startswith(param)
    assert error.value.type == "invalid_request_error"
    assert error.value.body["message"]


def test_a_prompt_over_the_limit_is_refused_with_both_numbers(client):
    with pytest.raises(openai.BadRequestError) as error:
        ask(client, messages=[{"role": "user", "content": "word " * 200_000}])
    numbers = [word for word in error.value.body["message"].replace(",", "").split() if word.strip(".()").isdigit()]
    assert len(numbers) >= 2, error.value.body["message"]


def test_an_unknown_path_is_a_404(client):
    with pytest.raises(openai.NotFoundError):
        client.images.generate(model="any", prompt="a cat")
