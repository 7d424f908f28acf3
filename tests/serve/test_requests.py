"""Requests are checked field by field, and nothing is ignored."""

from __future__ import annotations

import json
from typing import Any

import pytest

from st_reba.serve.requests import EmbeddingRequest, Refusal, SearchRequest


@pytest.mark.parametrize(
    ("asked", "task"), [({}, None), ({"model": "m"}, None), ({"model": "m:query"}, "query")], ids=str
)
def test_task(asked: dict[str, str], task: str | None) -> None:
    request = EmbeddingRequest.parse(json.dumps({"input": "a", "user": "somebody", **asked}).encode())
    assert (request.input, request.task("m")) == (["a"], task)
    assert SearchRequest.parse(b'{"query": "a"}').k == 10


@pytest.mark.parametrize(
    ("given", "status", "param"),
    [
        (b'{"inp', 400, None), (b"[" * 100_000, 400, None), (b'{"input": "\\ud800"}', 400, None),
        ({"model": "m"}, 400, "input"), ({"input": []}, 400, "input"), ({"input": ["a"] * 2049}, 400, "input"),
        ({"input": ["a", 1]}, 400, "input"), ({"input": "a", "model": "other"}, 404, "model"),
        ({"input": "a", "dimensions": True}, 400, "dimensions"),
        ({"input": "a", "encoding_format": "int8"}, 400, "encoding_format"),
        ({"input": "a", "prompt": "x"}, 400, "prompt"), ({"query": " "}, 400, "query"),
        ({"query": ["a", ""]}, 400, "query"), ({"query": "a", "k": 1001}, 400, "k"),
        ({"query": "a", "where": []}, 400, "where"),
    ],
    ids=lambda value: str(value)[:40],
)  # fmt: skip
def test_refused(given: Any, status: int, param: str | None) -> None:
    kind: Any = SearchRequest if isinstance(given, dict) and "query" in given else EmbeddingRequest
    with pytest.raises(Refusal) as error:
        kind.parse(given if isinstance(given, bytes) else json.dumps(given).encode()).task("m")
    assert (error.value.status_code, error.value.param) == (status, param)


def test_token_ids_name_the_remedy() -> None:
    """LangChain sends them by default."""
    with pytest.raises(Refusal) as error:
        EmbeddingRequest.parse(b'{"input": [[1, 2]]}')
    assert "check_embedding_ctx_length=False" in error.value.detail


@pytest.mark.parametrize(
    "fields",
    [
        {"drop_params": True},  # RAGFlow
        {"input_type": "passage", "truncate": "NONE", "user": "u"},  # NVIDIA's
        {"input_type": "query", "truncate": "END", "modality": "text"},
        {"input_type": "document", "truncation": True, "output_dtype": "float", "output_dimension": None},  # Voyage's
        {"input_type": "search_query", "embedding_types": ["float"]},  # Cohere's
        {"task": "retrieval.query", "late_chunking": False, "embedding_type": "float", "truncate": True},  # Jina's
        {"task_type": "search_document", "dimensions": 64},  # Nomic's
        {"output_dtype": "float", "output_dimension": 64, "encoding_format": "float"},  # Mistral's
        {"encoding_format": "base64", "dimensions": None, "user": "u"},  # LangChain's, LiteLLM's
    ],
)
def test_fields_of_widely_used_clients_pass(fields: dict[str, Any]) -> None:
    assert EmbeddingRequest.parse(json.dumps({"input": "a", **fields}).encode()).input == ["a"]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input_type": "image"}, "input_type"), ({"input_type": 1}, "input_type"),
        ({"input_type": "passage", "model": "m:query"}, "input_type"), ({"truncate": "START"}, "truncate"),
        ({"modality": "image"}, "modality"), ({"output_dtype": "int8"}, "output_dtype"),
        ({"embedding_types": ["int8"]}, "embedding_types"), ({"output_dimension": 0}, "output_dimension"),
        ({"task": "code.query"}, "task"), ({"normalized": True}, "normalized"),
        ({"task": "retrieval.query", "model": "m:document"}, "input_type"),
        ({"drop_params": "yes"}, "drop_params"), ({"late_chunking": True}, "late_chunking"),
    ],
)  # fmt: skip
def test_what_a_client_asks_for_and_would_not_get_is_refused(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(Refusal) as error:
        EmbeddingRequest.parse(json.dumps({"input": "a", **fields}).encode()).task("m")
    assert (error.value.status_code, error.value.param) == (400, param)
