"""Load a model, once its files are seen to ask for no foreign code and for no more than their weights hold."""

from __future__ import annotations

import json
import math
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from operator import index
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Module, Transformer
from sentence_transformers.util import import_from_string, load_file_path
from torch.nn.modules.module import register_module_parameter_registration_hook

from . import modules
from .bases import EMBEDDED, HUB, check_device, requested_dtype, weights_dtype, without_dtype

_PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle", ".joblib")
# Numbers in a configuration, by the ends of their names: each takes time or memory that no weights file shows.
_MOST = {("layer", "layers"): 1000, ("positions", "position_embeddings"): 1 << 24}
# What a stored configuration may not hand to transformers: where else to look, whom to ask, pickles, code.
_CALLERS = {"trust_remote_code", "token", "proxies", "code_revision", "gguf_file", "kernel_config", "use_kernels"}
_CALLERS |= {"weights_only", "use_safetensors", "state_dict", "adapter_kwargs", "offload_folder", "variant"}
# A tokenizer elsewhere; files that are read in place of config.json; a module that peft imports.
_ELSEWHERE = ("tokenizer_name_or_path", "configuration_files", "megatron_config")
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
    path = os.fspath(model)
    check_device(device)
    if (path in EMBEDDED or os.path.isdir(path)) and not os.path.isfile(os.path.join(path, "modules.json")):
        raise ValueError(f"{path!r} holds no modules.json: it is no saved model. Run: st-reba build {path} FOLDER")
    hub = {name: kwargs[name] for name in HUB if kwargs.get(name) is not None}
    weights: dict[str, Any] = {"use_safetensors": True} if kwargs.get("backend", "torch") == "torch" else {}
    dtype = requested_dtype(dtype, kwargs.get("model_kwargs"))
    weights |= {"dtype": weights_dtype(dtype, device)}
    kwargs["model_kwargs"] = {**weights, **without_dtype(kwargs.get("model_kwargs"))}
    try:
        folders = check_repository(path, trust_remote_code=trust_remote_code, **hub)
        with sized(path, folders, **hub):
            return SentenceTransformer(path, device=device, trust_remote_code=trust_remote_code, **kwargs)
    except RepositoryRefused:
        raise
    except Exception as error:
        raise ValueError(f"{path!r} could not be loaded: {error}") from error


def check_repository(model: str | os.PathLike[str], *, trust_remote_code: bool = False, **hub: Any) -> list[str]:
    """Refuse a sentence-transformers repository that asks for code or for more than it holds, before it is loaded.

    Refused are module types other than sentence-transformers' own and ours, pickled weights, options that are the
    caller's alone, kernels by name, and weights that are missing, cut, or smaller than their configuration says.

    Returns:
        The folders of the modules.
    """
    files = _Files(os.fspath(model), hub)
    with files.read("config_sentence_transformers.json") as about:
        kind = about.get("model_type", "SentenceTransformer")
    if kind != "SentenceTransformer":
        # sentence-transformers would load something else than what modules.json lists.
        raise files.refused("config_sentence_transformers.json", f"it is a {kind!r:.80}. Use another model.")
    with files.read("modules.json", list) as listed:
        for each in listed:
            _check_module(files, each["path"], each["type"], "modules.json", trust_remote_code)
        return [str(each["path"]) for each in listed] or [""]


@contextmanager
def sized(path: str, folders: Sequence[str] = ("",), **hub: Any) -> Iterator[None]:
    """Inside the ``with`` block, a model is refused that has far more numbers than the weights at ``path`` hold.

    Before it, config.json and the headers of the weights are checked; where they are those of an adapter, of the model
    that it adapts. transformers makes a model without memory at first, so that none is taken.
    """
    files = _Files(path, hub)
    adapted = _check_base(files, folders[0])
    held = files.numbers(folders[0]) if adapted is None else adapted.numbers("")
    # Weights are made without memory, then with it; tied ones several times, and stored once.
    more = sum(files.numbers(each) or 0 for each in {*folders[1:]} - {folders[0]})
    left = math.inf if held is None else 8 * (held + more) + (1 << 20)
    thread = threading.get_ident()

    def count(module: Any, name: str, weight: Any) -> None:
        nonlocal left
        if weight is not None and threading.get_ident() == thread:
            left -= weight.numel()
        if left < 0:
            raise files.refused("config.json", f"it asks for far more than the {held:,} numbers of the weights.")

    with register_module_parameter_registration_hook(count):
        yield


