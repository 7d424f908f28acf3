"""Conditions on metadata, as SQL."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

_COMPARED = {"=": "=", "==": "=", "!=": "IS NOT", "<": "<", "<=": "<=", ">": ">", ">=": ">="}
OPERATORS = (*_COMPARED, "in", "has", "exists")
# A number is compared with numbers, and with text that writes one, as tables of .csv hold it.
_NUMBER = "iif(typeof({0}) = 'text' AND {0} = CAST(CAST({0} AS NUMERIC) AS TEXT), CAST({0} AS NUMERIC), {0})"

Where = Mapping[str, Any]


def conditions(where: Where) -> tuple[str, list[Any]]:
    """The SQL of conditions that must all hold, and its parameters.

    Args:
        where: By the name of a metadata value: the value it must have, or a dict of operators: =, !=, <, <=, >, >=;
            "in": one of a list; "has": a list there contains it; "exists": whether there is one, True or False.

    Raises:
        ValueError: An operator or a value is not known.

    Example:
        >>> conditions({"lang": "zh"})
        ("(json_extract(metadata, ?) = ?)", ['$."lang"', 'zh'])
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


def _condition(name: str, operator: Any, value: Any, path: str) -> tuple[str, list[Any]]:
    there = "json_extract(metadata, ?)"
    if operator == "exists":
        return f"json_type(metadata, ?) IS {'NOT ' if value else ''}NULL", [path]
    if operator == "in":
        if not isinstance(value, (list, tuple, set, frozenset)):
            raise ValueError(f"where: {name!r} in {value!r}: give a list")
        found = [_condition(name, "=", one, path) for one in value]
        return " OR ".join(sql for sql, _ in found) or "0", [item for _, more in found for item in more]
    if value is None and operator in ("=", "==", "!="):
        return f"{there} IS {'NOT ' if operator == '!=' else ''}NULL", [path]
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        if not (isinstance(value, bool) and operator in ("=", "==", "!=")):
            raise ValueError(f"where: {name!r} {operator} {value!r}: compare with a string or a number")
        word = "true" if value else "false"
        return f"json_type(metadata, ?) {_COMPARED[operator]} '{word}'", [path]
    if operator == "has":
        return "EXISTS (SELECT 1 FROM json_each(metadata, ?) WHERE value = ?)", [path, value]
    if operator not in _COMPARED:
        raise ValueError(f"where: {operator!r} is not known; use one of {', '.join(OPERATORS)}")
    if isinstance(value, str):
        return f"{there} {_COMPARED[operator]} ?", [path, value]
    number = _NUMBER.format(there)
    repeated = [path] * number.count("?")
    # Text sorts behind every number in SQLite, which would make it greater than all.
    guard = "" if operator in ("=", "==", "!=") else f" AND typeof({number}) != 'text'"
    return f"{number} {_COMPARED[operator]} ?{guard}", [*repeated, value, *(repeated if guard else [])]


def parse_where(texts: Iterable[str]) -> dict[str, Any]:
    """Conditions of a command line: ``lang=zh``, ``year>=2020``, or a JSON object.

    Raises:
        ValueError: One is neither.

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
        found.setdefault(name, {})[operator] = value
    return found
