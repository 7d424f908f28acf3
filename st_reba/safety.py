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

if TYPE_CHECKING:
    import torch
    from sentence_transformers import SentenceTransformer

PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle", ".joblib")
_MOST_BYTES, _MOST_LAYERS = 1 << 22, 1000
# What a stored configuration may not hand to transformers: where else to look, whom to ask, pickles, code.
_CALLERS = {"trust_remote_code", "token", "proxies", "code_revision", "gguf_file", "kernel_config", "use_kernels"}
_CALLERS |= {"weights_only", "use_safetensors", "state_dict", "adapter_kwargs", "offload_folder", "variant"}
# Names under which sentence-transformers also finds the settings of a Transformer.
_OLDER = ("roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
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

    Refused are module types other than sentence-transformers' own and ours, paths and links that leave the repository,
    pickled weights, options that are the caller's alone, kernels by name, and modules without their configuration or
    weights.

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
    about = _read(path, "config_sentence_transformers.json", hub)
    if (kind := about.get("model_type", "SentenceTransformer")) != "SentenceTransformer":
        # sentence-transformers would load something else than what modules.json lists.
        raise RepositoryRefused(
            f"{path!r}: config_sentence_transformers.json: it is a {kind!r:.80}. Use another model."
        )
    listed = _read(path, "modules.json", hub, list)
    for each in listed:
        if not isinstance(each, dict):
            raise RepositoryRefused(f"{path!r}: modules.json is no list of modules. {_REMEDY}")
        _check_module(path, each.get("path"), each.get("type"), "modules.json", trust_remote_code, hub)
    return listed[0]["path"] if listed else ""


@contextmanager
def sized(path: str, folder: str = "", **hub: Any) -> Iterator[None]:
    """Inside the ``with`` block, a model is refused that has far more numbers than the weights at ``path`` hold.

    Before it, config.json and the headers of the weights are checked; where they are those of an adapter, of the model
    that it adapts. transformers makes a model without memory at first, so that none is taken.

    Args:
        path: Folder or Hub id of a saved model or a base.
        folder: Of the module in it.
        **hub: As for :func:`check_repository`.
    """
    from torch.nn.modules.module import register_module_parameter_registration_hook

    held = _held(*_check_base(path, folder, hub))
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
    from sentence_transformers.base.modules import Transformer

    kind = _kind(name)
    if not isinstance(folder, str) or leaves(path, folder):
        raise RepositoryRefused(f"{path!r}: {file}: path={folder!r:.80} leads out of the repository. Correct it.")
    if kind is None and (not trusted or str(name).startswith("sentence_transformers.")):
        raise RepositoryRefused(
            f"{path!r}: {file}: type={name!r:.80} is no module of sentence-transformers or st_reba, and would run code "
            "from elsewhere. If you have read and trust it: trust_remote_code=True."
        )
    if kind is None:
        return
    _check_files(path, folder)
    if issubclass(kind, Transformer):
        older = [f"sentence_{each}_config.json" for each in _OLDER]
        for settings in (kind.config_file_name, *older):
            if _check_settings(path, os.path.join(folder, settings), hub):
                break  # sentence-transformers reads the first that says anything
        _check_base(path, folder, hub)
    elif kind.__name__ == "Router":
        router = os.path.join(folder, kind.config_file_name)
        types = _read(path, router, hub).get("types")
        for inner, type_ in (types if isinstance(types, dict) else {"": None}).items():
            inside = None if str(type_).endswith(".Router") else type_
            _check_module(path, os.path.join(folder, inner), inside, router, trusted, hub)
    else:
        _check_small(path, folder, kind, hub)


def _check_small(path: str, folder: str, kind: Any, hub: dict[str, Any]) -> None:
    """Refuse a module behind the first whose configuration is missing, or whose weights are, or are a pickle."""
    config = os.path.join(folder, kind.config_file_name)
    values = _read(path, config, hub)
    needed = [name for name, each in inspect.signature(kind).parameters.items() if each.default is each.empty]
    if not values and {*needed} & {*kind.config_keys}:
        raise RepositoryRefused(f"{path!r}: {config} is missing. {_REMEDY}")
    sizes: list[Any] = [values[each] for each in ("in_features", "out_features") if each in values]
    if not sizes:
        return
    if (held := _held(path, folder, hub)) is None:
        raise RepositoryRefused(f"{path!r}: {os.path.join(folder, 'model.safetensors')} is missing. {_REMEDY}")
    if not (all(type(each) is int for each in sizes) and math.prod(sizes) <= held):
        raise RepositoryRefused(f"{path!r}: {config}: {sizes} do not fit {held:,} weights. {_REMEDY}")


def _check_files(path: str, folder: str) -> None:
    """Refuse a module's files that are in another place, and weights that exist as a pickle alone."""
    here = os.path.join(path, folder)
    names = sorted(os.listdir(here)) if os.path.isdir(here) else []
    for each in names:
        place = os.path.join(folder, each)
        _check_file(path, place)
        kept = "adapter_model.safetensors" if each == "adapter_model.bin" else ".safetensors"
        pickled = each.lower().endswith(PICKLES) and not each.startswith("openvino_model")
        if pickled and not any(name.endswith(kept) for name in names):
            raise RepositoryRefused(f"{path!r}: {place} is a pickle, which can run code. Ask for safetensors.")


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


def _check_base(path: str, folder: str, hub: dict[str, Any]) -> tuple[str, str, dict[str, Any]]:
    """Check config.json, of an adapter that of the model that it adapts; returns whose weights are loaded."""
    _check_settings(path, os.path.join(folder, "config.json"), hub)
    adapter = _check_settings(path, os.path.join(folder, "adapter_config.json"), hub)
    adapted = adapter.get("base_model_name_or_path")
    if not isinstance(adapted, str):
        return path, folder, hub
    # A revision is that of the adapter.
    hub = {name: value for name, value in hub.items() if name != "revision"}
    _check_settings(adapted, "config.json", hub)
    return adapted, "", hub


def _check_settings(path: str, file: str, hub: dict[str, Any]) -> dict[str, Any]:
    """The values of a configuration; refused where they name code, files elsewhere, or options of the caller."""
    values: dict[str, Any] = _read(path, file, hub)
    left: list[tuple[str, Any]] = [("", values)]
    while left:
        name, value = left.pop()
        if isinstance(value, dict):
            left += value.items()
            if name.endswith(("_kwargs", "_args")) and (wrong := sorted(_CALLERS & set(value))):
                raise RepositoryRefused(f"{path!r}: {file}: {name}: {wrong[0]} may not be stored. Pass it to load.")
        elif isinstance(value, list):
            left += [(name, each) for each in value]
        elif name == "tokenizer_name_or_path" and value is not None:
            raise RepositoryRefused(f"{path!r}: {file}: {name} names a tokenizer elsewhere. Put its files here.")
        elif isinstance(value, int) and re.search("layers?$", name) and value > _MOST_LAYERS:
            raise RepositoryRefused(f"{path!r}: {file}: {name}={value}: at most {_MOST_LAYERS}. Correct it.")
        if "attn_implementation" in name and "/" in str(value):
            # transformers would download that kernel and run it, whether or not code is trusted.
            raise RepositoryRefused(f"{path!r}: {file}: {name}={value!r:.80} names a kernel elsewhere. Remove it.")
        if name in ("configuration_files", "megatron_config") and value:
            # Files that would be read in place of this one; a module that peft imports.
            raise RepositoryRefused(f"{path!r}: {file}: {name}={value!r:.80} is not supported. Remove it.")
    return values


def _read(path: str, file: str, hub: dict[str, Any], kind: Any = dict) -> Any:
    """The value of a JSON file of a repository, empty where it has no such file."""
    found = _found(path, file, hub)
    if found is None:
        return kind()
    try:
        if os.path.getsize(found) > _MOST_BYTES:
            raise ValueError(f"it has more than {_MOST_BYTES:,} bytes")
        values = json.loads(Path(found).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise RepositoryRefused(f"{path!r}: {file} is not JSON ({str(error)[:200]}). {_REMEDY}") from error
    if not isinstance(values, kind):
        raise RepositoryRefused(f"{path!r}: {file} holds a {type(values).__name__}. {_REMEDY}")
    return values


def _found(path: str, file: str, hub: dict[str, Any]) -> str | None:
    """Where a file of a repository is on this machine, downloaded if need be; None: it has no such file."""
    from sentence_transformers.util import load_file_path

    if os.path.isdir(path):
        _check_file(path, file)
    elif leaves(path, file):
        return None
    found: str | None = load_file_path(path, file, **hub)
    return found


def _check_file(path: str, file: str) -> None:
    """Refuse a file that is in another place, or is a pipe or the like, which would be waited for."""
    place = os.path.join(path, file)
    if leaves(path, file) or (os.path.lexists(place) and not (os.path.isfile(place) or os.path.isdir(place))):
        raise RepositoryRefused(f"{path!r}: {file} is a link to a place outside, or no file. Put the file there.")


def leaves(path: str, name: str) -> bool:
    """Whether a name is none inside the repository, by itself or as a link; huggingface_hub's cache has links."""
    windows = PureWindowsPath(name)
    if len(name) > 1000 or windows.anchor or ".." in windows.parts or "\0" in name:
        return True
    root = Path(path).resolve()
    places = [root, root.parent.parent / "blobs"] if root.parent.name == "snapshots" else [root]
    return os.path.isdir(path) and not any((root / name).resolve().is_relative_to(place) for place in places)


def _held(path: str, folder: str, hub: dict[str, Any]) -> int | None:
    """Numbers that the weights of a module hold, by the headers of their files; None: it has none as safetensors."""
    names = [os.path.join(folder, "model.safetensors")]
    if _found(path, names[0], hub) is None:
        index = os.path.join(folder, "model.safetensors.index.json")
        if not (listed := _read(path, index, hub)):
            return None
        files = listed.get("weight_map")
        if not isinstance(files, dict) or not all(isinstance(each, str) for each in files.values()):
            raise RepositoryRefused(f"{path!r}: {index} maps no names to files. {_REMEDY}")
        names = [os.path.join(folder, each) for each in sorted(set(files.values()))]
    return sum(_numbers(path, name, _found(path, name, hub)) for name in names)


def _numbers(path: str, name: str, file: str | None) -> int:
    """Numbers that a file of weights holds; safetensors compares its size with its header."""
    from safetensors import SafetensorError, safe_open

    if file is None:
        raise RepositoryRefused(f"{path!r}: {name} is missing. {_REMEDY}")
    try:
        with safe_open(file, framework="numpy") as stored:
            tensors = [(each.get_shape(), each.get_dtype()) for each in map(stored.get_slice, stored.keys())]
    except (SafetensorError, OSError) as error:
        raise RepositoryRefused(f"{path!r}: {name} is no safetensors file, or cut ({str(error)[:200]}).") from error
    # Whole numbers, as I32, are packed: down to 2 bits a weight.
    return sum(math.prod(shape) * (int(dtype[1:]) // 2 if dtype[0] in "IU" else 1) for shape, dtype in tensors)
