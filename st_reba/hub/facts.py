"""What a model card tells of a model: read from the model itself, or from a recipe alone."""

from __future__ import annotations

import hashlib
import inspect
import json
import os
import re
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Normalize, Pooling

from ..bases import EMBEDDED
from ..build import METHODS, build
from ..modules import (
    ChunkedReBAPooling,
    DecoderTransformer,
    LayerPlan,
    NoSinkTransformer,
    PromptEnsemble,
    ReBAPooling,
    RepeatTransformer,
    named_plan,
)
from ..modules.adapters import has_adapter
from ..modules.ensemble import ensemble_weights
from ..modules.templates import TEMPLATES, Template, ensemble_templates, written
from ..modules.tokens import frame, position_limit
from ..postfilter import PostFilter
from ..recipe import About, located
from ..zoo import Recipe
from .layer_options import ends, reading_given, reading_options
from .training import datasets_of, training_of

_HUB_ID = re.compile(r"[\w.-]+(/[\w.-]+)?")
_POOLED = {"lasttoken": "last"}
# Where a method pools by itself, if not over the last copy (or, for cls, over everything).
_SPANS = {"prompteol": "end"}


@dataclass(frozen=True)
class Facts:
    """What is known of a model; None: not known without building it, or not there.

    Args:
        base: Name of the base model.
        base_revision: Its revision, if one is pinned.
        tokenizer: Whose tokenizer it has, where that is not the base's.
        method: As in ``build``.
        pooling: How token vectors become one.
        copies: Copies k of the text, or of each piece.
        templates: The template of each task, in full; None: the base, a sentence-transformers model, keeps its input.
        separator: Text between copies without a template.
        fields: Names of each task's fields that need a value.
        options: The other options that change vectors, those that are not at their default.
        plan: What layers see; None where they are the base's own.
        layers: That in words; None: the number of layers is to be tuned.
        setting: The NoSink paper's, with its numbers.
        modules: Names of the pipeline's modules.
        normalized: Whether vectors have length 1.
        prompts: Saved prompts that are not empty.
        positions: M, of a whole sequence.
        overhead: s, special and template tokens of a document.
        budget: Tokens of a text that are read.
        depth: The base's layers.
        held: Those that the model holds.
        passes: Layers that each position passes.
        dimension: Of the vectors.
        dtype: Of the stored weights.
        architecture: The backbone's class.
        from_base: The repository holds no weights.
        remote_code: The backbone needs code of its own.
        quantized: The weights are quantized.
        built: Whether all this was read from a model.
        training: What its card says of training, Markdown; None: nothing tells that it was trained.
        datasets: Hub ids of what it was trained on.
        adapter: The repository holds an adapter of the base's weights.
        postfilter: The record of the filter behind the pooling (see :meth:`st_reba.PostFilter.record`).
    """

    base: str | None
    base_revision: str | None
    method: str
    pooling: str
    copies: int
    templates: dict[str, str] | None
    separator: str = ""
    fields: dict[str, tuple[str, ...]] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    plan: LayerPlan | None = None
    layers: str | None = None
    setting: str | None = None
    modules: tuple[str, ...] = ()
    normalized: bool = True
    prompts: dict[str, str] = field(default_factory=dict)
    tokenizer: str | None = None
    positions: int | None = None
    overhead: int | None = None
    budget: int | None = None
    depth: int | None = None
    held: int | None = None
    passes: int | None = None
    dimension: int | None = None
    dtype: str | None = None
    architecture: str | None = None
    from_base: bool = False
    remote_code: bool = False
    quantized: bool = False
    built: bool = False
    training: str | None = None
    datasets: tuple[str, ...] = ()
    adapter: bool = False
    postfilter: dict[str, Any] | None = None

    @property
    def published(self) -> bool:
        """Whether it computes what the authors' code does, not their text."""
        return self.options.get("variant") == "published"

    @property
    def plain(self) -> bool:
        """Whether a text stands in the input by itself, without any words around it."""
        return self.templates is not None and set(self.templates.values()) == {
            self.separator.join(["{text}"] * self.templates["document"].count("{text}"))
        }

    @property
    def two_templates(self) -> bool:
        """Whether queries and documents are laid out in two ways."""
        return self.templates is not None and self.templates["query"] != self.templates["document"]

    @property
    def exports(self) -> bool:
        """Whether a graph can hold the pipeline (if it can hold the base)."""
        second = self.plan is not None and self.plan.architecture != "inplace"
        return self.templates is not None and "chunk" not in self.options and not second

    @property
    def signature(self) -> str:
        """A name that differs where base, method or an option differs."""
        parts = [(self.base or "model").rsplit("/", 1)[-1], self.method]
        if self.method in ("reba", "echo"):
            parts.append(str(self.copies))
        parts.append(self.pooling)
        if self.setting is not None:
            parts.append(self.setting.replace("&", "-and-"))
        if "chunk" in self.options:
            parts.append(f"chunk{self.options['chunk']}")
        if self.published:
            parts.append("published")
        if "layer" in self.options:
            parts.append("layer" + "to".join(map(str, ends(self.options["layer"]))))
        shown = ("chunk", "layer", *(("variant", "non_finite") if self.published else ()))
        rest: dict[str, Any] = {key: self.options[key] for key in self.options if key not in shown}
        own = self.method == "prompteol" and set((self.templates or {}).values()) == {TEMPLATES["prompteol"]}
        rest |= {} if self.plain or own else {"templates": self.templates}
        rest |= {"separator": self.separator} if self.separator else {}
        rest |= {} if self.plan is None or self.setting else {"plan": self.plan.to_dict()}
        rest |= {} if self.normalized else {"normalized": False}
        rest |= {"prompts": self.prompts} if self.prompts else {}
        rest |= {"training": self.training} if self.training else {}
        rest |= {"postfilter": self.postfilter} if self.postfilter else {}
        if rest:
            parts.append(hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()[:6])
        return re.sub(r"[^\w.]+", "-", "-".join(parts))


