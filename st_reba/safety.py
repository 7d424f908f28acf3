"""Load a model, once its files are seen to ask for no foreign code and for no more than their weights hold."""

from __future__ import annotations

import inspect
import json
import math
import os
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PureWindowsPath
from typing import TYPE_CHECKING, Any

from .methods import POOLED

if TYPE_CHECKING:
    import torch
    from sentence_transformers import SentenceTransformer

_PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle")
_MOST_BYTES, _MOST_LAYERS = 1 << 22, 1000
# What a stored configuration may not hand to transformers: where else to look, whom to ask, pickles, code.
_CALLERS = {"trust_remote_code", "token", "proxies", "code_revision", "gguf_file", "kernel_config", "use_kernels"}
_CALLERS |= {"weights_only", "use_safetensors", "state_dict", "adapter_kwargs", "offload_folder"}
# Numbers of our own modules that stand for memory or time, with the least and the most.
_LIMITS = {"repeats": (1, 1024), "chunk": (1, 1 << 20), "m": (0, 1 << 20)}
_REMEDY = "Copy all files of the model, or build it again."


class RepositoryRefused(ValueError):
    """A repository asks for what it may not have; nothing of it was loaded or run."""


def load(
    model: str | os.PathLike[str],
    *,
    device: str | None = None,
    dtype: str | torch.dtype | None = None,
    trust_remote_code: bool = False,
    **kwargs: Any,
) -> SentenceTransformer:
    """Load a saved model as ``SentenceTransformer(model)`` does, after :func:`check_repository`.

    Args:
        model: A folder written by ``save_pretrained``, or a Hub id.
        device: Where to run.
        dtype: Number type of the weights; None: float32 on a CPU, as stored on a GPU.
        trust_remote_code: Allow code from the repository.
        **kwargs: All else that SentenceTransformer takes.

    Raises:
        RepositoryRefused: It asks for what it may not have.
        ValueError: It holds no model that sentence-transformers can load.
    """
    from sentence_transformers import SentenceTransformer

    from .bases import EMBEDDED, HUB, weights_dtype

    path = os.fspath(model)
    if (path in EMBEDDED or os.path.isdir(path)) and not os.path.isfile(os.path.join(path, "modules.json")):
        raise ValueError(f"{path!r} holds no modules.json: it is no saved model. Run: st-reba build {path} FOLDER")
    weights: dict[str, Any] = {"dtype": weights_dtype(dtype, device)}
    hub = {name: kwargs[name] for name in HUB if kwargs.get(name) is not None}
    if kwargs.get("backend", "torch") == "torch":
        weights["use_safetensors"] = True
    kwargs["model_kwargs"] = {**weights, **(kwargs.get("model_kwargs") or {})}
    try:
        first = check_repository(path, trust_remote_code=trust_remote_code, **hub)
        with sized(path, first, **hub):
            return SentenceTransformer(path, device=device, trust_remote_code=trust_remote_code, **kwargs)
    except RepositoryRefused:
        raise
    except Exception as error:
        raise ValueError(f"{path!r} could not be loaded: {error}") from error


def check_repository(model: str | os.PathLike[str], *, trust_remote_code: bool = False, **hub: Any) -> str:
    """Refuse a sentence-transformers repository that is malicious or broken, before anything of it is loaded.

    Refused are module types other than sentence-transformers' own and ours, paths outside the repository, pickled
    weights, options that are the caller's alone, kernels by name, and modules without their configuration or weights.

    Args:
        model: Folder or Hub id.
        trust_remote_code: Allow module types from elsewhere.
        **hub: ``token``, ``cache_folder``, ``revision`` and ``local_files_only``, as ``SentenceTransformer`` has them.

    Returns:
        The folder of the first module.

    Raises:
        RepositoryRefused: What is wrong, in which file, and what to do.
    """
    path = os.fspath(model)
    listed = _read(path, "modules.json", hub) or []
    if not isinstance(listed, list) or not all(isinstance(each, dict) for each in listed):
        raise RepositoryRefused(f"{path!r}: modules.json is no list of modules. {_REMEDY}")
    for each in listed:
        _check_module(path, each.get("path"), each.get("type"), "modules.json", trust_remote_code, hub)
    return listed[0]["path"] if listed else ""


