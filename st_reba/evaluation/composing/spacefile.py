"""A space as a YAML file: a mapping of :class:`Space`'s fields, each checked by name."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import Any

import yaml

from ...recipe import read_yaml
from .space import Space
from .trial import Filter


def read_space(path: str | os.PathLike[str]) -> Space:
    """Read a space; what the file does not name is as by default.

    Args:
        path: The YAML file.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: It is no mapping, or has a key or a value that the space has not; it is named.

    Example:
        >>> with open("space.yaml", "w", encoding="utf-8") as file:
        ...     _ = file.write("layers: [3, [0, 3], [2, 3, concat]]\\nfilters: [{kind: abtt, r: 2}]\\n")
        >>> space = read_space("space.yaml")
        >>> space.layers
        ((3, 3, 'mean'), (0, 3, 'mean'), (2, 3, 'concat'))
        >>> [str(each) for each in space.filters]
        ['no filter', 'abtt-2']
    """
    file = os.fspath(path)
    if not os.path.isfile(path):
        raise FileNotFoundError(f"space={file!r}: no such file. Write one: docs/COMPOSING.md has an example.")
    with open(path, encoding="utf-8") as stream:
        values = read_yaml(stream, file)
    try:
        return space_of(values)
    except ValueError as error:
        raise ValueError(f"space={file!r}: {error}") from None


def space_of(values: Any) -> Space:
    """The space of a mapping as YAML gives it.

    Args:
        values: Fields of :class:`Space`. A filter is a name, or a mapping of :class:`Filter`'s fields; layers are
            numbers, ``[first, last]`` or ``[first, last, join]``.

    Raises:
        ValueError: As for :func:`read_space`.
    """
    names = [field.name for field in fields(Space)]
    if not isinstance(values, Mapping):
        raise ValueError(f"{values!r:.60} is no mapping of {names}; write for example 'repeats: [1, 2]'.")
    if unknown := [name for name in values if name not in names]:
        raise ValueError(f"{unknown[0]!r} is not known; a space has {names}.")
    given: dict[str, Any] = {}
    for name, value in values.items():
        if name == "sinks" or (name == "layers" and value is None):
            given[name] = value
        elif not isinstance(value, list):
            raise ValueError(f"{name}={value!r:.60} must be a list.")
        elif name == "filters":
            given[name] = tuple(_filter(each) for each in value)
        elif name == "layers":
            given[name] = tuple(_layers(each) for each in value)
        else:
            given[name] = tuple(value)
    return Space(**given)


def write_space(space: Space) -> str:
    """The YAML that :func:`read_space` reads as this space.

    Args:
        space: The space.
    """
    default, values = Filter(), {name: _plain(value) for name, value in vars(space).items()}
    values["filters"] = [
        {name: value for name, value in asdict(each).items() if name == "kind" or value != getattr(default, name)}
        for each in space.filters
    ]
    return yaml.safe_dump(values, sort_keys=False, allow_unicode=True, default_flow_style=None, width=100)


def _filter(value: Any) -> Filter:
    if isinstance(value, str):
        value = {"kind": value}
    names = [field.name for field in fields(Filter)]
    if not isinstance(value, Mapping) or "kind" not in value:
        raise ValueError(f"filters: {value!r:.60} is no filter; write a name, as center, or {{kind: abtt, r: 2}}.")
    if unknown := [name for name in value if name not in names]:
        raise ValueError(f"filters: {unknown[0]!r} is not known; a filter has {names}.")
    return Filter(**value)


def _layers(value: Any) -> Any:
    """A number, or the first, the last and how they are joined."""
    if isinstance(value, list) and len(value) in (2, 3):
        return (value[0], value[1], value[2] if len(value) == 3 else "mean")
    return (value, value, "mean")


def _plain(value: Any) -> Any:
    return [_plain(each) for each in value] if isinstance(value, (tuple, list)) else value
