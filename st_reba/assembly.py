"""One call to `build`: the input module around a base, the pooling, what follows it, and the checks."""

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

from . import modules
from .backbones import check_backbone, cut_layers, max_exact_positions
from .bases import check_device, check_loading, recorded_name
from .encode import transformer_of
from .filters import Filter, with_filter
from .loaded_base import LoadedBase
from .methods import LOADING_RECORD, MASK_OPTIONS, Method, Options
from .modules import RepeatTransformer
from .modules.layout import special_tokens
from .modules.mask_check import check_masks
from .modules.outputs import shows_attention
from .modules.selfcheck import (
    check_capture,
    check_padding,
    hidden_states,
    is_causal,
    try_sharing_prefix,
)
from .named_base import KWARGS_OPTIONS, NamedBase
from .request import Base, BuildRequest
from .safety import load

logger = logging.getLogger(__name__)

# Options of `build` that sentence-transformers' constructor does not take.
_OWN_OPTIONS = ("tokenizer", "dtype", "quantization", "gguf_file")
# Options of that constructor that load a base, and mean nothing to a model built from modules.
_OPTIONS_OF_BASE = ("revision", *KWARGS_OPTIONS)
_CONSTRUCTOR_OPTIONS = set(signature(SentenceTransformer).parameters)
_CONSTRUCTOR_OPTIONS -= {"model_name_or_path", "modules", "backend", "kwargs", "args"}


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
    """One call to `build`.

    Args:
        request: What it asks for. A default method reads hidden states where attention outputs
            cannot be read.
        check: Check that every layer sees what its mask says.
    """

    def __init__(self, request: BuildRequest, *, check: bool) -> None:
        self.method = request.method
        self.check = check
        self.is_default_method = request.is_default_method
        self.has_all_layers = True
        loading = request.loading
        for option_name in sorted(loading.keys() - _CONSTRUCTOR_OPTIONS):
            if option_name not in _OWN_OPTIONS:
                raise ValueError(
                    f"{option_name}={loading[option_name]!r} is not an option of {self.method.name} or of loading."
                )
        check_loading(request.base, loading)
        check_device(loading.get("device"))
        self.base: NamedBase | LoadedBase
        if isinstance(request.base, (str, os.PathLike)):
            self.base = NamedBase(request.base, loading)
        else:
            self.base = LoadedBase(request.base, loading)

    def run(self) -> SentenceTransformer:
        """The model; its recipe says how the base was loaded."""
        fitted_filter = None
        if self.method.filter is not None:  # read first: a wrong name is reported at once
            fitted_filter = Filter.load(self.method.filter)
        keeps_input = self.method.name == "nosink" and self.method.pooling is None
        if keeps_input and isinstance(self.base, NamedBase) and self.base.is_embedder:
            model = self._convert_embedder(self.base)
        else:
            model = self._build_pipeline()
        transformer = transformer_of(model)
        transformer.is_base_stored = self.has_all_layers and self.base.is_stored
        transformer.recipe = {
            **(transformer.recipe or {}),
            LOADING_RECORD: self._loading_record(transformer),
        }
        if fitted_filter is None:
            return model
        return with_filter(model, fitted_filter)

    def _loading_record(self, transformer: RepeatTransformer) -> dict[str, Any]:
        """What a card needs besides the method to write a recipe, and the options that no recipe holds.

        ``max_seq_length`` is None where the caller gave it for the tokenizer, not for the method.
        """
        kwargs = {name: dict(self.base.options.get(name) or {}) for name in KWARGS_OPTIONS}
        given_length = kwargs["processor_kwargs"].pop("model_max_length", None)
        tokenizer_name = None
        if isinstance(self.base.tokenizer, (str, os.PathLike)):
            tokenizer_name = recorded_name(self.base.tokenizer)
        return {
            "tokenizer": tokenizer_name,
            "max_seq_length": transformer.max_seq_length if given_length is None else None,
            "python_options": [name for name in KWARGS_OPTIONS if kwargs[name]],
        }

    def _convert_embedder(self, base: NamedBase) -> SentenceTransformer:
        """Change the layers' masks in a sentence-transformers model; its input and pooling stay."""
        fixed_options = {**self.method.to_dict(), "tokenizer": base.tokenizer}
        fixed_options |= {"quantization": base.quantization, "gguf_file": base.gguf_name}
        free_options = {"name", "implementation", "filter", *MASK_OPTIONS}
        for option_name in sorted(fixed_options.keys() - free_options):
            if fixed_options[option_name] is not None:
                problem = (
                    f"{option_name}={fixed_options[option_name]!r:.80}: the base keeps its own"
                )
                raise ValueError(f"{problem}. Drop it, or give pooling=….")
        model = load(base.path, dtype=base.dtype, **_without(base.options, _OWN_OPTIONS))
        transformer: Any = model[0]
        if type(transformer) is not Transformer or set(transformer.modalities) - {
            "text",
            "message",
        }:
            problem = f"starts with a {type(transformer).__name__} of its own"
            raise ValueError(f"base={base.name!r} {problem}. Give pooling=….")
        if transformer.config.output_hidden_states:
            raise ValueError(
                f"base={base.name!r} reads the hidden states of every layer. Give pooling=…."
            )
        if base.files.find("config.json"):
            # Loaded like any other base, to learn which weights are missing, and in which type they
            # are stored.
            transformer.model = None
            loaded_transformer: Any = base.load()
            transformer.model = loaded_transformer.model.to(base.device or get_device_name())
            transformer.stored_dtype = loaded_transformer.stored_dtype
        else:
            check_backbone(transformer.model, base.name)
        model[0] = self._wrap(transformer, own_input=True)
        return model

    def _build_pipeline(self) -> SentenceTransformer:
        transformer = self._make_transformer()
        plain_states = hidden_states(transformer)
        check_padding(transformer, self.base.name)
        if self.method.name != "reba":  # whose passes show the attention of whole rows
            transformer.shares_prefix = try_sharing_prefix(transformer)
        # Some models project their last hidden state to another size than their configuration's.
        following_modules = self._make_following_modules(plain_states.shape[-1])
        constructor_options = _without(self.base.options, (*_OWN_OPTIONS, *_OPTIONS_OF_BASE))
        if self.base.keeps_device:
            constructor_options["device"] = str(transformer.model.device)
        model = SentenceTransformer(
            modules=[transformer, *following_modules], **constructor_options
        )
        if isinstance(following_modules[0], modules.ReBAPooling):
            check_capture(transformer, plain_states)
        for task in transformer.templates[0]:
            self._check_task(model, transformer, task)
        return model

    def _check_task(
        self, model: SentenceTransformer, transformer: RepeatTransformer, task: str
    ) -> None:
        """Refuse a template that leaves no room, and templates whose vectors cancel each other."""
        # Fields may get their values with each text: here any value will do.
        field_values: dict[str, Any] = dict.fromkeys(transformer.fields(task), "-")
        token_budget = transformer.budget(task=task, **field_values)
        chunk = self.method.chunk
        if token_budget is not None and chunk is not None:
            copy_count = self.method.repeats or 2
            largest_chunk = token_budget // copy_count
            if chunk > largest_chunk:
                raise ValueError(
                    f"chunk={chunk}: {copy_count} copies do not fit. Give {largest_chunk} at most."
                )
        if self.method.templates is None:
            return
        if not model.encode(["A text."], task=task, **field_values).any():
            raise ValueError(
                f"weights={self.method.weights}: the vectors of the templates for task={task!r} cancel each other out."
            )

    def _make_transformer(self) -> RepeatTransformer:
        """Make the first module: the base, its template and masks, and what is read from it."""
        loaded_transformer = self.base.load()
        self._place_on_device(loaded_transformer)
        reads_attention = self.method.read == "attention"
        if (
            self.is_default_method
            and reads_attention
            and not shows_attention(loaded_transformer.model)
        ):
            logger.warning(
                "The attention outputs of %s cannot be read. Its states are read instead: read='states'.",
                self.base.name,
            )
            self.method = replace(self.method, read="states")
        method = self.method
        reading = _reading_of(method, loaded_transformer.depth)
        if method.layer is not None or method.read == "attention":
            _, last_layer = method.read_layers(loaded_transformer.depth)
            self.has_all_layers = last_layer == loaded_transformer.depth
            cut_layers(loaded_transformer.model, last_layer)
        transformer = self._wrap(
            loaded_transformer,
            reading=reading,
            template=method.full_template,
            repeats=1 if method.has_one_copy else method.repeats or 2,
            pooled=method.pooled or method.pooling_spec.positions,
            instruction=method.instruction,
            compute_matched=method.compute_matched,
        )
        if method.max_seq_length is not None:
            transformer.max_seq_length = method.max_seq_length
        _limit_positions(method, transformer)
        _check_template(method, transformer)
        if isinstance(self.base, NamedBase):  # on a loaded one, compare and tune build many
            self._warn_of_end_token(transformer)
        return transformer

    def _warn_of_end_token(self, transformer: RepeatTransformer) -> None:
        """Say that PromptEOL does not read the prompt's last token if the tokenizer appends another."""
        _, tokens_after_text = special_tokens(transformer.text_tokenizer)
        if self.method.name == "prompteol" and transformer.pooled == "end" and tokens_after_text:
            logger.warning(
                "The tokenizer of %s appends %r, so the vector is read there, and not at the prompt's end, where the "
                "model is about to say the word. Give tokenizer=…, one that appends nothing.",
                self.base.name,
                transformer.text_tokenizer.decode(list(tokens_after_text)),
            )

    def _place_on_device(self, loaded_transformer: RepeatTransformer) -> None:
        model, device = loaded_transformer.model, self.base.device
        if not self.base.keeps_device:
            if getattr(model, "hf_quantizer", None) is None:
                loaded_transformer.to(device or get_device_name())
        elif device and torch.device(device) not in (model.device, torch.device(model.device.type)):
            raise ValueError(
                f"device={device!r}: the base is on {model.device}. Move it, or drop device."
            )

    def _wrap(self, transformer: Transformer, **module_options: Any) -> RepeatTransformer:
        """Put a Transformer's model into our module, with the method's masks."""
        method = self.method
        method_recipe = method.to_dict()
        method_recipe.pop("filter", None)
        module_options |= {
            "recipe": method_recipe,
            "base_model": self.base.name,
            "base_revision": self.base.options.get("revision"),
            "causal": is_causal(transformer.model),
        }
        if method.setting is None:
            return RepeatTransformer(transformer, **module_options)
        depth = transformer.config.get_text_config().num_hidden_layers
        layer_plan = method.plan_layers(depth)
        nosink_transformer = modules.NoSinkTransformer(
            transformer, **layer_plan._asdict(), **module_options
        )
        if self.check:
            check_masks(nosink_transformer)
        return nosink_transformer

    def _make_following_modules(self, width: int) -> list[nn.Module]:
        """The pooling, and what follows it."""
        method = self.method
        following_modules = [method.pooling_spec.build(method, width)]
        if method.templates is not None:
            following_modules.append(
                modules.PromptEnsemble(method.template_weights, method.equal_norms)
            )
        if method.normalize:
            following_modules.append(Normalize())
        return following_modules


