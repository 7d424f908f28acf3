"""Requests are checked field by field, and nothing is ignored."""

from __future__ import annotations

import json
from typing import Any

import pytest

from st_reba.serve.requests import EmbeddingRequest, Refusal, SearchRequest


def parse_embedding(**fields: object) -> EmbeddingRequest:
    body = json.dumps({"input": "a", **fields})
    return EmbeddingRequest.parse(body.encode())


@pytest.mark.parametrize(("model_name", "task"), [("m", None), ("m:query", "query")])
def test_the_models_name_chooses_the_task(model_name: str, task: str | None) -> None:
    request = parse_embedding(model=model_name, user="somebody")
    assert request.input == ["a"]
    assert request.task("m") == task


def test_without_a_name_there_is_no_task() -> None:
    assert parse_embedding().task("m") is None


@pytest.mark.parametrize(
    ("fields", "task"),
    [
        ({"task": "retrieval.query"}, "query"),  # Jina's
        ({"task": "retrieval.passage"}, "document"),
        ({"task": "text-matching"}, None),
        ({"task": "separation"}, None),
        ({"task_type": "RETRIEVAL_DOCUMENT"}, "document"),  # Google's
        ({"task_type": "SEMANTIC_SIMILARITY"}, None),
    ],
    ids=str,
)
def test_the_purposes_of_other_clients_choose_the_task(
    fields: dict[str, str], task: str | None
) -> None:
    assert parse_embedding(**fields).task("m") == task


def test_a_search_has_ten_results_by_default() -> None:
    assert SearchRequest.parse(b'{"query": "a"}').k == 10


@pytest.mark.parametrize("body", [b'{"inp', b"[" * 100_000, b'{"input": "\\ud800"}'])
def test_bodies_that_are_no_json_are_refused(body: bytes) -> None:
    with pytest.raises(Refusal) as refusal:
        EmbeddingRequest.parse(body)
    assert refusal.value.status_code == 400
    assert refusal.value.param is None


@pytest.mark.parametrize(
    ("fields", "status", "field"),
    [
        ({"model": "m"}, 400, "input"),
        ({"input": []}, 400, "input"),
        ({"input": ["a"] * 2049}, 400, "input"),
        ({"input": ["a", 1]}, 400, "input"),
        ({"input": "a", "model": "other"}, 404, "model"),
        ({"input": "a", "dimensions": True}, 400, "dimensions"),
        ({"input": "a", "encoding_format": "int8"}, 400, "encoding_format"),
        ({"input": "a", "prompt": "x"}, 400, "prompt"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_wrong_fields_of_embeddings_are_refused(
    fields: dict[str, Any], status: int, field: str
) -> None:
    with pytest.raises(Refusal) as refusal:
        EmbeddingRequest.parse(json.dumps(fields).encode()).task("m")
    assert refusal.value.status_code == status
    assert refusal.value.param == field


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"query": " "}, "query"),
        ({"query": ["a", ""]}, "query"),
        ({"query": "a", "k": 1001}, "k"),
        ({"query": "a", "where": []}, "where"),
    ],
    ids=str,
)
def test_wrong_fields_of_a_search_are_refused(fields: dict[str, Any], field: str) -> None:
    with pytest.raises(Refusal) as refusal:
        SearchRequest.parse(json.dumps(fields).encode())
    assert refusal.value.status_code == 400
    assert refusal.value.param == field


@pytest.mark.parametrize(
    ("query", "reason"),
    [
        ([], "at least 1 item"),
        (["a"] * 2049, "at most 2048 items"),
        (["a", " "], "should match pattern"),
        (3, "valid string"),
    ],
    ids=lambda value: str(value)[:20],
)
def test_a_wrong_query_is_judged_in_its_own_form(query: object, reason: str) -> None:
    with pytest.raises(Refusal, match=rf"query: .*{reason}"):
        SearchRequest.parse(json.dumps({"query": query}).encode())


def test_token_ids_name_the_remedy() -> None:
    """LangChain sends them by default."""
    with pytest.raises(Refusal) as refusal:
        EmbeddingRequest.parse(b'{"input": [[1, 2]]}')
    assert "check_embedding_ctx_length=False" in refusal.value.detail


