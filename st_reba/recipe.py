"""Recipes: a base, a method and facts about both, as a YAML file; the zoo is a list of them, in zoo.yaml.

A recipe cannot allow foreign code, hold a token or reach transformers' own options: these are the
caller's alone.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

from .filter_options import check_filter_name
from .methods import DEFAULT_METHOD, OPTIONS, Method, write_short_form

# What YAML holds: texts, numbers, lists and mappings.
Values: TypeAlias = Mapping[str, Any]
MutableValues: TypeAlias = dict[str, Any]

LOADING_OPTIONS = ("revision", "tokenizer", "prompts", "gguf_file", "quantization")
# Facts for people: about the base, as the Hub writes them (parameters: 7B); the paper that ran it,
# with its scores; scores measured with this recipe; a note on its status or how it was chosen.
ABOUT_KEYS = (
    "language",
    "licence",
    "licence_link",
    "parameters",
    "paper",
    "scores",
    "measured",
    "status",
    "note",
)
# Remedies for a base that does not run as it is: it needs code of its own, does not run on new
# versions, or the numbers of layers to convert are missing.
_REMEDIES = {
    "remote-code": "If you trust it: trust_remote_code=True.",
    "old-transformers": "Use another base.",
    "tune": "Give k=…, as evaluation.nosink.choose_k finds it.",
}
STATUSES = ("ready", *_REMEDIES)
# Far more than any recipe needs; a larger foreign file would cost memory and time.
_MAX_CHARACTERS = 1 << 16


@dataclass(frozen=True)
class Recipe:
    """A model that can be built.

    Args:
        base: What `build` takes: a folder, a Hub id, ``mini`` or a GGUF file.
        loading: What loads the base: those of ``LOADING_OPTIONS`` that are set.
        method: Name and options of the method; ``Method(**method)`` reads it.
        about: Facts; see ``ABOUT_KEYS``.
        name: Of the zoo, or of the file.
    """

    base: str
    loading: Values
    method: Values
    about: Values
    name: str = ""

    @property
    def status(self) -> str:
        """One of ``STATUSES``."""
        return str(self.about.get("status", "ready"))

    @property
    def short_form(self) -> str:
        """The short form of the method, which `Method.parse` reads."""
        return write_short_form(self.method)

    def to_dict(self) -> MutableValues:
        """The flat keys of the file."""
        flat_values: MutableValues = {"base": self.base, **self.loading}
        for key, value in self.method.items():
            flat_values["method" if key == "name" else key] = value
        if self.about:
            flat_values["about"] = dict(self.about)
        return flat_values

    def check_status(self, options: Values) -> None:
        """Refuse a recipe that a call to `build` with these options cannot build."""
        status = self.status
        is_allowed = status == "ready"
        if status == "remote-code":
            is_allowed = options.get("trust_remote_code") is True
        if status == "tune":
            is_allowed = not options.keys().isdisjoint({"k", "k0", "method"})
        if not is_allowed:
            problem = f"zoo:{self.name} ({self.base}): {self.about.get('note')}"
            raise ValueError(f"{problem} {_REMEDIES[status]}")


def find_recipe(base: object, options: Values) -> Recipe | None:
    """The recipe that a base names, of the zoo or as a file; None: it is a model.

    Args:
        base: A name, or a loaded model.
        options: Options of `build`; a ValueError if the recipe cannot be built with them.
    """
    if not isinstance(base, (str, os.PathLike)):
        return None
    base_name = os.fspath(base)
    if base_name.startswith("zoo:"):
        named_recipe = zoo_recipe(base_name.removeprefix("zoo:"))
        named_recipe.check_status(options)
        return named_recipe
    return read_recipe(base_name) if base_name.endswith((".yaml", ".yml")) else None


def read_recipe(path: str | os.PathLike[str]) -> Recipe:
    """Read a recipe's file; a filter's file is relative to it."""
    recipe_file = Path(path)
    file_recipe = parse_recipe(read_yaml(recipe_file), str(path), recipe_file.stem)
    filter_name = file_recipe.method.get("filter")
    if not filter_name:
        return file_recipe
    method = {**file_recipe.method, "filter": str(recipe_file.parent / filter_name)}
    return replace(file_recipe, method=method)


def parse_recipe(values: object, file: str, name: str = "") -> Recipe:
    """A recipe from the values of its file; ``file`` is for messages."""
    if not isinstance(values, Mapping) or not isinstance(values.get("base"), str):
        raise ValueError(
            f"{file!r} is not a recipe: it must be a mapping with a base, such as 'base: mini'."
        )
    known_keys = {"base", "method", "about", *LOADING_OPTIONS, *OPTIONS}
    for key_name in values:
        if key_name not in known_keys:
            raise ValueError(
                f"{file!r}: {key_name!r:.80} is not a key of a recipe. Pass it to build, or drop it."
            )
    checked_about = _read_about(values.get("about"), file)
    loading = {
        key_name: values[key_name]
        for key_name in LOADING_OPTIONS
        if values.get(key_name) is not None
    }
    for key_name, value in loading.items():
        if key_name != "prompts" and not isinstance(value, str):
            raise ValueError(f"{file!r}: {key_name}={value!r:.80} must be a text.")
    method_values = (
        {"name": values["method"]} if "method" in values else Method.parse(DEFAULT_METHOD).to_dict()
    )
    for option in OPTIONS:
        if option in values:
            method_values[option] = values[option]
    # With another status, a recipe may lack options that the caller must give.
    if checked_about.get("status", "ready") == "ready":
        try:
            Method(**method_values)
        except (TypeError, ValueError) as error:
            raise ValueError(f"{file!r}: {str(error)[:500]}") from None
    return Recipe(values["base"], loading, method_values, checked_about, name)


def _read_about(about_values: object, file: str) -> Values:
    if about_values is None:
        return {}
    if not isinstance(about_values, Mapping):
        raise ValueError(
            f"{file!r}: about={about_values!r:.80} must be a mapping of {', '.join(ABOUT_KEYS)}."
        )
    for key in about_values:
        if key not in ABOUT_KEYS:
            raise ValueError(
                f"{file!r}: about: {key!r:.80} is not known. Choose from {', '.join(ABOUT_KEYS)}."
            )
    status = about_values.get("status", "ready")
    if status not in STATUSES or (status != "ready" and not about_values.get("note")):
        raise ValueError(
            f"{file!r}: status={status!r:.80} must be one of {', '.join(STATUSES)}, with a note."
        )
    return about_values


def save_recipe(
    path: str | os.PathLike[str],
    base: str,
    method: Method,
    *,
    about: Values | None = None,
    **loading: Any,
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

    check_filter_name(method.filter)
    method_values = method.to_dict()
    if method.filter is not None:
        method_values["filter"] = os.path.relpath(method.filter, Path(path).parent)
    unchecked_recipe = Recipe(base, loading, method_values, about or {})
    checked_recipe = parse_recipe(unchecked_recipe.to_dict(), str(path))
    text = yaml.safe_dump(
        checked_recipe.to_dict(),
        sort_keys=False,
        allow_unicode=True,
        default_flow_style=None,
        width=120,
    )
    Path(path).write_text(text, encoding="utf-8")


def read_yaml(path: Path) -> Any:
    """Read YAML of bounded size without aliases or repeated keys; anything else is a ValueError."""
    import yaml  # here, as a model without a recipe does not need it

    class Loader(yaml.SafeLoader):
        def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
            if self.check_event(yaml.AliasEvent):  # a few lines of them can stand for gigabytes
                raise ValueError(f"{str(path)!r} holds an alias (*). Write out what it stands for.")
            return super().compose_node(parent, index)

        def construct_mapping(
            self, node: yaml.MappingNode, deep: bool = False
        ) -> dict[object, object]:
            values = super().construct_mapping(node, deep)
            # YAML's own reader takes the last one and says nothing.
            if len(values) < len(node.value):
                raise ValueError(
                    f"{str(path)!r}: one of the keys {str(list(values)):.80} stands twice. Keep one."
                )
            return values

    try:
        with path.open(encoding="utf-8") as stream:
            yaml_text = stream.read(_MAX_CHARACTERS + 1)
        if len(yaml_text) > _MAX_CHARACTERS:
            raise ValueError(f"{str(path)!r} is too large: at most {_MAX_CHARACTERS:,} characters.")
        return yaml.load(yaml_text, Loader)
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


def zoo_recipe(name: str) -> Recipe:
    """The recipe of a model of the zoo."""
    zoo_models = _models()
    if name in zoo_models:
        return parse_recipe(zoo_models[name], f"zoo:{name}", name)
    near_names = get_close_matches(name, zoo(), n=3, cutoff=0.3)
    question = f" Did you mean {' or '.join(near_names)}?" if near_names else ""
    raise ValueError(f"zoo:{name:.80} is not known.{question} All names: st-reba zoo")


@cache
def _models() -> dict[str, MutableValues]:
    """The values of each recipe in the zoo: one for each base and each method of its sets."""
    zoo_values = read_yaml(Path(__file__).with_name("zoo.yaml"))
    zoo_models: dict[str, MutableValues] = {}
    for base_name, base_values in zoo_values["bases"].items():
        for set_name in base_values["sets"]:
            method_sets = dict(zoo_values["sets"][set_name])
            about_set = method_sets.pop("about", {})
            for ending, method_values in method_sets.items():
                zoo_models[f"{base_name}-{ending}"] = _model_values(
                    base_values, method_values, about_set, ending
                )
    return zoo_models


def _model_values(
    base_values: Values,
    method_values: Values,
    about_set: Values,
    ending: str,
) -> MutableValues:
    model_values = {**method_values, **base_values}
    scores = _scores(model_values.pop("scores", {}), ending)
    del model_values["sets"]
    model_values["about"] = {**about_set, **method_values.get("about", {}), **base_values["about"]}
    if scores:
        model_values["about"]["scores"] = scores
    return model_values


def _scores(
    tables: Mapping[str, Mapping[str, list[float | str]]], ending: str
) -> list[MutableValues]:
    """The papers' scores of a method; a table's first row names the methods."""
    paper_scores: list[MutableValues] = []
    for table, table_rows in tables.items():
        (_, endings), *score_rows = table_rows.items()
        if ending not in endings:
            continue
        column = endings.index(ending)
        for row_name, row_values in score_rows:
            task, _, metric = row_name.rpartition(" ")
            paper_scores.append(
                {"task": task, "metric": metric, "value": row_values[column], "table": table}
            )
    return paper_scores