def _without(options: Options, dropped_names: tuple[str, ...]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if name not in dropped_names}


def _limit_positions(method: Method, transformer: RepeatTransformer) -> None:
    """Let the model read no text that would fail, or change the vectors of others in its batch."""
    limit = max_exact_positions(transformer.model)
    if limit is None:
        return
    if method.max_seq_length is not None and method.max_seq_length > limit:
        raise ValueError(
            f"max_seq_length={method.max_seq_length}: beyond {limit} positions, a text fails, or changes the "
            f"vectors of others in its batch. Give {limit} at most."
        )
    tokenizer = transformer.text_tokenizer
    tokenizer.model_max_length = min(tokenizer.model_max_length, limit)


def _reading_of(method: Method, depth: int) -> dict[str, object] | None:
    """What to read instead of the states of the last layer that is kept; None: those."""
    reads_attention = method.read == "attention"
    if method.layer is None and not reads_attention:
        return None
    first_layer, last_layer = method.read_layers(depth)
    layer_reading: dict[str, object] = {"of": method.read, "first": first_layer, "last": last_layer}
    if reads_attention:
        return layer_reading
    if first_layer == last_layer > 0 and method.final_norm:
        return None  # the last of the layers that are left
    layer_reading |= {"join": method.join, "final_norm": method.final_norm}
    return layer_reading


def _check_template(method: Method, transformer: RepeatTransformer) -> None:
    """Refuse options that do not go with the template."""
    copy_count = transformer.copies
    if method.has_one_copy and copy_count > 1:
        raise ValueError(
            f"template has {copy_count} {{text}} slots, {method.name} has one. Use method='echo'."
        )
    is_counted = method.template is not None and method.chunk is None
    if is_counted and method.repeats not in (None, copy_count):
        raise ValueError(
            f"repeats={method.repeats}: the template has {copy_count} {{text}} slots. Drop it."
        )
    if method.instruction and "instruction" not in transformer.forward_kwargs:
        raise ValueError(
            f"instruction={method.instruction!r}: the template has no {{instruction}}. Add it."
        )