class _Files:
    """The files of a repository, a folder or on the Hub, read before any library reads them."""

    def __init__(self, path: str, hub: Mapping[str, Any]) -> None:
        self.path, self.hub = path, dict(hub)

    def refused(self, file: str, reason: str) -> RepositoryRefused:
        return RepositoryRefused(f"{self.path!r}: {file}: {reason}")

    def find(self, file: str) -> str | None:
        return load_file_path(self.path, file, **self.hub)

    @contextmanager
    def read(self, file: str, kind: type = dict) -> Iterator[Any]:
        """A JSON file's dict or list, or an empty one; refused if a value that the block reads is missing or wrong."""
        found = self.find(file)
        try:
            value = kind() if found is None else json.loads(Path(found).read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError) as error:
            raise self.refused(file, f"it is not JSON ({str(error)[:200]}). {_REMEDY}") from error
        if not isinstance(value, kind):
            raise self.refused(file, f"it holds a {type(value).__name__}, not a {kind.__name__}. {_REMEDY}")
        try:
            yield value
        except (KeyError, TypeError, AttributeError, IndexError) as error:
            reason = f"a value is missing or of a wrong type ({type(error).__name__}: {str(error)[:200]}). {_REMEDY}"
            raise self.refused(file, reason) from error

    def settings(self, file: str) -> dict[str, Any]:
        """The values of a configuration; refused where they name code, files elsewhere, or options of the caller."""
        with self.read(file) as values:
            found = [("", values)]
        for name, value in found:  # which grows by what is inside
            if isinstance(value, dict):
                found += value.items()
                if name.endswith(("_kwargs", "_args")) and (stored := sorted(_CALLERS & set(value))):
                    raise self.refused(file, f"{name}: {stored[0]} may not be stored. Pass it to load.")
            elif isinstance(value, list):
                found += [(name, each) for each in value]
            elif isinstance(value, int):
                for ends, most in _MOST.items():
                    if name.endswith(ends) and value > most:
                        raise self.refused(file, f"{name}={value}: at most {most}. Correct it.")
            # transformers would download a kernel with a slash in its name and run it, whether or not code is trusted.
            if (name in _ELSEWHERE and value) or ("attn_implementation" in name and "/" in str(value)):
                raise self.refused(file, f"{name}={value!r:.80} names code or files elsewhere. Remove it.")
        return values  # type: ignore[no-any-return]

    def numbers(self, folder: str) -> int | None:
        """Numbers that a module's weights hold, by the headers of their files; None: it has none as safetensors."""
        names = [os.path.join(folder, "model.safetensors")]
        if self.find(names[0]) is None:
            with self.read(os.path.join(folder, "model.safetensors.index.json")) as listed:
                if not listed:
                    return None
                names = [os.path.join(folder, each) for each in sorted(set(listed["weight_map"].values()))]
        total = 0
        for name in names:
            if (file := self.find(name)) is None:
                raise self.refused(name, f"it is missing. {_REMEDY}")
            try:
                with safe_open(file, framework="numpy") as stored:
                    for each in map(stored.get_slice, stored.keys()):
                        # Whole numbers, as I32, are packed: down to 2 bits a weight.
                        packed = int(each.get_dtype()[1:]) // 2 if each.get_dtype()[0] in "IU" else 1
                        total += packed * math.prod(each.get_shape())
            except (SafetensorError, OSError) as error:
                raise self.refused(name, f"it is no safetensors file, or cut ({str(error)[:200]}).") from error
        return total


def _check_module(files: _Files, folder: Any, name: Any, file: str, trusted: bool) -> None:
    if (kind := _kind(name)) is None:
        if trusted and not str(name).startswith("sentence_transformers."):
            return
        code = f"type={name!r:.80} is no module of sentence-transformers or st_reba, and would run code from elsewhere."
        raise files.refused(file, f"{code} If you have read and trust it: trust_remote_code=True.")
    here = os.path.join(files.path, folder)
    names = os.listdir(here) if os.path.isdir(here) else []
    for each in names:
        kept = "adapter_model.safetensors" if each == "adapter_model.bin" else ".safetensors"
        pickled = each.lower().endswith(_PICKLES) and not each.startswith("openvino_model")
        if pickled and not any(other.endswith(kept) for other in names):
            raise files.refused(os.path.join(folder, each), "it is a pickle, which can run code. Ask for safetensors.")
    config = os.path.join(folder, kind.config_file_name)
    if issubclass(kind, Transformer):
        older = (os.path.join(folder, f"sentence_{each}_config.json") for each in _OLDER)
        # sentence-transformers reads the first that says anything.
        any(files.settings(each) for each in (config, *older))
        _check_base(files, folder)
        return
    with files.read(config) as values:
        for inner, type_ in values["types"].items() if kind.__name__ == "Router" else ():
            inside = None if str(type_).endswith(".Router") else type_
            _check_module(files, os.path.join(folder, inner), inside, config, trusted)
        sizes = [index(values[each]) for each in ("in_features", "out_features") if each in values]
        if sizes and math.prod(sizes) > (held := files.numbers(folder) or 0):
            raise files.refused(config, f"{sizes} do not fit {held:,} weights. {_REMEDY}")


def _kind(name: Any) -> Any:
    """The class of a module's type; None: neither sentence-transformers' nor ours."""
    package, _, rest = str(name).partition(".")
    if package == "st_reba" and rest in modules.MODULES:
        return getattr(modules, rest)
    if package != "sentence_transformers":
        return None
    try:
        # Any name of that package would be fetched, and its ``load`` called.
        found: Any = import_from_string(name)
        return found if issubclass(found, Module) and found.__module__.startswith("sentence_transformers.") else None
    except Exception:
        return None


def _check_base(files: _Files, folder: str) -> _Files | None:
    files.settings(os.path.join(folder, "config.json"))
    name = files.settings(os.path.join(folder, "adapter_config.json")).get("base_model_name_or_path")
    if not isinstance(name, str):
        return None
    # A revision is that of the adapter.
    adapted = _Files(name, {each: value for each, value in files.hub.items() if each != "revision"})
    adapted.settings("config.json")
    return adapted
