"""PEFT adapters of a backbone: what transformers left out of one when it was loaded."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

import torch


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
    names = ("revision", "token", "cache_dir", "local_files_only")
    hub = {name: options[name] for name in names if options.get(name) is not None}
    found = peft.load_peft_weights(source, device="cpu", **hub)
    stored = {name.removeprefix("base_model.model."): tensor for name, tensor in found.items()}

    def same() -> bool:
        loaded = model.get_adapter_state_dict()
        return all(torch.equal(loaded[name].cpu(), tensor.to(loaded[name].dtype)) for name, tensor in stored.items())

    # An adapter of another kind of model has other names, which transformers maps to its own.
    if set(stored) != set(model.get_adapter_state_dict()) or same():
        return
    peft.set_peft_model_state_dict(model, stored, adapter_name=model.active_adapters()[0])
    if not same():
        raise ValueError(f"Not all of the adapter in {source!r} was loaded. Merge it where it was trained, save that.")
