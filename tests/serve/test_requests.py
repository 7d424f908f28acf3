"""What a request asks for, field by field: each mistake is told with its field, and nothing is ignored."""

from __future__ import annotations

import json
from typing import Any

import pytest

from st_reba.serve.errors import Refusal
from st_reba.serve.requests import Sought, Wanted, read_json, sought, wanted


def test_wanted() -> None:
    plain = wanted({"input": ["a", ""], "encoding_format": "base64", "user": "somebody"}, "m", 8)
    assert plain == Wanted(["a", ""], None, None, True)
    for asked, task in (
        ({"model": "m:query"}, "query"),
        ({"input_type": "query"}, "query"),
        ({"model": "m:document", "input_type": "passage"}, "document"),
        ({"model": "m"}, None),
    ):
        assert wanted({"input": "a", **asked, "dimensions": 8}, "m", 8) == Wanted(["a"], task, 8, False)  # type: ignore[arg-type]


@pytest.mark.parametrize("body", [b'{"inp', b"[" * 100_000, b"[1]", b"\xff"])
def test_what_is_no_object(body: bytes) -> None:
    with pytest.raises(Refusal, match="no JSON|must be a JSON object") as refused:
        read_json(body)
    assert refused.value.status == 400


@pytest.mark.parametrize(
    ("given", "status", "param", "word"),
    [
        ({"input": "\ud800"}, 400, "input", "surrogate"),
        ({"model": "m"}, 400, "input", "string"),
        ({"input": []}, 400, "input", "empty"),
        ({"input": [1, 2]}, 400, "input", "check_embedding_ctx_length=False"),
        ({"input": [[1, 2]]}, 400, "input", "token ids"),
        ({"input": ["a", 1]}, 400, "input", "strings"),
        ({"input": "a", "model": "other"}, 404, "model", "m:query"),
        ({"input": "a", "model": ["m"]}, 404, "model", "m:query"),
        ({"input": "a", "model": "m:query", "input_type": "document"}, 400, "input_type", "exclude"),
        ({"input": "a", "input_type": "question"}, 400, "input_type", "'query'"),
        ({"input": "a", "dimensions": 9}, 400, "dimensions", "8"),
        ({"input": "a", "dimensions": True}, 400, "dimensions", "whole"),
        ({"input": "a", "encoding_format": "int8"}, 400, "encoding_format", "base64"),
        ({"input": "a", "user": 1}, 400, "user", "string"),
        ({"input": "a", "prompt": "x"}, 400, "prompt", "input_type"),
    ],
    ids=str,
)
def test_refused_by_field(given: dict[str, Any], status: int, param: str, word: str) -> None:
    with pytest.raises(Refusal, match=word) as refused:
        wanted(read_json(json.dumps(given).encode()), "m", 8)
    assert (refused.value.status, refused.value.param) == (status, param)


def test_sought() -> None:
    assert sought({"query": "a cat"}) == Sought(["a cat"], True, 10, None, False)
    where = {"row": {">=": 7}}
    many = sought({"query": ["a", "b"], "k": 1000, "where": where, "ids_only": True})
    assert many == Sought(["a", "b"], False, 1000, where, True)


@pytest.mark.parametrize(
    ("given", "param"),
    [
        ({}, "query"),
        ({"query": " "}, "query"),
        ({"query": ["a", ""]}, "query"),
        ({"query": "a", "k": 0}, "k"),
        ({"query": "a", "k": 1001}, "k"),
        ({"query": "a", "k": True}, "k"),
        ({"query": "a", "where": []}, "where"),
        ({"query": "a", "ids_only": 1}, "ids_only"),
        ({"query": "a", "top": 1}, "top"),
    ],
    ids=str,
)
def test_searches_that_are_refused(given: dict[str, Any], param: str) -> None:
    with pytest.raises(Refusal) as refused:
        sought(given)
    assert (refused.value.status, refused.value.param) == (400, param)
