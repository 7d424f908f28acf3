"""The format of recipes: a YAML file of keyword arguments for ``build`` and, under ``about``, facts of the model.

``about`` changes no vector: ``build`` checks it and leaves it alone. Its keys are the fields of :class:`About`. A
``postfilter`` is the name of a file, relative to the recipe's folder.
"""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from math import isfinite
from types import UnionType
from typing import IO, Any, Literal, Union, get_args, get_origin, get_type_hints

PAPERS = ("reba", "echo", "nosink")
STATUSES = ("ready", "remote-code", "old-transformers", "tune")


@dataclass(frozen=True)
class Score:
    """A figure for exactly this base and method: a paper's, or one that was measured.

    Args:
        task: Of a benchmark, or the benchmark itself where it is an average.
        metric: As the evaluation calls it; ``main_score``: each task's own.
        value: As printed there.
        table: Where it stands, as ``"Table 2"`` of the paper.
    """

    task: str
    metric: str
    value: float
    table: str


@dataclass(frozen=True)
class About:
    """Facts of a recipe's model.

    Args:
        language: ISO 639 codes.
        licence: Of the base, as the Hub's card metadata spells it; ``"other"``: not in that list, or not known.
        licence_link: Where its text is.
        parameters: Of the base, as ``"7B"``.
        paper: The one that ran this base by this method: ``"reba"``, ``"echo"`` or ``"nosink"``; None: none of them.
        scores: That paper's.
        measured: What was measured with this very recipe.
        status: ``"ready"``; ``"remote-code"``: the base needs its own modelling code; ``"old-transformers"``: that
            code does not run with the versions of transformers that st_reba needs; ``"tune"``: layers are to be tuned.
        note: Why it is not ready, or what was chosen.
    """

    language: tuple[str, ...] = ()
    licence: str | None = None
    licence_link: str | None = None
    parameters: str | None = None
    paper: Literal["reba", "echo", "nosink"] | None = None
    scores: tuple[Score, ...] = ()
    measured: tuple[Score, ...] = ()
    status: Literal["ready", "remote-code", "old-transformers", "tune"] = "ready"
    note: str | None = None


def is_recipe(base: str | os.PathLike[str]) -> bool:
    """Whether ``base`` names a recipe file rather than a model."""
    return os.fspath(base).endswith((".yaml", ".yml")) and os.path.isfile(base)


def read_recipe(path: str | os.PathLike[str], function: Callable[..., Any]) -> tuple[dict[str, Any], About]:
    """Read a recipe.

    Args:
        path: The YAML file.
        function: What takes its arguments: ``build``.

    Returns:
        The arguments, and the facts; without ``about``, those by default.

    Raises:
        ValueError: It is no mapping with a base, or has a key or a type of value that the format has not; the message
            names the file, the key and what is allowed.
    """
    file = os.fspath(path)
    with open(path, encoding="utf-8") as stream:
        recipe = read_yaml(stream, file)
    if not isinstance(recipe, Mapping) or not isinstance(recipe.get("base"), str):
        raise ValueError(f"{file!r} is no recipe: it must be a mapping with a base, as 'base: mini'.")
    arguments = {name: value for name, value in recipe.items() if name != "about"}
    known, hints = inspect.signature(function).parameters, get_type_hints(function)
    for name, value in arguments.items():
        if name not in known:
            raise ValueError(f"{file!r}: the recipe has {name!r}; build takes {list(known)}, and about: is for facts.")
        if not _fits(value, hints[name]):
            raise ValueError(f"{file!r}: {name}={value!r} must be {known[name].annotation}.")
    if is_recipe(recipe["base"]):
        raise ValueError(f"{file!r}: the recipe's base {recipe['base']!r} is a recipe itself.")
    return arguments, _about(recipe["about"], file) if "about" in recipe else About()


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
    return {**located(read_recipe(given["base"], function)[0], given["base"]), **changed}


def located(arguments: Mapping[str, Any], path: str | os.PathLike[str]) -> dict[str, Any]:
    """A recipe's arguments, the files among them found from here.

    Args:
        arguments: As :func:`read_recipe` gives them.
        path: The recipe.
    """
    found = dict(arguments)
    if isinstance(name := found.get("postfilter"), str):
        found["postfilter"] = os.path.join(os.path.dirname(os.fspath(path)), name)
    return found


