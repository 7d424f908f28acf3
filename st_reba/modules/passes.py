"""Further passes through a backbone's layers: INTER, EXTRA and EXTEND without any modelling code.

Behind each decoder layer the same layer runs again, with the same arguments, on another input; the sum, or the added
layer's output, goes on in the backbone.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn

from .plan import LayerKind
from .state import ForwardState, current


def run_further(
    module: nn.Module, arguments: tuple[Any, ...], keywords: dict[str, Any], output: Any, index: int
) -> Any:
    """Behind a decoder layer: run its further passes and join them to its output."""
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
