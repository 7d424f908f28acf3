"""Conditions on metadata, as SQL."""

from __future__ import annotations

import contextlib
import json
import re
import sqlite3
from collections.abc import Iterable, Mapping
from typing import Any

_COMPARED = {"=": "=", "==": "=", "!=": "IS NOT", "<": "<", "<=": "<=", ">": ">", ">=": ">="}
OPERATORS = (*_COMPARED, "in", "has", "exists")
# The value at a path as text, or as a number; else NULL. Text that writes a number, as tables of .csv hold it, is one.
_AT = "FROM (SELECT json_extract(metadata, ?) AS v, json_type(metadata, ?) AS t))"
_TEXT = f"(SELECT CASE t WHEN 'text' THEN v END {_AT}"
_NUMBER = (
    "(SELECT CASE WHEN t IN ('integer', 'real', 'true', 'false') THEN v WHEN t = 'text' THEN CASE WHEN json_valid(v) "
    f"THEN CASE WHEN json_type(v) IN ('integer', 'real') THEN CAST(v AS NUMERIC) END END END {_AT}"
)
_HAS = "EXISTS (SELECT 1 FROM json_each(metadata, ?) WHERE json_type(metadata, ?) = 'array' AND atom = ?)"

Where = Mapping[str, Any]


def conditions(where: Where) -> tuple[str, list[Any]]:
    """The SQL of conditions that must all hold, and its parameters; see ``Index.search``.

    Example:
        >>> conditions({"seen": {"exists": True}})
        ('(json_type(metadata, ?) IS NOT NULL)', ['$."seen"'])
    """
    if not isinstance(where, Mapping):
        raise ValueError(f'where={where!r} must be a dict, as {{"lang": "zh", "year": {{">=": 2020}}}}')
    parts: list[str] = []
    parameters: list[Any] = []
    for name, wanted in where.items():
        if not isinstance(name, str) or '"' in name or "\\" in name:
            raise ValueError(f"where: {name!r} is no name of a metadata value")
        path = f'$."{name}"'
        for operator, value in (wanted if isinstance(wanted, Mapping) else {"=": wanted}).items():
            sql, more = _condition(name, operator, value, path)
            parts.append(f"({sql})")
            parameters += more
    return " AND ".join(parts) or "1", parameters


def unknown_field(tx: sqlite3.Connection, where: Where) -> str | None:
    """Describe a field that no document has, so that its condition holds for none; None: there is no such field."""
    there = {name for (name,) in tx.execute("SELECT DISTINCT each.key FROM documents, json_each(metadata) AS each")}
    for name, wanted in where.items():
        sql, parameters = conditions({name: wanted})
        if (
            name not in there
            and not tx.execute(f"SELECT {sql} FROM (SELECT '{{}}' AS metadata)", parameters).fetchone()[0]
        ):
            return f"no document has a field {name!r}; there are: {', '.join(sorted(there)[:20]) or 'none'}"
    return None


def _condition(name: str, operator: Any, value: Any, path: str) -> tuple[str, list[Any]]:
    if operator == "exists":
        return f"json_type(metadata, ?) IS {'NOT ' if value else ''}NULL", [path]
    if operator == "in":
        if not isinstance(value, (list, tuple, set, frozenset)):
            raise ValueError(f"where: {name!r} in {value!r}: give a list")
        found = [_condition(name, "=", one, path) for one in value]
        return " OR ".join(sql for sql, _ in found) or "0", [item for _, more in found for item in more]
    if operator not in OPERATORS:
        raise ValueError(f"where: {operator!r} is not known; use one of {', '.join(OPERATORS)}")
    if operator in ("=", "==", "!=") and (value is None or isinstance(value, bool)):
        if value is None:
            return f"json_extract(metadata, ?) IS {'NOT ' if operator == '!=' else ''}NULL", [path]
        return f"json_type(metadata, ?) {_COMPARED[operator]} '{'true' if value else 'false'}'", [path]
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        raise ValueError(f"where: {name!r} {operator} {value!r}: compare with a string or a number")
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        value = float(value)  # as SQLite reads such numbers
    if operator == "has":
        return _HAS, [path, path, value]
    return f"{_TEXT if isinstance(value, str) else _NUMBER} {_COMPARED[operator]} ?", [path, path, value]


def parse_where(texts: Iterable[str]) -> dict[str, Any]:
    """Conditions of a command line: ``lang=zh``, ``year>=2020``, or a JSON object.

    Example:
        >>> parse_where(["lang=zh", "year>=2020", '{"tags": {"has": "a"}}'])
        {'lang': {'=': 'zh'}, 'year': {'>=': 2020}, 'tags': {'has': 'a'}}
    """
    found: dict[str, Any] = {}
    for text in texts:
        if text.lstrip().startswith("{"):
            try:
                found |= json.loads(text)
            except ValueError as error:
                raise ValueError(f"--where {text!r} is no JSON ({error})") from None
            continue
        parts = re.fullmatch(r"\s*([^=<>!]+?)\s*(==|!=|<=|>=|=|<|>)\s*(.*?)\s*", text, re.DOTALL)
        if parts is None:
            raise ValueError(f"--where {text!r}: write NAME=VALUE, NAME>=VALUE (or !=, <, <=, >), or a JSON object")
        name, operator, value = parts.groups()
        with contextlib.suppress(ValueError):
            value = json.loads(value)
        if not isinstance(found.setdefault(name, {}), dict):
            raise ValueError(f"--where {text!r}: {name!r} has a value already; write all its operators in one object")
        found[name][operator] = value
    return found
