"""Where a base is, and whether transformers loaded all of it: adapters, quantized weights, device maps."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.util import get_device_name, load_file_path
from torch import Tensor
from transformers import AutoTokenizer, PreTrainedModel  # type: ignore[attr-defined]
from transformers.utils.import_utils import is_peft_available
from transformers.utils.peft_utils import find_adapter_config_file

from .embedded import EMBEDDED as EMBEDDED
from .modules.decoder import DecoderTransformer

# Where a model is found, in sentence-transformers' words and in transformers'.
HUB = {"revision": "revision", "token": "token", "cache_folder": "cache_dir", "local_files_only": "local_files_only"}
# What a sentence-transformers that leaves weights where accelerate put them has.
_OFFLOADS = "_accelerate_placement_hook"
_DTYPES = ("float32", "bfloat16", "float16", "float64", "auto")
_MERGE = "Merge it by peft's merge_and_unload(), save that with the tokenizer, and build on the folder."


def locate(base: str | os.PathLike[str]) -> tuple[str, str]:
    """Where the base is, and the name to record for it: never a path of this machine."""
    text = os.fspath(base)
    if text in EMBEDDED:
        return str(EMBEDDED[text]), text
    if os.path.isfile(text):
        raise ValueError(f"base={text!r} is a file: name the folder that holds the model.")
    if not os.path.isdir(text):
        return text, text
    if not {"config.json", "modules.json", "adapter_config.json"} & set(os.listdir(text)):
        raise ValueError(f"base={text!r} holds no config.json: it is no model that transformers can load.")
    return text, os.path.basename(os.path.abspath(text))


def hub_of(given: Mapping[str, Any]) -> dict[str, Any]:
    """Where a model is found, among the arguments of sentence-transformers."""
    return {name: given[name] for name in HUB if given.get(name) is not None}


def is_repository(path: str, given: Mapping[str, Any]) -> bool:
    """Whether a folder or Hub repository holds a sentence-transformers model, not just a backbone."""
    return load_file_path(path, "modules.json", **hub_of(given)) is not None


def weights_dtype(dtype: str | torch.dtype | None, device: str | None) -> str | torch.dtype:
    """What ``dtype`` means to transformers: by default float32 on a CPU, and as stored ("auto") on a GPU."""
    if dtype is None:
        return torch.float32 if (device or get_device_name()).startswith("cpu") else "auto"
    if isinstance(dtype, str) and dtype not in _DTYPES:
        raise ValueError(f"dtype={dtype!r} is not known: choose one of {list(_DTYPES)}.")
    return getattr(torch, dtype) if isinstance(dtype, str) and dtype != "auto" else dtype


def adapted_model(path: str, name: str, hub: Mapping[str, Any]) -> str | None:
    """Folder or Hub id of the model that a base adapts; None: the base, which errors call ``name``, is no adapter.

    Learned prompts and prefixes are refused: no text holds them. ``hub`` is in transformers' words, here and below.
    """
    try:
        file = find_adapter_config_file(path, **hub)
    except OSError:
        return None  # Loading the base says what is wrong with it.
    if file is None:
        return None
    if not is_peft_available():
        adapted = json.loads(Path(file).read_text(encoding="utf-8")).get("base_model_name_or_path")
        raise ImportError(f"base={name!r} is a PEFT adapter of {adapted!r}, and peft is missing: pip install peft")
    adapter: Any = import_module("peft").PeftConfig.from_pretrained(path, **hub)
    if adapter.is_prompt_learning or adapter.is_adaption_prompt:
        raise ValueError(
            f"base={name!r} is an adapter of type {adapter.peft_type.value}, whose learned positions are no text. Use "
            "its base model, or an adapter of the weights, as LoRA."
        )
    adapted = adapter.base_model_name_or_path
    if not adapted and not os.path.isfile(os.path.join(path, "config.json")):
        raise ValueError(f"base={name!r}: its adapter_config.json names no base_model_name_or_path. Add it.")
    return str(adapted or path)


def tokenizer_of_adapted(path: str, adapted: str | None, hub: Mapping[str, Any]) -> str | None:
    """The adapted model, whose tokenizer is taken where an adapter's folder holds none."""
    names = ("tokenizer_config.json", "tokenizer.json", "vocab.json", "spiece.model", "tokenizer.model")
    if adapted is None or any(load_file_path(path, name, **hub) is not None for name in names):
        return None
    return adapted


