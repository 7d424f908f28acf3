"""Recipes: a YAML file of keyword arguments for ``build``."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping
from typing import Any


def is_recipe(base: str | os.PathLike[str]) -> bool:
    """Whether ``base`` names a recipe file rather than a model."""
    return os.fspath(base).endswith((".yaml", ".yml")) and os.path.isfile(base)


def read_recipe(path: str | os.PathLike[str], function: Callable[..., Any]) -> dict[str, Any]:
    """Read a recipe.

    Args:
        path: The YAML file, a mapping of arguments.
        function: What takes them.

    Returns:
        The arguments.

    Raises:
        ValueError: It is no mapping, names no base, or names an argument that ``function`` has not.
    """
    import yaml  # here, as a model alone does not need it

    with open(path, encoding="utf-8") as stream:
        try:
            recipe = yaml.safe_load(stream)
        except (yaml.YAMLError, UnicodeDecodeError) as error:
            raise ValueError(f"base={os.fspath(path)!r} is not YAML: {error}") from error
    if not isinstance(recipe, Mapping) or not isinstance(recipe.get("base"), str):
        raise ValueError(f"base={os.fspath(path)!r} is no recipe: it must be a mapping with a base, as 'base: mini'.")
    known = inspect.signature(function).parameters
    if unknown := [name for name in recipe if name not in known]:
        raise ValueError(f"base={os.fspath(path)!r}: the recipe has {unknown[0]!r}; build takes {list(known)}.")
    if is_recipe(recipe["base"]):
        raise ValueError(f"base={os.fspath(path)!r}: the recipe's base {recipe['base']!r} is a recipe itself.")
    return dict(recipe)


def with_recipe(given: Mapping[str, Any], function: Callable[..., Any]) -> dict[str, Any]:
    """The arguments of a call whose ``base`` is a recipe: the recipe's, but for those that the caller changed.

    Args:
        given: All arguments of the call.
        function: What was called.

    Returns:
        Arguments for the call in its place.
    """
    defaults = {name: parameter.default for name, parameter in inspect.signature(function).parameters.items()}
    changed = {name: value for name, value in given.items() if name != "base" and value != defaults[name]}
    return {**read_recipe(given["base"], function), **changed}
