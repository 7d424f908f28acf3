"""INTER, EXTRA and EXTEND: layers that run a second time in a pass, and how both results join."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .attention import ForwardPass
from .layers import watch_layers
from .layout import PARTS


class SecondRuns:
    """The layers of a NoSinkTransformer that run twice.

    By the paper, INTER sums both runs in every converted layer, and EXTRA the outputs of both stacks, each after the
    final norm. By its authors' code, INTER keeps two streams from the first converted layer on, and both sum before the
    norm.
    EXTEND runs the last layer again, on top.
    """

    def __init__(self, transformer: Any) -> None:
        if getattr(transformer.config.get_text_config(), "num_kv_shared_layers", 0):
            raise ValueError(
                "Layers share keys and values, which a second run would replace. Use an 'inplace' setting."
            )
        self.transformer = transformer
        watch_layers(transformer.model)
        self.depth, second = transformer.depth, transformer.second
        self.extend = transformer.architecture == "extend"
        # The layer before which a second stream begins; None: there is one stream.
        authors = transformer.implementation == "authors"
        self.begins = (
            0 if transformer.architecture == "extra" else second[0][0] if authors and not self.extend else None
        )
        # Each stream passes the final norm by itself.
        self.beside = self.begins is not None and not authors

    def begin(self, state: ForwardPass) -> None:
        """Run layers again after their usual run."""
        masks = state.masks
        stream: Tensor | None = None

        def rerun(index: int, entered: Tensor, hidden: Tensor, again: Any) -> Tensor:
            nonlocal stream
            stream = entered if index == self.begins else stream
            for _, name in [each for each in masks.second if each[0] == index]:
                masks.further = name
                try:
                    output = again(hidden if self.extend else entered if stream is None else stream)
                finally:
                    masks.further = None
                output = output[0] if isinstance(output, tuple) else output
                if self.extend:
                    hidden = output
                elif stream is None:
                    hidden = hidden + output
                else:
                    stream = output
            if stream is None or index < self.depth - 1:
                return hidden
            return torch.cat([hidden, stream]) if self.beside else hidden + stream

        state.after_layer.append(rerun)

    def finish(self, state: ForwardPass, hidden: Tensor) -> Tensor:
        """Sum the streams that passed the norm side by side."""
        return hidden.reshape(2, -1, *hidden.shape[1:]).sum(dim=0) if self.beside else hidden


PARTS["second"] = SecondRuns
