"""What a repository may say before anything of it is loaded: a few digits can stand for gigabytes, a name for code.

These checks do not travel with a model: whoever runs a repository's own copy of this code trusts it already.
"""

from __future__ import annotations

import json
import math
import os
import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Any

from sentence_transformers.util import load_file_path
from torch import nn
from torch.nn.modules.module import register_module_parameter_registration_hook

from .options import MOST_LAYERS, shown, unknown
from .stages import stages_of
from .stored import check_complete, check_whole

# What a module of st_reba may say to transformers, with the old names: no save writes anything else.
_PASSED_ON = {
    **dict.fromkeys(("model_kwargs", "model_args"), {"dtype", "torch_dtype", "attn_implementation"}),
    **dict.fromkeys(("processor_kwargs", "tokenizer_args"), {"model_max_length", "padding_side", "truncation_side"}),
    **dict.fromkeys(("config_kwargs", "config_args"), set[str]()),
}
# What no module may say to transformers: where else to look, whom to ask, and to open pickles.
_REACHING = {"adapter_kwargs", "code_revision", "gguf_file", "kernel_config", "offload_folder", "proxies", "state_dict"}
_REACHING |= {"use_kernels", "use_safetensors", "weights_only"}
_REMEDY = "Copy all of the model's files, or build it again."
_HUB_ID = re.compile(r"(?:\w[\w.-]*/)?\w[\w.-]*")
# A branch, tag or commit.
_REVISION = re.compile(r"\w[\w.-]*(?:/\w[\w.-]*)*")


def check_config(config: Mapping[str, Any], known: list[str], *, here: bool) -> None:
    """Raise unless a module's stored configuration holds what a save writes; ``here``: in a folder of this machine."""
    file = "sentence_bert_config.json"
    check_whole(config, known)
    known = [*known, "from_base", "max_seq_length", "do_lower_case", *_PASSED_ON]
    if extra := sorted(set(config) - set(known)):
        raise ValueError(unknown(f"{file}: {extra[0]}", extra[0], known, config[extra[0]]))
    stages_of(config["stages"])
    check_passed_on(file, config, own=True)
    if not isinstance(config.get("from_base", False), bool):
        raise ValueError(f"{file}: from_base={shown(config['from_base'])} must be true or false.")
    if config.get("from_base"):
        check_base(config.get("base_model"), config.get("base_revision"), here=here)


def check_passed_on(file: str, config: Mapping[str, Any], *, own: bool) -> None:
    """Raise for what a stored configuration may not hand to transformers; ``own``: it is of a module of st_reba."""
    for name, allowed in _PASSED_ON.items():
        given = config.get(name, {})
        if not isinstance(given, dict):
            raise ValueError(f"{file}: {name}={shown(given)} must be a mapping. Save the model again.")
        if wrong := sorted(set(given) - allowed if own else set(given) & _REACHING):
            option = f"{shown(wrong[0])}={shown(given[wrong[0]])}"
            raise ValueError(f"{file}: {name}: {option} may not be stored. Remove it, and pass it when loading.")
    _check_backbone(file, config)


def check_base(base: object, revision: object, *, here: bool) -> None:
    """Raise unless a stored configuration may name this base model: a Hub id, or, ``here``, a model's full path."""
    if not isinstance(base, str) or not base:
        raise ValueError(f"from_base=True needs the name of a base model, not base_model={shown(base)}.")
    if revision is not None and (
        not isinstance(revision, str) or not _REVISION.fullmatch(revision) or ".." in revision or len(revision) > 250
    ):
        raise ValueError(f"base_revision={shown(revision)} is no branch, tag or commit. Correct it, or use null.")
    # A folder that is gone is for loading to tell; one that is there and no model was never saved from.
    local = here and os.path.isabs(base) and ".." not in re.split(r"[\\/]", base)
    local = local and (os.path.isfile(os.path.join(base, "config.json")) or not os.path.lexists(base))
    if not local and not (_HUB_ID.fullmatch(base) and ".." not in base):
        raise ValueError(
            f"base_model={shown(base)} is no Hub id{' and no full path of a model on this machine' if here else ''}. "
            "Download that base model and save the embedder again with base=…."
        )


