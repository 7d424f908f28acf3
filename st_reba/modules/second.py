"""INTER, EXTRA and EXTEND: layers that run a second time in a pass, and how both results are joined.

Only repositories with such a plan carry this file.
"""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor

from .layer_list import layers_of
from .plan import LayerPlan, NoSink, PlannedLayers, Stack
from .stages import Decoder, LayerCall, Pass


class LayersTwice(PlannedLayers):
    """A decoder's layers as a plan says that runs some of them once more."""

    def __init__(self, decoder: Decoder, stage: LayerPlan | NoSink, stack: Stack) -> None:
        backbone = decoder.backbone
        if getattr(backbone.text_config, "num_kv_shared_layers", 0):
            raise ValueError(
                f"{stage}: layers of {type(backbone.decoder).__name__} read the keys and values of others, which a "
                "second pass would replace. Use a plan of architecture 'inplace'."
            )
        super().__init__(decoder, stage, stack)
        try:
            layers_of(backbone)
        except ValueError as error:
            message = f"{stage}: {error}, so none can run twice. Use a plan of architecture 'inplace'."
            raise ValueError(message) from None

    def begin(self, run: Pass) -> None:
        """The second stream of hidden states [B, T, d] is kept with the pass, where there is one."""
        super().begin(run)
        run.kept[self] = None

    def after_layer(self, run: Pass, call: LayerCall) -> Tensor:
        """The layer runs again, with the same arguments, on another input."""
        stack, hidden = self.stack, call.hidden
        if hidden.ndim != 3:
            raise ValueError(
                f"{type(call.module).__name__} passes on {hidden.ndim}-dimensional hidden states, not [B, T, d], so "
                "it cannot run twice. Use a plan of architecture 'inplace'."
            )
        stream: Tensor | None = call.entered if call.index == stack.stream else run.kept[self]
        for kind in [kind for layer, kind in stack.second if layer == call.index]:
            run.kinds.ran += 1
            if stack.architecture == "extend":
                hidden = _again(run, call, hidden, kind)
            elif stream is None:
                hidden = hidden + _again(run, call, call.entered, kind)
            else:
                stream = _again(run, call, stream, kind)
        run.kept[self] = stream
        if stream is None or call.index < len(stack.kinds) - 1:
            return hidden
        # Side by side: as further rows of the batch, which the final norm takes each by itself; finish sums them.
        return torch.cat([hidden, stream]) if stack.side_by_side else hidden + stream

    def finish(self, run: Pass, hidden: Tensor) -> Tensor:
        """The sum of both streams, where each went through the final norm."""
        hidden = super().finish(run, hidden)
        return hidden.reshape(2, -1, *hidden.shape[1:]).sum(dim=0) if self.stack.side_by_side else hidden


def _again(run: Pass, call: LayerCall, entering: Tensor, kind: str) -> Tensor:
    """One more pass through a layer; its forward alone, as its hooks would call this again."""
    keywords = {name: value for name, value in call.keywords.items() if name != "hidden_states"}
    run.kinds.further = kind
    try:
        output = call.module.forward(entering, *call.arguments[1:], **keywords)
    finally:
        run.kinds.further = None
    return cast("Tensor", output[0] if isinstance(output, tuple) else output)
