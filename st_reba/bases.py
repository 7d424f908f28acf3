"""Where a base is and how it is loaded: folders, Hub ids, GGUF files, loaded models, adapters, quantized weights."""

from __future__ import annotations

import copy
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .optional import required

# Models that come with the package.
EMBEDDED = {"mini": Path(__file__).with_name("mini")}
# Where a model is found, in sentence-transformers' words and in transformers'.
HUB = {"revision": "revision", "token": "token", "cache_folder": "cache_dir", "local_files_only": "local_files_only"}
_DTYPES = ("float32", "bfloat16", "float16", "float64", "auto")
# Lists of a configuration that may happen to be as long as there are layers.
_NOT_LAYERS = ("architectures", "bos_token_id", "eos_token_id", "pad_token_id")


def locate(base: str | os.PathLike[str]) -> tuple[str, str]:
    """Where a base is, and the name to record for it: never a path of this machine."""
    text = os.fspath(base)
    if text in EMBEDDED:
        return str(EMBEDDED[text]), text
    if os.path.isfile(text):
        raise ValueError(f"base={text!r} is a file. Name the folder that holds the model, or a .gguf file.")
    if not os.path.isdir(text):
        return text, text
    if not {"config.json", "modules.json", "adapter_config.json"} & set(os.listdir(text)):
        raise ValueError(f"base={text!r} holds no config.json and no .gguf file, so it is no model.")
    return text, os.path.basename(os.path.abspath(text))


def weights_dtype(dtype: Any, device: str | None) -> Any:
    """What ``dtype`` means to transformers: None is float32 on a CPU, and as stored ("auto") on a GPU."""
    import torch
    from sentence_transformers.util import get_device_name

    if dtype is None:
        return torch.float32 if (device or get_device_name()).startswith("cpu") else "auto"
    if isinstance(dtype, str) and dtype not in _DTYPES:
        raise ValueError(f"dtype={dtype!r} is not known. Choose from {', '.join(_DTYPES)}.")
    return getattr(torch, dtype) if isinstance(dtype, str) and dtype != "auto" else dtype


def gguf_of(base: str | os.PathLike[str], gguf_file: str | None) -> tuple[str, str] | None:
    """Folder or Hub id, and name, of the GGUF file that a base means; None: it means none."""
    text = os.fspath(base)
    if gguf_file is not None:
        return text, gguf_file
    if text.endswith(".gguf"):
        if not os.path.isfile(text):
            raise FileNotFoundError(f"base={text!r}: there is no such file.")
        return os.path.dirname(os.path.abspath(text)), os.path.basename(text)
    if not os.path.isdir(text) or {"config.json", "modules.json", "adapter_config.json"} & set(os.listdir(text)):
        return None
    files = sorted(name for name in os.listdir(text) if name.endswith(".gguf"))
    if len(files) > 1:
        raise ValueError(f"base={text!r} holds several GGUF files. Choose one, as gguf_file={files[0]!r}.")
    return (text, files[0]) if files else None


def gguf_quantization(file: str) -> str:
    """Quantization of a local GGUF file, as Q4_K_M; an error that lists what can be read, where transformers cannot."""
    from collections import Counter

    import numpy as np

    gguf: Any = required("gguf", "gguf", f"base={file!r}")

    class Reader(gguf.GGUFReader):  # type: ignore[misc]
        # gguf's own hangs on sizes beyond the file's end.
        def _get(self, offset: int, dtype: Any, count: int = 1, override_order: Any = None) -> Any:
            if offset + np.dtype(dtype).itemsize * int(count) > len(self.data):
                raise ValueError("a part reaches beyond its end")
            return super()._get(offset, dtype, count, override_order)

    def readable(kind: Any) -> bool:
        try:
            gguf.quants.dequantize(np.zeros((1, gguf.GGML_QUANT_SIZES[kind][1]), dtype=np.uint8), kind)
        except (NotImplementedError, ValueError, KeyError):
            return kind.name in ("F32", "F16")
        return True

    try:
        reader = Reader(file)
    except (ValueError, IndexError, KeyError) as error:
        raise ValueError(f"base={file!r} is no whole GGUF file ({error}). Download it again.") from error
    types = Counter(tensor.tensor_type for tensor in reader.tensors if len(tensor.shape) > 1)
    if wrong := [each.name for each in types if not readable(each)]:
        known = ", ".join(each.name for each in gguf.GGMLQuantizationType if readable(each))
        raise ValueError(f"base={file!r} holds tensors of type {wrong[0]}, which cannot be read. Readable: {known}.")
    if (field := reader.fields.get("general.file_type")) is not None:
        return str(gguf.LlamaFileType(int(field.contents())).name.removeprefix("MOSTLY_").removeprefix("ALL_"))
    return str(types.most_common(1)[0][0].name)


