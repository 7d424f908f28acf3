"""The short form of options: ``field=value,field=value``, and of a pipeline ``method:…+stage:…+stage:…``."""

from __future__ import annotations

import types
from collections.abc import Sequence
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from .modules.options import Options, alternatives, unknown

_T = TypeVar("_T", bound=Options)


def cut(text: str, mark: str) -> list[str]:
    """A text cut at a mark; what stands in quotes is left alone, empty parts are dropped."""
    parts, quoted = [""], ""
    for character in text:
        if character in "\"'" and quoted in ("", character):
            quoted = "" if quoted else character
        if character == mark and not quoted:
            parts.append("")
        else:
            parts[-1] += character
    return [part for part in parts if part.strip()]


def read_fields(text: str, kinds: Sequence[type[Options]], title: str) -> dict[str, Any]:
    """The values of ``field=value,field=value``; a list's items are separated by spaces.

    Args:
        text: The short form.
        kinds: Options that may have the fields.
        title: How messages call them.

    Raises:
        ValueError: A part without a value, or an unknown field.
    """
    hints = {name: hint for kind in kinds for name, hint in get_type_hints(kind).items() if name in kind.names()}
    values: dict[str, Any] = {}
    for part in cut(text, ","):
        name, equals, value = (each.strip() for each in part.partition("="))
        if not equals:
            raise ValueError(f"{title}: {part!r} must be written field=value; the fields are {list(hints)}.")
        if name not in hints:
            raise ValueError(unknown(f"{title}: {name}", name, list(hints), value))
        values[name] = read_value(value, hints[name])
    return values


def read_options(text: str, kind: type[_T]) -> _T:
    """Options from their short form."""
    return kind.of(read_fields(text, [kind], kind.name))


def read_value(text: str, hint: Any) -> Any:
    """A value of the short form or the command line, by its field's type; what fits none stays a text."""
    kinds = alternatives(hint)
    if len(text) > 1 and text[0] == text[-1] and text[0] in "\"'":
        return text[1:-1]
    if text == "None" and types.NoneType in kinds:
        return None
    for kind in kinds:
        if kind is bool and text.lower() in ("true", "false"):
            return text.lower() == "true"
        if kind in (int, float):
            try:
                return kind(text)
            except ValueError:
                continue
        if get_origin(kind) is tuple and str not in kinds:
            inner = alternatives(get_args(kind)[0])
            return tuple(read_value(each, inner[0] if len(inner) == 1 else str) for each in text.split())
    return text


def write_options(options: Options) -> str:
    """Options in the short form: their name, and the fields that are not at their default."""
    given = ",".join(f"{name}={_written(value)}" for name, value in options.to_dict().items())
    return f"{options.name}:{given}" if given else options.name


def _written(value: Any) -> str:
    if isinstance(value, list):
        return " ".join(map(str, value))
    text = str(value)
    quote = "'" if '"' in text else '"'
    return f"{quote}{text}{quote}" if any(mark in text for mark in ",+'\"") else text
