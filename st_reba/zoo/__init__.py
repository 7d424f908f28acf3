"""The model zoo: models that are known, each a base with a method. Calling the module lists their names.

Scores are those that the papers print. Names on the Hub, licences and statuses were written down without downloading
anything: publishing a model confirms them, and pins the commit of its base.

>>> import st_reba
>>> [name for name in st_reba.zoo() if name.startswith("mini-")]
['mini-classical', 'mini-echo', 'mini-nosink', 'mini-quality', 'mini-reba', 'mini-speed']
>>> st_reba.build("zoo:mini-reba").encode("你好").shape
(192,)
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
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
    """The names of the zoo's models, in alphabetical order.

    Example:
        >>> len(names())
        84
    """
    return sorted([*_models(), *(path.stem for path in _RECIPES.glob("*.yaml"))])


def load(name: str | os.PathLike[str]) -> Recipe:
    """The recipe of a model.

    Args:
        name: One of :func:`names`, or a recipe's file, as ``st-reba tune`` writes it.

    Raises:
        ValueError: There is none, or it breaks the format; the message names the file, the key and what is allowed.

    Example:
        >>> recipe = load("mini-echo")
        >>> str(recipe.spec), recipe.about.status
        ('echo:pooling=mean', 'ready')
    """
    given = os.fspath(name)
    if is_recipe(given):
        return read_recipe(given)
    if given not in names():
        near = get_close_matches(given, names(), n=3, cutoff=0.3)
        raise ValueError(
            f"zoo:{given} is not known: it is no YAML file that is there and no name of the zoo"
            f"{f' (near: {near})' if near else ''}. All names: st-reba zoo list."
        )
    if given in _models():
        return recipe_of(_models()[given], f"zoo:{given}", name=given)
    return read_recipe(_RECIPES / f"{given}.yaml")


def recipe_named(name: str, given: Mapping[str, Any]) -> Recipe:
    """The recipe of a model that is to be built.

    Args:
        name: As for :func:`load`.
        given: What ``build`` was given beside it.

    Raises:
        ValueError: The base needs code of its own that is not allowed, or that does not run; or layers are to be tuned
            and not given. The message says what to do.
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
            f"zoo:{name} is to be tuned: {about.note} Run: st-reba tune {recipe.base} FILE OUT, and build "
            "OUT/recipe.yaml; or give the numbers of layers, k=… and k0=… (--k, --k0)."
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
        for each in base["sets"]:
            shared = known["sets"][each].get("about", {})
            for ending, method in known["sets"][each].items():
                if ending != "about":
                    about = {**shared, **method.get("about", {}), **base["about"]}
                    scores = list(_scores(base.get("scores", {}), ending))
                    models[f"{name}-{ending}"] = {
                        **method,
                        **own,
                        "about": {**about, **({"scores": scores} if scores else {})},
                    }
    return models


def _scores(tables: Mapping[str, Mapping[str, list[Any]]], ending: str) -> Iterator[dict[str, Any]]:
    """A method's scores, from its column of the tables."""
    for table, rows in tables.items():
        columns = rows["task metric"]
        for row, values in rows.items():
            if ending in columns and values is not columns:
                task, _, metric = row.rpartition(" ")
                yield {"task": task, "metric": metric, "value": values[columns.index(ending)], "table": table}


class _Zoo(ModuleType):
    """A module that can be called."""

    def __call__(self) -> list[str]:
        return names()


sys.modules[__name__].__class__ = _Zoo
