"""Outputs of the attention blocks, read in place of hidden states."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from .extensions import extensions
from .layers import first_output, layers_of
from .passes import ForwardPass, current_pass

if TYPE_CHECKING:
    from .transformer import RepeatTransformer


class AfterAttention:
    """Forward hook of a layer's attention; it knows the layer's number, so that copies of the model keep it."""

    def __init__(self, layer_index: int) -> None:
        self.layer_index = layer_index

    def __call__(
        self,
        attention_module: nn.Module,
        arguments: tuple[object, ...],
        attention_output: Tensor | tuple[Tensor, ...],
    ) -> None:
        """Show what the attention adds to the hidden states to the running pass."""
        state = current_pass()
        if state is not None:
            for observe_output in state.after_attention:
                observe_output(self.layer_index, first_output(attention_output))


def attention_modules(model: PreTrainedModel) -> list[nn.Module]:
    """The attention of each layer; a ValueError where a layer has none that shows its outputs, or several."""
    by_layer: list[nn.Module] = []
    for layer_index, layer in enumerate(layers_of(model)):
        candidates: list[nn.Module] = []
        for module in layer.modules():
            if getattr(module, "layer_idx", None) == layer_index and hasattr(module, "is_causal"):
                candidates.append(module)
        if len(candidates) != 1:
            count = f"{len(candidates)} attention blocks"
            raise ValueError(f"read='attention': {type(layer).__name__} has {count}, not one.")
        by_layer += candidates
    return by_layer


def shows_attention(model: PreTrainedModel) -> bool:
    """Whether the attention outputs of every layer can be read."""
    try:
        attention_modules(model)
    except ValueError:
        return False
    return True


def watch_attention(model: PreTrainedModel) -> None:
    """Let passes see what every layer's attention adds to the hidden states."""
    for layer_index, attention_module in enumerate(attention_modules(model)):
        module_hooks = attention_module._forward_hooks.values()
        if not any(isinstance(hook, AfterAttention) for hook in module_hooks):
            attention_module.register_forward_hook(AfterAttention(layer_index))


class OutputReader:
    """The mean of several layers' attention outputs, after the output projection and before they are added.

    Args:
        transformer: The module whose model is read.
        first_layer, last_layer: Lowest and highest layer, from 1.

    Source:
        AlignedWVA (2026), there of the last position of a prompt.
    """

    by_position = True  # what it gives at a position comes from there alone: a pass may hold a part of the rows

    def __init__(
        self,
        transformer: RepeatTransformer,
        first_layer: int,
        last_layer: int,
    ) -> None:
        self.first_layer = first_layer
        self.last_layer = last_layer
        watch_attention(transformer.model)

    def before_layers(self, state: ForwardPass) -> None:
        """Sum the outputs while the layers run."""

        def add_output(
            layer_index: int,
            attention_output: Tensor,
        ) -> None:
            if self.first_layer <= layer_index + 1 <= self.last_layer:
                precision = torch.promote_types(attention_output.dtype, torch.float32)
                output_sum = attention_output.to(precision)
                if self in state.hook_data:
                    output_sum = state.hook_data[self].to(output_sum.device) + output_sum
                state.hook_data[self] = output_sum

        state.after_attention.append(add_output)

    def after_layers(
        self,
        state: ForwardPass,
        hidden_states: Tensor,
    ) -> Tensor:
        """The mean, [B, T, d], in place of the hidden states."""
        layer_count = self.last_layer - self.first_layer + 1
        output_sum: Tensor = state.hook_data[self]
        return (output_sum / layer_count).to(hidden_states)


extensions.output_reader = OutputReader
