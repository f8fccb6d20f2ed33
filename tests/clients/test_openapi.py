"""Schemathesis sends what the OpenAPI document allows: no answer is the server's fault, but for 503 with Retry-After."""

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings

# What ends an answer, by the endpoint's name for it.
LIMITS = {"/v1/chat/completions": "max_tokens", "/v1/completions": "max_tokens", "/v1/messages": "max_tokens"}
LIMITS["/v1/responses"] = "max_output_tokens"


@pytest.fixture(scope="session")
def document(server):
    return schemathesis.openapi.from_url(server.url + "/openapi.json")


def check(response):
    if response.status_code == 503:
        assert int(response.headers["retry-after"][0]) > 0
    else:
        assert response.status_code < 500, response.text


def test_no_answer_is_the_servers_fault(document):
    for found in document.get_all_operations():
        operation = found.ok()

        @given(case=operation.as_strategy())
        @settings(max_examples=8, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
        def explore(case):
            check(case.call())
            if operation.method == "post" and isinstance(case.body, dict):
                # What must be there is seldom right in what is made up: the example has it, and the rest is kept.
                media = operation.definition.raw["requestBody"]["content"]["application/json"]
                limit = LIMITS.get(operation.path)
                case.body = case.body | media["example"] | ({limit: 1} if limit else {})
                check(case.call())

        explore()
