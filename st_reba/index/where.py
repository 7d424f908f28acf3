"""Conditions on metadata, as SQL."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from math import isfinite
from types import NoneType
from typing import Any

import numpy as np

from ..corpus.records import clean_text, to_json

OPERATORS = ("=", "!=", "<", "<=", ">", ">=", "in", "has", "exists")
# What a value at a path is as one of a type, or NULL. Text that writes a truth value or a number, as in a .csv, is one.
_VALUES: dict[Any, str] = {
    str: "CASE t WHEN 'text' THEN v END",
    bool: "CASE WHEN t IN ('true', 'false') THEN v WHEN lower(v) = 'true' THEN 1 WHEN lower(v) = 'false' THEN 0 END",
    (int, float): "CASE WHEN t IN ('integer', 'real', 'true', 'false') THEN v WHEN t = 'text' THEN CASE "
    "WHEN json_valid(v) THEN CASE WHEN json_type(v) IN ('integer', 'real') THEN CAST(v AS NUMERIC) END END END",
    NoneType: "v IS NULL",
}
_LARGEST = int(sys.float_info.max)  # as SQLite, integers of more than 64 bits are read as floats
_MOST = 100  # names, each with some conditions; SQLite nests no deeper than 1,000

Where = Mapping[str, Any]


def conditions(where: Where) -> tuple[str, list[Any]]:
    """The SQL of conditions that must all hold, and its parameters; see ``Index.search``."""
    if not isinstance(where, Mapping) or len(where) > _MOST:
        raise ValueError(f'where={where!r:.200} must be a dict of at most {_MOST} names, as {{"lang": "zh"}}')
    found: list[tuple[str, list[Any]]] = []
    for name, wanted in where.items():
        if not isinstance(name, str) or '"' in name or "\\" in name or wanted == {}:
            raise ValueError(f"where: {name!r} is no name of a metadata value, or has no condition")
        path = "'$." + to_json(clean_text(name)).replace("'", "''") + "'"
        operands = wanted if isinstance(wanted, Mapping) else {"=": wanted}
        found += [_condition(path, operator, _to_plain(value)) for operator, value in operands.items()]
    return " AND ".join(f"({sql})" for sql, _ in found) or "1", [value for _, values in found for value in values]


def _to_plain(value: Any) -> Any:
    """A value as Python has it, not NumPy; lone surrogates replaced, as in the metadata that is stored."""
    if isinstance(value, (np.generic, np.ndarray)):
        value = value.tolist()
    if isinstance(value, str):
        return clean_text(value)
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_to_plain(item) for item in value]
    return value


def _condition(path: str, operator: Any, value: Any) -> tuple[str, list[Any]]:
    kind = f"json_type(metadata, {path})"
    at = f"(SELECT json_extract(metadata, {path}) AS v, {kind} AS t)"
    if operator == "exists":
        if not isinstance(value, bool):
            raise ValueError(f"where: {path[3:-1]} exists {value!r:.200}: give True, or False for documents without it")
        return f"{kind} IS {'NOT ' if value else ''}NULL", []
    several = operator == "in" and isinstance(value, (list, tuple, set, frozenset))
    bound = [(_sql(one), _bound(one)) for one in (value if several else [value])]
    ordered = isinstance(value, (str, int, float)) and not isinstance(value, bool)
    known = several or operator in ("=", "!=") or (operator in (*OPERATORS[:6], "has") and ordered)
    if not known or None in dict(bound):
        raise ValueError(
            f"where: {path[3:-1]} {operator} {value!r:.200}: use one of {', '.join(OPERATORS)}, with a string or a "
            "number, 'in' with a list"
        )
    if several or operator in ("=", "!="):
        lists = {sql: [one for each, one in bound if each == sql] for sql in dict(bound)}
        among = {sql: "= ?" if len(each) == 1 else "IN (SELECT value FROM json_each(?))" for sql, each in lists.items()}
        found = " OR ".join(f"(SELECT {sql} FROM {at}) {each}" for sql, each in among.items()) or "0"
        values = [each[0] if len(each) == 1 else to_json(each) for each in lists.values()]
        return f"({found}) IS {'NOT ' if operator == '!=' else ''}TRUE", values
    ((sql, one),) = bound
    if operator == "has":
        return f"{kind} = 'array' AND EXISTS (SELECT 1 FROM json_each(metadata, {path}) WHERE atom = ?)", [one]
    return f"(SELECT {sql} FROM {at}) {operator} ?", [one]


def _sql(value: Any) -> str | None:
    endless = isinstance(value, float) and not isfinite(value)
    return None if endless else next((sql for types, sql in _VALUES.items() if isinstance(value, types)), None)


def _bound(value: Any) -> Any:
    wide = isinstance(value, int) and not -(2**63) <= value < 2**63
    return True if value is None else float(max(-_LARGEST, min(_LARGEST, value))) if wide else value
