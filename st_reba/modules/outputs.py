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
        """Show the output to the running pass."""
        forward_pass = current_pass()
        if forward_pass is not None:
            for observe_output in forward_pass.after_attention:
                observe_output(self.layer_index, first_output(attention_output))


class AfterSibling:
    """Forward hook of the other modules of a layer: in some layers, one of them norms the attention's output."""

    def __call__(
        self,
        module: nn.Module,
        arguments: tuple[object, ...],
        module_output: Tensor | tuple[Tensor, ...],
    ) -> None:
        """Show the module's input and output to the pass."""
        forward_pass = current_pass()
        if forward_pass is not None and arguments:
            for observe_module in forward_pass.after_sibling:
                observe_module(arguments[0], first_output(module_output))


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
                module.register_forward_hook(AfterSibling())


class OutputMeans:
    """Means of the attention outputs of several layers, before and after the norm that some have for them.

    Args:
        first_layer, last_layer: Lowest and highest layer, from 1.
    """

    def __init__(self, first_layer: int, last_layer: int) -> None:
        self.first_layer = first_layer
        self.last_layer = last_layer
        self._output_sum: Tensor | None = None
        self.normed_sum: Tensor | None = None
        # That of the last attention, until a module takes it.
        self._newest_output: Tensor | None = None

    def add_output(self, layer_index: int, attention_output: Tensor) -> None:
        """Take in the output [B, T, d] of a layer's attention."""
        self._newest_output = None
        if self.first_layer <= layer_index + 1 <= self.last_layer:
            self._newest_output = attention_output
            self._output_sum = add_precisely(self._output_sum, attention_output)

    def add_normed(self, module_input: object, module_output: Tensor) -> None:
        """Add a module's output if its input is the newest output itself, not a sum with it."""
        if self._newest_output is not None and module_input is self._newest_output:
            self._newest_output = None
            self.normed_sum = add_precisely(self.normed_sum, module_output)

    def joined_means(self) -> Tensor:
        """The mean, or the sum of both means as unit vectors, [B, T, d]."""
        assert self._output_sum is not None  # as all layers have run
        if self.normed_sum is None:
            return self._output_sum / (self.last_layer - self.first_layer + 1)
        unit_outputs = nn.functional.normalize(self._output_sum, dim=-1)
        return unit_outputs + nn.functional.normalize(self.normed_sum, dim=-1)


def add_precisely(layer_sum: Tensor | None, layer_states: Tensor) -> Tensor:
    """A sum over layers, [B, T, d] float32 or finer, with the states of one more."""
    precise_states = layer_states.to(torch.promote_types(layer_states.dtype, torch.float32))
    if layer_sum is None:
        return precise_states
    return layer_sum.to(precise_states.device) + precise_states


class OutputReader:
    """The mean of several layers' attention outputs, after the output projection and before they are added.

    Where layers pass these outputs through a norm before they add them (Gemma 2 and 3, GLM-4, OLMo 2), it is the sum
    of two unit vectors: the mean of the outputs before that norm, and the mean after it.

    Args:
        transformer: The module whose model is read.
        first_layer, last_layer: Lowest and highest layer, from 1.

    Source:
        AlignedWVA (2026), there of the last position of a prompt; the sum is this project's own.
    """

    by_position = True
    has_norms = False  # whether norms followed the attention in the last pass; for cards

    def __init__(self, transformer: RepeatTransformer, first_layer: int, last_layer: int) -> None:
        self.first_layer = first_layer
        self.last_layer = last_layer
        watch_attention(transformer.model)

    def before_layers(self, forward_pass: ForwardPass) -> None:
        """Average the outputs while the layers run."""
        means = OutputMeans(self.first_layer, self.last_layer)
        forward_pass.hook_data[self] = means
        forward_pass.after_attention.append(means.add_output)
        forward_pass.after_sibling.append(means.add_normed)

    def after_layers(self, forward_pass: ForwardPass, hidden_states: Tensor) -> Tensor:
        """The mean, or the sum of both as unit vectors, [B, T, d], in place of the hidden states."""
        means: OutputMeans = forward_pass.hook_data[self]
        self.has_norms = means.normed_sum is not None
        return means.joined_means().to(hidden_states)


extensions.output_reader = OutputReader
