"""How a backbone's weights are stored, and whether what is loaded is whole."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from sentence_transformers.util import load_file_path
from torch import nn


def check_whole(config: Mapping[str, Any], known: list[str]) -> None:
    """Raise where a stored configuration lacks what the module would silently take a default for."""
    for name in ("layout", "stages"):
        if name in known and config.get(name) is None:
            raise ValueError(
                f"sentence_bert_config.json is missing, or lacks {name!r}: the model was copied in part, or not saved "
                "by this version of st_reba. Copy all of its files, or build it again."
            )


def check_complete(repository: str, **hub: Any) -> None:
    """Raise where the configuration of a module behind the first is missing; ``hub`` as in its ``load``."""
    file = load_file_path(repository, "modules.json", **hub)
    listed = json.loads(Path(file).read_text(encoding="utf-8")) if file else []
    for each in listed[1:] if isinstance(listed, list) else ():
        kind, path = str(each.get("type")).rpartition(".")[2], each.get("path")
        configured = kind.endswith("Pooling") or kind in ("Dense", "PromptEnsemble")
        if configured and load_file_path(repository, f"{path}/config.json", **hub) is None:
            raise ValueError(f"{path}/config.json is missing. Copy all of the model's files, or build it again.")


def check_filled(model: object, info: Mapping[str, Any]) -> None:
    """Raise unless a model's weights are those that its configuration asks for; ``info``: what transformers says."""
    for key, problem in (
        ("missing_keys", "are missing, and would be random numbers"),
        ("unexpected_keys", "have no place in the model"),
        ("mismatched_keys", "have another shape than the model"),
    ):
        if names := sorted(map(str, info.get(key) or ())):
            raise ValueError(
                f"config.json and the weights do not fit: in {type(model).__name__} {len(names)} weights {problem}, as "
                f"{names[0]}. Copy all of the model's files, or build it again."
            )


@contextmanager
def stored_as(model: nn.Module, dtype: torch.dtype | None) -> Iterator[None]:
    """Inside the ``with`` block, a backbone's weights have the number type of its base, if one is known.

    One tensor after another is changed in its place, so that the model is never there twice. Weights that were
    trained since, and would be rounded, stay as they are.
    """
    kept = [each for each in model.parameters() if each.is_floating_point()]
    before = {each.dtype for each in kept}
    changes = dtype is not None and len(before) == 1 and before != {dtype} and all(_survives(w, dtype) for w in kept)
    try:
        if changes:
            _change(kept, dtype)
        yield
    finally:
        if changes:
            _change(kept, *before)


def _survives(weight: torch.Tensor, dtype: torch.dtype) -> bool:
    # In parts: all at once would take the memory of another copy.
    parts = torch.split(weight.detach().flatten(), 1 << 22)
    return all(bool((part.to(dtype).to(part.dtype) == part).all()) for part in parts)


def _change(weights: list[nn.Parameter], dtype: torch.dtype | None) -> None:
    for weight in weights:
        weight.data = weight.data.to(dtype)
