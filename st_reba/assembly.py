"""One call of `build`: the input module around a base, the pooling, what follows it, and the checks."""

from __future__ import annotations

import logging
import os
from dataclasses import replace
from inspect import signature
from typing import Any

import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Normalize
from sentence_transformers.sentence_transformer.modules import Transformer
from sentence_transformers.util import get_device_name
from torch import nn
from transformers import PreTrainedModel

from . import modules
from .backbones import check_backbone, cut_layers
from .bases import check_device, check_loading
from .filters import Filter, with_filter
from .loaded_base import LoadedBase
from .methods import Method
from .modules import RepeatTransformer
from .modules.mask_check import check_masks
from .modules.outputs import shows_attention
from .modules.selfcheck import can_share_prefix, check_capture, check_padding, hidden_states, is_causal
from .modules.settings import plan_layers
from .named_base import KWARGS_OPTIONS, NamedBase
from .request import Base, BuildRequest, Options
from .safety import load

logger = logging.getLogger(__name__)

# Options of `build` that sentence-transformers' constructor does not take.
_OWN_OPTIONS = ("tokenizer", "dtype", "quantization", "gguf_file")
# Its options that load the base, and mean nothing to a model that is put together.
_OPTIONS_OF_BASE = ("revision", *KWARGS_OPTIONS)
_CONSTRUCTOR_OPTIONS = set(signature(SentenceTransformer).parameters)
_CONSTRUCTOR_OPTIONS -= {"model_name_or_path", "modules", "backend", "kwargs", "args"}
# What a method may change in an embedder that keeps its input and pooling.
_OPTIONS_OF_MASKS = {"name", "setting", "k", "k0", "m", "implementation"}


def build_model(
    base: Base,
    method: str | Method | None = None,
    *,
    check: bool = True,
    **options: Any,
) -> SentenceTransformer:
    """Build a model by a method; :func:`st_reba.build`, without ``"auto"``."""
    request = BuildRequest.read(base, method, options)
    return Assembly(request, check=check).run()


class Assembly:
    """One call of `build`.

    Args:
        request: What it asks for. A default method reads hidden states where attention outputs cannot be read.
        check: Check that every layer sees what its mask says.
    """

    def __init__(self, request: BuildRequest, *, check: bool) -> None:
        self.method = request.method
        self.check = check
        self.may_read_states = request.is_default_method
        loading = request.loading
        for name in sorted(loading.keys() - _CONSTRUCTOR_OPTIONS):
            if name not in _OWN_OPTIONS:
                raise ValueError(f"{name}={loading[name]!r} is no option of {self.method.name} or of loading.")
        check_loading(request.base, loading)
        check_device(loading.get("device"))
        self.base: NamedBase | LoadedBase
        if isinstance(request.base, (str, os.PathLike)):
            self.base = NamedBase(request.base, loading)
        else:
            self.base = LoadedBase(request.base, loading)

    def run(self) -> SentenceTransformer:
        """The model."""
        keeps_input = self.method.name == "nosink" and self.method.pooling is None
        if isinstance(self.base, NamedBase) and self.base.is_embedder() and keeps_input:
            model = self._convert_embedder(self.base)
        else:
            model = self._build_pipeline()
        if self.method.filter is None:
            return model
        return with_filter(model, Filter.load(self.method.filter))

    def _convert_embedder(self, base: NamedBase) -> SentenceTransformer:
        """A model of sentence-transformers with its own input and pooling, whose layers have other masks."""
        fixed_options = {**self.method.to_dict(), "tokenizer": base.tokenizer}
        fixed_options |= {"quantization": base.quantization, "gguf_file": base.gguf_name}
        for name in sorted(fixed_options.keys() - _OPTIONS_OF_MASKS):
            if fixed_options[name] is not None:
                problem = f"{name}={fixed_options[name]!r:.80}: the base keeps its own"
                raise ValueError(f"{problem}. Drop it, or give pooling=….")
        model = load(base.path, dtype=base.dtype, **_without(base.options, _OWN_OPTIONS))
        transformer: Any = model[0]
        if type(transformer) is not Transformer or set(transformer.modalities) - {"text", "message"}:
            problem = f"starts with a {type(transformer).__name__} of its own"
            raise ValueError(f"base={base.name!r} {problem}. Give pooling=….")
        if transformer.config.output_hidden_states:
            raise ValueError(f"base={base.name!r} reads the hidden states of every layer. Give pooling=….")
        if base.find_file("config.json"):
            # Loaded as other bases are, which tells what weights are missing, and of which type they are.
            transformer.model = None
            loaded = base.load()
            transformer.model = loaded.model.to(base.device or get_device_name())
            transformer.stored_dtype = loaded.stored_dtype
        check_backbone(transformer.model, base.name)
        model[0] = self._wrap(transformer, own_input=True)
        return model

    def _build_pipeline(self) -> SentenceTransformer:
        transformer = self._make_transformer()
        plain_states = hidden_states(transformer)
        check_padding(transformer, self.base.name)
        if self.method.name != "reba":  # whose passes show the attention of whole rows
            transformer.shares_prefix = can_share_prefix(transformer)
        # Some models project their last hidden state to another size than their configuration's.
        following_modules = self._make_following_modules(plain_states.shape[-1])
        options = _without(self.base.options, (*_OWN_OPTIONS, *_OPTIONS_OF_BASE))
        if self.base.keeps_device:
            options["device"] = str(transformer.model.device)
        model = SentenceTransformer(modules=[transformer, *following_modules], **options)
        if isinstance(following_modules[0], modules.ReBAPooling):
            check_capture(transformer, plain_states)
        for task in transformer.templates[0]:
            self._check_task(model, transformer, task)
        return model

    def _check_task(self, model: SentenceTransformer, transformer: RepeatTransformer, task: str) -> None:
        """Refuse a template that leaves no room, and templates whose vectors cancel each other."""
        # Fields may get their values with the text: here any will do.
        fields: dict[str, Any] = dict.fromkeys(transformer.fields(task), "-")
        token_budget = transformer.budget(task=task, **fields)
        copies, chunk = self.method.repeats or 2, self.method.chunk
        if token_budget is not None and chunk is not None and copies * chunk > token_budget:
            raise ValueError(f"chunk={chunk}: {copies} copies do not fit. Give {token_budget // copies} at most.")
        if self.method.templates is not None and not model.encode(["A text."], **fields).any():
            raise ValueError(f"weights={self.method.weights}: the vectors of the templates cancel each other.")

    def _make_transformer(self) -> RepeatTransformer:
        """The first module: the base, with a template, what is read of its layers, and their masks."""
        loaded = self.base.load()
        self._place_on_device(loaded)
        reads_attention = self.method.read == "attention"
        if self.may_read_states and reads_attention and not shows_attention(loaded.model):
            logger.warning(
                "The attention outputs of %s cannot be read. Its states are: read='states'.",
                self.base.name,
            )
            self.method = replace(self.method, read="states")
        method = self.method
        transformer = self._wrap(
            loaded,
            reading=_plan_reading(method, loaded),
            template=method.full_template,
            repeats=1 if method.reads_once else method.repeats or 2,
            pooled=method.pooled or method.pooling_spec.positions,
            instruction=method.instruction,
            compute_matched=method.compute_matched,
        )
        if method.max_seq_length is not None:
            transformer.max_seq_length = method.max_seq_length
        _check_template(method, transformer)
        return transformer

    def _place_on_device(self, loaded: RepeatTransformer) -> None:
        model, device = loaded.model, self.base.device
        if not self.base.keeps_device:
            if getattr(model, "hf_quantizer", None) is None:
                loaded.to(device or get_device_name())
        elif device and torch.device(device) not in (model.device, torch.device(model.device.type)):
            raise ValueError(f"device={device!r}: the base is on {model.device}. Move it, or drop device.")

    def _wrap(self, transformer: Transformer, **options: Any) -> RepeatTransformer:
        """Our module around a Transformer's model, with the method's masks."""
        method = self.method
        recipe = method.to_dict()
        recipe.pop("filter", None)
        options |= {
            "recipe": recipe,
            "base_model": self.base.name,
            "base_revision": self.base.options.get("revision"),
            "causal": is_causal(transformer.model),
        }
        if method.setting is None:
            return RepeatTransformer(transformer, **options)
        layer_plan = plan_layers(
            method.setting,
            transformer.config.get_text_config().num_hidden_layers,
            k=method.k,
            k0=method.k0,
            m=method.m,
            implementation=method.implementation,
        )
        nosink_transformer = modules.NoSinkTransformer(transformer, **layer_plan._asdict(), **options)
        if self.check:
            check_masks(nosink_transformer)
        return nosink_transformer

    def _make_following_modules(self, width: int) -> list[nn.Module]:
        """The pooling, and what follows it."""
        method = self.method
        following_modules = [method.pooling_spec.build(method, width)]
        if method.templates is not None:
            following_modules.append(modules.PromptEnsemble(method.template_weights, method.equal_norms))
        if method.normalize:
            following_modules.append(Normalize())
        return following_modules


