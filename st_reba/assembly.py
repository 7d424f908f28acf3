"""One call of `build`: the base's weights, the input module, the pooling, and what stands behind it."""

from __future__ import annotations

import logging
import os
import tempfile
from dataclasses import replace
from inspect import signature
from pathlib import Path
from typing import Any

import torch
import transformers
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Normalize
from sentence_transformers.sentence_transformer.modules import Transformer
from sentence_transformers.util import get_device_name, load_file_path

from . import bases, modules
from .filters import Filter, with_filter
from .gguf_files import GgufFile, check_gguf, complete_tokenizer, read_gguf
from .methods import Method
from .modules import RepeatTransformer
from .modules.mask_check import check_masks
from .modules.outputs import shows_attention
from .modules.selfcheck import can_share_prefix, check_capture, check_padding, hidden_states, is_causal
from .modules.settings import plan_layers
from .near_names import suggest_bases
from .optional import required
from .request import Base, BuildRequest
from .safety import check_base, check_tokenizer, limit_numbers, load, panics_as_errors

logger = logging.getLogger(__name__)

# What sentence-transformers' constructor takes, but for what `build` itself names.
_LOADING = set(signature(SentenceTransformer).parameters)
_LOADING -= {"model_name_or_path", "modules", "backend", "kwargs", "args"}
_OURS = ("tokenizer", "dtype", "quantization", "gguf_file")
_KWARGS = ("model_kwargs", "processor_kwargs", "config_kwargs")
# What loads the base, and says nothing of a model that is put together.
_OF_THE_BASE = ("revision", *_KWARGS)
# One of these files is beside an adapter that has a tokenizer of its own.
_TOKENIZER = ("tokenizer_config.json", "tokenizer.json", "vocab.json", "tokenizer.model")


def build_model(
    base: Base,
    method: str | Method | None = None,
    *,
    check: bool = True,
    **options: Any,
) -> SentenceTransformer:
    """Build a model by a method; :func:`st_reba.build`, without ``"auto"``."""
    return Assembly(BuildRequest.read(base, method, options), check=check).run()


