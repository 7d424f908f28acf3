"""Where a base is and how it is loaded: folders, Hub ids, GGUF files, loaded models, adapters, quantized weights."""

from __future__ import annotations

import copy
import hashlib
import inspect
import os
import warnings
from collections.abc import Mapping
from numbers import Integral
from pathlib import Path
from typing import Any

import torch
import transformers
from huggingface_hub import cached_assets_path
from sentence_transformers.util import get_device_name

from .gguf_files import read_gguf
from .modules.layers import layers_of
from .modules.layout import decoder_of
from .modules.selfcheck import run_ids
from .optional import required
from .packaged import is_packaged, packaged_gguf
from .storage.files import whole_file

# Models that come with the package.
EMBEDDED = {"mini": Path(__file__).with_name("mini")}
# Where a model is found, in sentence-transformers' words and in transformers'.
HUB = {"revision": "revision", "token": "token", "cache_folder": "cache_dir", "local_files_only": "local_files_only"}
_MAPPING = (Mapping, "a mapping of names to values, as {'attn_implementation': 'sdpa'}")
_LOADING_TYPES: dict[str, tuple[Any, str]] = {
    "model_kwargs": _MAPPING,
    "processor_kwargs": _MAPPING,
    "config_kwargs": _MAPPING,
    "gguf_file": (str, "the name of a file in the base's folder or repository"),
    "revision": (str, "a branch, a tag or a commit"),
    "token": ((str, bool), "a token of the Hub"),
    "cache_folder": ((str, os.PathLike), "a folder"),
    "local_files_only": (bool, "True or False"),
    "trust_remote_code": (bool, "True or False"),
}
# transformers' names of the option, the older one last.
DTYPE_NAMES = ("dtype", "torch_dtype")
_OPTIONS_WITH_DTYPE = ("model_kwargs", "config_kwargs")
_DTYPES = ("float32", "bfloat16", "float16", "float64", "auto")


def place_of(name: str) -> str:
    """Folder of an embedded model, unpacked into a cache where its weights are packed (setup.py); else the name."""
    folder = EMBEDDED.get(name)
    if folder is None or (folder / "model.safetensors").exists():
        return str(folder or name)
    import lzma  # here, as not every Python has it

    files = {file.name: file.read_bytes() for file in sorted(folder.iterdir())}
    key, packed = hashlib.sha256(b"".join(files.values())), files.pop("model.safetensors.xz")
    try:
        place = cached_assets_path("st_reba", namespace=key.hexdigest()[:16], subfolder=name)
        if not (place / "model.safetensors").exists():  # the last to be written: where they are, all is
            for file, content in {**files, "model.safetensors": lzma.decompress(packed)}.items():
                with whole_file(place / file) as stream:
                    stream.write(content)
    except OSError as error:
        raise OSError(f"base={name!r} is unpacked in the Hub's cache: {error}. Set HF_HOME to a folder.") from error
    return str(place)


def locate(base: str | os.PathLike[str], gguf_file: str | None = None) -> tuple[str, str, str | None]:
    """Folder or Hub id of a base; the name to record for it, never a path of this machine; the GGUF file in it."""
    text = os.fspath(base)
    if text in EMBEDDED and gguf_file is None:
        return place_of(text), text, None
    if gguf_file is None and is_packaged(text):
        gguf_path = packaged_gguf(text)
        recorded_name = f"{text} (GGUF, {read_gguf(str(gguf_path)).quantization})"
        return str(gguf_path.parent), recorded_name, gguf_path.name
    if gguf_file is None and text.endswith(".gguf"):
        if not os.path.isfile(text):
            raise FileNotFoundError(f"base={text!r}: there is no such file.")
        text, gguf_file = os.path.split(os.path.abspath(text))
    if os.path.isfile(text):
        raise ValueError(f"base={text!r} is a file. Name the folder that holds the model, or a .gguf file.")
    here = os.path.isdir(text)
    if here and gguf_file is None and not {"config.json", "modules.json", "adapter_config.json"} & {*os.listdir(text)}:
        files = sorted(name for name in os.listdir(text) if name.endswith(".gguf"))
        if len(files) > 1:
            raise ValueError(f"base={text!r} holds several GGUF files. Choose one, as gguf_file={files[0]!r}.")
        if not files:
            raise ValueError(f"base={text!r} holds no config.json and no .gguf file, so it is no model.")
        gguf_file = files[0]
    name = os.path.basename(os.path.abspath(text)) if here else text
    if gguf_file is not None:
        file = os.path.join(text, gguf_file)
        quantization = f", {read_gguf(file).quantization}" if os.path.isfile(file) else ""
        name = f"{gguf_file if here else f'{text}/{gguf_file}'} (GGUF{quantization})"
    return text, name, gguf_file


def check_device(device: str | None) -> None:
    """Refuse a device that this machine does not have."""
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise ValueError(f"device={device!r} cannot be used: {str(error).splitlines()[0]}") from error


