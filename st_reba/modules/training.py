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


class Remembering:
    """torch's checkpointing, as transformers set it, which runs a layer again in the pass that it belongs to."""

    def __init__(self, checkpoint: Callable[..., Any]) -> None:
        self.checkpoint = checkpoint

    def __call__(self, function: Callable[..., Any], *arguments: Any, **kwargs: Any) -> Any:
        state = current_pass()
        if state is None:
            return self.checkpoint(function, *arguments, **kwargs)

        def again(*arguments: Any) -> Any:
            with running(state):
                return function(*arguments)

        return self.checkpoint(again, *arguments, **kwargs)


def checkpoint_in_pass(model: nn.Module, hooks: Sequence[Any]) -> None:
    """Make a model's gradient checkpointing, if it is on, run layers in their pass.

    Args:
        model: The model.
        hooks: What acts in the pass.

    Raises:
        ValueError: It is on, and its gradients would be wrong.
    """
    if not hooks or not torch.is_grad_enabled():
        return
    for module in model.modules():
        if not getattr(module, "gradient_checkpointing", False):
            continue
        function: Any = getattr(module, _FUNCTION, None)
        reason = None
        if any(isinstance(hook, RepeatedLayers) for hook in hooks):
            reason = "layers run twice and hand streams on"
        elif function is None:
            reason = f"{type(module).__name__} does it in an unknown way"
        elif isinstance(function, Remembering):
            continue
        elif getattr(function, "keywords", {}).get("use_reentrant", True):
            reason = 'give gradient_checkpointing_kwargs={"use_reentrant": False}'
        if reason:
            raise ValueError(f"Gradient checkpointing cannot be used here: {reason}; or disable it.")
        setattr(module, _FUNCTION, Remembering(function))


extensions.checkpoint_in_pass = checkpoint_in_pass