class Assembly:
    """One call of `build`; ``loading`` holds what it takes of the base, and what SentenceTransformer takes.

    With ``may_read_states``, a base whose attention outputs cannot be read is read by its hidden states.
    """

    def __init__(self, request: BuildRequest, *, check: bool) -> None:
        base, method, loading = request.base, request.method, request.loading
        self.method, self.loading, self.check = method, dict(loading), check
        self.may_read_states = request.is_default_method
        self.tokenizer, self.dtype, self.quantization, gguf_file = (self.loading.pop(each, None) for each in _OURS)
        if unknown := sorted(set(self.loading) - _LOADING):
            raise ValueError(f"{unknown[0]}={loading[unknown[0]]!r} is no option of {method.name} or of loading.")
        bases.check_loading(base, loading)
        if isinstance(base, (str, os.PathLike)):
            self.dtype = bases.requested_dtype(self.dtype, self.loading)
            self.loading = bases.without_dtype(self.loading)
        self.device = loading.get("device")
        bases.check_device(self.device)  # before weights are loaded
        self.place = {name: loading[name] for name in bases.HUB if loading.get(name) is not None}
        self.hub = {bases.HUB[name]: value for name, value in self.place.items()}
        self.llm = None if isinstance(base, (str, os.PathLike)) else base
        self.gguf = self.adapted = None
        if self.llm is not None:
            if given := [each for each in (*_OURS[1:], *_OF_THE_BASE) if loading.get(each) is not None]:
                raise ValueError(f"{given[0]}={loading[given[0]]!r}: a loaded model is taken as it is. Drop it.")
            name = str(getattr(base, "name_or_path", "") or type(base).__name__)
            self.path, self.name = "", os.path.basename(os.path.normpath(name)) if os.path.isdir(name) else name
        else:
            self.path, self.name, self.gguf = bases.locate(base, gguf_file)
            if self.gguf is None:
                check_base(self.path, **self.place)
            self.adapted = None if self.gguf else bases.adapted_model(self.path, self.name, self.hub)

    def run(self) -> SentenceTransformer:
        listed = self.path and load_file_path(self.path, "modules.json", **self.place)
        if listed and '"st_reba.' in Path(listed).read_text(encoding="utf-8"):
            raise ValueError(f"base={self.name!r} is an embedder already. Load it, or build from its base model.")
        own_input = listed and self.method.name == "nosink" and self.method.pooling is None
        model = self._converted() if own_input else self._made()
        return model if self.method.filter is None else with_filter(model, Filter.load(self.method.filter))

    def _converted(self) -> SentenceTransformer:
        """A sentence-transformers model with its own input and pooling, whose layers see what the masks say."""
        allowed = {"name", "setting", "k", "k0", "m", "implementation"}
        asked = {"tokenizer": self.tokenizer, "quantization": self.quantization, "gguf_file": self.gguf}
        asked = {name: value for name, value in {**self.method.to_dict(), **asked}.items() if value is not None}
        if other := sorted(asked.keys() - allowed):
            raise ValueError(f"{other[0]}={asked[other[0]]!r:.80}: the base keeps its own. Drop it, or give pooling=….")
        model = load(self.path, dtype=self.dtype, **self.loading)
        first: Any = model[0]
        if type(first) is not Transformer or set(first.modalities) - {"text", "message"}:
            raise ValueError(f"base={self.name!r} starts with a {type(first).__name__} of its own. Give pooling=….")
        if first.config.output_hidden_states:
            raise ValueError(f"base={self.name!r} reads the hidden states of every layer. Give pooling=….")
        if load_file_path(self.path, "config.json", **self.place):
            first.model = None  # as ours, it says what weights are missing, and of which type they are
            base = self._loaded()
            first.model, first.stored_dtype = base.model.to(self.device or get_device_name()), base.stored_dtype
        bases.check_model(first.model, self.name)
        model[0] = self._module(first, own_input=True)
        return model

    def _made(self) -> SentenceTransformer:
        transformer = self._transformer()
        plain = hidden_states(transformer)
        check_padding(transformer, self.name)
        if self.method.name != "reba":  # whose passes show the attention of whole rows
            transformer.shares_prefix = can_share_prefix(transformer)
        # Some models project their last hidden state to another size than their configuration's.
        behind = self._behind(plain.shape[-1])
        taken = {name: value for name, value in self.loading.items() if name not in _OF_THE_BASE}
        model = SentenceTransformer(modules=[transformer, *behind], **taken)
        if isinstance(behind[0], modules.ReBAPooling):
            check_capture(transformer, plain)
        for task in transformer.templates[0]:
            # Raises where the template leaves no room. Fields may get their values with the text: any will do.
            fields: dict[str, Any] = dict.fromkeys(transformer.fields(task), "-")
            room = transformer.budget(task=task, **fields)
            copies, chunk = self.method.repeats or 2, self.method.chunk or 0
            if room is not None and copies * chunk > room:
                raise ValueError(f"chunk={chunk}: {copies} copies do not fit. Give {room // copies} at most.")
            if self.method.templates is not None and not model.encode(["A text."], **fields).any():
                raise ValueError(f"weights={self.method.weights}: the vectors of the templates cancel each other.")
        return model

    def _transformer(self) -> RepeatTransformer:
        method, base = self.method, self._loaded() if self.llm is None else self._sharing()
        model: Any = base.model
        if self.adapted is not None:
            has_its_tokenizer = self.tokenizer is not None or self._adapter_has_tokenizer()
            bases.merge_adapter(
                model, base.tokenizer, self.path, self.name, self.hub, has_its_tokenizer=has_its_tokenizer
            )
        if "device_map" in (self.loading.get("model_kwargs") or {}) or self.llm is not None:
            if self.device and torch.device(self.device) not in (model.device, torch.device(model.device.type)):
                raise ValueError(f"device={self.device!r}: the base is on {model.device}. Move it, or drop device.")
            self.loading["device"] = str(model.device)
        elif getattr(model, "hf_quantizer", None) is None:
            base.to(self.device or get_device_name())
        once = method.name in ("classical", "prompteol", "nosink") or method.chunk is not None
        if self.may_read_states and method.read == "attention" and not shows_attention(model):
            logger.warning("The attention outputs of %s cannot be read. Its states are: read='states'.", self.name)
            self.method = method = replace(method, read="states")
        module = self._module(
            base,
            reading=self._reading(model, base.depth),
            template=method.layout,
            repeats=1 if once else method.repeats or 2,
            pooled=method.pooled or method.pooling_spec.positions,
            instruction=method.instruction,
            compute_matched=method.compute_matched,
        )
        if method.max_seq_length is not None:
            module.max_seq_length = method.max_seq_length
        if once and module.copies > 1:
            raise ValueError(f"template has {module.copies} {{text}} slots, {method.name} has one. Use method='echo'.")
        if method.template is not None and method.repeats not in (None, module.copies) and method.chunk is None:
            raise ValueError(f"repeats={method.repeats}: the template has {module.copies} {{text}} slots. Drop it.")
        if method.instruction and "instruction" not in module.forward_kwargs:
            raise ValueError(f"instruction={method.instruction!r}: the template has no {{instruction}}. Add it.")
        return module

    def _reading(self, model: Any, depth: int) -> dict[str, Any] | None:
        """What is read in place of the last layer's states; layers above it, 0 (embeddings) to L, are cut off."""
        method, lowest = self.method, int(self.method.read == "attention")
        if method.layer is None and not lowest:
            return None
        layer = (depth // 2 + 1, depth) if method.layer is None else method.layer
        ends = layer if isinstance(layer, tuple) else (layer, layer)
        first, last = (each % (depth + 1) for each in ends)
        if not lowest <= first <= last or not all(-depth - 1 <= each <= depth for each in ends):
            raise ValueError(f"layer={layer!r}: give {lowest} to {depth}, or -1 (= {depth}) downwards, lower first.")
        bases.cut(model, last)
        reading = {"of": method.read, "first": first, "last": last}
        if lowest:
            return reading
        plain = first == last > 0 and method.final_norm
        return None if plain else {**reading, "join": method.join, "final_norm": method.final_norm}

    def _module(self, base: Any, **options: Any) -> RepeatTransformer:
        method, kind = self.method, RepeatTransformer
        if method.setting is not None:
            kind = modules.NoSinkTransformer
            numbers: dict[str, Any] = {name: getattr(method, name) for name in ("k", "k0", "m", "implementation")}
            depth = base.config.get_text_config().num_hidden_layers
            options |= plan_layers(method.setting, depth, **numbers)._asdict()
        module: RepeatTransformer = kind(
            base,
            recipe={name: value for name, value in method.to_dict().items() if name != "filter"},
            base_model=self.name,
            base_revision=self.loading.get("revision"),
            causal=is_causal(base.model),
            **options,
        )
        if self.check and method.setting is not None:
            check_masks(module)
        return module

    def _loaded(self) -> RepeatTransformer:
        path, hub = self.path, {**self.hub, "trust_remote_code": bool(self.loading.get("trust_remote_code"))}
        if self.adapted is not None:
            path = self.adapted
            hub.pop("revision", None)  # which is the adapter's
        dtype = bases.weights_dtype(self.dtype, self.device)
        kwargs: dict[str, Any] = {name: {**hub, **(self.loading.get(name) or {})} for name in _KWARGS}
        model_kwargs, processor_kwargs = kwargs["model_kwargs"], kwargs["processor_kwargs"]
        model_kwargs.setdefault("dtype", dtype)
        if self.quantization is not None:
            config = bases.quantization_config(self.quantization, self.dtype and dtype)
            model_kwargs |= {"quantization_config": config, "dtype": dtype if self.dtype else torch.bfloat16}
        if self.gguf is not None:
            if not hasattr(transformers, "GgufConfig"):
                raise ImportError(f"base={self.name!r} needs a newer transformers. Run: pip install -U transformers")
            required("gguf", "gguf", f"base={self.name!r}")
            if "quantization_config" in model_kwargs:
                raise ValueError(f"base={self.name!r}: a GGUF file is made dense. Drop quantization.")
            gguf_file = self._checked_gguf_file()
            for each in kwargs.values():
                each["gguf_file"] = self.gguf
            model_kwargs["quantization_config"] = transformers.GgufConfig(dequantize=True)
            model_kwargs["dtype"] = torch.bfloat16 if dtype == "auto" else dtype
        if self.tokenizer is not None:
            if not isinstance(self.tokenizer, (str, os.PathLike)) or os.path.isfile(self.tokenizer):
                raise ValueError(f"tokenizer={self.tokenizer!r:.80} must be a folder or Hub id.")
            kwargs["tokenizer_name_or_path"] = bases.place_of(os.fspath(self.tokenizer))
            check_tokenizer(kwargs["tokenizer_name_or_path"])
            processor_kwargs["revision"] = None
            processor_kwargs.pop("gguf_file", None)
        elif self.adapted is not None and self._adapter_has_tokenizer():
            kwargs["tokenizer_name_or_path"], processor_kwargs["revision"] = self.path, self.hub.get("revision")
        try:
            with limit_numbers(self.path, **self.place), panics_as_errors():
                base: Any = RepeatTransformer(path, **kwargs)
        except OSError as error:
            reason = f"{suggest_bases(str(self.path))}{_one_line(error)}"
            raise OSError(f"base={self.name!r} could not be loaded, from a folder or the Hub. {reason}") from error
        except (TypeError, AttributeError) as error:
            problem = _one_line(error)
            options = "Check model_kwargs, processor_kwargs and config_kwargs."
            raise ValueError(f"base={self.name!r} cannot be loaded with these options: {problem}. {options}") from error
        except (ValueError, ImportError, RuntimeError, MemoryError):
            raise
        except Exception as error:
            detail = f"{type(error).__name__}: {error}"
            raise ValueError(f"base={self.name!r} could not be loaded. {detail}") from error
        if self.gguf is not None and self.tokenizer is None:
            complete_tokenizer(base.tokenizer, gguf_file)
        if self.gguf is not None and self.dtype is None:
            base.stored_dtype = torch.bfloat16
            for weight in base.model.parameters():
                # As it will be saved: what is computed now is what is loaded then.
                weight.data = weight.data.to(torch.bfloat16).to(weight.dtype)
        elif self.dtype not in (None, "auto"):
            base.stored_dtype = None  # saved as it was asked for
        # An adapter may bring more embeddings: it is compared when it is merged.
        if self.tokenizer is not None and self.adapted is None:
            tokens, rows = bases.id_count(base.tokenizer), len(base.model.get_input_embeddings().weight)
            if tokens > rows:
                raise ValueError(f"tokenizer={self.tokenizer!r} has {tokens} ids, but the base {rows} embeddings.")
        bases.check_model(base.model, self.name)
        if missing := sorted(map(str, base.loading.get("missing_keys") or ())):
            raise ValueError(f"base={self.name!r}: weights are missing, and would be random numbers: {missing[0]}.")
        return base

    def _adapter_has_tokenizer(self) -> bool:
        return any(load_file_path(self.path, name, **self.place) for name in _TOKENIZER)

    def _checked_gguf_file(self) -> GgufFile:
        """The base's GGUF file, downloaded if it is on the Hub; refused where it cannot be read exactly."""
        path = load_file_path(self.path, str(self.gguf), **self.place)
        if path is None:
            raise OSError(f"base={self.name!r} could not be loaded, from a folder or the Hub: no such file.")
        file = read_gguf(path)
        check_gguf(file, has_other_tokenizer=self.tokenizer is not None)
        return file

    def _sharing(self) -> RepeatTransformer:
        """A Transformer around the weights of a loaded model; its tokenizer is a copy, with settings of its own."""
        if self.tokenizer is None or isinstance(self.tokenizer, (str, os.PathLike)):
            raise ValueError("A loaded model needs its tokenizer: build(llm, tokenizer=tokenizer, …).")
        if not hasattr(self.llm, "base_model"):
            raise ValueError(f"base={type(self.llm).__name__} is neither a name nor a loaded model of transformers.")
        model = bases.shared(self.llm)
        bases.check_model(model, self.name)

        class Sharing(RepeatTransformer):  # type: ignore[misc]
            def _load_model(self, *args: Any, **kwargs: Any) -> Any:
                return model

        trust = {"trust_remote_code": bool(self.loading.get("trust_remote_code"))}
        with tempfile.TemporaryDirectory() as folder:
            model.config.save_pretrained(folder)
            self.tokenizer.save_pretrained(folder)
            return Sharing(folder, config_kwargs=trust, processor_kwargs=trust)

    def _behind(self, width: int) -> list[torch.nn.Module]:
        """The pooling, and what follows it."""
        method = self.method
        pooling_modules = [method.pooling_spec.build(method, width)]
        if method.templates is not None:
            pooling_modules.append(modules.PromptEnsemble(method.template_weights, method.equal_norms))
        if method.normalize:
            pooling_modules.append(Normalize())
        return pooling_modules


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())