@pytest.mark.parametrize(
    "text_input", [[["a"]], [[]], [["a", 1]], ["a", ["b"]], [[1], []], [[[1]]]]
)
def test_lists_of_lists_of_texts_are_not_called_token_ids(text_input: object) -> None:
    with pytest.raises(
        Refusal, match=r"input: send a text or a list of texts, but no list"
    ) as refusal:
        parse_embedding(input=text_input)
    assert refusal.value.status_code == 400
    assert refusal.value.param == "input"


@pytest.mark.parametrize("model_name", [None, "m", "m:query"])
def test_a_search_may_name_the_model_that_it_has(model_name: str | None) -> None:
    body = json.dumps({"query": "a", "model": model_name})
    SearchRequest.parse(body.encode()).check_model("m")


@pytest.mark.parametrize(
    ("model_name", "status", "message"),
    [
        ("other", 404, "There is no model 'other' here, but m, m:document."),
        ("m:document", 400, "model='m:document': texts are searched for as queries. Send 'm'."),
    ],
)
def test_a_search_with_another_models_name_is_refused(
    model_name: str, status: int, message: str
) -> None:
    body = json.dumps({"query": "a", "model": model_name})
    with pytest.raises(Refusal) as refusal:
        SearchRequest.parse(body.encode()).check_model("m", ["query"])
    assert refusal.value.status_code == status
    assert refusal.value.param == "model"
    assert refusal.value.detail == message


def test_a_long_name_of_an_unknown_field_is_shortened() -> None:
    with pytest.raises(Refusal) as refusal:
        parse_embedding(**{"x" * 10_000: 1})
    assert len(refusal.value.detail) < 600


@pytest.mark.parametrize(
    "fields",
    [
        {"drop_params": True},  # RAGFlow
        {"input_type": "passage", "truncate": "NONE", "user": "u"},  # NVIDIA's
        {"input_type": "query", "truncate": "END", "modality": "text"},
        {  # Voyage's
            "input_type": "document",
            "truncation": True,
            "output_dtype": "float",
            "output_dimension": None,
        },
        {"input_type": "search_query", "embedding_types": ["float"]},  # Cohere's
        {  # Jina's
            "task": "retrieval.query",
            "late_chunking": False,
            "embedding_type": "float",
            "truncate": True,
        },
        {"task_type": "search_document", "dimensions": 64},  # Nomic's
        {  # Mistral's
            "output_dtype": "float",
            "output_dimension": 64,
            "encoding_format": "float",
        },
        {  # LangChain's, LiteLLM's
            "encoding_format": "base64",
            "dimensions": None,
            "user": "u",
        },
    ],
)
def test_fields_of_widely_used_clients_pass(fields: dict[str, Any]) -> None:
    assert parse_embedding(**fields).input == ["a"]


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"input_type": "image"}, "input_type"),
        ({"input_type": 1}, "input_type"),
        ({"input_type": "passage", "model": "m:query"}, "input_type"),
        ({"input_type": "clustering", "model": "m:query"}, "input_type"),
        ({"input_type": "classification", "model": "m:document"}, "input_type"),
        ({"truncate": "START"}, "truncate"),
        ({"modality": "image"}, "modality"),
        ({"output_dtype": "int8"}, "output_dtype"),
        ({"embedding_types": ["int8"]}, "embedding_types"),
        ({"output_dimension": 0}, "output_dimension"),
        ({"task": "code.query"}, "task"),
        ({"normalized": True}, "normalized"),
        ({"task": "retrieval.query", "model": "m:document"}, "input_type"),
        ({"drop_params": "yes"}, "drop_params"),
        ({"late_chunking": True}, "late_chunking"),
    ],
)
def test_what_a_client_asks_for_and_would_not_get_is_refused(
    fields: dict[str, Any], field: str
) -> None:
    with pytest.raises(Refusal) as refusal:
        parse_embedding(**fields).task("m")
    assert refusal.value.status_code == 400
    assert refusal.value.param == field
