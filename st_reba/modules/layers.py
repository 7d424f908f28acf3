"""Hooks after the decoder layers and after their attention, through which a pass sees and changes what they give."""

from __future__ import annotations

from typing import Any

from torch import nn

from .layout import decoder_of
from .passes import current_pass


def layers_of(model: Any) -> nn.ModuleList:
    """The list of a model's decoder layers."""
    decoder, depth = decoder_of(model), model.config.get_text_config().num_hidden_layers
    for module in decoder.modules():
        if isinstance(module, nn.ModuleList) and len(module) == depth:
            parts = [[getattr(part, "layer_idx", None) for part in layer.modules()] for layer in module]
            if all(index in known for index, known in enumerate(parts)):
                return module
    raise ValueError(f"{type(decoder).__name__} has no list of {depth} numbered layers. Use its last layer.")


class AfterLayer:
    """Forward hook of a decoder layer; it knows the layer's number, so that copies of the model keep it."""

    def __init__(self, index: int) -> None:
        self.index = index

    def __call__(self, layer: nn.Module, arguments: tuple[Any, ...], keywords: dict[str, Any], output: Any) -> Any:
        state = current_pass()
        if state is None or not state.after_layer:
            return output
        hidden = output[0] if isinstance(output, tuple) else output
        if hidden.ndim != 3:
            raise ValueError(f"{type(layer).__name__} hands on {hidden.ndim}-dimensional states. Use its last layer.")
        entered = arguments[0] if arguments else keywords["hidden_states"]
        others = {name: value for name, value in keywords.items() if name != "hidden_states"}
        for each in state.after_layer:
            # A second run of the layer: its forward alone, as its hooks would call this again.
            hidden = each(self.index, entered, hidden, lambda given: layer.forward(given, *arguments[1:], **others))
        return (hidden, *output[1:]) if isinstance(output, tuple) else hidden


def watch_layers(model: Any) -> None:
    """Let passes see what every layer hands on, and replace it."""
    for index, layer in enumerate(layers_of(model)):
        if not any(isinstance(hook, AfterLayer) for hook in layer._forward_hooks.values()):
            layer.register_forward_hook(AfterLayer(index), with_kwargs=True)
