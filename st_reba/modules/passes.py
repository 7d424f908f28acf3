"""Further passes through a backbone's layers: INTER, EXTRA and EXTEND without any modelling code.

A forward hook on each decoder layer runs the same layer again, with the same arguments, on another input; the sum, or
the added layer's output, goes on in the backbone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from .backbone import text_decoder
from .plan import LayerKind
from .state import ForwardState, current


def decoder_layers(model: PreTrainedModel, depth: int) -> dict[nn.Module, int]:
    """A backbone's layers and their indices.

    Args:
        model: The backbone.
        depth: Its number of layers.

    Raises:
        ValueError: There is no list of that many layers.
    """
    # A tower beside the decoder may be as deep, and its layers may say their layer_idx too.
    for module in text_decoder(model).modules():
        if isinstance(module, nn.ModuleList) and len(module) == depth and all(map(_is_layer, module, range(depth))):
            return {layer: index for index, layer in enumerate(module)}
    raise ValueError(
        f"{type(model).__name__} has no list of {depth} layers that say their layer_idx, so none can run twice. Use a "
        "plan of architecture 'inplace'."
    )


def _is_layer(module: nn.Module, index: int) -> bool:
    return any(getattr(part, "layer_idx", None) == index for part in module.modules())


def install(layers: dict[nn.Module, int]) -> None:
    """Let the layers run further passes; harmless where the running plan has none."""
    for layer, index in layers.items():
        if not any(isinstance(hook, _Further) for hook in layer._forward_hooks.values()):
            layer.register_forward_hook(_Further(index), with_kwargs=True)


@dataclass(frozen=True)
class _Further:
    """The hook itself: it knows its layer's number, so that copies of the backbone, as of a replica, keep it."""

    index: int

    def __call__(self, module: nn.Module, arguments: tuple[Any, ...], keywords: dict[str, Any], output: Any) -> Any:
        return run_further(module, arguments, keywords, output, self.index)


def run_further(
    module: nn.Module, arguments: tuple[Any, ...], keywords: dict[str, Any], output: Any, index: int
) -> Any:
    """Forward hook of a decoder layer: run its further passes and join them to its output."""
    state = current()
    if state is None or state.stack is None or not state.stack.second:
        return output
    stack = state.stack
    kinds = [kind for layer, kind in stack.second if layer == index]
    hidden: Tensor = output[0] if isinstance(output, tuple) else output
    entered: Tensor = arguments[0] if arguments else keywords["hidden_states"]
    last = index == len(stack.kinds) - 1
    if hidden.ndim != 3:
        raise ValueError(
            f"{type(module).__name__} passes on {hidden.ndim}-dimensional hidden states in place of [B, T, d], so its "
            "layers cannot run twice. Use a plan of architecture 'inplace'."
        )
    state.further += len(kinds)

    def again(entering: Tensor, kind: LayerKind) -> Tensor:
        return _run(state, module, entering, arguments, keywords, kind)

    if stack.architecture == "extend":
        for kind in kinds:
            hidden = again(hidden, kind)
    elif stack.architecture == "inter" and stack.variant == "paper":
        for kind in kinds:
            hidden = hidden + again(entered, kind)
    else:
        if index == (0 if stack.architecture == "extra" else stack.second[0][0]):
            state.stream = entered
        for kind in kinds:
            state.stream = again(cast(Tensor, state.stream), kind)
        if last and stack.side_by_side:
            # As further rows of the batch, which the final norm takes each by itself; the caller sums them.
            hidden = torch.cat([hidden, cast(Tensor, state.stream)])
        elif last:
            hidden = hidden + cast(Tensor, state.stream)
    return (hidden, *output[1:]) if isinstance(output, tuple) else hidden


def _run(
    state: ForwardState,
    module: nn.Module,
    entering: Tensor,
    arguments: tuple[Any, ...],
    keywords: dict[str, Any],
    kind: LayerKind,
) -> Tensor:
    """One more pass through a layer; its forward alone, as its hooks would call this again."""
    if arguments:
        arguments = (entering, *arguments[1:])
    else:
        keywords = {**keywords, "hidden_states": entering}
    with state.further_pass(kind):
        output = module.forward(*arguments, **keywords)
    hidden: Tensor = output[0] if isinstance(output, tuple) else output
    return hidden