def quantization_config(quantization: str, dtype: Any) -> Any:
    """Configuration of bitsandbytes for ``"nf4"`` or ``"int8"``, without what makes vectors depend on their batch."""
    import torch
    import transformers

    config: Any = transformers.BitsAndBytesConfig
    if quantization not in ("nf4", "int8"):
        raise ValueError(f"quantization={quantization!r} is not known. Choose from nf4, int8.")
    required("bitsandbytes", "quantized", f"quantization={quantization!r} needs bitsandbytes")
    if quantization == "int8":
        # A threshold would change how all texts of a batch are rounded by large numbers of one of them.
        return config(load_in_8bit=True, llm_int8_threshold=0.0)
    compute = dtype if isinstance(dtype, torch.dtype) else torch.bfloat16
    return config(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=compute)


def shared(model: Any) -> Any:
    """A backbone of the same weights, in the same memory, that can be changed without changing ``model``.

    Modules and configuration are copied, tensors are not, so that ``model`` goes on generating beside it.
    """
    if getattr(model, "hf_device_map", None) and len(set(model.hf_device_map.values())) > 1:
        raise ValueError("base: the loaded model lies on several devices. Give its folder or Hub id.")
    # What the copy would make anew, it takes as it is.
    tensors = {id(each): each for each in (*model.base_model.parameters(), *model.base_model.buffers())}
    body = copy.deepcopy(model.base_model, tensors)
    body.config.use_cache = body.config.get_text_config().use_cache = False
    return body


def cut(model: Any, layers: int) -> None:
    """Leave the lowest layers of a model only; its final norm follows the last of them."""
    from .modules.layers import layers_of
    from .modules.layout import decoder_of

    listed, config = layers_of(model), model.config.get_text_config()
    depth = len(listed)
    if layers == depth:
        return
    if decoder_of(model).config is not model.config:
        raise ValueError(f"layer={layers}: {type(model).__name__} has towers beside its decoder. Save that alone.")
    before = _last_state(model, listed, layers - 1)
    kept = max(1, layers)  # Layer 0, the embeddings, is what enters the first.
    del listed[kept:]
    for name, value in dict(vars(config)).items():
        if isinstance(value, (list, tuple)) and len(value) == depth and name not in _NOT_LAYERS:
            setattr(config, name, value[:kept])
        elif name == "num_kv_shared_layers" and isinstance(value, int):
            setattr(config, name, max(0, value - (depth - kept)))
    config.num_hidden_layers = kept
    after = _last_state(model, listed, layers - 1)
    difference = float((before - after).abs().max() / before.abs().max())
    if not difference <= 1e-6:
        raise ValueError(f"layer={layers}: without those above, hidden states change by {difference:.1%}. Drop it.")


def _last_state(model: Any, layers: Any, index: int) -> Any:
    import torch

    kept: list[Any] = []
    hook = layers[max(0, index)].register_forward_hook(
        lambda module, arguments, output: kept.append(output[0] if isinstance(output, tuple) else output)
    )
    ids = torch.arange(1, 9, device=model.device)[None]
    training = model.training
    try:
        with torch.inference_mode():
            model.eval()(input_ids=ids, attention_mask=torch.ones_like(ids))
    finally:
        hook.remove()
        model.train(training)
    return kept[0].float()


