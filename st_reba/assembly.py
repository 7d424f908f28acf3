"""Puts a model together: the base's weights, the input module, the pooling, and what stands behind it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from inspect import signature
from typing import Any

import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Normalize
from sentence_transformers.sentence_transformer.modules import Pooling, Transformer
from sentence_transformers.util import get_device_name

from . import bases
from .filters import with_postfilter
from .inspection import read_json
from .modules import Filter, NoSink, ReBA
from .modules.chunked import ChunkedReBAPooling
from .modules.decoder import DecoderTransformer
from .modules.ensemble import Ensemble
from .modules.guards import check_sizes, limited
from .modules.nosink import NoSinkTransformer
from .modules.options import shown
from .modules.pooling import ReBAPooling
from .modules.prompts import PromptEnsemble
from .modules.repeat import RepeatTransformer
from .persistence import load
from .selfcheck import check_capture, check_plan, hidden_states
from .spec import Spec

# What sentence-transformers' constructor takes, but for what ``build`` itself says.
LOADING = set(signature(SentenceTransformer.__init__).parameters) - {"self", "model_name_or_path", "modules"}
LOADING -= {"backend", "kwargs", "args"}
# What loads the backbone, and says nothing of a model that is put together.
_OF_THE_BACKBONE = frozenset(("revision", "model_kwargs", "processor_kwargs", "config_kwargs", "tokenizer_kwargs"))


class Assembly:
    """One call of ``build``."""

    def __init__(self, base: Any, spec: Spec, loading: dict[str, Any], tokenizer: Any, dtype: Any, check: bool) -> None:
        self.given, self.loading, self.tokenizer, self.check = str(base), loading, tokenizer, check
        self.filter = next((stage for stage in spec.stages if isinstance(stage, Filter)), None)
        self.spec = replace(spec, stages=tuple(stage for stage in spec.stages if stage is not self.filter))
        prompts, self.device = loading.get("prompts"), loading.get("device")
        if prompts is not None and not (
            isinstance(prompts, Mapping) and all(isinstance(each, str) for pair in prompts.items() for each in pair)
        ):
            raise ValueError(f"prompts={shown(prompts)} must be a mapping of names to texts: {{'query': 'query: '}}.")
        try:
            torch.device(self.device or "cpu")
        except (RuntimeError, TypeError) as error:
            raise ValueError(f"device={self.device!r} is not known ({error}): give cpu, cuda, cuda:1, mps.") from error
        # As sentence-transformers finds a repository, and as transformers does.
        self.hub = bases.hub_of(loading)
        self.files = {bases.HUB[name]: value for name, value in self.hub.items()}
        self.path, self.name = bases.locate(base)
        self.dtype_given = dtype not in (None, "auto")
        self.model_kwargs = {"dtype": bases.weights_dtype(dtype, self.device), **(loading.get("model_kwargs") or {})}

    def run(self, *, pooling_given: bool) -> SentenceTransformer:
        listed = read_json(self.path, "modules.json", **self.hub)
        for each in listed[:1] if isinstance(listed, list) else ():
            if isinstance(each, dict) and str(each.get("type")).startswith("st_reba."):
                raise ValueError(
                    f"base={self.given!r} is a saved embedder, whose method and pooling would be lost. Load it, or "
                    "build from its base model."
                )
        self.adapted = bases.adapted_model(self.path, self.name, self.files)
        kept = listed is not None and self.spec.name == "nosink" and not pooling_given
        model = self._converted() if kept else self._made()
        if self.filter is None:
            return model
        if self.filter.file is None:
            raise ValueError("filter: give file=…, as st-reba postfilter writes it; or call st_reba.fit_postfilter.")
        return with_postfilter(model, self.filter.file)

    def _converted(self) -> SentenceTransformer:
        """A sentence-transformers model with its own input and pooling, its layers converted (NoSink, section 4)."""
        others = {stage.name: stage for stage in self.spec.stages if stage.order != NoSink.order}
        given = {**self.spec.method.to_dict(), "pooling": None, "tokenizer": self.tokenizer, **others}
        for option, value in given.items():
            if value is not None:
                raise ValueError(
                    f"{option}={shown(value)}: the base is a sentence-transformers model, whose own input and pooling "
                    "are kept. Drop it, or give pooling=… to use the backbone alone."
                )
        model = load(self.path, **{**self.loading, "model_kwargs": self.model_kwargs})
        first: Any = model[0]
        problem = None
        # A class of its own may treat its input or output in a way of its own, which would be lost.
        if type(first) is not Transformer:
            problem = f"starts with {type(first).__name__}, whose layers stay as they are"
        elif getattr(first.model.config, "output_hidden_states", False):
            reader = type(model[1]).__name__
            problem = f"{reader} reads the hidden states of every layer, which a converted model does not hand out"
        elif modalities := sorted(set(first.modalities) - {"text", "message"}):
            problem = f"embeds {modalities} too, which a converted model does not"
        if problem:
            raise ValueError(f"base={self.name!r}: {problem}. Give pooling=….")
        record = {"base_model": self.name, "base_revision": self.loading.get("revision")}
        model[0] = adopted = DecoderTransformer.adopt(first, self.spec.stages, **record)
        if self.check:
            check_plan(adopted)
        bases.check_loaded(adopted, self.path, self.name, self.adapted, self.files)
        return model

    def _made(self) -> SentenceTransformer:
        """A model of a backbone alone."""
        transformer = self._transformer()
        if self.check:
            check_plan(transformer)
        plain = hidden_states(transformer)
        bases.check_padding(transformer, self.name)
        # Some backbones project their last hidden states to another size than their configuration's.
        modules = [transformer, *self._behind(plain.shape[-1])]
        if isinstance(modules[1], ReBAPooling):
            check_capture(transformer, plain)
        taken = {name: value for name, value in self.loading.items() if name not in _OF_THE_BACKBONE}
        model = SentenceTransformer(modules=modules, **taken)
        for task in ("query", "document"):
            # Raises where the template leaves no room for a text. Fields may get their values with it: any will do.
            fields = dict.fromkeys(transformer.fields(task), "-")
            transformer.budget(task=task, **fields)
            if isinstance(modules[1], ChunkedReBAPooling):
                modules[1].check_room(transformer.frames(task=task, **fields)[0].overhead)
        embed: Any = model.encode
        if transformer.rows > 1 and not embed("A text, 短文。", **dict.fromkeys(transformer.forward_kwargs, "-")).any():
            raise ValueError("ensemble: the weighted vectors of a text add up to zero. Change templates or weights.")
        return model

    def _transformer(self) -> RepeatTransformer:
        """The input module, with the base's weights."""
        method, layout = self.spec.method, self.spec.method.layout
        hub = {**self.files, "trust_remote_code": bool(self.loading.get("trust_remote_code"))}
        processor_kwargs = {**hub, **(self.loading.get("processor_kwargs") or {})}
        if method.max_seq_length is not None:
            processor_kwargs["model_max_length"] = method.max_seq_length
        if self.tokenizer is None:
            borrowed = bases.tokenizer_of_adapted(self.path, self.adapted, self.hub)
        else:
            borrowed = bases.locate_tokenizer(self.tokenizer, {**hub, "revision": None})
        if borrowed is not None:
            processor_kwargs["revision"] = None
        # An adapter's weights and configuration are those of the model that it adapts.
        place, where = (self.path, self.hub) if self.adapted is None else (self.adapted, {**self.hub, "revision": None})
        named = self.spec.name == "nosink" and any(isinstance(stage, NoSink) for stage in self.spec.stages)
        try:
            with limited(check_sizes(place, **where)):
                transformer = (NoSinkTransformer if named else RepeatTransformer)(
                    self.path,
                    layout=layout,
                    method={method.name: method.to_dict()},
                    stages=self.spec.stages,
                    base_model=self.name,
                    base_revision=self.loading.get("revision"),
                    model_kwargs={**hub, **self.model_kwargs},
                    processor_kwargs=processor_kwargs,
                    config_kwargs={**hub, **(self.loading.get("config_kwargs") or {})},
                    tokenizer_name_or_path=borrowed,
                )
        except (OSError, ValueError) as error:
            if (explained := bases.load_error(error, self.given, self.adapted)) is None:
                raise
            raise explained from error
        if layout.instruction and "instruction" not in transformer.forward_kwargs:
            raise ValueError(f"instruction={layout.instruction!r}: the template has no {{instruction}}. Add it.")
        if method.name in ("classical", "prompteol") and transformer.repeats > 1:
            raise ValueError(
                f"template has {transformer.repeats} {{text}} slots, method={self.spec.name!r} 1. Use method='echo'."
            )
        if self.tokenizer is not None:
            tokens = max(transformer.text_tokenizer.get_vocab().values()) + 1
            table: Any = transformer.model.get_input_embeddings()
            if tokens > len(table.weight):
                raise ValueError(
                    f"tokenizer={os.fspath(self.tokenizer)!r} has {tokens} token ids, but base={self.name!r} has "
                    f"{len(table.weight)} embeddings. Name the tokenizer that the base was trained with."
                )
        bases.check_loaded(transformer, self.path, self.name, self.adapted, self.files)
        transformer.zeros = isinstance(method, ReBA) and method.variant == "published"
        if self.dtype_given:
            # Saved as it was asked for, and not as the base stores it.
            transformer.stored_dtype = None
        if "device_map" in self.model_kwargs:
            self.loading["device"] = str(transformer.model.device)
        else:
            transformer.to(self.device or get_device_name())
        return transformer

    def _behind(self, width: int) -> list[torch.nn.Module]:
        """The modules behind the first, which gives ``width`` numbers a token."""
        method = self.spec.method
        if isinstance(method, ReBA):
            weights = (method.include_special, method.normalize_weights)
            if method.chunk is None:
                modules: list[torch.nn.Module] = [ReBAPooling(width, method.pooling, method.variant, *weights)]
            else:
                modules = [ChunkedReBAPooling(width, method.chunk, method.pooling, method.repeats or 2, *weights)]
        else:
            mode = getattr(method, "pooling")  # noqa: B009
            modules = [Pooling(width, "lasttoken" if mode == "last" else mode)]
        modules += [PromptEnsemble() for stage in self.spec.stages if isinstance(stage, Ensemble)]
        return [*modules, Normalize()] if method.normalize else modules
