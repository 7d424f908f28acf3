"""What happens behind a decoder layer: its further passes run, and its hidden states are read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import nn
from transformers import PreTrainedModel

from .backbone import text_decoder
from .depth import current_reading
from .passes import run_further


def layer_list(model: PreTrainedModel, depth: int) -> nn.ModuleList:
    """A backbone's list of layers.

    Args:
        model: The backbone.
        depth: Its number of layers.

    Raises:
        ValueError: There is no list of that many layers.
    """
    # A tower beside the decoder may be as deep, and its layers may say their layer_idx too.
    for module in text_decoder(model).modules():
        if isinstance(module, nn.ModuleList) and len(module) == depth and all(map(_is_layer, module, range(depth))):
            return module
    raise ValueError(
        f"{type(model).__name__} has no list of {depth} layers that say their layer_idx, so none can run twice. Use a "
        "plan of architecture 'inplace'."
    )


def decoder_layers(model: PreTrainedModel, depth: int) -> dict[nn.Module, int]:
    """A backbone's layers and their indices; arguments and errors as for :func:`layer_list`."""
    return {layer: index for index, layer in enumerate(layer_list(model, depth))}


def _is_layer(module: nn.Module, index: int) -> bool:
    return any(getattr(part, "layer_idx", None) == index for part in module.modules())


def install(layers: dict[nn.Module, int]) -> None:
    """Stand behind the layers; harmless where the running pass asks for nothing."""
    for layer, index in layers.items():
        if not any(isinstance(hook, _AfterLayer) for hook in layer._forward_hooks.values()):
            layer.register_forward_hook(_AfterLayer(index), with_kwargs=True)


@dataclass(frozen=True)
class _AfterLayer:
    """The hook itself: it knows its layer's number, so that copies of the backbone, as of a replica, keep it."""

    index: int

    def __call__(self, module: nn.Module, arguments: tuple[Any, ...], keywords: dict[str, Any], output: Any) -> Any:
        output = run_further(module, arguments, keywords, output, self.index)
        if (reading := current_reading()) is None:
            return output
        entered = arguments[0] if arguments else keywords["hidden_states"]
        hidden = output[0] if isinstance(output, tuple) else output
        hidden = reading.after_layer(module, self.index, entered, hidden)
        return (hidden, *output[1:]) if isinstance(output, tuple) else hidden
