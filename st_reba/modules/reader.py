"""Several layers read at once and joined."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from .layers import watch_layers
from .layout import PARTS
from .passes import ForwardPass


class LayerReader:
    """Reads several layers, of which a model's last is the highest, and joins them.

    Args:
        transformer: The module whose model is read.
        first: Lowest layer; 0 is the embeddings.
        last: Highest layer.
        join: ``"mean"`` of the unit vectors, or ``"concat"``.
        final_norm: Let each layer's states pass the model's final norm; else read them before it.
    """

    by_position = True  # what it gives at a position comes from there alone: a pass may hold a part of the rows

    def __init__(self, transformer: Any, first: int, last: int, join: str = "mean", final_norm: bool = True) -> None:
        if join not in ("mean", "concat") or not 0 <= first <= last <= transformer.depth:
            raise ValueError(f"join={join!r} of layers {first} to {last}: mean or concat, of 0 to {transformer.depth}.")
        self.first, self.last, self.join, self.final_norm = first, last, join, final_norm
        self.depth = transformer.depth
        # How often the dimension is larger than a layer's.
        self.joined = last - first + 1 if join == "concat" else 1
        watch_layers(transformer.model)

    def begin(self, state: ForwardPass) -> None:
        """Keep the states of the layers that are read; hand all of them to the final norm, as rows of the batch."""
        states = state.kept[self] = []

        def keep(index: int, entered: Tensor, hidden: Tensor, again: Any) -> Tensor:
            if index == 0 and self.first == 0:
                states.append(entered)
            if self.first <= index + 1 <= self.last:
                states.append(hidden)
            return torch.cat(states) if index + 1 == self.depth and self.final_norm else hidden

        state.after_layer.append(keep)

    def finish(self, state: ForwardPass, hidden: Tensor) -> Tensor:
        """The joined states, [B, T, d or d · layers], of what the model handed out."""
        states: Sequence[Tensor] = state.kept[self]
        if self.final_norm:
            states = hidden.reshape(len(states), -1, *hidden.shape[1:]).unbind()
        if len(states) == 1:
            return states[0]
        units = [
            nn.functional.normalize(each.to(torch.promote_types(each.dtype, torch.float32)), dim=-1) for each in states
        ]
        joined = torch.stack(units).mean(dim=0) if self.join == "mean" else torch.cat(units, dim=-1)
        return joined.to(hidden.dtype)


PARTS["states_reader"] = LayerReader
