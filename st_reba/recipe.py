"""The format of recipes: a YAML file with a base, a method, its fields and stages and, under ``about``, facts.

A ``filter``'s file is relative to the recipe's folder. A recipe cannot allow foreign code, hold a token or reach
transformers' own options: these are the caller's alone.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field
from typing import IO, Any, ClassVar, Literal

from .modules import Filter
from .modules.options import Options, option, shown, unknown
from .spec import METHODS, Spec

# Beside a method, its fields and its stages.
_OWN = ("base", "revision", "tokenizer", "prompts", "about")
# Far more than any recipe needs; a file from elsewhere becomes memory and time.
_MOST_BYTES = 1 << 20
_MOST_LEVELS = 16
_MOST_VALUES = 5_000


@dataclass(frozen=True)
class Score(Options):
    """A figure for exactly this base and method: a paper's, or one that was measured."""

    name: ClassVar[str] = "score"

    task: str = option(MISSING, "of a benchmark, or the benchmark itself where it is an average")
    metric: str = option(MISSING, "as the evaluation calls it; main_score: each task's own")
    value: float = option(MISSING, "as printed there")
    table: str = option(MISSING, "where it stands, as 'Table 2' of the paper")
    interval: tuple[float, ...] = option((), "its 95 % interval, as [low, high]")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.interval and not (len(self.interval) == 2 and self.interval[0] <= self.value <= self.interval[1]):
            raise ValueError(
                f"score: interval={list(self.interval)} must be [low, high] around the value, {self.value}."
            )


@dataclass(frozen=True)
class About(Options):
    """Facts of a recipe's model."""

    name: ClassVar[str] = "about"

    language: tuple[str, ...] = option((), "ISO 639 codes")
    licence: str | None = option(None, "of the base, as the Hub spells it; other: not in that list, or not known")
    licence_link: str | None = option(None, "where its text is")
    parameters: str | None = option(None, "of the base, as 7B")
    paper: Literal["reba", "echo", "nosink"] | None = option(None, "the one that ran this base by this method")
    scores: tuple[Mapping[str, Any], ...] = option((), "that paper's")
    measured: tuple[Mapping[str, Any], ...] = option((), "what was measured with this very recipe")
    status: Literal["ready", "remote-code", "old-transformers", "tune"] = option(
        "ready", "ready; remote-code: needs its own modelling code; old-transformers: does not run; tune: to be tuned"
    )
    note: str | None = option(None, "why it is not ready, or what was chosen")

    def __post_init__(self) -> None:
        super().__post_init__()
        for code in self.language:
            if not re.fullmatch("[a-z]{2,3}", code):
                raise ValueError(f"about: language={shown(code)} must be an ISO 639 code, as zh.")
        for score in (*self.scores, *self.measured):
            Score.of(score)
        if self.scores and self.paper is None:
            raise ValueError("about: scores need paper, whose they are: one of ['reba', 'echo', 'nosink'].")
        if self.status != "ready" and not self.note:
            raise ValueError(f"about: status={self.status!r} needs note, which says why.")


@dataclass(frozen=True)
class Recipe:
    """A model that can be built."""

    base: str
    # The method, its fields and the stages.
    values: Mapping[str, Any]
    # revision, tokenizer and prompts, where they are given.
    loading: Mapping[str, Any] = field(default_factory=dict)
    about: About = field(default_factory=About)
    name: str = ""

    @property
    def spec(self) -> Spec:
        return Spec.of(self.values)

    def to_dict(self) -> dict[str, Any]:
        """As YAML holds it."""
        about = {"about": self.about.to_dict()} if self.about != About() else {}
        return {"base": self.base, **self.loading, **self.values, **about}


def is_recipe(base: str | os.PathLike[str]) -> bool:
    """Whether ``base`` names a recipe file rather than a model."""
    return os.fspath(base).endswith((".yaml", ".yml")) and os.path.isfile(base)


def read_recipe(path: str | os.PathLike[str]) -> Recipe:
    """Read a recipe from a YAML file.

    Raises:
        ValueError: It is no mapping with a base, or has a key or a value that the format has not; the message names
            the file, the key and what is allowed.
    """
    file = os.fspath(path)
    with open(path, encoding="utf-8") as stream:
        given = read_yaml(stream, file)
    return recipe_of(given, file, os.path.dirname(file), os.path.splitext(os.path.basename(file))[0])


def recipe_of(given: object, file: str, folder: str = "", name: str = "") -> Recipe:
    """A recipe from what YAML holds; ``file`` is what messages call it, ``folder`` where files that it names are."""
    if not isinstance(given, Mapping) or not isinstance(given.get("base"), str):
        raise ValueError(f"{file!r} is no recipe: it must be a mapping with a base, as 'base: mini'.")
    values = {name: value for name, value in given.items() if name not in _OWN}
    fields = [name for kinds in METHODS.values() for kind in kinds for name in kind.names()]
    known = [*_OWN, "method", "stages", *dict.fromkeys(fields)]
    for key in values:
        if key not in known:
            raise ValueError(f"{file!r}: {unknown(str(key), key, known)}")
    loading = {key: given[key] for key in ("revision", "tokenizer", "prompts") if given.get(key) is not None}
    for key in ("revision", "tokenizer"):
        if not isinstance(loading.get(key, ""), str):
            raise ValueError(f"{file!r}: {key}={shown(loading[key])} must be a text.")
    if is_recipe(given["base"]):
        raise ValueError(f"{file!r}: the recipe's base {given['base']!r} is a recipe itself.")
    try:
        about = About.of(given.get("about", {}))
        if about.status == "ready":
            # Others may lack numbers of layers, which the caller gives.
            Spec.of(values)
    except ValueError as error:
        raise ValueError(f"{file!r}: {error}") from None
    stages = []
    for stage in values.get("stages") or ():
        if isinstance(stage, Mapping) and isinstance(own := stage.get(Filter.name), Mapping) and own.get("file"):
            stage = {Filter.name: {**own, "file": os.path.join(folder, own["file"])}}
        stages.append(stage)
    if stages:
        values["stages"] = stages
    return Recipe(given["base"], values, loading, about, name)


def read_yaml(stream: IO[str], file: str) -> Any:
    """Read YAML without tags and aliases, in which no key stands twice; ``file`` is what messages call it.

    Raises:
        ValueError: It is not YAML, a key stands twice, or it is larger or deeper than any recipe.
    """
    import yaml  # here, as a model alone does not need it

    class Loader(yaml.SafeLoader):
        def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
            seen: set[str] = set()
            for key, _ in node.value:
                if str(key.value) in seen:
                    # YAML's own reader would take the last one and say nothing.
                    raise ValueError(f"{file!r}: the key {shown(key.value)} stands twice. Keep one.")
                seen.add(str(key.value))
            return super().construct_mapping(node, deep)

    try:
        text = stream.read(_MOST_BYTES + 1)
        if len(text) > _MOST_BYTES:
            raise ValueError(f"{file!r} is larger than {_MOST_BYTES:,} characters.")
        level = 0
        for number, event in enumerate(yaml.parse(text, Loader)):
            if isinstance(event, yaml.AliasEvent):
                # A few lines of these can stand for gigabytes.
                raise ValueError(f"{file!r} uses the alias *{event.anchor}: write the value out.")
            level += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if level > _MOST_LEVELS or number > 2 * _MOST_VALUES:
                raise ValueError(f"{file!r} has more than {_MOST_LEVELS} levels or {_MOST_VALUES:,} values.")
        return yaml.load(text, Loader)
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"{file!r} is not YAML: {str(error)[:500]}") from error
