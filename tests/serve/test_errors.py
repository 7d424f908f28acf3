"""What is refused, in the form that OpenAI's clients read."""

from __future__ import annotations

import json

import pytest
from asking import Ask

from st_reba.serve.errors import Refusal

PATH = "/v1/embeddings"


@pytest.mark.parametrize(
    ("status", "kind", "headers"),
    [
        (400, "invalid_request_error", {}),
        (401, "authentication_error", {"www-authenticate": "Bearer"}),
        (413, "invalid_request_error", {"connection": "close"}),
        (429, "rate_limit_error", {"retry-after": "1"}),
        (500, "server_error", {}),
    ],
)
def test_the_form(status: int, kind: str, headers: dict[str, str]) -> None:
    answer = Refusal(status, "what is wrong", "input", "a_code").response()
    error = {"message": "what is wrong", "type": kind, "param": "input", "code": "a_code"}
    assert answer.status_code == status and json.loads(bytes(answer.body)) == {"error": error}
    assert {**headers, "content-type": "application/json"}.items() <= dict(answer.headers).items()
    assert len(answer.headers) == 2 + len(headers)


def test_refused_by_path_and_kind(ask: Ask) -> None:
    answers = ask(
        ("/v1/nowhere", None),
        (PATH, None),
        (PATH, {"input": "a"}, {"Content-Type": "text/plain"}),
        ("/v1/search", {"query": "a"}),
    )
    assert [one.status_code for one in answers] == [404, 405, 415, 404]
    told = [one.json()["error"]["message"] for one in answers]
    assert told[:2] == ["GET /v1/nowhere: not found", f"GET {PATH}: method not allowed"] and all(told)
