"""Base model + method → SentenceTransformer."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from inspect import signature
from typing import Any

import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Normalize
from sentence_transformers.sentence_transformer.modules import Pooling
from sentence_transformers.util import get_device_name, load_file_path

from .bases import (
    HUB,
    adapted_model,
    check_loaded,
    check_padding,
    load_error,
    locate,
    tokenizer_of_adapted,
    weights_dtype,
)
from .checks import check_device, check_length, check_prompts, check_vocabulary, locate_tokenizer
from .filters import with_postfilter
from .modules import Filter, Method, NoSink, ReBA, Stage
from .modules.chunked import ChunkedReBAPooling
from .modules.ensemble import Ensemble
from .modules.guards import check_sizes, limited
from .modules.nosink import NoSinkTransformer
from .modules.options import shown
from .modules.pooling import ReBAPooling
from .modules.prompts import PromptEnsemble
from .modules.repeat import RepeatTransformer
from .recipe import is_recipe, read_recipe
from .repository import convert_repository
from .selfcheck import check_capture, check_plan, hidden_states
from .spec import Spec

_POOLING_MODES: dict[str, Any] = {"last": "lasttoken", "mean": "mean", "cls": "cls"}


def build(
    base: str | os.PathLike[str],
    method: str | Method | None = None,
    *,
    stages: Sequence[Stage | Mapping[str, Any] | str] | None = None,
    tokenizer: str | os.PathLike[str] | None = None,
    dtype: str | torch.dtype | None = None,
    check: bool = True,
    **fields: Any,
) -> SentenceTransformer:
    """Turn a pretrained decoder into a text embedder.

    Args:
        base: ``"mini"`` (the embedded tiny model), a local folder, a Hub id, a model of the zoo as
            ``"zoo:qwen3-0.6b-reba"``, or a recipe: a YAML file, whose values those given here override.
        method: ``"reba"``, ``"echo"``, ``"classical"``, ``"prompteol"`` or ``"nosink"``; the short form, as
            ``"echo:pooling=mean"``; or an object, as ``Echo(pooling="mean")``. None: the recipe's, else ReBA.
        stages: What happens around the layers, with any method: :class:`NoSink`, :class:`LayerPlan`,
            :class:`ReadLayers`, :class:`Prepend`, :class:`Ensemble`.
        tokenizer: Folder or Hub id whose tokenizer is used instead of the base's own.
        dtype: Of the weights; None: float32 on a CPU, the checkpoint's own on a GPU.
        check: Check on a few tokens that every layer obeys its plan.
        **fields: The method's fields, as ``pooling="mean"``, ``repeats=3``; and what ``SentenceTransformer`` takes, as
            ``device``, ``prompts``, ``revision``, ``token``, ``trust_remote_code``, ``model_kwargs``.

    Returns:
        An ordinary SentenceTransformer: RepeatTransformer (or NoSinkTransformer), a pooling (ReBAPooling,
        ChunkedReBAPooling or Pooling), PromptEnsemble where there are several templates, and Normalize. (nosink on a
        sentence-transformers model, without a pooling: the model's own input, prompts and pooling are kept.)

    Raises:
        ValueError: An unknown name or value, options that exclude each other, or a layer that does not obey its plan.
        OSError: The base was not found.

    Source:
        ReBA, Echo and NoSink; each method's class names the section.

    Example:
        >>> import st_reba
        >>> model = st_reba.build("mini", "echo", pooling="mean")
        >>> model.encode_query("天气怎么样？").shape
        (192,)
    """
    loading = {name: fields.pop(name) for name in list(fields) if name in _constructor()}
    recipe = None
    if isinstance(base, str) and base.startswith("zoo:"):
        from .zoo import recipe_named

        recipe = recipe_named(base.removeprefix("zoo:"), {**loading, **fields, "stages": stages})
    elif is_recipe(base):
        recipe = read_recipe(base)
    if recipe is not None:
        base, loading, values = recipe.base, {**recipe.loading, **loading}, dict(recipe.values)
        borrowed = loading.pop("tokenizer", None)
        tokenizer = borrowed if tokenizer is None else tokenizer
        recipe_stages = values.pop("stages", None)
        stages = recipe_stages if stages is None else stages
        if method is None or (isinstance(method, str) and ":" not in method):
            named = values.pop("method", None)
            method, fields = named if method is None else method, {**values, **fields}
    if method == "nosink" and _converts_all(base, fields, loading):
        fields["k"] = "all"
    spec = Spec.make(method, stages, fields)
    return _Build(base, spec, loading, tokenizer, dtype, check).run(pooling_given="pooling" in fields)


def _converts_all(base: Any, fields: Mapping[str, Any], loading: Mapping[str, Any]) -> bool:
    """Whether a sentence-transformers model is converted without a number of layers: then all are, as in the paper."""
    named = str(fields.get("setting", "baseline")).lower()
    if {"k", "pooling"} & set(fields) or named.startswith(("baseline", "extend")):
        return False
    hub = {name: loading[name] for name in HUB if loading.get(name) is not None}
    return load_file_path(locate(base)[0], "modules.json", **hub) is not None


@cache
def _constructor() -> frozenset[str]:
    """What sentence-transformers' constructor takes, but for what ``build`` itself says."""
    taken = signature(SentenceTransformer.__init__).parameters
    return frozenset(taken) - {"self", "model_name_or_path", "modules", "backend", "kwargs", "args"}


class _Build:
    """One call of ``build``, its arguments looked through."""

    def __init__(self, base: Any, spec: Spec, loading: dict[str, Any], tokenizer: Any, dtype: Any, check: bool) -> None:
        self.given, self.spec, self.loading, self.tokenizer, self.check = base, spec, loading, tokenizer, check
        check_prompts(loading.get("prompts"))
        check_device(loading.get("device"))
        self.device: str | None = loading.get("device")
        self.trusted = bool(loading.get("trust_remote_code"))
        # As sentence-transformers finds a repository, and as transformers does.
        self.hub = {name: loading[name] for name in HUB if loading.get(name) is not None}
        self.files = {HUB[name]: value for name, value in self.hub.items()}
        self.path, self.name = locate(base)
        own = loading.get("model_kwargs") or {}
        self.model_kwargs = {"dtype": weights_dtype(dtype, self.device), **own}
        self.dtype_given = dtype not in (None, "auto")
        self.filter = next((stage for stage in spec.stages if isinstance(stage, Filter)), None)

    def run(self, *, pooling_given: bool) -> SentenceTransformer:
        spec = self.spec
        repository = load_file_path(self.path, "modules.json", **self.hub)
        if repository is not None:
            self._refuse_embedder()
        if self.filter is not None:
            spec = replace(spec, stages=tuple(stage for stage in spec.stages if stage is not self.filter))
        if repository is not None and spec.name == "nosink" and not pooling_given:
            return self._filtered(self._kept(spec))
        transformer = self._transformer(spec)
        plain = self._checked(transformer)
        # Some backbones project their last hidden states to another size than their configuration's.
        modules = self._modules(spec, transformer, plain.shape[-1])
        if isinstance(modules[1], ReBAPooling):
            check_capture(transformer, plain)
        taken = {n: v for n, v in self.loading.items() if n not in _NOT_AGAIN}
        model = SentenceTransformer(modules=modules, **taken)
        check_length(transformer, modules[1])
        embed: Any = model.encode
        if transformer.rows > 1 and not embed("A text, 短文。", **dict.fromkeys(transformer.forward_kwargs, "-")).any():
            raise ValueError(
                "ensemble: the weighted vectors of a text add up to zero: templates that differ behind the text alone "
                "give the same vectors where only the text's tokens are pooled. Change templates or weights."
            )
        return self._filtered(model)

    def _refuse_embedder(self) -> None:
        from .inspection import read_json

        modules = read_json(self.path, "modules.json", **self.hub)
        kinds = (
            [str(each.get("type", "")) for each in modules if isinstance(each, dict)]
            if isinstance(modules, list)
            else []
        )
        if kinds and kinds[0].startswith("st_reba."):
            raise ValueError(
                f"base={str(self.given)!r} is a saved embedder, whose method and pooling would be lost. Load it with "
                "SentenceTransformer(…), or build from its base model."
            )

    def _kept(self, spec: Spec) -> SentenceTransformer:
        """A sentence-transformers model with its own input and pooling, its layers converted."""
        others = {stage.name: stage for stage in spec.stages if stage.order != NoSink.order}
        given = {**spec.method.to_dict(), "pooling": None, "tokenizer": self.tokenizer, **others}
        if option := next((name for name, value in given.items() if value is not None), None):
            raise ValueError(
                f"{option}={shown(given[option])}: the base is a sentence-transformers model, whose own "
                f"input and pooling are kept. Drop the "
                "option, or give pooling=… to use its backbone alone."
            )
        kept = convert_repository(
            self.path,
            spec.stages,
            check=self.check,
            base_model=self.name,
            **{**self.loading, "model_kwargs": self.model_kwargs},
        )
        check_loaded(kept[0], self.path, self.name, adapted_model(self.path, self.name, self.files), self.files)
        return kept

    def _transformer(self, spec: Spec) -> RepeatTransformer:
        """The input module, with the base's weights."""
        adapted = adapted_model(self.path, self.name, self.files)
        hub = {**self.files, "trust_remote_code": self.trusted}
        processor_kwargs = {**hub, **(self.loading.get("processor_kwargs") or {})}
        length = spec.method.max_seq_length
        if length is not None:
            processor_kwargs["model_max_length"] = length
        if self.tokenizer is not None:
            borrowed: dict[str, Any] = {
                "tokenizer_name_or_path": locate_tokenizer(self.tokenizer, {**hub, "revision": None})
            }
        else:
            borrowed = tokenizer_of_adapted(self.path, adapted, self.hub)
        if borrowed:
            processor_kwargs["revision"] = None
        # An adapter's weights and configuration are those of the model that it adapts.
        place, where = (self.path, self.hub) if adapted is None else (adapted, {**self.hub, "revision": None})
        named = any(stage.name == "nosink" for stage in spec.stages) and spec.name == "nosink"
        try:
            with limited(check_sizes(place, **where)):
                transformer = (NoSinkTransformer if named else RepeatTransformer)(
                    self.path,
                    layout=spec.method.layout,
                    method={spec.method.name: spec.method.to_dict()},
                    stages=spec.stages,
                    base_model=self.name,
                    base_revision=self.loading.get("revision"),
                    model_kwargs={**hub, **self.model_kwargs},
                    processor_kwargs=processor_kwargs,
                    config_kwargs={**hub, **(self.loading.get("config_kwargs") or {})},
                    **borrowed,
                )
        except (OSError, ValueError) as error:
            if (explained := load_error(error, str(self.given), adapted)) is None:
                raise
            raise explained from error
        if spec.method.layout.instruction and "instruction" not in transformer.forward_kwargs:
            raise ValueError(
                f"instruction={spec.method.layout.instruction!r}: the template has no {{instruction}}. Add it."
            )
        if spec.method.name in ("classical", "prompteol") and transformer.repeats > 1:
            raise ValueError(
                f"The template has {transformer.repeats} {{text}} slots, but method={spec.name!r} runs the text once. "
                "Use method='echo'."
            )
        if self.tokenizer is not None:
            check_vocabulary(transformer, self.name, os.fspath(self.tokenizer))
        check_loaded(transformer, self.path, self.name, adapted, self.files)
        if self.dtype_given:
            # Saved as it was asked for, and not as the base stores it.
            transformer.stored_dtype = None
        if "device_map" in self.model_kwargs:
            self.loading["device"] = str(transformer.model.device)
        else:
            transformer.to(self.device or get_device_name())
        return transformer

    def _checked(self, transformer: RepeatTransformer) -> torch.Tensor:
        """The hidden states of a short text, once it is known that every layer does what it should."""
        transformer.zeros = getattr(self.spec.method, "variant", "paper") == "published"
        if self.check:
            check_plan(transformer)
        plain = hidden_states(transformer)
        check_padding(transformer, self.name)
        return plain

    def _modules(self, spec: Spec, transformer: RepeatTransformer, width: int) -> list[torch.nn.Module]:
        method = spec.method
        modules: list[torch.nn.Module] = [transformer]
        if isinstance(method, ReBA) and method.chunk is not None:
            weights = (method.include_special, method.normalize_weights)
            modules.append(ChunkedReBAPooling(width, method.chunk, method.pooling, method.repeats or 2, *weights))
        elif isinstance(method, ReBA):
            weights = (method.include_special, method.normalize_weights)
            modules.append(ReBAPooling(width, method.pooling, method.variant, *weights))
        else:
            modules.append(Pooling(width, _POOLING_MODES[getattr(method, "pooling")]))  # noqa: B009
        ensemble = next((stage for stage in spec.stages if isinstance(stage, Ensemble)), None)
        if ensemble is not None:
            modules.append(PromptEnsemble(ensemble.summed, ensemble.equal_norms))
        if method.normalize:
            modules.append(Normalize())
        return modules

    def _filtered(self, model: SentenceTransformer) -> SentenceTransformer:
        """The model with the filter whose file a recipe names."""
        if self.filter is None:
            return model
        if self.filter.file is None:
            raise ValueError(
                "filter: give file=…, as st-reba postfilter writes it; or fit one: st_reba.fit_postfilter."
            )
        return with_postfilter(model, self.filter.file)


# What was used to load the backbone, and says nothing of a model that is put together.
_NOT_AGAIN = frozenset(("revision", "model_kwargs", "processor_kwargs", "config_kwargs", "tokenizer_kwargs"))
