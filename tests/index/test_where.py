"""Conditions on metadata: every operator against a plain Python loop, and what is refused."""

from __future__ import annotations

import json
import random
import sqlite3
from typing import Any

import pytest

from st_reba.index.where import OPERATORS, conditions, parse_where

VALUES: list[Any] = [
    *(None, True, False, 0, 1, -7, 2020, 2**40, 0.5, 2020.0, -1e300, "zh", "en", "", "é 中 😀", "it's", 'a"b', "%"),
    # As tables of .csv hold them: numbers in text, and what only looks like one.
    *("2020", "9.90", "-7", "1e3", "007", "2020-05-01", "12 apples", "0x10", "true", "null", '["a"]', "[1]"),
    *(["a", "b", 1, True, None], [], ["2020", 2020], [["a"]], {"a": 1}, {"n": {"m": "zh"}}),
]
WANTED: list[Any] = [*(0, 1, -7, 2020, 9.9, 1e3, 0.5, 7, 2**70, "zh", "2020", "", "é 中 😀", '["a"]', "a", "it's")]
# SQL, paths of JSON, globs: to a name they are letters.
NAMES = ["lang", "a.b", "x'); DROP TABLE documents; --", "[0]", "$", "名", "a b", "*", ""]


def number(value: Any) -> Any:
    """The number that a value is or writes; None: none."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            return None
        return value if isinstance(value, (int, float)) and not isinstance(value, bool) else None
    return value if isinstance(value, (bool, int, float)) else None


def holds(metadata: dict[str, Any], name: str, operator: str, wanted: Any) -> bool:
    """What the documentation says."""
    value = metadata.get(name)
    if operator == "exists":
        return (name in metadata) == wanted
    if operator == "in":
        return any(holds(metadata, name, "=", one) for one in wanted)
    if operator == "has":
        return isinstance(value, list) and any(
            one == wanted and isinstance(one, str) == isinstance(wanted, str) for one in value
        )
    if operator == "!=":
        return not holds(metadata, name, "=", wanted)
    if wanted is None or isinstance(wanted, bool):
        return value is wanted
    value = number(value) if not isinstance(wanted, str) else value if isinstance(value, str) else None
    if value is None:
        return False
    return {
        "=": value == wanted, "==": value == wanted, "<": value < wanted, "<=": value <= wanted,
        ">": value > wanted, ">=": value >= wanted,
    }[operator]  # fmt: skip


@pytest.fixture(scope="module")
def rows() -> list[dict[str, Any]]:
    drawn = random.Random(0)
    return [{name: drawn.choice(VALUES) for name in NAMES if drawn.random() < 0.8} for _ in range(300)]


@pytest.fixture(scope="module")
def table(rows: list[dict[str, Any]]) -> sqlite3.Connection:
    connection = sqlite3.connect(":memory:")
    connection.execute("CREATE TABLE documents (key INTEGER PRIMARY KEY, metadata TEXT NOT NULL)")
    lines = ((key, json.dumps(row, ensure_ascii=False)) for key, row in enumerate(rows))
    connection.executemany("INSERT INTO documents VALUES (?, ?)", lines)
    return connection


def matching(table: sqlite3.Connection, where: Any) -> list[int]:
    sql, parameters = conditions(where)
    return [key for (key,) in table.execute(f"SELECT key FROM documents WHERE {sql} ORDER BY key", parameters)]


@pytest.mark.parametrize("operator", OPERATORS)
def test_operators(rows: list[dict[str, Any]], table: sqlite3.Connection, operator: str) -> None:
    wanted: list[Any] = {
        "exists": [True, False],
        "in": [[], ["zh", 2020], (True, None, "é 中 😀"), {9.9}],
    }.get(operator, WANTED)
    if operator in ("=", "==", "!="):
        wanted = [*wanted, None, True, False]
    for name in NAMES:
        for value in wanted:
            expected = [key for key, row in enumerate(rows) if holds(row, name, operator, value)]
            assert matching(table, {name: {operator: value}}) == expected, (name, operator, value)


def test_several_conditions_must_all_hold(rows: list[dict[str, Any]], table: sqlite3.Connection) -> None:
    where = {"lang": {">": -100, "<=": 2020}, "名": {"!=": "zh"}, "$": {"exists": True}}
    expected = [
        key
        for key, row in enumerate(rows)
        if all(holds(row, name, operator, value) for name, one in where.items() for operator, value in one.items())
    ]
    assert 0 < len(expected) < len(rows) and matching(table, where) == expected
    assert matching(table, {"lang": "zh"}) == matching(table, {"lang": {"=": "zh"}})
    assert matching(table, {}) == list(range(len(rows)))


@pytest.mark.parametrize(
    ("where", "message"),
    [
        ("lang=zh", "must be a dict"),
        ({'a"b': 1}, "is no name"),
        ({"a\\b": 1}, "is no name"),
        ({3: 1}, "is no name"),
        ({"a": {"~": 1}}, "'~' is not known; use one of =, .*exists"),
        ({"a": {"= 1 OR 1": 1}}, "is not known"),
        ({"a": {None: 1}}, "is not known"),
        ({"a": {"in": "zh"}}, "give a list"),
        ({"a": ["zh"]}, "compare with a string or a number"),
        ({"a": {"<": None}}, "compare with"),
        ({"a": {">=": True}}, "compare with"),
        ({"a": {"has": ["x"]}}, "compare with"),
    ],
)
def test_refused(where: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        conditions(where)


def test_command_line() -> None:
    texts = ["lang=zh", " year >= 2020", "year<2024", "a!=null", "b==true", "c=007", "d= x = y ", '{"t": {"has": "é"}}']
    assert parse_where(texts) == {
        **{"lang": {"=": "zh"}, "year": {">=": 2020, "<": 2024}, "a": {"!=": None}, "b": {"==": True}},
        **{"c": {"=": "007"}, "d": {"=": "x = y"}, "t": {"has": "é"}},
    }
    for wrong in ("lang", "=zh", "{lang}"):
        with pytest.raises(ValueError, match="--where"):
            parse_where([wrong])
    with pytest.raises(ValueError, match="has a value already"):
        parse_where(['{"a": 1}', "a>0"])
