"""Gradient checkpointing: a layer that runs once more, for its gradient, must see what it saw the first time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

from .stages import current, running

# transformers' own name; there is no public one.
_FUNCTION = "_gradient_checkpointing_func"


class Remembering:
    """torch's checkpointing, as transformers set it, which runs a layer in the state of the pass that it belongs to.

    The second run comes with the backward pass, when that state is no longer the current one.
    """

    def __init__(self, checkpoint: Callable[..., Any]) -> None:
        self.checkpoint = checkpoint

    def __call__(self, function: Callable[..., Any], *arguments: Any, **kwargs: Any) -> Any:
        state = current()
        if state is None:
            return self.checkpoint(function, *arguments, **kwargs)

        def again(*arguments: Any) -> Any:
            with running(state):
                return function(*arguments)

        return self.checkpoint(again, *arguments, **kwargs)


def prepare_checkpointing(model: nn.Module, *, twice: bool) -> None:
    """Make a backbone's gradient checkpointing, if it is on, run layers in their pass's state.

    Args:
        model: The backbone.
        twice: Whether the plan runs layers twice in a pass.

    Raises:
        ValueError: It is on, and its gradients would be wrong.
    """
    for module in model.modules():
        if not getattr(module, "gradient_checkpointing", False):
            continue
        function: Any = getattr(module, _FUNCTION, None)
        reason = None
        if twice:
            reason = "the plan's layers that run twice hand streams on, which a run for the gradient would change"
        elif function is None:
            reason = f"{type(module).__name__} does it in a way that is not known"
        elif isinstance(function, Remembering):
            continue
        elif getattr(function, "keywords", {}).get("use_reentrant", True):
            reason = "with use_reentrant=True no gradient leaves a layer but by its hidden states"
        if reason:
            raise ValueError(
                f"Gradient checkpointing cannot be used here: {reason}. Enable it with "
                'gradient_checkpointing_kwargs={"use_reentrant": False}, or call '
                "model[0].model.gradient_checkpointing_disable()."
            )
        setattr(module, _FUNCTION, Remembering(function))
