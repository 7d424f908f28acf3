"""Hooks after the decoder layers, through which a pass sees and changes what they hand on."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor, nn
from transformers import PreTrainedModel

from .layout import decoder_of
from .passes import current_pass


def layers_of(model: PreTrainedModel) -> nn.ModuleList:
    """The list of a model's decoder layers."""
    decoder = decoder_of(model)
    depth = model.config.get_text_config().num_hidden_layers
    for module in decoder.modules():
        if isinstance(module, nn.ModuleList) and len(module) == depth and are_numbered(module):
            return module
    raise ValueError(
        f"{type(decoder).__name__} has no list of {depth} numbered layers. Use its last layer."
    )


def are_numbered(layers: nn.ModuleList) -> bool:
    """Whether each of the modules holds its own index."""
    for index, layer in enumerate(layers):
        known_indices = {getattr(module, "layer_idx", None) for module in layer.modules()}
        if index not in known_indices:
            return False
    return True


class ModuleCall(NamedTuple):
    """A call of a layer or of its attention, as a forward hook gets it."""

    module: nn.Module
    arguments: tuple[object, ...]
    keywords: dict[str, object]

    @property
    def hidden_states(self) -> Tensor:
        """What the module was called with first."""
        return self.arguments[0] if self.arguments else self.keywords["hidden_states"]  # type: ignore[return-value]

    def repeat(self, hidden_states: Tensor) -> Tensor:
        """Run ``forward`` again with other hidden states, without the module's hooks, which would call this again."""
        keywords = {name: value for name, value in self.keywords.items() if name != "hidden_states"}
        return first_output(self.module.forward(hidden_states, *self.arguments[1:], **keywords))


def first_output(module_output: Tensor | tuple[Tensor, ...]) -> Tensor:
    """A module's output, or the first of several."""
    return module_output[0] if isinstance(module_output, tuple) else module_output


class AfterLayer:
    """Forward hook of a decoder layer; it knows the layer's number, so that copies of the model keep it."""

    def __init__(self, layer_index: int) -> None:
        self.layer_index = layer_index

    def __call__(
        self,
        layer: nn.Module,
        arguments: tuple[object, ...],
        keywords: dict[str, object],
        layer_output: Tensor | tuple[Tensor, ...],
    ) -> Tensor | tuple[Tensor, ...]:
        """What the layer hands on, changed by the running pass."""
        forward_pass = current_pass()
        if forward_pass is None or not forward_pass.after_layer:
            return layer_output
        hidden_states = first_output(layer_output)
        if hidden_states.ndim != 3:
            layer_name = type(layer).__name__
            raise ValueError(
                f"{layer_name} hands on {hidden_states.ndim}-dimensional states. Use its last layer."
            )
        layer_call = ModuleCall(layer, arguments, keywords)
        for callback in forward_pass.after_layer:
            hidden_states = callback(self.layer_index, layer_call, hidden_states)
        return (
            (hidden_states, *layer_output[1:]) if isinstance(layer_output, tuple) else hidden_states
        )


def watch_layers(model: PreTrainedModel) -> None:
    """Let passes see what every layer hands on, and replace it."""
    for layer_index, layer in enumerate(layers_of(model)):
        layer_hooks = layer._forward_hooks.values()
        if not any(isinstance(hook, AfterLayer) for hook in layer_hooks):
            layer.register_forward_hook(AfterLayer(layer_index), with_kwargs=True)