def check_sizes(repository: str, folder: str = "", **hub: Any) -> int | None:
    """Raise where a repository's configurations are missing, or ask for more than its weights hold, or for a kernel.

    Gives how many numbers the weights of the first module, in ``folder``, hold by their headers; None: it has none.
    """
    check_complete(repository, **hub)

    def read(name: str) -> Any:
        file = load_file_path(repository, name, **hub)
        return json.loads(Path(file).read_text(encoding="utf-8")) if file else None

    listed = read("modules.json")
    for each in listed[1:] if isinstance(listed, list) else ():
        path = each.get("path")
        held = _held(repository, path, hub) if str(each.get("type")).endswith(".Dense") else None
        if held is None:
            continue
        asked: list[Any] = [read(f"{path}/config.json").get(name) for name in ("in_features", "out_features")]
        if not (all(type(size) is int for size in asked) and math.prod(asked) <= held):
            raise ValueError(
                f"{path}/config.json: in_features={shown(asked[0])} and out_features={shown(asked[1])} do not fit "
                f"{held:,} weights. {_REMEDY}"
            )
    name = joined(folder, "config.json")
    _check_backbone(name, read(name))
    return _held(repository, folder, hub)


@contextmanager
def limited(held: int | None) -> Iterator[None]:
    """Inside the ``with`` block, a backbone is refused that has far more numbers than ``held``; None: no limit.

    transformers makes it without memory at first, so that none is taken.
    """
    # Tied weights are made several times, and stored once.
    left = math.inf if held is None else 4 * held + (1 << 20)
    thread = threading.get_ident()

    def count(module: nn.Module, name: str, weight: nn.Parameter | None) -> None:
        nonlocal left
        if weight is None or not weight.is_meta or threading.get_ident() != thread:
            return
        left -= weight.numel()
        if left < 0:
            raise ValueError(
                f"config.json and the weights do not fit: with {type(module).__name__}'s {name} of shape "
                f"{tuple(weight.shape)} the model is far larger than its {held:,} weights. {_REMEDY}"
            )

    hook = register_module_parameter_registration_hook(count)
    try:
        yield
    finally:
        hook.remove()


def _check_backbone(file: str, config: Any) -> None:
    """Raise for too many layers, which some configurations list while they are read, and for code from elsewhere."""
    for name, value in config.items() if isinstance(config, dict) else ():
        if isinstance(value, int) and re.search("layers?$", name) and value > MOST_LAYERS:
            raise ValueError(f"{file}: {name}={shown(value)}: the most is {MOST_LAYERS}. Correct it.")
        if name.endswith("attn_implementation") and "/" in str(value):
            # transformers would download that kernel and run it, whether or not code is trusted.
            raise ValueError(f"{file}: {name}={shown(value)} names a kernel elsewhere. Remove it.")
        _check_backbone(file, value)


def _held(repository: str, folder: str, hub: Mapping[str, Any]) -> int | None:
    """How many numbers a module's weights hold; None: it has none as safetensors."""

    def found(name: str) -> str | None:
        return load_file_path(repository, joined(folder, name), **hub)

    files = [found("model.safetensors")]
    if files == [None] and (index := found("model.safetensors.index.json")) is not None:
        weight_map = json.loads(Path(index).read_text(encoding="utf-8"))["weight_map"]
        files = [found(name) for name in sorted(set(weight_map.values()))]
    return None if None in files else sum(_numbers(file) for file in files if file is not None)


def joined(folder: str, name: str) -> str:
    """A file's path in a repository."""
    return str(PurePosixPath(folder, name))


def _numbers(file: str) -> int:
    """How many numbers a safetensors file holds, by the header in front: its length in 8 bytes, and JSON."""
    size = os.path.getsize(file)
    try:
        with open(file, "rb") as stream:
            header = json.loads(stream.read(min(int.from_bytes(stream.read(8), "little"), size)))
        tensors = [(math.prod(each["shape"]), each["dtype"]) for name, each in header.items() if name != "__metadata__"]
        if not 0 <= sum(count for count, _ in tensors) <= 2 * size:
            raise ValueError(f"{size} bytes cannot hold its tensors")
        # Whole numbers, as I32, are packed: down to 2 bits a weight.
        return sum(count * (int(kind[1:]) // 2 if kind[0] in "IU" else 1) for count, kind in tensors)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"{os.path.basename(file)} is no safetensors file ({error}). Copy it again.") from error
