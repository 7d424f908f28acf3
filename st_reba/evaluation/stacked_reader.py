"""The states of several layers, and means of attention outputs, side by side at every position of one pass."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from ..modules.capture import BackwardAttention
from ..modules.layers import ModuleCall
from ..modules.outputs import OutputReader
from ..modules.passes import ForwardPass

# Called with the number of a layer, and the backward attention up to that layer.
KeepBackward = Callable[[int, BackwardAttention], None]
LayerRange = tuple[int, int]
# A layer whose states are read, or first and last layer of a mean of attention outputs.
Reading = int | LayerRange


class StackedReader:
    """Replaces a transformer's reader: several readings of a pass, joined in the last dimension.

    As it reads every position by itself, rows may share a prefix.

    Args:
        layers: Layers whose states are read, rising, from 1. They pass the model's final norm.
        output_readers: What reads the attention outputs of each range of layers.
        depth: Number of layers that run.
        keep_backward: Called at each of the layers in passes that keep rows of attention.
    """

    by_position = True

    def __init__(
        self,
        layers: Sequence[int],
        output_readers: Mapping[LayerRange, OutputReader],
        depth: int,
        keep_backward: KeepBackward,
    ) -> None:
        self.layers = layers
        self.output_readers = output_readers
        self.depth = depth
        self.keep_backward = keep_backward

    def block_of(self, hidden_states: Tensor, reading: Reading) -> Tensor:
        """The part of a pass's output that belongs to one reading, [B, T, d]."""
        readings = [*self.layers, *self.output_readers]
        return hidden_states.chunk(len(readings), dim=2)[readings.index(reading)]

    def before_layers(self, forward_pass: ForwardPass) -> None:
        """Keep what is read while the layers run."""
        layer_states: list[Tensor] = []
        forward_pass.hook_data[self] = layer_states

        def keep_states(
            index: int,
            layer_call: ModuleCall,
            hidden_states: Tensor,
        ) -> Tensor:
            layer = index + 1
            if layer in self.layers:
                layer_states.append(hidden_states)
                if isinstance(forward_pass.observer, BackwardAttention):
                    self.keep_backward(layer, forward_pass.observer)
            if layer == self.depth and layer_states:
                # All of them pass the final norm, which follows the layers, as rows of one batch.
                return torch.cat(layer_states)
            return hidden_states

        forward_pass.after_layer.append(keep_states)
        for output_reader in self.output_readers.values():
            output_reader.before_layers(forward_pass)

    def after_layers(self, forward_pass: ForwardPass, hidden_states: Tensor) -> Tensor:
        """What is read, [B, T, d · readings], in place of the hidden states."""
        layer_states: list[Tensor] = forward_pass.hook_data[self]
        blocks: list[Tensor] = []
        if layer_states:
            blocks += hidden_states.chunk(len(layer_states))
        for output_reader in self.output_readers.values():
            blocks.append(output_reader.after_layers(forward_pass, hidden_states))
        return torch.cat(blocks, dim=2)
