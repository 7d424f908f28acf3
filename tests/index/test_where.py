"""Conditions on metadata."""

from __future__ import annotations

from typing import Any

import pytest
from indexes import build

from st_reba.index import Document, Index
from st_reba.index.where import conditions, parse_where

DATA: dict[str, dict[str, Any]] = {
    "a": {"n": 1, "lang": "zh", "tags": ["x", "y"], "on": True},
    "b": {"n": 2.5, "lang": "en", "tags": [], "on": False},
    "c": {"n": "3", "lang": "3", "a b": 1},
    "d": {"lang": "ZH", "tags": "x"},
    "e": {"n": 2**70, "lang": "it's"},
}


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Index:
    documents = [Document("cat", name, data) for name, data in DATA.items()]
    return build(tmp_path_factory.mktemp("where") / "index", documents)


@pytest.mark.parametrize(
    ("where", "wanted"),
    [
        ({}, "abcde"),
        ({"lang": "zh"}, "a"),
        ({"lang": {"!=": "zh"}}, "bcde"),
        ({"lang": "it's"}, "e"),
        ({"n": 1}, "a"),
        ({"n": {">": 1, "<=": 3}}, "bc"),
        ({"n": {"!=": 1}}, "bcde"),
        ({"n": {">": 2**64}}, "e"),
        ({"n": {"in": [1, "3"]}}, "ac"),
        ({"n": {"in": []}}, ""),
        ({"lang": "3"}, "c"),
        ({"lang": {">": "en"}}, "ae"),
        ({"tags": {"has": "x"}}, "a"),
        ({"tags": {"exists": True}}, "abd"),
        ({"tags": {"exists": False}}, "ce"),
        ({"on": True}, "a"),
        ({"on": {"!=": True}}, "bcde"),
        ({"on": None}, "cde"),
        ({"on": {"!=": None}}, "ab"),
        ({"a b": {">=": 1}}, "c"),
        ({"lang": "zh", "n": 2}, ""),
    ],
)
def test_conditions(index: Index, where: Any, wanted: str) -> None:
    assert "".join(sorted(one.id for one in index.search("cat", where=where))) == wanted


def test_fields_that_no_document_has_are_named(index: Index, caplog: pytest.LogCaptureFixture) -> None:
    assert index.search("cat", where={"lang": "zh", "year": 2020}) == []
    assert "'year'; there are: a b, lang, n, on, tags" in caplog.text
    caplog.clear()
    for where in ({"n": 7, "year": {"exists": False}}, {"n": 7, "year": {"!=": 1}}, {"n": 7, "year": None}, {"n": 7}):
        assert index.search("cat", where=where) == [] and not caplog.text


@pytest.mark.parametrize(
    "where",
    [{"n": {"~": 1}}, {"n": [1]}, {"n": {"in": "abc"}}, {'a"b': 1}, {1: 1}, {"n": {">": True}}, {"n": {">": None}}],
)
def test_refused(where: Any) -> None:
    with pytest.raises(ValueError):
        conditions(where)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("lang=zh", {"lang": {"=": "zh"}}),
        ("year >= 2020", {"year": {">=": 2020}}),
        ("a!=b=c", {"a": {"!=": "b=c"}}),
        ("a=true", {"a": {"=": True}}),
        ('a="1"', {"a": {"=": "1"}}),
        ('{"a": {"has": 1}}', {"a": {"has": 1}}),
    ],
)
def test_from_the_command_line(text: str, wanted: Any) -> None:
    assert parse_where([text]) == wanted


def test_several_from_the_command_line() -> None:
    assert parse_where(["a>1", "a<3", "b=x"]) == {"a": {">": 1, "<": 3}, "b": {"=": "x"}}
    for wrong in (["lang"], ["{a"], ["=x"]):
        with pytest.raises(ValueError):
            parse_where(wrong)
