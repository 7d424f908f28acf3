"""Token Prepending: a placeholder in front of the text takes over, layer by layer, what the last token has gathered.

In a causal decoder only the last token has seen the whole text. Its hidden state, put in front, is what every token of
the next layer sees.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from .backbone import is_trained
from .hooks import decoder_layers
from .state import current


class Prepending:
    """One forward pass in which placeholders are replaced.

    Args:
        layers: Behind how many layers, from the bottom.
        offsets: [B], the placeholder's place, counted from each row's first real position.
    """

    def __init__(self, layers: int, offsets: Tensor) -> None:
        self.layers = layers
        self.offsets = offsets
        self.ran = 0

    def replaced(self, hidden: Tensor, real: Tensor) -> Tensor:
        """Hidden states [B, T, d] with each row's last real one in the placeholder's place; ``real`` is [B, T] bool."""
        first = real.int().argmax(dim=1)
        last = first + real.sum(dim=1) - 1
        final = hidden.gather(1, last[:, None, None].expand(-1, 1, hidden.shape[2]))
        position = torch.arange(hidden.shape[1], device=hidden.device)
        self.ran += 1
        return torch.where((position == (first + self.offsets)[:, None])[:, :, None], final, hidden)

    def check(self) -> None:
        """Whether every layer replaced them: what silently does nothing would give the vectors of another model."""
        if self.ran < self.layers:
            raise ValueError(
                f"prepend={self.layers}: the placeholder was replaced behind {self.ran} layers only, as layers of the "
                "backbone were replaced or left out. Build the model anew."
            )


_pass: ContextVar[Prepending | None] = ContextVar("st_reba_prepending", default=None)


@contextmanager
def prepending_pass(prepending: Prepending | None) -> Iterator[None]:
    """Inside the ``with`` block, the layers replace the placeholders."""
    token = _pass.set(prepending)
    try:
        yield
    finally:
        _pass.reset(token)


def prepare_prepending(model: PreTrainedModel, depth: int) -> None:
    """Stand behind a backbone's layers; harmless where the running pass replaces nothing.

    Args:
        model: The backbone.
        depth: Its number of layers.

    Raises:
        ValueError: Its layers were not found.
    """
    try:
        layers = decoder_layers(model, depth)
    except ValueError as error:
        raise ValueError(
            f"prepend: {type(model).__name__} has no list of {depth} layers that say their layer_idx, so no token can "
            "be replaced between them. Use prepend=0."
        ) from error
    for layer, index in layers.items():
        if not any(isinstance(hook, _Replace) for hook in layer._forward_hooks.values()):
            # In front of the hooks that read a layer's states: what goes on in the backbone is what is read.
            layer.register_forward_hook(_Replace(index), prepend=True)


def check_prepend(transformer: Any) -> None:
    """Whether a RepeatTransformer's layers and plan, which may be set anew at any time, go with its ``prepend``.

    Raises:
        ValueError: So few layers run, or a plan lets some run twice.
    """
    prepend, runs = transformer.prepend, transformer.reading.runs
    if prepend >= runs:
        raise ValueError(
            f"prepend={prepend}, but {runs} layers run, and what the last of them hands out is seen by none. Give 0 to "
            f"{runs - 1}."
        )
    if transformer.stack.second:
        raise ValueError(
            f"prepend={prepend}: layers={transformer.layers!r} has a second pass, in which the placeholder is not "
            "replaced. Use a plan of architecture 'inplace', or prepend=0."
        )


def started(transformer: Any, features: dict[str, Any]) -> Prepending:
    """The replacements of a RepeatTransformer's forward pass.

    Args:
        transformer: The module.
        features: Its input: ``copy_ids`` and ``attention_mask``, [B, T].

    Raises:
        ValueError: As :func:`check_prepend`, or layers are to run a second time, for their gradient.
    """
    check_prepend(transformer)
    model = transformer.model
    again = model.training and any(getattr(each, "gradient_checkpointing", False) for each in model.modules())
    if again and torch.is_grad_enabled() and is_trained(model):
        raise ValueError(
            f"prepend={transformer.prepend} does not go with gradient checkpointing, whose second run of a layer would "
            "replace nothing. Call model[0].model.gradient_checkpointing_disable()."
        )
    # The placeholder stands directly in front of the first copy.
    first = (features["copy_ids"] == 1).int().argmax(dim=1)
    return Prepending(transformer.prepend, first - 1 - features["attention_mask"].int().argmax(dim=1))


@dataclass(frozen=True)
class _Replace:
    """The hook itself: it knows its layer's number, so that copies of the backbone, as of a replica, keep it."""

    index: int

    def __call__(self, module: nn.Module, arguments: tuple[Any, ...], output: Any) -> Any:
        prepending, state = _pass.get(), current()
        if prepending is None or state is None or self.index >= prepending.layers:
            return output
        hidden: Tensor = output[0] if isinstance(output, tuple) else output
        if hidden.ndim != 3 or hidden.shape[:2] != state.real.shape:
            raise ValueError(
                f"prepend: {type(module).__name__} passes on hidden states of shape {tuple(hidden.shape)} in place of "
                f"{tuple(state.real.shape)} and d, so no token can be replaced between its layers. Use prepend=0."
            )
        hidden = prepending.replaced(hidden, state.real)
        return (hidden, *output[1:]) if isinstance(output, tuple) else hidden
