"""Recipes: a base, a method and facts about both, as a YAML file.

A recipe cannot allow foreign code, hold a token or reach transformers' own options: these are the caller's alone.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .methods import DEFAULT, OPTIONS, Method, method_from

# What loads the base.
LOADING = ("revision", "tokenizer", "prompts", "gguf_file", "quantization")
# Facts for people: languages and licence of the base as the Hub writes them, its parameters as 7B, the paper that ran
# it and its scores, scores that were measured with this recipe, and a note on its status or on how it was chosen.
ABOUT = ("language", "licence", "licence_link", "parameters", "paper", "scores", "measured", "status", "note")
# Of a base: it runs; needs code of its own; does not run on new versions; or lacks numbers of layers.
STATUSES = ("ready", "remote-code", "old-transformers", "tune")
# Far more than any recipe needs; a file from elsewhere becomes memory and time.
_MOST_CHARACTERS, _MOST_LEVELS = 1 << 16, 16


@dataclass(frozen=True)
class Recipe:
    """A model that can be built.

    Args:
        base: What `build` takes: a folder, a Hub id, ``mini`` or a GGUF file.
        loading: Those of ``LOADING`` that are given.
        method: Name and options of the method; ``Method(**method)`` reads it.
        about: Facts; see ``ABOUT``.
        name: Of the zoo, or of the file.
    """

    base: str
    loading: Mapping[str, Any] = field(default_factory=dict)
    method: Mapping[str, Any] = field(default_factory=lambda: {"name": DEFAULT})
    about: Mapping[str, Any] = field(default_factory=dict)
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
    if text.startswith("zoo:"):
        from .zoo import recipe_to_build

        return recipe_to_build(text.removeprefix("zoo:"), given)
    return read_recipe(text) if text.endswith((".yaml", ".yml")) else None


def read_recipe(path: str | os.PathLike[str]) -> Recipe:
    """Read a recipe's file; a filter's file is relative to it.

    Raises:
        ValueError: A key or value that the format does not have; the message names it.
        FileNotFoundError: There is no such file.
    """
    file = Path(path)
    recipe = recipe_of(read_yaml(file), str(path), file.stem)
    if filter := recipe.method.get("filter"):
        recipe.method["filter"] = str(file.parent / filter)  # type: ignore[index]
    return recipe


def recipe_of(values: Any, file: str, name: str = "") -> Recipe:
    """A recipe from the values of its file; ``file`` is for messages."""
    if not isinstance(values, Mapping) or not isinstance(values.get("base"), str):
        raise ValueError(f"{file!r} is no recipe: it must be a mapping with a base, as 'base: mini'.")
    for key in values:
        if key not in ("base", "method", "about", *LOADING, *OPTIONS):
            raise ValueError(f"{file!r}: {key!r:.80} is no key of a recipe. Pass it to build, or drop it.")
    about = {} if values.get("about") is None else values["about"]
    for key in about if isinstance(about, Mapping) else ("about",):
        if key not in ABOUT:
            raise ValueError(f"{file!r}: about: {key!r:.80} is not known. Choose from {', '.join(ABOUT)}.")
    loading = {key: values[key] for key in LOADING if values.get(key) is not None}
    method = {key: values[key] for key in OPTIONS if key in values}
    recipe = Recipe(values["base"], loading, {"name": values.get("method", DEFAULT), **method}, about, name)
    if recipe.status not in STATUSES or (recipe.status != "ready" and not about.get("note")):
        raise ValueError(f"{file!r}: status={recipe.status!r:.80} must be one of {', '.join(STATUSES)}, with a note.")
    for key, value in loading.items():
        if key != "prompts" and not isinstance(value, str):
            raise ValueError(f"{file!r}: {key}={value!r:.80} must be a text.")
    if recipe.status == "ready":  # others may lack numbers of layers, which the caller gives
        try:
            if ":" in str(recipe.method["name"]):
                raise ValueError("method must be a name; its options are keys of their own.")
            method_from(recipe.method["name"], method)
        except (TypeError, ValueError) as error:
            raise ValueError(f"{file!r}: {str(error)[:500]}") from None
    return recipe


def save_recipe(
    path: str | os.PathLike[str], base: str, method: Method, *, about: Mapping[str, Any] | None = None, **loading: Any
) -> Recipe:
    """Write a recipe, so that ``build(path)`` builds this base by this method.

    Args:
        path: The file, which ends in .yaml. A filter's file is named relative to it.
        base: As for `build`.
        method: The method.
        about: Facts; see ``ABOUT``.
        **loading: Those of ``LOADING`` that the base needs.

    Example:
        >>> _ = save_recipe("my.yaml", "mini", Method("echo", pooling="mean"), about={"language": ["zh"]})
        >>> print(Path("my.yaml").read_text(encoding="utf-8"), end="")
        base: mini
        method: echo
        pooling: mean
        about:
          language: [zh]
    """
    import yaml

    file = Path(path)
    values = method.to_dict()
    if method.filter is not None:
        values["filter"] = os.path.relpath(method.filter, file.parent)
    loading = {name: value for name, value in loading.items() if value is not None}
    recipe = Recipe(base, loading, values, about or {}, file.stem)
    recipe_of(recipe.to_dict(), str(path))
    text = yaml.safe_dump(recipe.to_dict(), sort_keys=False, allow_unicode=True, default_flow_style=None, width=120)
    file.write_text(text, encoding="utf-8")
    return recipe


def read_yaml(path: Path) -> Any:
    """Read YAML without aliases, in which no key stands twice, of bounded size; else a ValueError."""
    import yaml  # here, as a model alone does not need it

    class Loader(yaml.SafeLoader):
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
        level = 0
        for event in yaml.parse(text, Loader):
            # Reading takes the square of the depth, and a few lines of aliases can stand for gigabytes.
            level += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if isinstance(event, yaml.AliasEvent) or level > _MOST_LEVELS:
                raise ValueError(f"{str(path)!r} holds an alias (*), or more than {_MOST_LEVELS} levels.")
        return yaml.load(text, Loader)
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"{str(path)!r} is not YAML: {str(error)[:500]}") from error