def check_loading(base: Any, loading: Mapping[str, Any]) -> None:
    """Refuse options of loading whose values are of the wrong type, before anything is loaded."""
    if base is None:
        raise ValueError("base=None: give a folder, a Hub id, a GGUF file, a recipe or a loaded model.")
    for name, (types, description) in _LOADING_TYPES.items():
        value = loading.get(name)
        if value is not None and not isinstance(value, types):
            raise ValueError(f"{name}={value!r:.80} must be {description}.")
    sizes = {"truncate_dim": loading.get("truncate_dim")}
    sizes["processor_kwargs['model_max_length']"] = (loading.get("processor_kwargs") or {}).get("model_max_length")
    for name, size in sizes.items():
        is_size = isinstance(size, Integral) and not isinstance(size, bool) and int(size) > 0
        if size is not None and not is_size:
            raise ValueError(f"{name}={size!r:.80} must be a whole number from 1 on.")


def requested_dtype(dtype: Any, loading: Mapping[str, Any]) -> Any:
    """The number type that a call asks for.

    Args:
        dtype: The call's own option.
        loading: Its options of loading, whose ``model_kwargs`` and ``config_kwargs`` may hold either of transformers'
            names for it.

    Returns:
        A torch.dtype, ``"auto"``, or None: none is asked for.

    Raises:
        ValueError: A value is not known, or two of them differ.
    """
    values = {"dtype": dtype}
    for option in _OPTIONS_WITH_DTYPE:
        for name in DTYPE_NAMES:
            values[f"{option}[{name!r}]"] = (loading.get(option) or {}).get(name)
    requested: dict[str, Any] = {}
    for name, value in values.items():
        if value is not None:
            requested[name] = _parse_dtype(name, value)
    if len(set(requested.values())) > 1:
        names = " and ".join(f"{name}={values[name]!r}" for name in requested)
        raise ValueError(f"{names} differ. Give one of them.")
    return next(iter(requested.values()), None)


def without_dtype(loading: Mapping[str, Any]) -> dict[str, Any]:
    """Options of loading, but for the number type, which `requested_dtype` reads."""
    remaining = dict(loading)
    for option in _OPTIONS_WITH_DTYPE:
        if loading.get(option):
            remaining[option] = {name: loading[option][name] for name in loading[option] if name not in DTYPE_NAMES}
    return remaining


def _parse_dtype(name: str, value: Any) -> Any:
    if value == "auto" or isinstance(value, torch.dtype):
        return value
    parsed = getattr(torch, value.removeprefix("torch."), None) if isinstance(value, str) else None
    if str(parsed).removeprefix("torch.") not in _DTYPES:
        raise ValueError(f"{name}={value!r} is not known. Choose from {', '.join(_DTYPES)}.")
    return parsed


def weights_dtype(dtype: Any, device: str | None) -> Any:
    """What ``dtype`` means to transformers: None is float32 on a CPU, and as stored ("auto") on a GPU."""
    if dtype is None:
        return torch.float32 if str(device or get_device_name()).startswith("cpu") else "auto"
    return _parse_dtype("dtype", dtype)


def quantization_config(quantization: str, dtype: Any) -> Any:
    """Configuration of bitsandbytes for ``"nf4"`` or ``"int8"``, without what makes vectors depend on their batch."""
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
    """A backbone with the same weights in the same memory: modules and configuration are copied, tensors are not."""
    if getattr(model, "hf_device_map", None) and len(set(model.hf_device_map.values())) > 1:
        raise ValueError("base: the loaded model lies on several devices. Give its folder or Hub id.")
    # The copy takes these as they are, in place of making new ones.
    tensors = {id(each): each for each in (*model.base_model.parameters(), *model.base_model.buffers())}
    return copy.deepcopy(model.base_model, tensors)


def cut(model: Any, layers: int) -> None:
    """Leave the lowest layers of a model only; its final norm follows the last of them."""
    listed, config = layers_of(model), model.config.get_text_config()
    depth = len(listed)
    if layers == depth:
        return
    if decoder_of(model).config is not model.config:
        raise ValueError(f"layer={layers}: {type(model).__name__} has towers beside its decoder. Save that alone.")
    kept = max(1, layers)  # Layer 0, the embeddings, is what enters the first.
    states: list[torch.Tensor] = []
    with listed[kept - 1].register_forward_hook(
        lambda module, given, output: states.append(output[0] if isinstance(output, tuple) else output)
    ):
        run_ids(model, [[*range(1, 9)]])
        del listed[kept:]
        for name, value in dict(vars(config)).items():
            # Architectures and token ids may happen to be as many.
            other = name == "architectures" or name.endswith("token_id")
            if isinstance(value, (list, tuple)) and len(value) == depth and not other:
                setattr(config, name, value[:kept])
        config.num_hidden_layers = kept
        try:
            run_ids(model, [[*range(1, 9)]])
        except (RuntimeError, ValueError) as error:
            said = " ".join(str(error).split())
            wrong = f"{type(model).__name__} cannot run without those above"
            raise ValueError(f"layer={layers}: {wrong}. {said}") from error
    before, after = (each.float() for each in states)
    difference = float((before - after).abs().max() / before.abs().max())
    if not difference <= 1e-6:
        raise ValueError(f"layer={layers}: without those above, hidden states change by {difference:.1%}. Drop it.")


