"""Gradient checkpointing: a layer that runs once more, for its gradient, must see what it saw the first time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from .extensions import extensions
from .passes import current_pass, running
from .second import RepeatedLayers

# transformers' own name; there is no public one.
_FUNCTION = "_gradient_checkpointing_func"


class CheckpointInPass:
    """torch's checkpointing, as transformers set it, which runs a layer again in the pass that it belongs to."""

    def __init__(self, checkpoint: Callable[..., Any]) -> None:
        self.checkpoint = checkpoint

    def __call__(self, function: Callable[..., Any], *arguments: Any, **kwargs: Any) -> Any:
        """Checkpoint a layer's function."""
        forward_pass = current_pass()
        if forward_pass is None:
            return self.checkpoint(function, *arguments, **kwargs)

        def run_in_pass(*arguments: Any) -> Any:
            with running(forward_pass):
                return function(*arguments)

        return self.checkpoint(run_in_pass, *arguments, **kwargs)


def checkpoint_in_pass(model: nn.Module, hooks: Sequence[object]) -> None:
    """Make a model's gradient checkpointing, if it is on, run layers in their pass.

    Args:
        model: The model.
        hooks: The hooks of the pass.

    Raises:
        ValueError: It is on, and its gradients would be wrong.
    """
    if not hooks or not torch.is_grad_enabled():
        return
    runs_layers_twice = any(isinstance(hook, RepeatedLayers) for hook in hooks)
    for module in model.modules():
        if not getattr(module, "gradient_checkpointing", False):
            continue
        checkpoint: Any = getattr(module, _FUNCTION, None)
        if runs_layers_twice:
            raise _refusal("layers run twice and hand streams on")
        if checkpoint is None:
            raise _refusal(f"{type(module).__name__} does it in an unknown way")
        if isinstance(checkpoint, CheckpointInPass):
            continue
        if getattr(checkpoint, "keywords", {}).get("use_reentrant", True):
            raise _refusal('give gradient_checkpointing_kwargs={"use_reentrant": False}')
        setattr(module, _FUNCTION, CheckpointInPass(checkpoint))


def check_adapter(transformer: Any) -> None:
    """Raise an error if an adapter is trained or saved whose base is in no folder, so that it would not load again."""
    has_adapter = getattr(transformer.model, "_hf_peft_config_loaded", False)
    if has_adapter and not transformer.is_base_stored:
        raise ValueError(
            "An adapter is saved without its base, and this base is in no folder: layers were left out, or weights "
            "were merged, quantized or converted, or it was given loaded. Save the model without the adapter "
            "(model.save_pretrained), load that folder, and add the adapter to what is loaded."
        )


def _refusal(reason: str) -> ValueError:
    return ValueError(f"Gradient checkpointing cannot be used here: {reason}; or disable it.")


extensions.check_adapter = check_adapter
extensions.checkpoint_in_pass = checkpoint_in_pass
