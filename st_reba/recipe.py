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

# What loads the base; `about` holds facts for people.
LOADING = ("revision", "tokenizer", "prompts", "gguf_file", "quantization")
ABOUT = {
    "language": "ISO 639 codes",
    "licence": "of the base, as the Hub spells it; other: not in that list, or not known",
    "licence_link": "where its text is",
    "parameters": "of the base, as 7B",
    "paper": "that ran this base by this method: reba, echo or nosink",
    "scores": "of that paper: a list of {task, metric, value, table}",
    "measured": "with this recipe: a list of {task, metric, value, table, interval}",
    "status": "ready; remote-code: needs own code; old-transformers: does not run; tune: lacks numbers of layers",
    "note": "why it is not ready, or what was chosen",
}
STATUSES = ("ready", "remote-code", "old-transformers", "tune")
# Far more than any recipe needs; a file from elsewhere becomes memory and time.
_MOST_CHARACTERS, _MOST_LEVELS, _MOST_EVENTS = 1 << 20, 16, 10_000


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
    """The recipe that a base names, of the zoo or as a file; None: the base is a model.

    Args:
        base: As for `build`.
        given: Options that `build` was given beside it.

    Raises:
        ValueError: It is no recipe, or cannot be built with these options; the message says why.
        FileNotFoundError: There is no such file.
    """
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
    if not file.is_file():
        raise FileNotFoundError(f"recipe={str(path)!r}: there is no such file.")
    recipe = recipe_of(read_yaml(file), str(path), file.stem)
    if filter := recipe.method.get("filter"):
        recipe.method["filter"] = str(file.parent / filter)  # type: ignore[index]
    return recipe


def recipe_of(values: Any, file: str, name: str = "") -> Recipe:
    """A recipe from the values of its file; ``file`` is for messages."""
    if not isinstance(values, Mapping) or not isinstance(values.get("base"), str):
        raise ValueError(f"{file!r} is no recipe: it must be a mapping with a base, as 'base: mini'.")
    if values["base"].startswith("zoo:") or values["base"].endswith((".yaml", ".yml")):
        raise ValueError(f"{file!r}: the base {values['base']!r} is a recipe itself. Name its base.")
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
    """Read YAML without aliases, in which no key stands twice, of bounded size and depth; else a ValueError."""
    import yaml  # here, as a model alone does not need it

    class Loader(yaml.SafeLoader):
        def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
            keys = [str(key.value) for key, _ in node.value]
            for key in keys:
                if keys.count(key) > 1:
                    # YAML's own reader would take the last one and say nothing.
                    raise ValueError(f"{str(path)!r}: the key {key!r:.80} stands twice. Keep one.")
            return super().construct_mapping(node, deep)

    try:
        with path.open(encoding="utf-8") as stream:
            text = stream.read(_MOST_CHARACTERS + 1)
        level = 0
        for number, event in enumerate(yaml.parse(text, Loader)):
            # A few lines of aliases can stand for gigabytes.
            level += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            large = len(text) > _MOST_CHARACTERS or level > _MOST_LEVELS or number > _MOST_EVENTS
            if large or isinstance(event, yaml.AliasEvent):
                raise ValueError(f"{str(path)!r} is {'too large' if large else 'written with an alias (*)'}.")
        return yaml.load(text, Loader)
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"{str(path)!r} is not YAML: {str(error)[:500]}") from error
