"""Several layers read at once and joined."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from .extensions import extensions
from .layers import ModuleCall, watch_layers
from .passes import ForwardPass

if TYPE_CHECKING:
    from .transformer import RepeatTransformer


class LayerReader:
    """Reads several layers, up to a model's last one, and joins them.

    Args:
        transformer: The module whose model is read.
        first_layer: Lowest layer; 0 is the embeddings.
        last_layer: Highest layer.
        join: ``"mean"`` of the unit vectors, or ``"concat"``.
        final_norm: Let each layer's states pass the model's final norm; else read them before it.
    """

    by_position = True

    def __init__(
        self,
        transformer: RepeatTransformer,
        first_layer: int,
        last_layer: int,
        join: str = "mean",
        final_norm: bool = True,
    ) -> None:
        depth = transformer.depth
        if join not in ("mean", "concat") or not 0 <= first_layer <= last_layer <= depth:
            raise ValueError(
                f"join={join!r} of layers {first_layer} to {last_layer}: mean or concat, of 0 to {depth}."
            )
        self.first_layer = first_layer
        self.last_layer = last_layer
        self.join = join
        self.final_norm = final_norm
        self.depth = depth
        # The output dimension, in multiples of a layer's.
        self.width_factor = 1
        if join == "concat":
            self.width_factor = last_layer - first_layer + 1
        watch_layers(transformer.model)

    def before_layers(self, forward_pass: ForwardPass) -> None:
        """Keep the states of the layers that are read; hand all of them to the final norm, as rows of the batch."""
        layer_states: list[Tensor] = []
        forward_pass.hook_data[self] = layer_states

        def read_layer(layer_index: int, layer_call: ModuleCall, hidden_states: Tensor) -> Tensor:
            if layer_index == 0 and self.first_layer == 0:
                layer_states.append(layer_call.hidden_states)
            if self.first_layer <= layer_index + 1 <= self.last_layer:
                layer_states.append(hidden_states)
            is_last_layer = layer_index + 1 == self.depth
            if is_last_layer and self.final_norm:
                return torch.cat(layer_states)
            return hidden_states

        forward_pass.after_layer.append(read_layer)

    def after_layers(self, forward_pass: ForwardPass, hidden_states: Tensor) -> Tensor:
        """The joined states, [B, T, d or d · layers], of what the model handed out."""
        layer_states: list[Tensor] = forward_pass.hook_data[self]
        if self.final_norm:
            by_layer = hidden_states.reshape(len(layer_states), -1, *hidden_states.shape[1:])
            layer_states = list(by_layer.unbind())
        if len(layer_states) == 1:
            return layer_states[0]
        unit_states: list[Tensor] = []
        for states in layer_states:
            precision = torch.promote_types(states.dtype, torch.float32)
            unit_states.append(nn.functional.normalize(states.to(precision), dim=-1))
        if self.join == "mean":
            return torch.stack(unit_states).mean(dim=0).to(hidden_states.dtype)
        return torch.cat(unit_states, dim=-1).to(hidden_states.dtype)


extensions.layer_reader = LayerReader
