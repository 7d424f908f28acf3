"""INTER, EXTRA and EXTEND: layers that run a second time in a pass, and how both results join."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .layers import watch_layers
from .layout import PARTS
from .passes import ForwardPass


class SecondRuns:
    """The layers of a NoSinkTransformer that run twice; a hook of its passes.

    - INTER sums both runs of every converted layer. By its authors' code, a second stream of states begins before the
      first converted layer, runs through all layers above, and is added before the final norm.
    - EXTRA has such a second stream from the embeddings on, through the converted layers alone. By the paper each
      stream passes the final norm by itself, and the results are added; by its authors' code they are added before it.
    - EXTEND runs the last layer again, on top.
    """

    def __init__(self, transformer: Any) -> None:
        if getattr(transformer.config.get_text_config(), "num_kv_shared_layers", 0):
            raise ValueError("Layers share keys and values, which a second run would replace. Use 'inplace-…'.")
        watch_layers(transformer.model)
        self.depth, self.extend = transformer.depth, transformer.architecture == "extend"
        authors, extra = transformer.implementation == "authors", transformer.architecture == "extra"
        # The layer before which the second stream begins; None: there is none.
        self.begins = 0 if extra else transformer.second[0][0] if authors and not self.extend else None
        self.normed_apart = extra and not authors

    def begin(self, state: ForwardPass) -> None:
        """Run layers again after their usual run."""
        masks = state.masks
        stream: Tensor | None = None

        def rerun(index: int, entered: Tensor, hidden: Tensor, again: Any) -> Tensor:
            nonlocal stream
            stream = entered if index == self.begins else stream
            for _, name in [each for each in masks.second if each[0] == index]:
                masks.further = name
                output = again(hidden if self.extend else entered if stream is None else stream)
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
            # Side by side, as rows of the batch, both pass the final norm.
            return torch.cat([hidden, stream]) if self.normed_apart else hidden + stream

        state.after_layer.append(rerun)

    def finish(self, state: ForwardPass, hidden: Tensor) -> Tensor:
        """Add the streams that passed the norm side by side."""
        return hidden.reshape(2, -1, *hidden.shape[1:]).sum(dim=0) if self.normed_apart else hidden


PARTS["second"] = SecondRuns
