"""Whether configurations ask for more than their weights hold, or for code: a few digits can stand for gigabytes."""

from __future__ import annotations

import json
import math
import os
import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from sentence_transformers.util import load_file_path
from torch import nn
from torch.nn.modules.module import register_module_parameter_registration_hook

from .options import MOST_LAYERS, shown


def check_sizes(repository: str, folder: str = "", **hub: Any) -> int | None:
    """Raise where a repository's configurations are missing, or ask for more than its weights hold, or for a kernel.

    Args:
        repository: Folder or Hub id.
        folder: Of the first module.
        **hub: ``token``, ``cache_folder``, ``revision`` and ``local_files_only``, as sentence-transformers takes them.

    Returns:
        How many numbers the first module's weights hold, by their files' headers; None: it has none of its own.

    Raises:
        ValueError: The file and the number are named.
    """

    def read(name: str) -> Any:
        file = load_file_path(repository, name, **hub)
        if file is None:
            return None
        with open(file, encoding="utf-8") as stream:
            return json.load(stream)

    listed = read("modules.json")
    for each in listed[1:] if isinstance(listed, list) else ():
        kind, path = str(each.get("type")).rpartition(".")[2], each.get("path")
        if not kind.endswith("Pooling") and kind not in ("Dense", "PromptEnsemble"):
            continue
        if not isinstance(config := read(f"{path}/config.json"), dict):
            raise ValueError(f"{path}/config.json is missing. Copy all of the model's files, or build it again.")
        held = _held(repository, path, hub) if kind == "Dense" else None
        asked: list[Any] = [config.get(name) for name in ("in_features", "out_features")]
        if held is not None and not (all(type(size) is int for size in asked) and math.prod(asked) <= held):
            raise ValueError(
                f"{path}/config.json: in_features={shown(asked[0])} and out_features={shown(asked[1])} do not fit the "
                f"weights, which hold {held:,} numbers. Copy all of the model's files, or build it again."
            )
    name = f"{folder}/config.json" if folder not in ("", ".") else "config.json"
    _check_backbone(name, read(name))
    return _held(repository, folder, hub)


@contextmanager
def limited(held: int | None) -> Iterator[None]:
    """Inside the ``with`` block, a backbone is refused that has far more numbers than its weights hold.

    transformers makes it without memory at first, so that none is taken.

    Args:
        held: What :func:`check_sizes` gave; None: no limit.
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
                f"config.json and the weights do not fit: {type(module).__name__}'s {name} of shape "
                f"{tuple(weight.shape)} makes the model far larger than its weights, which hold {held:,} numbers. Copy "
                "all of the model's files, or build it again."
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
            raise ValueError(
                f"{file}: {name}={shown(value)} names a kernel elsewhere. Remove it, and pass it when loading if you "
                "trust it: model_kwargs={'attn_implementation': …}."
            )
        _check_backbone(file, value)


def _held(repository: str, folder: str, hub: Mapping[str, Any]) -> int | None:
    """How many numbers a module's weights hold; None: it has none as safetensors."""

    def found(name: str) -> str | None:
        return load_file_path(repository, f"{folder}/{name}" if folder not in ("", ".") else name, **hub)

    files = [found("model.safetensors")]
    if files == [None] and (index := found("model.safetensors.index.json")) is not None:
        with open(index, encoding="utf-8") as stream:
            files = [found(name) for name in sorted(set(json.load(stream)["weight_map"].values()))]
    return None if None in files else sum(_numbers(file) for file in files if file is not None)


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
