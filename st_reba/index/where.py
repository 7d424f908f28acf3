"""Conditions on metadata, as SQL."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_COMPARED = {"=": "=", "!=": "IS NOT", "<": "<", "<=": "<=", ">": ">", ">=": ">="}
OPERATORS = (*_COMPARED, "in", "has", "exists")
# The value at a path as text, or as a number; else NULL. Text that writes a number, as tables of .csv hold it, is one.
_TEXT = "CASE t WHEN 'text' THEN v END"
_NUMBER = (
    "CASE WHEN t IN ('integer', 'real', 'true', 'false') THEN v WHEN t = 'text' THEN CASE WHEN json_valid(v) "
    "THEN CASE WHEN json_type(v) IN ('integer', 'real') THEN CAST(v AS NUMERIC) END END END"
)

Where = Mapping[str, Any]


def conditions(where: Where) -> tuple[str, list[Any]]:
    """The SQL of conditions that must all hold, and its parameters; see ``Index.search``."""
    if not isinstance(where, Mapping):
        raise ValueError(f'where={where!r} must be a dict, as {{"lang": "zh", "year": {{">=": 2020}}}}')
    found: list[tuple[str, list[Any]]] = []
    for name, wanted in where.items():
        if not isinstance(name, str) or '"' in name or "\\" in name:
            raise ValueError(f"where: {name!r} is no name of a metadata value")
        path = "'$.\"" + name.replace("'", "''") + "\"'"
        one = wanted if isinstance(wanted, Mapping) else {"=": wanted}
        found += [_condition(path, operator, value) for operator, value in one.items()]
    return " AND ".join(f"({sql})" for sql, _ in found) or "1", [value for _, values in found for value in values]


def _condition(path: str, operator: Any, value: Any) -> tuple[str, list[Any]]:
    kind = f"json_type(metadata, {path})"
    if operator == "exists":
        return f"{kind} IS {'NOT ' if value else ''}NULL", []
    if operator == "in" and isinstance(value, (list, tuple, set, frozenset)):
        found = [_condition(path, "=", one) for one in value]
        return " OR ".join(sql for sql, _ in found) or "0", [one for _, values in found for one in values]
    if operator in ("=", "!=") and value is None:
        return f"json_extract(metadata, {path}) IS {'NOT ' if operator == '!=' else ''}NULL", []
    if operator in ("=", "!=") and isinstance(value, bool):
        return f"{kind} {_COMPARED[operator]} '{'true' if value else 'false'}'", []
    if operator not in (*_COMPARED, "has") or isinstance(value, bool) or not isinstance(value, (str, int, float)):
        raise ValueError(
            f"where: {path[3:-1]} {operator} {value!r}: use one of {', '.join(OPERATORS)}, with a string or a number, "
            "'in' with a list"
        )
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        value = float(value)  # as SQLite reads such numbers
    if operator == "has":
        return f"{kind} = 'array' AND EXISTS (SELECT 1 FROM json_each(metadata, {path}) WHERE atom = ?)", [value]
    at = f"(SELECT json_extract(metadata, {path}) AS v, {kind} AS t)"
    return f"(SELECT {_TEXT if isinstance(value, str) else _NUMBER} FROM {at}) {_COMPARED[operator]} ?", [value]
