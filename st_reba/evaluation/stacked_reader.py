"""The states of several layers, and means of attention outputs, side by side at every position of one pass."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from ..modules.capture import BackwardAttention
from ..modules.layers import ModuleCall
from ..modules.passes import ForwardPass

# Gets the number of a layer, and backward attention up to it.
KeepBackward = Callable[[int, BackwardAttention], None]
LayerRange = tuple[int, int]
# A layer whose states are read, or first and last layer of a mean of attention outputs.
Reading = int | LayerRange


class StackedReader:
    """In the place of a transformer's reader: hands out several readings of a pass, joined along the last dimension.

    As it reads every position by itself, rows may share what they begin with.

    Args:
        layers: Layers whose states are read, rising, from 1. They pass the model's final norm.
        outputs: First and last layer of each mean of attention outputs.
        depth: Number of layers that run.
        keep_backward: Called at each of the layers in passes that keep rows of attention.
    """

    by_position = True

    def __init__(
        self,
        layers: Sequence[int],
        outputs: Sequence[LayerRange],
        depth: int,
        keep_backward: KeepBackward,
    ) -> None:
        self.layers = layers
        self.outputs = outputs
        self.depth = depth
        self.keep_backward = keep_backward

    def block_of(self, hidden_states: Tensor, reading: Reading) -> Tensor:
        """States of a layer, or a mean of attention outputs, [B, T, d], of what a pass gave."""
        readings = [*self.layers, *self.outputs]
        return hidden_states.chunk(len(readings), dim=2)[readings.index(reading)]

    def before_layers(self, state: ForwardPass) -> None:
        """Keep what is read while the layers run."""
        layer_states: list[Tensor] = []
        output_means = OutputMeans(self.outputs)
        state.hook_data[self] = (layer_states, output_means)

        def keep_states(
            index: int,
            layer_call: ModuleCall,
            hidden_states: Tensor,
        ) -> Tensor:
            layer = index + 1
            if layer in self.layers:
                layer_states.append(hidden_states)
                if isinstance(state.attention_reader, BackwardAttention):
                    self.keep_backward(layer, state.attention_reader)
            if layer == self.depth and layer_states:
                # All pass what follows the layers, the final norm, as rows of one batch.
                return torch.cat(layer_states)
            return hidden_states

        state.after_layer.append(keep_states)
        if self.outputs:
            state.after_attention.append(output_means.add)

    def after_layers(self, state: ForwardPass, hidden_states: Tensor) -> Tensor:
        """What is read, [B, T, d · readings], in place of the hidden states."""
        layer_states, output_means = state.hook_data[self]
        blocks: list[Tensor] = []
        if layer_states:
            blocks += hidden_states.chunk(len(layer_states))
        for layer_range in self.outputs:
            blocks.append(output_means.mean(layer_range).to(hidden_states))
        return torch.cat(blocks, dim=2)


class OutputMeans:
    """Means of the attention outputs of ranges of layers, while these run."""

    def __init__(self, layer_ranges: Sequence[LayerRange]) -> None:
        self.layer_ranges = layer_ranges
        self._sums: dict[LayerRange, Tensor] = {}

    def add(self, index: int, output: Tensor) -> None:
        """Take in the output [B, T, d] of a layer's attention."""
        layer = index + 1
        precise_output = output.to(torch.promote_types(output.dtype, torch.float32))
        for layer_range in self.layer_ranges:
            first_layer, last_layer = layer_range
            if layer == first_layer:
                self._sums[layer_range] = precise_output
            elif first_layer < layer <= last_layer:
                previous_sum = self._sums[layer_range].to(precise_output.device)
                self._sums[layer_range] = previous_sum + precise_output

    def mean(self, layer_range: LayerRange) -> Tensor:
        """The mean of a range, [B, T, d]."""
        first_layer, last_layer = layer_range
        return self._sums[layer_range] / (last_layer - first_layer + 1)
