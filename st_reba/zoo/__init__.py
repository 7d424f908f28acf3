"""The model zoo: known bases, each with the methods that suit it. Calling the module lists the models' names.

>>> import st_reba
>>> [name for name in st_reba.zoo() if name.startswith("mini-")]
['mini-classical', 'mini-echo', 'mini-nosink', 'mini-quality', 'mini-reba', 'mini-speed']
>>> st_reba.build("zoo:mini-reba").encode("你好").shape
(192,)
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from ..recipe import Recipe, is_recipe, read_recipe, read_yaml, recipe_of

__all__ = ["load", "names", "recipe_named"]

_BASES = Path(__file__).with_name("bases.yaml")
# Models that are like no other have a file of their own.
_RECIPES = Path(__file__).with_name("recipes")


def names() -> list[str]:
    """The names of the zoo's models, in alphabetical order."""
    return sorted([*_models(), *(path.stem for path in _RECIPES.glob("*.yaml"))])


def load(name: str | os.PathLike[str]) -> Recipe:
    """The recipe of a model.

    Args:
        name: One of :func:`names`, or a recipe's file, as ``st-reba compose`` writes it.

    Raises:
        ValueError: There is none, or it breaks the format.

    Example:
        >>> recipe = load("mini-echo")
        >>> str(recipe.spec), recipe.about.status
        ('echo:pooling=mean', 'ready')
    """
    given = os.fspath(name)
    if is_recipe(given):
        return read_recipe(given)
    if given in _models():
        return recipe_of(_models()[given], f"zoo:{given}", name=given)
    if given in names():
        return read_recipe(_RECIPES / f"{given}.yaml")
    near = get_close_matches(given, names(), n=3, cutoff=0.3)
    meant = f" Did you mean {' or '.join(map(repr, near))}?" if near else ""
    lacks = "there is no such file" if given.endswith((".yaml", ".yml")) else "the zoo has no such name"
    raise ValueError(f"zoo:{given} is not known: {lacks}.{meant} All names: st-reba zoo")


def recipe_named(name: str, given: Mapping[str, Any]) -> Recipe:
    """The recipe of a model that is to be built; arguments as for :func:`load`, and what ``build`` was given beside it.

    Raises:
        ValueError: The base needs code of its own that is not allowed, or that does not run; or layers are to be tuned
            and not given.
    """
    recipe = load(name)
    about = recipe.about
    if about.status == "old-transformers":
        raise ValueError(f"zoo:{name} cannot be built (old-transformers): {about.note}")
    if about.status == "remote-code" and given.get("trust_remote_code") is not True:
        raise ValueError(
            f"zoo:{name} needs code from its base's repository (remote-code): {about.note} If you trust "
            f"{recipe.base!r}, give trust_remote_code=True (--trust-remote-code)."
        )
    if about.status == "tune" and not any(given.get(option) is not None for option in ("k", "k0", "stages")):
        raise ValueError(
            f"zoo:{name} is to be tuned: {about.note} Run: st-reba compose {recipe.base} FILE OUT --preset "
            "nosink, and build OUT/recipe.yaml; or give the numbers of layers, k=… and k0=… (--k, --k0)."
        )
    return recipe


@cache
def _models() -> dict[str, dict[str, Any]]:
    """The models of bases.yaml by name, each as a recipe's file would hold it."""
    with open(_BASES, encoding="utf-8") as stream:
        known = read_yaml(stream, _BASES.name)
    models = {}
    for name, base in known["bases"].items():
        own = {key: value for key, value in base.items() if key not in ("sets", "about", "scores")}
        for methods in (known["sets"][each] for each in base["sets"]):
            for ending, method in methods.items():
                if ending != "about":
                    about = {**methods.get("about", {}), **method.get("about", {}), **base["about"]}
                    if scores := _scores(base.get("scores", {}), ending):
                        about["scores"] = scores
                    models[f"{name}-{ending}"] = {**method, **own, "about": about}
    return models


def _scores(tables: Mapping[str, Mapping[str, list[Any]]], ending: str) -> list[dict[str, Any]]:
    """A method's scores, from its column of the tables."""
    found = []
    for table, rows in tables.items():
        columns, *rest = rows.items()
        if ending in columns[1]:
            column = columns[1].index(ending)
            for row, values in rest:
                task, _, metric = row.rpartition(" ")
                found.append({"task": task, "metric": metric, "value": values[column], "table": table})
    return found


class _Zoo(ModuleType):
    """A module that can be called."""

    def __call__(self) -> list[str]:
        return names()


sys.modules[__name__].__class__ = _Zoo