@contextmanager
def sized(path: str, folder: str = "", **hub: Any) -> Iterator[None]:
    """Inside the ``with`` block, a model is refused that has far more numbers than the weights at ``path`` hold.

    Before it, config.json and the headers of the weights are checked. transformers makes a model without memory at
    first, so that none is taken.

    Args:
        path: Folder or Hub id of a saved model or a base.
        folder: Of the module in it.
        **hub: As for :func:`check_repository`.
    """
    from torch.nn.modules.module import register_module_parameter_registration_hook

    _check_settings(path, os.path.join(folder, "config.json"), hub)
    held = _held(path, folder, hub)
    # Tied weights are made several times, and stored once.
    left = math.inf if held is None else 4 * held + (1 << 20)
    thread = threading.get_ident()

    def count(module: Any, name: str, weight: Any) -> None:
        nonlocal left
        if weight is not None and weight.is_meta and threading.get_ident() == thread:
            left -= weight.numel()
        if left < 0:
            raise RepositoryRefused(
                f"{path!r}: config.json asks for far more than the {held:,} numbers of the weights. {_REMEDY}"
            )

    hook = register_module_parameter_registration_hook(count)
    try:
        yield
    finally:
        hook.remove()


def _check_module(path: str, folder: Any, name: Any, file: str, trusted: bool, hub: dict[str, Any]) -> None:
    """Refuse a module by its type, its folder, its configuration and its weights; of a Router each module in it."""
    kind = _kind(name)
    if not isinstance(folder, str) or _leaves(path, folder):
        raise RepositoryRefused(f"{path!r}: {file}: path={folder!r:.80} leads out of the repository. Correct it.")
    if kind is None and (not trusted or str(name).startswith("sentence_transformers.")):
        raise RepositoryRefused(
            f"{path!r}: {file}: type={name!r:.80} is no module of sentence-transformers or st_reba, and would run code "
            "from elsewhere. If you have read and trust it: trust_remote_code=True."
        )
    if kind is None:
        return
    config = os.path.join(folder, "config.json")
    for each in (config, os.path.join(folder, "sentence_bert_config.json")):
        _check_settings(path, each, hub)
    if "config_keys" in vars(kind) and not hasattr(kind, "tokenizer"):
        values = _read(path, config, hub) or {}
        parameters = inspect.signature(kind.__init__).parameters
        if not values and any(
            name in kind.config_keys and each.default is each.empty for name, each in parameters.items()
        ):
            raise RepositoryRefused(f"{path!r}: {config} is missing. {_REMEDY}")
        sizes: list[Any] = [values[each] for each in ("in_features", "out_features") if each in values]
        held = _held(path, folder, hub) if sizes else None
        if held is not None and not (all(type(each) is int for each in sizes) and math.prod(sizes) <= held):
            raise RepositoryRefused(f"{path!r}: {config}: {sizes} do not fit {held:,} weights. {_REMEDY}")
    names = os.listdir(os.path.join(path, folder)) if os.path.isdir(os.path.join(path, folder)) else []
    exported = any(each.endswith(".onnx") or each in ("onnx", "openvino") for each in names)
    for each in sorted(names):
        kept = "adapter_model.safetensors" if each == "adapter_model.bin" else ".safetensors"
        if each.lower().endswith(_PICKLES) and not exported and not any(name.endswith(kept) for name in names):
            raise RepositoryRefused(
                f"{path!r}: {os.path.join(folder, each)} is a pickle, which can run code. Ask for safetensors."
            )
    if kind.__name__ == "Router":
        router = os.path.join(folder, "router_config.json")
        types = (_read(path, router, hub) or {}).get("types")
        for inner, type_ in (types if isinstance(types, dict) else {"": None}).items():
            inside = None if str(type_).endswith(".Router") else type_
            _check_module(path, os.path.join(folder, inner), inside, router, trusted, hub)


def _kind(name: Any) -> Any:
    """The class of a module's type; None: neither sentence-transformers' nor ours."""
    from sentence_transformers.base.modules import Module
    from sentence_transformers.util import import_from_string

    from . import modules

    if not isinstance(name, str):
        return None
    if name.startswith("st_reba.") and name.removeprefix("st_reba.") in modules.MODULES:
        return getattr(modules, name.removeprefix("st_reba."))
    if not name.startswith("sentence_transformers.") or len(name) > 200:
        return None
    try:
        found: Any = import_from_string(name)
    except Exception:
        return None
    # Any name of that package would be fetched, and its ``load`` called.
    own = (
        isinstance(found, type) and issubclass(found, Module) and found.__module__.startswith("sentence_transformers.")
    )
    return found if own else None