def locate_tokenizer(tokenizer: object, hub: Mapping[str, Any]) -> str:
    """Folder or Hub id of a tokenizer, which is loaded once to see that it is there; ``hub`` as transformers has it."""
    if not isinstance(tokenizer, (str, os.PathLike)):
        raise ValueError(f"tokenizer={type(tokenizer).__name__} must be a folder or Hub id. Save the tokenizer first.")
    text = os.fspath(tokenizer)
    if os.path.isfile(text):
        raise ValueError(f"tokenizer={text!r} is a file: name the folder that holds the tokenizer.")
    path = str(EMBEDDED.get(text, text))
    try:
        # Before the weights, which may take long.
        AutoTokenizer.from_pretrained(path, **hub)
    except Exception as error:
        # transformers raises errors of many kinds, of packages that are missing too.
        raise OSError(f"tokenizer={text!r} could not be loaded: {error} Name its folder or Hub id.") from error
    return path


def load_error(error: Exception, base: str, adapted: str | None) -> Exception | None:
    """What to say of a base that could not be loaded; None: what transformers or peft said is enough."""
    if isinstance(error, OSError):
        what = f"could not be loaded: it is none of the embedded models {sorted(EMBEDDED)}, and as a folder or Hub id"
        if adapted is not None:
            what = f"adapts {adapted!r}, which could not be loaded"
        return OSError(f"base={base!r} {what}: {error}")
    if type(error).__module__.startswith("peft."):
        return ValueError(f"base={base!r} adapts {adapted!r}: {error} {_MERGE}")
    return None


def check_loaded(transformer: Any, path: str, name: str, adapted: str | None, hub: Mapping[str, Any]) -> None:
    """Refuse a base of which transformers left out something that its files name; merge an adapter into the weights.

    ``name`` is what errors call the base, ``adapted`` the model that it adapts.
    """
    model: PreTrainedModel = transformer.model
    found = [getattr(each, "quantization_config", None) for each in (model.config, model.config.get_text_config())]
    quantization: Any = found[0] or found[1] or {}
    given = quantization if isinstance(quantization, dict) else vars(quantization)
    quantized = getattr(model, "hf_quantizer", None) is not None
    problem = None
    if given and not quantized:
        method = given.get("quant_method")
        problem = f"transformers left out its quantization {method!r}. Use a newer version, or an unquantized base."
    elif given.get("load_in_8bit", given.get("_load_in_8bit")) and given.get("llm_int8_threshold"):
        problem = (
            f"with llm_int8_threshold={given['llm_int8_threshold']}, large numbers of one text change how all texts of "
            "its batch are rounded. Set llm_int8_threshold=0 in its BitsAndBytesConfig."
        )
    elif model.device.type == "meta":
        problem = "by its device_map the embeddings stay on disk. Map them to a device, or use 'auto'."
    elif any(parameter.is_meta for parameter in model.parameters()) and not hasattr(SentenceTransformer, _OFFLOADS):
        problem = (
            "by its device_map some layers are on disk or on a CPU beside a GPU, which this sentence-transformers does "
            "not support. Use version 6.2 or newer, or map all layers to devices."
        )
    elif adapted is not None and quantized:
        problem = "merged into quantized weights, an adapter would be rounded. Load them unquantized."
    if problem:
        raise ValueError(f"base={name!r}: {problem}")
    if adapted is not None:
        _check_adapter(model, path, name, hub)
        merge_adapter(model)