def check_model(model: Any, name: str) -> None:
    """Refuse what is no single stack of layers that texts alone go through, or whose weights are not whole."""
    import inspect

    import torch

    config = model.config
    given: Any = getattr(config, "quantization_config", None) or {}
    given = given if isinstance(given, dict) else given.to_dict()
    threshold = given.get("load_in_8bit", given.get("_load_in_8bit")) and given.get("llm_int8_threshold")
    lost = given.get("quant_method", "gguf") != "gguf" and getattr(model, "hf_quantizer", None) is None
    on_disk = any(each.weight.is_meta for each in model.modules() if isinstance(each, torch.nn.Embedding))
    depth = getattr(config.get_text_config(), "num_hidden_layers", None)
    parameters = inspect.signature(model.forward).parameters.values()
    needed = [each.name for each in parameters if each.default is each.empty and "VAR" not in each.kind.name]
    needed = [each for each in needed if each not in ("input_ids", "attention_mask", "position_ids", "use_cache")]
    for wrong, problem in (
        (getattr(config, "is_encoder_decoder", False), "is an encoder-decoder. Use a decoder-only base"),
        (not isinstance(depth, int), "is no single stack of layers. Use a decoder-only base"),
        (model.get_output_embeddings() is not None, "gives the outputs of a head. Save its decoder alone"),
        (needed, f"needs {', '.join(needed)!r} beside a text. Save its text decoder alone"),
        (lost, f"was loaded without its quantization {given.get('quant_method')!r}. Use another base"),
        (threshold, f"llm_int8_threshold={threshold} makes vectors depend on their batch. Set it to 0"),
        (on_disk, "has its embeddings on disk, by its device_map. Map them to a device"),
    ):
        if wrong:
            raise ValueError(f"base={name!r}: {type(model).__name__} {problem}.")


def is_causal(model: Any) -> bool:
    """Whether no hidden state depends on a later token; tried on two texts that differ in their last token."""
    import torch

    from .modules.layout import decoder_of

    decoder = decoder_of(model)
    marks = [bool(each.is_causal) for each in decoder.modules() if hasattr(each, "is_causal")]
    if not all(marks) or getattr(model.config.get_text_config(), "is_causal", True) is False:
        return False
    if marks:
        return True
    ids = torch.tensor([[1, 2, 3, 4], [1, 2, 3, 0]], device=model.device)
    training = model.training
    with torch.inference_mode():
        hidden = model.eval()(input_ids=ids, attention_mask=torch.ones_like(ids))[0].float()
    model.train(training)
    return bool(torch.allclose(hidden[0, :-1], hidden[1, :-1], atol=1e-2 * float(hidden.abs().max()), rtol=0))


def adapted_model(path: str, name: str, hub: Mapping[str, Any]) -> str | None:
    """Folder or Hub id of the model that a PEFT adapter adapts; None: the base is no adapter."""
    from transformers.utils.peft_utils import find_adapter_config_file

    try:
        file = find_adapter_config_file(path, **hub)
    except OSError:
        return None  # Loading the base says what is wrong with it.
    if file is None:
        return None
    adapter = required("peft", "train", f"base={name!r} is an adapter of peft").PeftConfig.from_pretrained(path, **hub)
    if adapter.is_prompt_learning or adapter.is_adaption_prompt:
        raise ValueError(f"base={name!r} is an adapter of positions, which are no text. Use an adapter of weights.")
    return str(adapter.base_model_name_or_path or path)


def merge_adapter(model: Any, path: str, name: str, hub: Mapping[str, Any]) -> None:
    """Make a loaded adapter part of the weights, once all of it is seen to be there."""
    if getattr(model, "hf_quantizer", None) is not None:
        raise ValueError(f"base={name!r}: merged into quantized weights, an adapter is rounded. Load them unquantized.")
    stored = required("peft", "train").load_peft_weights(path, device="cpu", **hub)
    parts = {model.base_model_prefix, *(part for part, _ in model.named_children())}
    loaded = {_digest(tensor) for tensor in model.get_adapter_state_dict().values()}
    loaded |= {_digest(tensor) for tensor in model.state_dict().values() if tensor.numel() < 1 << 28}
    dtype = next(iter(model.get_adapter_state_dict().values())).dtype
    for key, tensor in stored.items():
        # Names differ from model to model; a head's weights are not missed.
        place = key.removeprefix("base_model.model.").split(".")[0]
        if place in parts and not {_digest(tensor.to(dtype)), _digest(tensor)} & loaded:
            raise ValueError(f"base={name!r}: transformers did not load the adapter's {key}. Merge it and save that.")
    merged(model)


def merged(model: Any) -> None:
    """Make the adapter of a model part of its weights, which are then saved without peft."""
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
    # Private in transformers: names as in the adapter, under which the merged weights would be saved.
    vars(model).pop("_weight_conversions", None)
    model._hf_peft_config_loaded = False
    del model.peft_config
    model.requires_grad_(True)


def _digest(tensor: Any) -> tuple[Any, ...]:
    numbers = tensor.detach().float()
    return (tuple(tensor.shape), float(numbers.sum()), float(numbers.abs().sum()))