def read_yaml(stream: IO[str], file: str) -> Any:
    """Read YAML without tags, in which no key stands twice.

    Args:
        stream: The open file.
        file: What messages call it.

    Raises:
        ValueError: It is not YAML, or a key stands twice.
    """
    import yaml  # here, as a model alone does not need it

    class Loader(yaml.SafeLoader):
        def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
            keys = [key.value for key, _ in node.value]
            if twice := [key for key in keys if keys.count(key) > 1]:
                # YAML's own reader would take the last one and say nothing.
                raise ValueError(f"{file!r}: the key {twice[0]!r} stands twice. Keep one.")
            return super().construct_mapping(node, deep)

    try:
        return yaml.load(stream, Loader)
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ValueError(f"{file!r} is not YAML: {error}") from error


def _fits(value: object, hint: Any) -> bool:
    """Whether a value that YAML can write is of an annotated type."""
    kind = get_origin(hint) or hint
    if kind in (Union, UnionType):
        return any(_fits(value, each) for each in get_args(hint))
    if kind is Literal:
        return any(type(value) is type(each) and value == each for each in get_args(hint))
    if kind is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return kind is Any or isinstance(value, kind)


def _text(value: object) -> bool:
    return isinstance(value, str) and bool(value.strip()) and "\n" not in value


def _codes(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(each, str) and re.fullmatch("[a-z]{2,3}", each) for each in value)


# Of each key: what it must be, in code and in words.
_ABOUT: dict[str, tuple[Callable[[Any], Any], str]] = {
    "language": (_codes, "a list of ISO 639 codes, as [zh, en]"),
    "licence": (
        lambda value: isinstance(value, str) and re.fullmatch(r"[a-z0-9][a-z0-9.+-]*", value),
        "a licence as the Hub's card metadata spells it, as apache-2.0, mit, llama3.2, or other",
    ),
    "licence_link": (
        lambda value: value is None or (_text(value) and value.startswith("https://")),
        "an address that begins with https://, or null",
    ),
    "parameters": (
        lambda value: isinstance(value, str) and re.fullmatch(r"\d+(\.\d+)?[MB]", value),
        "a number of parameters, as 7B or 0.6B or 102M",
    ),
    "paper": (lambda value: value is None or value in PAPERS, f"one of {list(PAPERS)}, or null"),
    "scores": (lambda value: isinstance(value, list), "a list of scores"),
    "measured": (lambda value: isinstance(value, list), "a list of scores"),
    "status": (lambda value: value in STATUSES, f"one of {list(STATUSES)}"),
    "note": (lambda value: value is None or _text(value), "a sentence on one line, or null"),
}
_SCORE: dict[str, tuple[Callable[[Any], Any], str]] = {
    "task": (_text, "a text"),
    "metric": (_text, "a text"),
    "value": (
        lambda value: isinstance(value, (int, float)) and not isinstance(value, bool) and isfinite(value),
        "a number",
    ),
    "table": (_text, "a text, as 'Table 2'"),
}


def _about(given: object, file: str) -> About:
    values = checked_values(given, "about", _ABOUT, file)
    scores = {name: _scores(values.get(name, []), f"about.{name}", file) for name in ("scores", "measured")}
    if scores["scores"] and values.get("paper") is None:
        raise ValueError(f"{file!r}: about.scores needs about.paper, whose scores they are: one of {list(PAPERS)}.")
    if values.get("status", "ready") != "ready" and values.get("note") is None:
        raise ValueError(f"{file!r}: about.status={values['status']!r} needs about.note, which says why.")
    return About(**{**values, **scores, "language": tuple(values.get("language", ()))})


def _scores(given: list[object], place: str, file: str) -> tuple[Score, ...]:
    scores = []
    for number, each in enumerate(given, 1):
        score = checked_values(each, f"{place}, number {number}", _SCORE, file)
        if missing := [field.name for field in fields(Score) if field.name not in score]:
            raise ValueError(f"{file!r}: {place}, number {number} has no {missing[0]!r}; it needs {list(_SCORE)}.")
        scores.append(Score(**{**score, "value": float(score["value"])}))
    return tuple(scores)


def checked_values(
    given: object, place: str, known: Mapping[str, tuple[Callable[[Any], Any], str]], file: str
) -> dict[str, Any]:
    """A mapping of known keys whose values fit.

    Args:
        given: What stood there.
        place: Where, for messages.
        known: Of each key: what its value must be, in code and in words.
        file: What messages call the file.

    Raises:
        ValueError: It is no mapping, or a key or a value does not fit.
    """
    if not isinstance(given, Mapping):
        raise ValueError(f"{file!r}: {place}={given!r} must be a mapping with keys of {list(known)}.")
    for key, value in given.items():
        if key not in known:
            raise ValueError(f"{file!r}: {place} has the key {key!r}; it may have {list(known)}.")
        fits, words = known[key]
        if not fits(value):
            raise ValueError(f"{file!r}: {place}, {key}={value!r} must be {words}.")
    return dict(given)