def check_model(model: Any, name: str) -> None:
    """Refuse what is no single stack of layers that texts alone go through, or whose weights are not whole."""
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
        (config.is_encoder_decoder, "is an encoder-decoder. Use a decoder-only base"),
        (not isinstance(depth, int), "is no single stack of layers. Use a decoder-only base"),
        (model.get_output_embeddings() is not None, "gives the outputs of a head. Save its decoder alone"),
        (needed, f"needs {', '.join(needed)!r} beside a text. Save its text decoder alone"),
        (lost, f"was loaded without its quantization {given.get('quant_method')!r}. Use another base"),
        (threshold, f"llm_int8_threshold={threshold} makes vectors depend on their batch. Set it to 0"),
        (on_disk, "has its embeddings on disk, by its device_map. Map them to a device"),
    ):
        if wrong:
            raise ValueError(f"base={name!r}: {type(model).__name__} {problem}.")


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
    if not adapter.base_model_name_or_path:
        raise ValueError(f"base={name!r}: adapter_config.json names no base_model_name_or_path. Add it.")
    return str(adapter.base_model_name_or_path)


def merge_adapter(
    model: Any, tokenizer: Any, path: str, name: str, hub: Mapping[str, Any], *, has_its_tokenizer: bool
) -> None:
    """Make an adapter part of a model's weights, as peft does; all of it, or a ValueError.

    ``has_its_tokenizer``: the tokenizer is the adapter's, or the caller's choice, not that of the base.
    """
    if getattr(model, "hf_quantizer", None) is not None:
        raise ValueError(f"base={name!r}: merged into quantized weights, an adapter is rounded. Load them unquantized.")
    peft: Any = required("peft", "train")
    config = peft.PeftConfig.from_pretrained(path, **hub)
    config.task_type = None  # of what a head is for
    row_count = len(model.get_input_embeddings().weight)
    _resize_embeddings(model, tokenizer, peft.utils.load_peft_weights(path, device="cpu", **hub), config, name)
    new_row_count = len(model.get_input_embeddings().weight)
    if new_row_count > row_count and not has_its_tokenizer:
        raise ValueError(
            f"base={name!r}: the adapter has {new_row_count} embeddings, its base {row_count}, and it was saved "
            "without the tokenizer that has the new tokens. Name that tokenizer's folder, as tokenizer=…."
        )
    # An adapter of a model with a head names the decoder's weights from there.
    names = {rf"^{model.base_model_prefix}\.": ""}
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("error", "Found missing adapter keys")
            adapted = peft.PeftModel.from_pretrained(model, path, config=config, key_mapping=names, **hub)
        adapted.merge_and_unload()
    except (ValueError, TypeError, KeyError, RuntimeError, UserWarning) as error:
        said = " ".join(str(error).split())[:500]
        raise ValueError(f"base={name!r}: peft cannot merge the adapter. {said}") from error
    vars(model).pop("peft_config", None)
    model.requires_grad_(True)


def _resize_embeddings(model: Any, tokenizer: Any, weights: Mapping[str, Any], config: Any, name: str) -> None:
    """Give a base as many embeddings as an adapter's tokenizer has ids, where the adapter holds those that are new."""
    embeddings = model.get_input_embeddings()
    row_count = len(embeddings.weight)
    (path,) = (path for path, module in model.named_modules() if module is embeddings)
    saved_row_count = _saved_row_count(weights, path.rpartition(".")[2])
    if saved_row_count is not None:
        new_row_count = saved_row_count
    else:
        new_row_count = max(row_count, id_count(tokenizer))
        trained = config.to_dict().get("trainable_token_indices") or ()
        if isinstance(trained, Mapping):
            trained = {token for tokens in trained.values() for token in tokens}
        untrained = set(range(row_count, new_row_count)) - set(trained)
        if untrained:
            raise ValueError(
                f"base={name!r}: its tokenizer has {new_row_count} ids, its base {row_count} embeddings, and the "
                "adapter holds none for the others. Save it again with save_embedding_layers=True."
            )
    if id_count(tokenizer) > new_row_count:
        raise ValueError(f"base={name!r}: its tokenizer has {id_count(tokenizer)} ids, its embeddings {new_row_count}.")
    if new_row_count != row_count:
        # Those that are new are overwritten by the adapter's.
        model.resize_token_embeddings(new_row_count, mean_resizing=False)


def _saved_row_count(weights: Mapping[str, Any], module: str) -> int | None:
    """Number of embeddings that an adapter was trained with; None: it holds no weights of them."""
    for name, weight in weights.items():
        if f".{module}." not in name:
            continue
        if name.endswith((".weight", ".original_module")) and "lora_" not in name:
            return len(weight)
        if "lora_embedding_A" in name:
            return int(weight.shape[1])
    return None


def id_count(tokenizer: Any) -> int:
    """The number of embeddings that a tokenizer's ids need."""
    return int(max(tokenizer.get_vocab().values())) + 1
