"""Hidden states between the layers: what a pass does behind each layer, and several layers read at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from .attention import ForwardPass, current_pass
from .layout import PARTS
from .transformer import decoder_of


def layers_of(model: Any) -> nn.ModuleList:
    """The list of a model's decoder layers."""
    decoder, depth = decoder_of(model), model.config.get_text_config().num_hidden_layers
    for module in decoder.modules():
        if isinstance(module, nn.ModuleList) and len(module) == depth:
            parts = [[getattr(part, "layer_idx", None) for part in layer.modules()] for layer in module]
            if all(index in known for index, known in enumerate(parts)):
                return module
    raise ValueError(
        f"{type(decoder).__name__} has no list of {depth} layers that know their number. Use its last layer."
    )


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
            # A further run of the layer: its forward alone, as its hooks would call this again.
            hidden = each(self.index, entered, hidden, lambda given: layer.forward(given, *arguments[1:], **others))
        return (hidden, *output[1:]) if isinstance(output, tuple) else hidden


def watch_layers(model: Any) -> None:
    """Let passes see what every layer hands on, and replace it."""
    for index, layer in enumerate(layers_of(model)):
        if not any(isinstance(hook, AfterLayer) for hook in layer._forward_hooks.values()):
            layer.register_forward_hook(AfterLayer(index), with_kwargs=True)


class LayerReader:
    """Reads several layers, of which a model's last is the highest, and joins them.

    Args:
        transformer: The module whose model is read.
        first: Lowest layer; 0 is the embeddings.
        last: Highest layer.
        join: ``"mean"`` of the unit vectors, or ``"concat"``.
        final_norm: Let each layer's states pass the model's final norm, else read them in front of it.
    """

    def __init__(self, transformer: Any, first: int, last: int, join: str, final_norm: bool) -> None:
        self.first, self.last, self.join, self.final_norm = first, last, join, final_norm
        self.depth = transformer.depth
        watch_layers(transformer.model)

    def begin(self, state: ForwardPass) -> None:
        """Keep the states of the layers that are read; hand all of them to the final norm, as rows of the batch."""
        states = state.kept[self] = []

        def see(index: int, entered: Tensor, hidden: Tensor, again: Any) -> Tensor:
            if index == 0 and self.first == 0:
                states.append(entered)
            if self.first <= index + 1 <= self.last:
                states.append(hidden)
            return torch.cat(states) if index + 1 == self.depth and self.final_norm else hidden

        state.after_layer.append(see)

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


PARTS["reader"] = LayerReader