def _check_settings(path: str, file: str, hub: dict[str, Any]) -> None:
    """Refuse a kernel by name, too many layers, and options of loading that are the caller's alone."""
    left = [("", _read(path, file, hub))]
    while left:
        name, value = left.pop()
        if isinstance(value, dict):
            left += value.items()
            if name.endswith(("_kwargs", "_args")) and (wrong := sorted(_CALLERS & set(value))):
                raise RepositoryRefused(f"{path!r}: {file}: {name}: {wrong[0]} may not be stored. Pass it to load.")
        elif name == "tokenizer_name_or_path" and value is not None:
            raise RepositoryRefused(f"{path!r}: {file}: {name} names a tokenizer elsewhere. Put its files here.")
        elif isinstance(value, int) and re.search("layers?$", name) and value > _MOST_LAYERS:
            raise RepositoryRefused(f"{path!r}: {file}: {name}={value}: at most {_MOST_LAYERS}. Correct it.")
        least, most = _LIMITS.get(name, (None, 0))
        if name in ("second", "layer_masks") and isinstance(value, list):
            least, most, value = 0, _MOST_LAYERS, len(value)
        if name == "pooled" and value not in POOLED:
            raise RepositoryRefused(f"{path!r}: {file}: pooled={value!r:.80} is not known. {_REMEDY}")
        if least is not None and not (type(value) is int and least <= value <= most):
            raise RepositoryRefused(f"{path!r}: {file}: {name}={value!r:.80} must be from {least} to {most}.")
        if name.endswith("attn_implementation") and "/" in str(value):
            # transformers would download that kernel and run it, whether or not code is trusted.
            raise RepositoryRefused(f"{path!r}: {file}: {name}={value!r:.80} names a kernel elsewhere. Remove it.")


def _read(path: str, file: str, hub: dict[str, Any]) -> Any:
    """A JSON file of a repository; None: it has no such file."""
    from sentence_transformers.util import load_file_path

    found = None if _leaves(path, file) else load_file_path(path, file, **hub)
    if found is None:
        if os.path.lexists(os.path.join(path, file)):
            raise RepositoryRefused(f"{path!r}: {file} is a link to a place outside, or no file. Put the file there.")
        return None
    try:
        if os.path.getsize(found) > _MOST_BYTES:
            raise ValueError(f"it has more than {_MOST_BYTES:,} bytes")
        return json.loads(Path(found).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise RepositoryRefused(f"{path!r}: {file} is not JSON ({str(error)[:200]}). {_REMEDY}") from error


def _leaves(path: str, name: str) -> bool:
    """Whether a name is none inside the repository, by itself or as a link; huggingface_hub's cache has links."""
    windows = PureWindowsPath(name)
    if len(name) > 1000 or windows.anchor or ".." in windows.parts or "\0" in name:
        return True
    root = Path(path).resolve()
    places = [root, root.parent.parent / "blobs"] if root.parent.name == "snapshots" else [root]
    return os.path.isdir(path) and not any((root / name).resolve().is_relative_to(place) for place in places)


def _held(path: str, folder: str, hub: dict[str, Any]) -> int | None:
    """Numbers that the weights of a module hold, by the headers of their files; None: it has none as safetensors."""
    from sentence_transformers.util import load_file_path

    files = ["model.safetensors"]
    index = os.path.join(folder, "model.safetensors.index.json")
    if load_file_path(path, os.path.join(folder, files[0]), **hub) is None:
        if (listed := _read(path, index, hub)) is None:
            return None
        files = sorted(set(listed["weight_map"].values()))
    total = 0
    for file in files:
        found = None if _leaves(path, file) else load_file_path(path, os.path.join(folder, file), **hub)
        if found is None:
            raise RepositoryRefused(f"{path!r}: {os.path.join(folder, file)} is missing. {_REMEDY}")
        try:
            total += _numbers(found)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise RepositoryRefused(f"{path!r}: {file} is no safetensors file ({str(error)[:200]}).") from error
    return total


def _numbers(file: str) -> int:
    size = os.path.getsize(file)
    with open(file, "rb") as stream:
        # The header in front: its length in 8 bytes, and JSON.
        header = json.loads(stream.read(min(int.from_bytes(stream.read(8), "little"), size)))
    tensors = [each for name, each in header.items() if name != "__metadata__"]
    if any(each["data_offsets"][1] > size for each in tensors):
        raise ValueError("it is cut")
    # Whole numbers, as I32, are packed: down to 2 bits a weight.
    return sum(
        math.prod(each["shape"]) * (int(each["dtype"][1:]) // 2 if each["dtype"][0] in "IU" else 1) for each in tensors
    )