def _without(options: Options, names: tuple[str, ...]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if name not in names}


def _plan_reading(method: Method, loaded: RepeatTransformer) -> dict[str, object] | None:
    """What is read in place of the last layer's states; the layers above it are cut off."""
    reads_attention = method.read == "attention"
    if method.layer is None and not reads_attention:
        return None
    first, last = _read_layers(method, loaded.depth)
    model: PreTrainedModel = loaded.model
    cut_layers(model, last)
    reading: dict[str, object] = {"of": method.read, "first": first, "last": last}
    if reads_attention:
        return reading
    if first == last > 0 and method.final_norm:
        return None  # the last of the layers that are left
    reading |= {"join": method.join, "final_norm": method.final_norm}
    return reading


def _read_layers(method: Method, depth: int) -> tuple[int, int]:
    """First and last of the layers that are read, 0 (embeddings) to ``depth``."""
    lowest = 1 if method.read == "attention" else 0
    layer = method.layer
    if layer is None:
        layer = (depth // 2 + 1, depth)
    ends = layer if isinstance(layer, tuple) else (layer, layer)
    # -1 is the topmost.
    first, last = (end % (depth + 1) for end in ends)
    are_layers = -depth - 1 <= min(ends) and max(ends) <= depth
    if not are_layers or not lowest <= first <= last:
        raise ValueError(f"layer={layer!r}: give {lowest} to {depth}, or -1 (= {depth}) downwards, lower first.")
    return first, last


def _check_template(method: Method, transformer: RepeatTransformer) -> None:
    """Refuse options that do not go with the template."""
    copies = transformer.copies
    if method.reads_once and copies > 1:
        raise ValueError(f"template has {copies} {{text}} slots, {method.name} has one. Use method='echo'.")
    is_counted = method.template is not None and method.chunk is None
    if is_counted and method.repeats not in (None, copies):
        raise ValueError(f"repeats={method.repeats}: the template has {copies} {{text}} slots. Drop it.")
    if method.instruction and "instruction" not in transformer.forward_kwargs:
        raise ValueError(f"instruction={method.instruction!r}: the template has no {{instruction}}. Add it.")
