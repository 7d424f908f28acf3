"""Where a base is, and whether transformers loaded all of it: adapters, quantized weights, device maps."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.util import get_device_name, load_file_path
from torch import Tensor
from transformers import PreTrainedModel
from transformers.utils.import_utils import is_peft_available
from transformers.utils.peft_utils import find_adapter_config_file

from .modules.decoder import DecoderTransformer

EMBEDDED = {"mini": Path(__file__).parent / "mini"}
# Where a model is found, in sentence-transformers' words and in transformers'.
HUB = {"revision": "revision", "token": "token", "cache_folder": "cache_dir", "local_files_only": "local_files_only"}
# What a sentence-transformers that leaves weights where accelerate put them has.
_OFFLOADS = "_accelerate_placement_hook"
_DTYPES = ("float32", "bfloat16", "float16", "float64", "auto")
_MERGE = (
    "Merge it into its base and build on that folder: "
    "peft.AutoPeftModelForCausalLM.from_pretrained(base).merge_and_unload().save_pretrained(folder), the tokenizer "
    "beside it."
)


def locate(base: str | os.PathLike[str]) -> tuple[str, str]:
    """Where the base is, and the name to record for it: never a path of this machine."""
    text = os.fspath(base)
    if text in EMBEDDED:
        return str(EMBEDDED[text]), text
    if os.path.isdir(text):
        names = ("config.json", "modules.json", "adapter_config.json")
        if not any(os.path.isfile(os.path.join(text, name)) for name in names):
            raise ValueError(f"base={text!r} holds no config.json: it is no model that transformers can load.")
        return text, os.path.basename(os.path.abspath(text))
    if os.path.isfile(text):
        raise ValueError(f"base={text!r} is a file: name the folder that holds the model.")
    return text, text


def weights_dtype(dtype: str | torch.dtype | None, device: str | None) -> str | torch.dtype:
    """What ``dtype`` means to transformers: by default float32 on a CPU, and as stored ("auto") on a GPU."""
    if dtype is None:
        return torch.float32 if (device or get_device_name()).startswith("cpu") else "auto"
    if isinstance(dtype, str):
        if dtype not in _DTYPES:
            raise ValueError(f"dtype={dtype!r} is not known: choose one of {list(_DTYPES)}.")
        return "auto" if dtype == "auto" else getattr(torch, dtype)
    return dtype


def adapted_model(path: str, name: str, hub: Mapping[str, Any]) -> str | None:
    """Folder or Hub id of the model that a base adapts; None: the base is no PEFT adapter.

    ``name`` is what errors call it, ``hub`` says how transformers finds it. Learned prompts and prefixes are refused:
    no text holds them.
    """
    try:
        file = find_adapter_config_file(path, **hub)
    except OSError:
        return None  # Loading the base says what is wrong with it.
    if file is None:
        return None
    if not is_peft_available():
        adapted = json.loads(Path(file).read_text(encoding="utf-8")).get("base_model_name_or_path")
        raise ImportError(
            f"base={name!r} is a PEFT adapter of {adapted!r}, and peft is not installed: pip install peft"
        )
    adapter: Any = import_module("peft").PeftConfig.from_pretrained(path, **hub)
    if adapter.is_prompt_learning or adapter.is_adaption_prompt:
        raise ValueError(
            f"base={name!r} is an adapter of type {adapter.peft_type.value}: it adds learned positions to every text "
            "or layer, which no copy of the text holds and no layer plan knows. Use its base model, or an adapter of "
            "the weights, as LoRA."
        )
    adapted = adapter.base_model_name_or_path
    if not adapted and not os.path.isfile(os.path.join(path, "config.json")):
        raise ValueError(f"base={name!r}: its adapter_config.json names no base_model_name_or_path. Add it.")
    return str(adapted or path)


def tokenizer_of_adapted(path: str, adapted: str | None, hub: Mapping[str, Any]) -> dict[str, Any]:
    """An adapter's folder often holds no tokenizer: arguments that take the adapted model's then."""
    names = ("tokenizer_config.json", "tokenizer.json", "vocab.json", "spiece.model", "tokenizer.model")
    if adapted is None or any(load_file_path(path, name, **hub) is not None for name in names):
        return {}
    return {"tokenizer_name_or_path": adapted}


def load_error(error: Exception, base: str, adapted: str | None) -> Exception | None:
    """What to say of a base that could not be loaded; None: what transformers or peft said is enough."""
    if isinstance(error, OSError) and adapted is not None:
        return OSError(f"base={base!r} adapts {adapted!r}, which could not be loaded: {error}")
    if isinstance(error, OSError):
        return OSError(
            f"base={base!r} could not be loaded: it is none of the embedded models {sorted(EMBEDDED)}, and as a folder "
            f"or Hub id transformers says: {error}"
        )
    if type(error).__module__.startswith("peft."):
        return ValueError(f"base={base!r} adapts {adapted!r}: {error} {_MERGE}")
    return None


def check_loaded(
    transformer: Any, path: str, name: str, adapted: str | None = None, hub: Mapping[str, Any] | None = None
) -> None:
    """Refuse a base of which transformers left out something that its files name; merge an adapter into the weights.

    ``name`` is what errors call it, ``adapted`` the model that it adapts, ``hub`` says how transformers finds it.
    """
    model: PreTrainedModel = transformer.model
    config = model.config
    quantization = getattr(config, "quantization_config", None) or getattr(
        config.get_text_config(), "quantization_config", None
    )
    if quantization and getattr(model, "hf_quantizer", None) is None:
        method = quantization.get("quant_method") if isinstance(quantization, dict) else quantization.quant_method
        raise ValueError(
            f"base={name!r}: its config.json names the quantization {method!r}, which this version of transformers "
            "does not know and has left out. Use a newer version, or an unquantized base."
        )
    given = quantization if isinstance(quantization, dict) else vars(quantization or object)
    if given.get("load_in_8bit", given.get("_load_in_8bit")) and given.get("llm_int8_threshold"):
        raise ValueError(
            f"base={name!r}: with llm_int8_threshold={given['llm_int8_threshold']}, large numbers of one text change "
            "how bitsandbytes rounds all texts of its batch, so a vector would depend on its batch. Set "
            "llm_int8_threshold=0 (in BitsAndBytesConfig, or in the base's config.json)."
        )
    if model.device.type == "meta":
        raise ValueError(
            f"base={name!r}: by its device_map the embeddings stay on disk, where no text can enter. Map them to a "
            "device, as in model_kwargs={'device_map': {'embed_tokens': 'cpu', …}}, or use 'auto'."
        )
    if any(parameter.is_meta for parameter in model.parameters()) and not hasattr(SentenceTransformer, _OFFLOADS):
        raise ValueError(
            f"base={name!r}: by its device_map some layers are on disk or on a CPU beside a GPU, which this version of "
            "sentence-transformers does not support. Use version 6.2 or newer, or map all layers to devices."
        )
    if adapted is not None:
        if getattr(model, "hf_quantizer", None) is not None:
            raise ValueError(
                f"base={name!r} is an adapter, and the weights that it adapts are quantized: merged, they would be "
                "rounded anew. Load them unquantized."
            )
        _check_adapter(model, path, name, hub or {})
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
            "text is padded, so a vector would depend on its batch. Use a causal decoder, or another version of "
            "transformers."
        )


def _check_adapter(model: PreTrainedModel, path: str, name: str, hub: Mapping[str, Any]) -> None:
    """Every weight of the adapter must be in the model: transformers says nothing of those that it leaves out."""
    stored: dict[str, Tensor] = import_module("peft").load_peft_weights(path, device="cpu", **hub)
    loaded: dict[str, Tensor] = model.get_adapter_state_dict()
    # Names differ from model to model (a head's, a tower's prefix), so weights are known by their values.
    dtypes = {tensor.dtype for tensor in loaded.values()}
    by_value = {_value(tensor, dtype): key for key, tensor in stored.items() for dtype in dtypes}
    taken = set()
    for key, tensor in loaded.items():
        source = by_value.get(_value(tensor, tensor.dtype))
        if source is None:
            raise ValueError(f"base={name!r}: transformers did not load the adapter's weights for {key!r}. {_MERGE}")
        taken.add(source)
    own = dict(model.state_dict())
    for key in _of_the_body(model, set(stored) - taken):
        # Embeddings may be stored beside the adapter, unchanged or not.
        plain = key.removeprefix("base_model.model.").removeprefix(f"{model.base_model_prefix}.")
        same = own.get(plain)
        if same is None or _value(stored[key], same.dtype) != _value(same, same.dtype):
            raise ValueError(f"base={name!r}: transformers did not load the adapter's {key!r}. {_MERGE}")


def merge_adapter(model: PreTrainedModel) -> None:
    """Make an adapter part of the weights: what is saved is then a model that needs neither peft nor its base.

    Args:
        model: A backbone with an adapter, loaded or trained: ``model[0].model``.
    """
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


def _of_the_body(model: PreTrainedModel, keys: Iterable[str]) -> list[str]:
    """Those of an adapter's keys that do not belong to a head: an embedder has none."""
    parts = {model.base_model_prefix, *(part for part, _ in model.named_children())}
    return sorted(key for key in keys if key.removeprefix("base_model.model.").split(".")[0] in parts)


def _value(tensor: Tensor, dtype: torch.dtype) -> tuple[tuple[int, ...], bytes]:
    """A tensor's shape and numbers in some dtype, to be compared."""
    numbers = tensor.detach().to("cpu", dtype).contiguous()
    return tuple(tensor.shape), numbers.view(-1).view(torch.uint8).numpy().tobytes()
