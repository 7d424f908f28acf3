"""Outputs of the attention blocks, read in place of hidden states."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from .layers import layers_of
from .layout import PARTS
from .passes import ForwardPass, current_pass


def show_output(index: int, module: nn.Module, arguments: tuple[Any, ...], output: Any) -> None:
    """Forward hook of the attention of layer ``index``."""
    state = current_pass()
    for each in () if state is None else state.after_attention:
        each(index, output[0] if isinstance(output, tuple) else output)


def attention_blocks(model: nn.Module) -> list[nn.Module]:
    """The attention of each layer; a ValueError where a layer has none that shows its outputs, or several."""
    blocks: list[nn.Module] = []
    for index, layer in enumerate(layers_of(model)):
        candidates: list[nn.Module] = []
        for module in layer.modules():
            if getattr(module, "layer_idx", None) == index and hasattr(module, "is_causal"):
                candidates.append(module)
        if len(candidates) != 1:
            kind = type(layer).__name__
            raise ValueError(f"read='attention': {kind} has {len(candidates)} attention blocks, not one.")
        blocks += candidates
    return blocks


def shows_attention(model: nn.Module) -> bool:
    """Whether the attention outputs of every layer can be read."""
    try:
        attention_blocks(model)
    except ValueError:
        return False
    return True


def watch_attention(model: nn.Module) -> None:
    """Let passes see what every layer's attention adds to the hidden states."""
    for index, block in enumerate(attention_blocks(model)):
        hooks = block._forward_hooks.values()
        if not any(getattr(hook, "func", None) is show_output for hook in hooks):
            block.register_forward_hook(partial(show_output, index))


class OutputReader:
    """The mean of several layers' attention outputs, after the output projection and before they are added.

    Args:
        transformer: The module whose model is read.
        first, last: Lowest and highest layer, from 1.

    Source:
        AlignedWVA (2026), there of the last position of a prompt.
    """

    by_position = True  # what it gives at a position comes from there alone: a pass may hold a part of the rows

    def __init__(self, transformer: Any, first: int, last: int) -> None:
        self.first, self.last = first, last
        watch_attention(transformer.model)

    def begin(self, state: ForwardPass) -> None:
        """Sum the outputs while the layers run."""

        def add(index: int, output: Tensor, kept: dict[Any, Any] = state.kept) -> None:
            if self.first <= index + 1 <= self.last:
                so_far, precise = kept.get(self), output.to(torch.promote_types(output.dtype, torch.float32))
                kept[self] = precise if so_far is None else so_far.to(precise.device) + precise

        state.after_attention.append(add)

    def finish(self, state: ForwardPass, hidden: Tensor) -> Tensor:
        """The mean, [B, T, d], in place of the hidden states."""
        mean: Tensor = state.kept[self] / (self.last - self.first + 1)
        return mean.to(hidden)


PARTS["attention_reader"] = OutputReader
