"""Requests are checked field by field, and nothing is ignored."""

from __future__ import annotations

import json
from typing import Any

import pytest

from st_reba.serve.requests import EmbeddingRequest, Refusal, SearchRequest


@pytest.mark.parametrize(
    ("asked", "task"),
    [
        ({"model": "m"}, None),
        ({"model": "m:query"}, "query"),
        ({"input_type": "query"}, "query"),
        ({"model": "m:document", "input_type": "passage"}, "document"),
    ],
    ids=str,
)
def test_task(asked: dict[str, str], task: str | None) -> None:
    request = EmbeddingRequest.parse(json.dumps({"input": "a", "user": "somebody", **asked}).encode())
    assert (request.input, request.task("m")) == (["a"], task)


def refused(kind: Any, body: Any) -> tuple[int, str | None]:
    with pytest.raises(Refusal) as error:
        kind.parse(body if isinstance(body, bytes) else json.dumps(body).encode()).task("m")
    return error.value.status, error.value.param


@pytest.mark.parametrize("body", [b'{"inp', b"[" * 100_000, b"[1]", b"\xff"])
def test_bodies_that_are_no_object(body: bytes) -> None:
    assert refused(EmbeddingRequest, body) == (400, None)


@pytest.mark.parametrize(
    ("given", "status", "param"),
    [
        (b'{"input": "\\ud800"}', 400, None),
        ({"model": "m"}, 400, "input"),
        ({"input": []}, 400, "input"),
        ({"input": [1, 2]}, 400, "input"),
        ({"input": [[1, 2]]}, 400, "input"),
        ({"input": ["a", 1]}, 400, "input"),
        ({"input": "a", "model": "other"}, 404, "model"),
        ({"input": "a", "model": ["m"]}, 400, "model"),
        ({"input": "a", "model": "m:query", "input_type": "document"}, 400, "input_type"),
        ({"input": "a", "input_type": "question"}, 400, "input_type"),
        ({"input": "a", "dimensions": 0}, 400, "dimensions"),
        ({"input": "a", "dimensions": True}, 400, "dimensions"),
        ({"input": "a", "encoding_format": "int8"}, 400, "encoding_format"),
        ({"input": "a", "user": 1}, 400, "user"),
        ({"input": "a", "prompt": "x"}, 400, "prompt"),
    ],
    ids=str,
)
def test_refused_embeddings(given: Any, status: int, param: str | None) -> None:
    assert refused(EmbeddingRequest, given) == (status, param)


@pytest.mark.parametrize(
    ("given", "param"),
    [
        ({}, "query"),
        ({"query": " "}, "query"),
        ({"query": ["a", ""]}, "query"),
        ({"query": []}, "query"),
        ({"query": "a", "k": 0}, "k"),
        ({"query": "a", "k": 1001}, "k"),
        ({"query": "a", "k": True}, "k"),
        ({"query": "a", "where": []}, "where"),
        ({"query": "a", "top": 1}, "top"),
    ],
    ids=str,
)
def test_refused_searches(given: Any, param: str) -> None:
    assert refused(SearchRequest, given) == (400, param)


def test_token_ids_name_the_remedy() -> None:
    """LangChain sends them by default."""
    with pytest.raises(Refusal, match="check_embedding_ctx_length=False"):
        EmbeddingRequest.parse(b'{"input": [[1, 2]]}')