def check_padding(transformer: DecoderTransformer, name: str) -> None:
    """Raise unless a text's hidden states are the same alone and beside a longer text.

    A causal decoder never sees the padding behind a text. One that looks both ways must be told of it, and some take
    another mask as soon as there is any.
    """
    if transformer.backbone.looks_back or transformer.stack is not None:
        return
    ids = torch.arange(1, 7, device=transformer.model.device)[None]
    hidden = []
    with torch.inference_mode():
        for seen in (torch.ones_like(ids[:, :4]), (ids < 5).long()):
            features = {"input_ids": ids[:, : seen.shape[1]], "attention_mask": seen, "copy_ids": seen}
            output = DecoderTransformer.forward(transformer.eval(), features, watch=())
            hidden.append(output["token_embeddings"][0, :4].float())
    difference = float((hidden[0] - hidden[1]).abs().max() / hidden[0].abs().max())
    if difference > (1e-3 if transformer.model.dtype in (torch.float32, torch.float64) else 0.3):
        raise ValueError(
            f"base={name!r}: the hidden states of {type(transformer.model).__name__} change by {difference:.0%} when a "
            "text is padded. Use a causal decoder, or another version of transformers."
        )


def _check_adapter(model: PreTrainedModel, path: str, name: str, hub: Mapping[str, Any]) -> None:
    """Every weight of the adapter must be in the model: transformers says nothing of those that it leaves out."""
    stored: dict[str, Tensor] = import_module("peft").load_peft_weights(path, device="cpu", **hub)
    loaded: dict[str, Tensor] = model.get_adapter_state_dict()
    # Names differ from model to model (a head's, a tower's prefix), so weights are known by their values.
    dtypes = {tensor.dtype for tensor in loaded.values()}
    by_value = {_value(tensor, dtype): key for key, tensor in stored.items() for dtype in dtypes}
    sources = {key: by_value.get(_value(tensor, tensor.dtype)) for key, tensor in loaded.items()}
    missing = [key for key, source in sources.items() if source is None]
    own = dict(model.state_dict())
    # An embedder has no head, so what belongs to one is not missed.
    parts = {model.base_model_prefix, *(part for part, _ in model.named_children())}
    for key in sorted(set(stored) - set(sources.values())):
        plain = key.removeprefix("base_model.model.")
        # Embeddings may be stored beside the adapter, unchanged or not.
        same = own.get(plain.removeprefix(f"{model.base_model_prefix}."))
        if plain.split(".")[0] in parts and (
            same is None or _value(stored[key], same.dtype) != _value(same, same.dtype)
        ):
            missing.append(key)
    if missing:
        raise ValueError(f"base={name!r}: transformers did not load the adapter's weights for {missing[0]!r}. {_MERGE}")


def merge_adapter(model: PreTrainedModel) -> None:
    """Make the adapter of a backbone, ``model[0].model``, part of its weights, which are then saved without peft."""
    for place, module in list(model.named_modules()):
        if hasattr(module, "unload_and_optionally_merge_module"):
            plain = module.unload_and_optionally_merge_module(merge=True, safe_merge=False, adapter_names=None)
        elif hasattr(module, "get_base_layer"):
            module.merge()
            plain = module.get_base_layer()
        else:
            continue
        parent, _, child = place.rpartition(".")
        setattr(model.get_submodule(parent), child, plain)
    model._hf_peft_config_loaded = False
    del model.peft_config
    model.requires_grad_(True)


def _value(tensor: Tensor, dtype: torch.dtype) -> tuple[tuple[int, ...], bytes]:
    """A tensor's shape and numbers in some dtype, to be compared."""
    numbers = tensor.detach().to("cpu", dtype).contiguous()
    return tuple(tensor.shape), numbers.view(-1).view(torch.uint8).numpy().tobytes()
