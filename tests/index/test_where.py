"""Conditions on metadata."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from indexes import build

from st_reba.index import Document
from st_reba.index.where import parse_where

DATA: dict[str, dict[str, Any]] = {
    "a": {"n": 1, "lang": "zh", "tags": ["x", "y"], "on": True},
    "b": {"n": 2.5, "lang": "en", "tags": [], "on": False},
    "c": {"n": "3", "lang": "3", "a' b": 1, "on": "True", "big": 2**53 + 1},
    "d": {"lang": "ZH", "tags": "x", "a\tb": 1},
    "e": {"n": 2**70, "lang": "it's"},
}
FOUND: list[tuple[Any, str]] = [
    ({}, "abcde"), ({"lang": {"!=": "zh"}}, "bcde"), ({"lang": "it's"}, "e"), ({"n": {">": 1, "<=": 3}}, "bc"),
    ({"n": {"!=": 1}}, "bcde"), ({"n": {">": 2**64}}, "e"), ({"n": {"in": [1, "3"]}}, "ac"), ({"n": {"in": []}}, ""),
    ({"lang": "3"}, "c"), ({"lang": {">": "en"}}, "ae"), ({"tags": {"has": "x"}}, "a"),
    ({"tags": {"exists": True}}, "abd"), ({"tags": {"exists": False}}, "ce"),
    ({"n": {"in": list(range(2000))}}, "ac"), ({"n": {"<": 10**400}}, "abce"), ({"on": True}, "ac"),
    ({"on": {"!=": True}}, "bde"), ({"on": None}, "de"), ({"on": {"!=": None}}, "abc"),
    ({"on": {"in": [False, None]}}, "bde"), ({"a\tb": 1}, "d"), ({"a' b": {">=": 1}}, "c"),
    ({"lang": "zh", "n": 2}, ""), ({"big": 2**53 + 1}, "c"), ({"n": {">": -(2**63) - 1}}, "abce"),
    ({str(n): {"exists": False} for n in range(100)}, "abcde"),
]  # fmt: skip


def test_conditions(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    index = build(tmp_path / "index", [Document("cat", name, data) for name, data in DATA.items()])
    for where, wanted in FOUND:
        assert "".join(sorted(one.id for one in index.search("cat", where=where))) == wanted, where
    assert index._snapshots.latest is not None and len(FOUND) > 8 >= len(
        index._snapshots.latest.masks
    )
    assert (
        index.search("cat", where={"year": 2020}) == []
        and caplog.text.count("no document meets") == 3
    )
    assert (
        "no document meets {'year': 2020}; there are: a\tb, a' b, big, lang, n, on, tags"
        in caplog.text
    )
    assert (
        len(index.search("cat", where={"n": {"<": 2**63}}))
        == len(index.search("cat", where={"n": {"<": 1e19}}))
        > 0
    )


def test_values_of_numpy_and_lone_surrogates(tmp_path: Path) -> None:
    """They are compared as what is stored of them: plain numbers, and texts with U+FFFD."""
    metadata = [{"n": 1, "on": True, "mark\ud800": "a\ud800"}, {"n": 2.5, "on": False}]
    index = build(
        tmp_path / "index",
        [Document("cat", str(number), data) for number, data in enumerate(metadata)],
    )
    conditions_of_the_first: list[dict[str, Any]] = [
        {"n": np.int64(1)}, {"n": {"<": np.float32(2)}}, {"n": {"in": np.array([1, 7])}}, {"on": np.bool_(True)},
        {"n": {"in": [np.int8(1)]}}, {"mark\ud800": "a\ud800"}, {"mark\udcff": {"exists": np.bool_(True)}},
    ]  # fmt: skip
    for where in conditions_of_the_first:
        assert [result.id for result in index.search("cat", where=where)] == ["0"], where
    assert [result.text for result in index.search("cat\ud800", 1)] == ["cat"]


WRONG: list[Any] = [
    {"n": {"~": 1}},
    {"n": [1]},
    {"n": {"in": "abc"}},
    {'a"b': 1},
    {1: 1},
    {"n": {">": True}},
    ["n"],
]
WRONG += [
    {"n": {"exists": "false"}},
    {"n": {"exists": 0}},
    {"n": {"exists": None}},
    {"n": {}},
    {"n": float("nan")},
    {"n": {"has": None}},
    {str(n): 1 for n in range(101)},
]


@pytest.mark.parametrize("where", WRONG)
def test_refused(where: Any) -> None:
    with pytest.raises(ValueError):
        parse_where(where)
