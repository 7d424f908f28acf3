"""Recipes: a base, a method and facts about both, as a YAML file; the zoo is a list of them, in zoo.yaml.

A recipe cannot allow foreign code, hold a token or reach transformers' own options: these are the caller's alone.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Any

from .methods import DEFAULT, OPTIONS, Method

LOADING = ("revision", "tokenizer", "prompts", "gguf_file", "quantization")
# Facts for people: of the base as the Hub writes them (parameters as 7B), the paper that ran it and its scores, scores
# measured with this recipe, and a note on its status or on how it was chosen.
ABOUT = ("language", "licence", "licence_link", "parameters", "paper", "scores", "measured", "status", "note")
# Of a base: it runs; needs code of its own; does not run on new versions; or lacks numbers of layers.
STATUSES = ("ready", "remote-code", "old-transformers", "tune")
_MOST_CHARACTERS = 1 << 16  # far more than any recipe needs; a file from elsewhere becomes memory and time


@dataclass(frozen=True)
class Recipe:
    """A model that can be built.

    Args:
        base: What `build` takes: a folder, a Hub id, ``mini`` or a GGUF file.
        loading: What loads the base: those of ``LOADING`` that are given.
        method: Name and options of the method; ``Method(**method)`` reads it.
        about: Facts; see ``ABOUT``.
        name: Of the zoo, or of the file.
    """

    base: str
    loading: Mapping[str, Any]
    method: Mapping[str, Any]
    about: Mapping[str, Any]
    name: str = ""

    @property
    def status(self) -> str:
        """One of ``STATUSES``."""
        return str(self.about.get("status", "ready"))

    def to_dict(self) -> dict[str, Any]:
        """The flat keys of the file."""
        method = {"method" if key == "name" else key: value for key, value in self.method.items()}
        return {"base": self.base, **self.loading, **method, **({"about": dict(self.about)} if self.about else {})}


def recipe_for(base: str | os.PathLike[str], given: Mapping[str, Any]) -> Recipe | None:
    """The recipe that ``base`` names, of the zoo or as a file, and ``given`` allows to build; None: it is a model."""
    text = os.fspath(base)
    if not text.startswith("zoo:"):
        return read_recipe(text) if text.endswith((".yaml", ".yml")) else None
    found = recipe(text.removeprefix("zoo:"))
    remedy = {
        "old-transformers": "Use another base.",
        "remote-code": None if given.get("trust_remote_code") is True else "If you trust it: trust_remote_code=True.",
        "tune": None if given.keys() & {"k", "k0", "method"} else "Give k=…, as evaluation.nosink.choose_k finds it.",
    }.get(found.status)
    if remedy:
        raise ValueError(f"{text} ({found.base}): {found.about.get('note')} {remedy}")
    return found


def read_recipe(path: str | os.PathLike[str]) -> Recipe:
    """Read a recipe's file; a filter's file is relative to it."""
    file = Path(path)
    found = recipe_of(read_yaml(file), str(path), file.stem)
    if filter := found.method.get("filter"):
        found.method["filter"] = str(file.parent / filter)  # type: ignore[index]
    return found


def recipe_of(values: Any, file: str, name: str = "") -> Recipe:
    """A recipe from the values of its file; ``file`` is for messages."""
    if not isinstance(values, Mapping) or not isinstance(values.get("base"), str):
        raise ValueError(f"{file!r} is no recipe: it must be a mapping with a base, as 'base: mini'.")
    if other := [key for key in values if key not in ("base", "method", "about", *LOADING, *OPTIONS)]:
        raise ValueError(f"{file!r}: {other[0]!r:.80} is no key of a recipe. Pass it to build, or drop it.")
    about = {} if values.get("about") is None else values["about"]
    for key in about if isinstance(about, Mapping) else ("about",):
        if key not in ABOUT:
            raise ValueError(f"{file!r}: about: {key!r:.80} is not known. Choose from {', '.join(ABOUT)}.")
    loading = {key: values[key] for key in LOADING if values.get(key) is not None}
    method = {key: values[key] for key in OPTIONS if key in values}
    named = {"name": values["method"]} if "method" in values else Method.parse(DEFAULT).to_dict()
    found = Recipe(values["base"], loading, {**named, **method}, about, name)
    if found.status not in STATUSES or (found.status != "ready" and not about.get("note")):
        raise ValueError(f"{file!r}: status={found.status!r:.80} must be one of {', '.join(STATUSES)}, with a note.")
    if other := [key for key, value in loading.items() if key != "prompts" and not isinstance(value, str)]:
        raise ValueError(f"{file!r}: {other[0]}={loading[other[0]]!r:.80} must be a text.")
    if found.status == "ready":  # others may lack numbers of layers, which the caller gives
        try:
            Method(**found.method)
        except (TypeError, ValueError) as error:
            raise ValueError(f"{file!r}: {str(error)[:500]}") from None
    return found


def save_recipe(
    path: str | os.PathLike[str], base: str, method: Method, *, about: Mapping[str, Any] | None = None, **loading: Any
) -> None:
    """Write a recipe, so that ``build(path)`` builds this base by this method.

    Example:
        >>> save_recipe("my.yaml", "mini", Method("echo", pooling="mean"), about={"language": ["zh"]})
        >>> print(Path("my.yaml").read_text(encoding="utf-8"), end="")
        base: mini
        method: echo
        pooling: mean
        about:
          language: [zh]
    """
    import yaml

    values = method.to_dict()
    if method.filter is not None:
        values["filter"] = os.path.relpath(method.filter, Path(path).parent)
    written = recipe_of(Recipe(base, loading, values, about or {}).to_dict(), str(path)).to_dict()
    text = yaml.safe_dump(written, sort_keys=False, allow_unicode=True, default_flow_style=None, width=120)
    Path(path).write_text(text, encoding="utf-8")


def read_yaml(path: Path) -> Any:
    """Read YAML without aliases, in which no key stands twice, of bounded size; else a ValueError."""
    import yaml  # here, as a model alone does not need it

    class Loader(yaml.SafeLoader):
        def compose_node(self, parent: Any, index: Any) -> Any:
            if self.check_event(yaml.AliasEvent):  # a few lines of them can stand for gigabytes
                raise ValueError(f"{str(path)!r} holds an alias (*). Write out what it stands for.")
            return super().compose_node(parent, index)

        def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
            values = super().construct_mapping(node, deep)
            if len(values) < len(node.value):  # YAML's own reader takes the last one and says nothing
                raise ValueError(f"{str(path)!r}: one of the keys {str(list(values)):.80} stands twice. Keep one.")
            return values

    try:
        with path.open(encoding="utf-8") as stream:
            text = stream.read(_MOST_CHARACTERS + 1)
        if len(text) > _MOST_CHARACTERS:
            raise ValueError(f"{str(path)!r} is too large: at most {_MOST_CHARACTERS:,} characters.")
        return yaml.load(text, Loader)
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"{str(path)!r} is not YAML: {str(error)[:500]}") from error


def zoo() -> list[str]:
    """The names of the zoo's models, in alphabetical order; ``build("zoo:NAME")`` builds one.

    Example:
        >>> import st_reba
        >>> [name for name in st_reba.zoo() if name.startswith("mini-")]
        ['mini-classical', 'mini-echo', 'mini-nosink', 'mini-reba']
    """
    return sorted(_models())


def recipe(name: str) -> Recipe:
    """The recipe of a model of the zoo."""
    if name not in _models():
        near = " or ".join(get_close_matches(name, zoo(), n=3, cutoff=0.3))
        meant = f" Did you mean {near}?" if near else ""
        raise ValueError(f"zoo:{name:.80} is not known.{meant} All names: st-reba zoo")
    return recipe_of(_models()[name], f"zoo:{name}", name)


@cache
def _models() -> dict[str, dict[str, Any]]:
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
    found = []
    for table, rows in tables.items():
        (_, endings), *rest = rows.items()
        for row, values in rest if ending in endings else ():
            task, _, metric = row.rpartition(" ")
            found.append({"task": task, "metric": metric, "value": values[endings.index(ending)], "table": table})
    return found
