"""The model zoo: known bases, each with the methods that suit it, as zoo.yaml lists them."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Any

from .recipe import Recipe, read_yaml, recipe_of


def zoo() -> list[str]:
    """The names of the zoo's models, in alphabetical order; ``build("zoo:NAME")`` builds one.

    Example:
        >>> import st_reba
        >>> [name for name in st_reba.zoo() if name.startswith("mini-")]
        ['mini-classical', 'mini-echo', 'mini-nosink', 'mini-reba']
        >>> st_reba.build("zoo:mini-reba").encode("你好").shape
        (192,)
    """
    return sorted(_models())


def recipe(name: str) -> Recipe:
    """The recipe of a model of the zoo.

    Args:
        name: One of :func:`zoo`.

    Raises:
        ValueError: There is none.

    Example:
        >>> found = recipe("mini-echo")
        >>> found.base, found.method, found.status
        ('mini', {'name': 'echo', 'pooling': 'mean'}, 'ready')
    """
    if name not in _models():
        near = get_close_matches(name, zoo(), n=3, cutoff=0.3)
        meant = f" Did you mean {' or '.join(near)}?" if near else ""
        raise ValueError(f"zoo:{name:.80} is not known.{meant} All names: st-reba zoo")
    return recipe_of(_models()[name], f"zoo:{name}", name)


def recipe_to_build(name: str, given: Mapping[str, Any]) -> Recipe:
    """The recipe of a model that is to be built, with the options ``given`` to `build`; an error where it cannot be."""
    found = recipe(name)
    remedy = {
        "old-transformers": "Use another base.",
        "remote-code": None if given.get("trust_remote_code") is True else "If you trust it: trust_remote_code=True.",
        "tune": None if given.keys() & {"k", "k0"} else f"Give k=… and k0=…, or run: st-reba tune {found.base}",
    }.get(found.status)
    if remedy:
        raise ValueError(f"zoo:{name} ({found.base}): {found.about.get('note')} {remedy}")
    return found


@cache
def _models() -> dict[str, dict[str, Any]]:
    """The models of zoo.yaml by name, each as a recipe's file would hold it."""
    known = read_yaml(Path(__file__).with_name("zoo.yaml"))
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
    """Scores of a method, from its column of the tables."""
    found = []
    for table, rows in tables.items():
        columns, *rest = rows.items()
        if ending in columns[1]:
            column = columns[1].index(ending)
            for row, values in rest:
                task, _, metric = row.rpartition(" ")
                found.append({"task": task, "metric": metric, "value": values[column], "table": table})
    return found
