"""Conditions on metadata, as SQL."""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite
from typing import Any, TypeAlias

import numpy as np

from ..corpus.records import clean_text, json_line
from .schema import IN_JSON_ARRAY

_COMPARISONS = ("=", "!=", "<", "<=", ">", ">=")
OPERATORS = (*_COMPARISONS, "in", "has", "exists")
# A metadata value v of JSON type t, as a value of one kind; NULL if it is of another. Text that
# spells a truth value or a number, as in a .csv, counts as one.
_AS_TEXT = "CASE t WHEN 'text' THEN v END"
_AS_TRUTH = """
CASE WHEN t IN ('true', 'false') THEN v
WHEN lower(v) = 'true' THEN 1
WHEN lower(v) = 'false' THEN 0 END
"""
_AS_NUMBER = """
CASE WHEN t IN ('integer', 'real', 'true', 'false') THEN v
WHEN t = 'text' THEN
CASE WHEN json_valid(v) THEN
CASE WHEN json_type(v) IN ('integer', 'real') THEN CAST(v AS NUMERIC) END END END
"""
_IS_NULL = "v IS NULL"

_MAX_FLOAT = int(sys.float_info.max)
_MAX_INTEGER = 2**63  # SQLite reads larger ones as floats
_MAX_NAMES = 100  # each with some conditions; SQLite nests no deeper than 1,000

Value: TypeAlias = str | bool | int | float | None
"""A value that metadata are compared with."""

Where = Mapping[str, Any]
"""By name, a value, or values by operators."""


@dataclass(frozen=True)
class Condition:
    """A condition in SQL, and its parameters."""

    sql: str
    parameters: tuple[Value, ...] = ()


def parse_where(where: Where) -> Condition:
    """Conditions that must all hold; see ``Index.search``."""
    if not isinstance(where, Mapping) or len(where) > _MAX_NAMES:
        raise ValueError(
            f'where={where!r:.200} must be a dict of at most {_MAX_NAMES} names, as {{"lang": "zh"}}'
        )
    clauses: list[str] = []
    parameters: list[Value] = []
    for name, operands in where.items():
        is_name = isinstance(name, str) and not {'"', "\\", "\0"} & set(name)
        if not is_name or operands == {}:
            raise ValueError(
                f"where: {name!r} is not a name of a metadata value, or has no condition"
            )
        if not isinstance(operands, Mapping):
            operands = {"=": operands}
        field = _Field(name)
        for operator, operand in operands.items():
            condition = field.condition(operator, _to_python(operand))
            clauses.append(f"({condition.sql})")
            parameters += condition.parameters
    return Condition(" AND ".join(clauses) or "1", tuple(parameters))


def _to_python(value: Any) -> Any:
    """A value without NumPy's types and without lone surrogates, as stored metadata are."""
    if isinstance(value, (np.generic, np.ndarray)):
        value = value.tolist()
    if isinstance(value, str):
        return clean_text(value)
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_to_python(item) for item in value]
    return value


class _Field:
    """A metadata value by its name."""

    def __init__(self, name: str) -> None:
        self._json_name = json_line(clean_text(name))
        path = f"$.{self._json_name}".replace("'", "''")
        self._path = f"'{path}'"
        self._type = f"json_type(metadata, {self._path})"

    def condition(self, operator: object, operand: object) -> Condition:
        if operator == "exists":
            return self._exists(operand)
        if operator == "in" and isinstance(operand, list):
            return self._is_any(operator, operand)
        if operator in ("=", "!="):
            condition = self._is_any(operator, [operand])
            if operator == "!=":
                return Condition(f"NOT ({condition.sql})", condition.parameters)
            return condition
        is_ordered = isinstance(operand, (str, int, float)) and not isinstance(operand, bool)
        if is_ordered and operator in (*_COMPARISONS, "has"):
            return self._compare(str(operator), operand)
        raise self._refusal(operator, operand)

    def _exists(self, operand: object) -> Condition:
        if operand is True:
            return Condition(f"{self._type} IS NOT NULL")
        if operand is False:
            return Condition(f"{self._type} IS NULL")
        raise ValueError(
            f"where: {self._json_name} exists {operand!r:.200}: give True, or False for documents without it"
        )

    def _is_any(self, operator: object, operands: list[Any]) -> Condition:
        """Equal to one of some values, which are compared by their kinds."""
        values_by_kind = defaultdict[str, list[Value]](list)
        for operand in operands:
            values_by_kind[self._kind_of(operator, operand)].append(_to_sqlite(operand))
        clauses = []
        parameters = []
        for value_kind, values in values_by_kind.items():
            clauses.append(f"{self._value_as(value_kind)} {IN_JSON_ARRAY}")
            parameters.append(json_line(values))
        sql = " OR ".join(clauses) or "0"
        return Condition(f"({sql}) IS TRUE", tuple(parameters))

    def _compare(self, operator: str, operand: Any) -> Condition:
        value_kind = self._kind_of(operator, operand)
        value = _to_sqlite(operand)
        if operator == "has":
            items = f"(SELECT 1 FROM json_each(metadata, {self._path}) WHERE atom = ?)"
            return Condition(f"{self._type} = 'array' AND EXISTS {items}", (value,))
        return Condition(f"{self._value_as(value_kind)} {operator} ?", (value,))

    def _value_as(self, value_kind: str) -> str:
        typed_value = f"(SELECT json_extract(metadata, {self._path}) AS v, {self._type} AS t)"
        return f"(SELECT {value_kind} FROM {typed_value})"

    def _kind_of(self, operator: object, operand: object) -> str:
        """The SQL of a metadata value as one of an operand's kind."""
        if operand is None:
            return _IS_NULL
        if isinstance(operand, str):
            return _AS_TEXT
        if isinstance(operand, bool):
            return _AS_TRUTH
        if isinstance(operand, int) or (isinstance(operand, float) and isfinite(operand)):
            return _AS_NUMBER
        raise self._refusal(operator, operand)

    def _refusal(self, operator: object, operand: object) -> ValueError:
        choices = ", ".join(OPERATORS)
        return ValueError(
            f"where: {self._json_name} {operator} {operand!r:.200}: use one of {choices}, with a "
            "string or a number, 'in' with a list"
        )


def _to_sqlite(value: Value) -> Value:
    if value is None:
        return True  # compared with "v IS NULL"
    if isinstance(value, int) and not -_MAX_INTEGER <= value < _MAX_INTEGER:
        return float(max(-_MAX_FLOAT, min(_MAX_FLOAT, value)))
    return value