def facts_of_model(model: SentenceTransformer) -> Facts:
    """Read a model.

    Args:
        model: A model of this package.

    Raises:
        ValueError: It is no model of this package.
    """
    first, modules = model[0], tuple(type(module).__name__ for module in model)
    if not isinstance(first, DecoderTransformer) or len(modules) < 2:
        raise ValueError(f"A card needs a model that st_reba built; this one is {list(modules)}. Build it anew.")
    config, pooling = first.get_config_dict(), model[1]
    backbone: Any = first.model
    text = backbone.config.get_text_config()
    repeats = isinstance(first, RepeatTransformer)
    limits = [position_limit(first.text_tokenizer), getattr(text, "max_position_embeddings", None)]
    positions = min((each for each in limits if each is not None and each > 0), default=None)
    copies, overhead, budget = 1, None, positions
    templates: dict[str, str] | None = None
    fields: dict[str, tuple[str, ...]] = {}
    if repeats:
        everything = ensemble_templates(config["template"], config["repeats"], config["separator"])
        templates = written(config["template"], config["repeats"], config["separator"])
        fields = _fields(everything, config["instruction"])
        filled = {name: config["instruction"] for each in everything for name in each["document"].fields}
        around = [frame(first.text_tokenizer, each["document"].fill(filled)) for each in everything]
        # Of an ensemble the longest template counts, to whose budget all are cut.
        longest = max(around, key=lambda each: each.overhead)
        if config["prepend"]:
            longest = longest.with_placeholder(0)
        copies, overhead, budget = longest.copies, longest.overhead, longest.budget(positions)
        if budget is not None and config["compute_matched"]:
            budget = max(1, budget // 2)
    plan = None if first.stack.is_plain else first.layers
    reba = isinstance(pooling, (ReBAPooling, ChunkedReBAPooling))
    span = config.get("span", "last_copy")
    method = "reba" if reba else _method(copies, span, config.get("template"), plan is not None)
    options = {name: config.get(name) for name in ("instruction", "compute_matched", "prepend")}
    options["weights"] = next((each.weights for each in model if isinstance(each, PromptEnsemble)), None)
    options["non_finite"] = config["non_finite"] if config["non_finite"] != "error" else None
    if reba:
        stored = cast("ReBAPooling | ChunkedReBAPooling", pooling).get_config_dict()
        copies *= stored.get("repeats", 1)
        options |= {name: stored.get(name) for name in ("chunk", "include_special", "normalize_weights")}
        options["variant"] = "published" if stored.get("variant") == "published" else None
    pooled = str(cast(Any, pooling).pooling) if reba else _pooled(pooling)
    if repeats and not reba and span != _SPANS.get(method, "all" if pooled == "cls" else "last_copy"):
        options["span"] = span
    if isinstance(first, NoSinkTransformer) and first.plan_variant == "published":
        options["variant"] = "published"
    return Facts(
        base=_name(first.base_model),
        base_revision=first.base_revision,
        method=method,
        pooling=pooled,
        copies=copies,
        templates=templates,
        separator=config.get("separator", ""),
        fields=fields,
        options={name: value for name, value in options.items() if value} | reading_options(*reading_given(first)),
        plan=plan,
        layers=None if plan is None else str(first.stack),
        setting=_setting(config) if plan is not None and config.get("setting") else None,
        modules=modules,
        normalized=any(isinstance(module, Normalize) for module in model),
        prompts={name: prompt for name, prompt in model.prompts.items() if prompt},
        positions=positions,
        overhead=overhead,
        budget=budget,
        depth=first.base_layers or first.depth,
        held=first.depth,
        passes=len(first.stack.calls),
        dimension=model.get_embedding_dimension(),
        dtype=str(backbone.dtype).removeprefix("torch."),
        architecture=type(backbone).__name__,
        remote_code=bool(getattr(backbone.config, "auto_map", None)),
        quantized=getattr(backbone, "hf_quantizer", None) is not None,
        built=True,
        training=training_of(model),
        datasets=datasets_of(model),
        adapter=has_adapter(backbone),
        postfilter=first.postfilter,
    )


def facts_of_recipe(recipe: Recipe) -> Facts:
    """Read a recipe, without loading its base: what only the base tells stays None."""
    defaults = {name: parameter.default for name, parameter in inspect.signature(build).parameters.items()}
    given = {**defaults, **recipe.arguments}
    method, template = given["method"], given["template"]
    if method == "prompteol" and template is None:
        template = "prompteol"
    repeated = method in ("reba", "echo") and given["chunk"] is None
    repeats = given["repeats"] if repeated and template is None else None if template is not None else 1
    everything = ensemble_templates(template, repeats, given["separator"])
    copies = given["repeats"] if given["chunk"] is not None else everything[0]["document"].copies
    # Without a pooling, NoSink leaves a sentence-transformers model its own input and all that follows.
    own = method == "nosink" and given["pooling"] is None
    pooling = "the base's own" if own else given["pooling"] or METHODS[method][0]
    plan, setting = None, given["setting"]
    if given["layers"] is not None:
        plan = LayerPlan.from_dict(given["layers"])
    elif setting is not None and not _open(recipe.about, given):
        reading: Any = given["variant"] if method == "nosink" else "paper"
        plan = named_plan(setting, given["k"], given["k0"], given["m"], reading)
    names = ("instruction", "compute_matched", "prepend", "chunk", "include_special", "normalize_weights", "span")
    options = {name: given[name] for name in names}
    options["weights"] = ensemble_weights(template, given["weights"])
    options["variant"] = given["variant"] if given["variant"] != "paper" else None
    if given["non_finite"] == "zeros" or (method == "reba" and options["variant"] and given["non_finite"] is None):
        options["non_finite"] = "zeros"
    postfilter = _filter(recipe)
    reba = "ChunkedReBAPooling" if given["chunk"] else "ReBAPooling" if method == "reba" else "Pooling"
    return Facts(
        base=given["base"],
        base_revision=given["revision"],
        method=method,
        pooling=pooling,
        copies=copies,
        templates=None if own else written(template, repeats, given["separator"]),
        separator=given["separator"],
        fields=_fields(everything, given["instruction"]),
        options={name: value for name, value in options.items() if value}
        | reading_options(given["layer"], given["final_norm"], given["join"]),
        plan=plan,
        layers=None if plan is None else repr(plan).removeprefix("<LayerPlan ").removesuffix(">"),
        setting=None if setting is None else _setting(given) if plan is not None else setting,
        modules=(
            "NoSinkTransformer" if setting else "RepeatTransformer",
            reba,
            *["Normalize"] * given["normalize"],
            *(["Dense", *["Normalize"] * given["normalize"]] if postfilter else []),
        ),
        postfilter=postfilter,
        normalized=given["normalize"],
        prompts={name: prompt for name, prompt in (given["prompts"] or {}).items() if prompt},
        tokenizer=None if given["tokenizer"] is None else str(given["tokenizer"]),
        positions=given["max_seq_length"],
        remote_code=recipe.about.status == "remote-code",
    )


def left_at_base(facts: Facts, folder: Path) -> Facts:
    """The facts of a saved model whose weights may have been left at its base.

    Args:
        facts: Of the model.
        folder: Where it was saved.
    """
    file = folder / "sentence_bert_config.json"
    saved = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    if not saved.get("from_base"):
        return facts
    return replace(facts, base=_name(saved["base_model"]), base_revision=saved["base_revision"], from_base=True)


def is_embedded(facts: Facts) -> bool:
    """Whether the base lies inside this package."""
    return facts.base in EMBEDDED


def _filter(recipe: Recipe) -> dict[str, Any] | None:
    """The record of a recipe's post-filter."""
    file = located(recipe.arguments, recipe.path).get("postfilter")
    if file is None or isinstance(file, PostFilter):
        return None if file is None else file.record()
    return PostFilter.load(file).record()


def _name(base: str | None) -> str | None:
    """A base's name without a path of this machine."""
    return base if base is None or _HUB_ID.fullmatch(base) else os.path.basename(os.path.abspath(base))


def _open(about: About, given: dict[str, Any]) -> bool:
    """Whether the setting lacks numbers that are to be found."""
    return given["k"] is None and given["setting"] != "baseline" or (about.status != "ready" and given["k0"] is None)


def _setting(config: dict[str, Any]) -> str:
    numbers = [f"{name}{config[name]}" for name in ("k", "k0") if config[name] is not None]
    return "-".join([config["setting"].lower(), *numbers, *([f"m{config['m']}"] if config["m"] != 1 else [])])


def _method(copies: int, span: str, template: object, converted: bool) -> str:
    if copies > 1:
        return "echo"
    if span == "end" and template:
        return "prompteol"
    return "nosink" if converted else "classical"


def _pooled(pooling: object) -> str:
    if not isinstance(pooling, Pooling):
        return type(pooling).__name__
    modes = pooling.pooling_mode
    return "+".join(_POOLED.get(mode, mode) for mode in ([modes] if isinstance(modes, str) else modes))


def _fields(everything: tuple[dict[str, Template], ...], instruction: str) -> dict[str, tuple[str, ...]]:
    """Names of each task's fields that need a value, in any of its templates."""
    return {
        task: _needed(frozenset(name for each in everything for name in each[task].fields), instruction)
        for task in everything[0]
    }


def _needed(fields: frozenset[str], instruction: str) -> tuple[str, ...]:
    return tuple(sorted(name for name in fields if name != "instruction" or not instruction))
