"""Conditions on metadata."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from indexes import build, ids_of, texts_of

from st_reba.index import Document, Index
from st_reba.index.where import parse_where

METADATA: dict[str, dict[str, Any]] = {
    "zh": {"n": 1, "lang": "zh", "tags": ["x", "y"], "on": True},
    "en": {"n": 2.5, "lang": "en", "tags": [], "on": False},
    "text": {"n": "3", "lang": "3", "a' b": 1, "on": "True", "big": 2**53 + 1},
    "upper": {"lang": "ZH", "tags": "x", "a\tb": 1},
    "wide": {"n": 2**70, "lang": "it's"},
}
ALL = ["en", "text", "upper", "wide", "zh"]
MANY_NAMES = {str(year): {"exists": False} for year in range(100)}
EXPECTED_IDS: list[tuple[Any, list[str]]] = [
    ({}, ALL),
    ({"lang": {"!=": "zh"}}, ["en", "text", "upper", "wide"]),
    ({"lang": "it's"}, ["wide"]),
    ({"n": {">": 1, "<=": 3}}, ["en", "text"]),
    ({"n": {"!=": 1}}, ["en", "text", "upper", "wide"]),
    ({"n": {">": 2**64}}, ["wide"]),
    ({"n": {"in": [1, "3"]}}, ["text", "zh"]),
    ({"n": {"in": (1, "3")}}, ["text", "zh"]),
    ({"n": {"in": {1, "3"}}}, ["text", "zh"]),
    ({"n": {"in": frozenset([1, "3"])}}, ["text", "zh"]),
    ({"n": {"in": []}}, []),
    ({"lang": "3"}, ["text"]),
    ({"lang": {">": "en"}}, ["wide", "zh"]),
    ({"tags": {"has": "x"}}, ["zh"]),
    ({"tags": {"exists": True}}, ["en", "upper", "zh"]),
    ({"tags": {"exists": False}}, ["text", "wide"]),
    ({"n": {"in": list(range(2000))}}, ["text", "zh"]),
    ({"n": {"<": 10**400}}, ["en", "text", "wide", "zh"]),
    ({"n": {">": -(10**400)}}, ["en", "text", "wide", "zh"]),
    ({"on": True}, ["text", "zh"]),
    ({"on": {"!=": True}}, ["en", "upper", "wide"]),
    ({"on": None}, ["upper", "wide"]),
    ({"on": {"!=": None}}, ["en", "text", "zh"]),
    ({"on": {"in": [False, None]}}, ["en", "upper", "wide"]),
    ({"a\tb": 1}, ["upper"]),
    ({"a' b": {">=": 1}}, ["text"]),
    ({"lang": "zh", "n": 2}, []),
    ({"big": 2**53 + 1}, ["text"]),
    ({"n": {">": -(2**63) - 1}}, ["en", "text", "wide", "zh"]),
    (MANY_NAMES, ALL),
]


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Index:
    stored_documents = [Document("cat", name, values) for name, values in METADATA.items()]
    return build(tmp_path_factory.mktemp("where") / "index", stored_documents)


def find(
    index: Index,
    where: Any,
) -> list[str]:
    return sorted(ids_of(index.search("cat", where=where)))


@pytest.mark.parametrize(("where", "expected_ids"), EXPECTED_IDS)
def test_documents_that_meet_a_condition_are_found(
    index: Index,
    where: Any,
    expected_ids: list[str],
) -> None:
    assert find(index, where) == expected_ids


def test_integers_beyond_64_bits_are_compared_as_floats(index: Index) -> None:
    ids = find(index, {"n": {"<": 2**63}})
    assert ids
    assert ids == find(index, {"n": {"<": 1e19}})


def test_few_conditions_are_cached(index: Index) -> None:
    mask_counts = set()
    for year in range(20):
        find(index, {"n": year})
        assert index._snapshots.latest is not None
        mask_counts.add(len(index._snapshots.latest.masks))
    assert max(mask_counts) == 8


def test_a_condition_that_no_document_meets_is_warned_of_once(
    index: Index,
    caplog: pytest.LogCaptureFixture,
) -> None:
    assert find(index, {"lang": "zh"})
    for _ in range(2):
        assert find(index, {"year": 2020}) == []
    metadata_names = r"a\tb, a' b, big, lang, n, on, tags".replace(r"\t", "\t")
    warnings = [message for message in caplog.messages if "no document meets" in message]
    assert warnings == [f"where: no document meets {{'year': 2020}}; there are: {metadata_names}"]


def test_a_condition_on_documents_without_metadata_is_warned_of(
    index_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert find(build(index_path, ["cat"]), {"year": 2020}) == []
    assert "where: no document meets {'year': 2020}; no document has metadata" in caplog.messages


@pytest.mark.parametrize(
    "where",
    [
        {"n": np.int64(1)},
        {"n": {"<": np.float32(2)}},
        {"n": {"in": np.array([1, 7])}},
        {"on": np.bool_(True)},
        {"n": {"in": [np.int8(1)]}},
        {"mark\ud800": "a\ud800"},
        {"mark\udcff": {"exists": np.bool_(True)}},
    ],
)
def test_values_are_compared_as_they_are_stored(
    index_path: Path,
    where: Any,
) -> None:
    """Numbers of NumPy as plain ones, and texts with U+FFFD."""
    first_metadata = {"n": 1, "on": True, "mark\ud800": "a\ud800"}
    second_metadata = {"n": 2.5, "on": False}
    stored_documents = [Document("cat", "a", first_metadata), Document("cat", "b", second_metadata)]
    index = build(index_path, stored_documents)
    assert find(index, where) == ["a"]


def test_lone_surrogates_in_a_query_are_replaced(index_path: Path) -> None:
    index = build(index_path, ["cat"])
    assert texts_of(index.search("cat\ud800", 1)) == ["cat"]


@pytest.mark.parametrize(
    ("where", "part_of_message"),
    [
        ({"n": {"~": 1}}, '"n" ~ 1: use one of'),
        ({"n": [1]}, '"n" = [1]: use one of'),
        ({"n": {"in": "abc"}}, "\"n\" in 'abc': use one of"),
        ({'a"b': 1}, "'a\"b' is not a name"),
        ({"a\\b": 1}, "'a\\\\b' is not a name"),
        ({1: 1}, "where: 1 is not a name"),
        ({"a\0b": 1}, "'a\\x00b' is not a name"),
        ({"n": {">": True}}, '"n" > True: use one of'),
        (["n"], "where=['n'] must be a dict"),
        ({"n": {"exists": "false"}}, "\"n\" exists 'false': give True"),
        ({"n": {"exists": 0}}, '"n" exists 0: give True'),
        ({"n": {"exists": None}}, '"n" exists None: give True'),
        ({"n": {}}, "'n' is not a name of a metadata value, or has no condition"),
        ({"n": float("nan")}, '"n" = nan: use one of'),
        ({"n": {"has": None}}, '"n" has None: use one of'),
        ({str(year): 1 for year in range(101)}, "must be a dict of at most 100 names"),
    ],
)
def test_wrong_conditions_are_refused(where: Any, part_of_message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(part_of_message)):
        parse_where(where)
