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
        """Keep the output in the running pass: what was kept before it is final."""
        state = current_pass()
        if state is not None and state.after_attention:
            state.finish_attention()
            output = first_output(attention_output)
            # Added as it is, unless a norm is seen to change it.
            state.newest_output = (self.layer_index, output, output)


class BesideAttention:
    """Forward hook of a module beside a layer's attention, as some layers have a norm for what it gives."""

    def __call__(
        self,
        module: nn.Module,
        arguments: tuple[object, ...],
        module_output: Tensor | tuple[Tensor, ...],
    ) -> None:
        """Keep what a module makes of the attention output itself; a sum with other states is another tensor."""
        state = current_pass()
        if state is None or state.newest_output is None or not arguments:
            return
        layer_index, attention_output, added_output = state.newest_output
        if arguments[0] is added_output:
            state.newest_output = (layer_index, attention_output, first_output(module_output))


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
    layers = layers_of(model)
    for layer_index, attention_module in enumerate(attention_modules(model)):
        module_hooks = attention_module._forward_hooks.values()
        if any(isinstance(hook, AfterAttention) for hook in module_hooks):
            continue
        attention_module.register_forward_hook(AfterAttention(layer_index))
        for module in layers[layer_index].children():
            if module is not attention_module and not isinstance(module, nn.Dropout):
                module.register_forward_hook(BesideAttention())


class LayerMean:
    """The mean of what several layers give at each position, while these run."""

    def __init__(self, layer_count: int) -> None:
        self.layer_count = layer_count
        self.layer_sum: Tensor | None = None

    def add(self, layer_states: Tensor) -> None:
        """Take in what a layer gave, [B, T, d]."""
        precise_states = layer_states.to(torch.promote_types(layer_states.dtype, torch.float32))
        if self.layer_sum is not None:
            precise_states = self.layer_sum.to(precise_states.device) + precise_states
        self.layer_sum = precise_states

    def value(self) -> Tensor:
        """The mean, [B, T, d], of what was taken in."""
        layer_sum: Tensor = self.layer_sum  # type: ignore[assignment]
        return layer_sum / self.layer_count


class OutputReader:
    """The mean of several layers' attention outputs, after the output projection and before they are added.

    Where layers pass these outputs through a norm before they add them (Gemma 2 and 3, GLM-4, OLMo 2), it is the sum of two
    unit vectors: the mean of the outputs before that norm, and the mean behind it.

    Args:
        transformer: The module whose model is read.
        first_layer, last_layer: Lowest and highest layer, from 1.

    Source:
        AlignedWVA (2026), there of the last position of a prompt; the sum is this project's own.
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
        """Average the outputs while the layers run."""
        layer_count = self.last_layer - self.first_layer + 1
        output_mean, normed_mean = LayerMean(layer_count), LayerMean(layer_count)
        state.hook_data[self] = (output_mean, normed_mean)

        def add_output(
            layer_index: int,
            attention_output: Tensor,
            added_output: Tensor,
        ) -> None:
            if self.first_layer <= layer_index + 1 <= self.last_layer:
                output_mean.add(attention_output)
                if added_output is not attention_output:
                    normed_mean.add(added_output)

        state.after_attention.append(add_output)

    def after_layers(
        self,
        state: ForwardPass,
        hidden_states: Tensor,
    ) -> Tensor:
        """The mean, or the sum of both as unit vectors, [B, T, d], in place of the hidden states."""
        output_mean, normed_mean = state.hook_data[self]
        result: Tensor = output_mean.value()
        if normed_mean.layer_sum is not None:
            result = nn.functional.normalize(result, dim=-1)
            result = result + nn.functional.normalize(normed_mean.value(), dim=-1)
        return result.to(hidden_states)


extensions.output_reader = OutputReader
