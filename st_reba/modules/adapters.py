"""PEFT adapters of a backbone: whether all of one was loaded, and what a save of one has to tell."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn

# How peft begins the names of what it stores.
_PREFIX = "base_model.model."
_HUB = ("revision", "token", "cache_dir", "local_files_only")


def has_adapter(model: nn.Module) -> bool:
    """Whether a backbone has an adapter that was not merged into its weights."""
    # transformers' own mark.
    return bool(getattr(model, "_hf_peft_config_loaded", False))


def complete_adapter(model: Any, source: str, options: Mapping[str, Any]) -> None:
    """Load what transformers left out of an adapter that was saved from a backbone like this one.

    transformers 5.0 knows the names of adapters of models with a head alone, and leaves all of another's out.

    Args:
        model: The backbone, its adapter as transformers loaded it.
        source: The adapter's folder or Hub id.
        options: ``revision``, ``token``, ``cache_dir`` and ``local_files_only`` where they are given.

    Raises:
        ValueError: Not all of it could be loaded.
    """
    peft: Any = import_module("peft")
    hub = {name: options[name] for name in _HUB if options.get(name) is not None}
    stored = {
        name.removeprefix(_PREFIX): tensor
        for name, tensor in peft.load_peft_weights(source, device="cpu", **hub).items()
    }
    # An adapter of another kind of model has other names, which transformers maps to its own.
    if set(stored) != set(model.get_adapter_state_dict()) or _same(model, stored):
        return
    peft.set_peft_model_state_dict(model, stored, adapter_name=model.active_adapters()[0])
    if not _same(model, stored):
        raise ValueError(
            f"transformers and peft did not load all of the adapter in {source!r}. Update both, or merge the adapter "
            "where it was trained, and save that."
        )


def _same(model: Any, stored: Mapping[str, Tensor]) -> bool:
    loaded: dict[str, Tensor] = model.get_adapter_state_dict()
    return all(torch.equal(loaded[name].cpu(), tensor.to(loaded[name].dtype)) for name, tensor in stored.items())
