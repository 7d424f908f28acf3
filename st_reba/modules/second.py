"""INTER, EXTRA and EXTEND: layers that run a second time in a pass, and how both results join."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from .extensions import extensions
from .layers import ModuleCall, watch_layers
from .passes import ForwardPass

if TYPE_CHECKING:
    from .nosink import NoSinkTransformer


class RepeatedLayers:
    """The layers of a NoSinkTransformer that run twice; a hook of its passes.

    - INTER sums both runs of every converted layer. By its authors' code, a second stream of states
      begins before the first converted layer, runs through all layers above, and is added before
      the final norm.
    - EXTRA has such a second stream from the embeddings on, through the converted layers alone. By
      the paper each stream passes the final norm by itself, and the results are added; by its
      authors' code they are added before it.
    - EXTEND runs the last layer again, on top.
    """

    def __init__(self, transformer: NoSinkTransformer) -> None:
        if getattr(transformer.config.get_text_config(), "num_kv_shared_layers", 0):
            raise ValueError(
                "Layers share keys and values, which a second run would replace. Use 'inplace-…'."
            )
        watch_layers(transformer.model)
        self.depth = transformer.depth
        self.is_extended = transformer.architecture == "extend"
        is_authors = transformer.implementation == "authors"
        is_extra = transformer.architecture == "extra"
        # The layer before which the second stream begins; None: there is none.
        self.stream_start_layer: int | None = 0 if is_extra else None
        if is_authors and not is_extra and not self.is_extended:
            self.stream_start_layer = transformer.second[0][0]
        self.norms_streams_apart = is_extra and not is_authors

    def before_layers(self, forward_pass: ForwardPass) -> None:
        """Run layers again after their usual run."""
        masks: Any = forward_pass.masks
        second_stream: Tensor | None = None  # [B, T, d]

        def run_again(layer_index: int, layer_call: ModuleCall, hidden_states: Tensor) -> Tensor:
            nonlocal second_stream
            if layer_index == self.stream_start_layer:
                second_stream = layer_call.hidden_states
            mask_names = [mask_name for layer, mask_name in masks.second if layer == layer_index]
            for mask_name in mask_names:
                masks.rerun_mask = mask_name
                if self.is_extended:
                    hidden_states = layer_call.repeat(hidden_states)
                elif second_stream is None:
                    hidden_states = hidden_states + layer_call.repeat(layer_call.hidden_states)
                else:
                    second_stream = layer_call.repeat(second_stream)
                masks.rerun_mask = None
            if second_stream is None or layer_index < self.depth - 1:
                return hidden_states
            if self.norms_streams_apart:
                # Side by side, as rows of the batch, both pass the final norm.
                return torch.cat([hidden_states, second_stream])
            return hidden_states + second_stream

        forward_pass.after_layer.append(run_again)

    def after_layers(self, forward_pass: ForwardPass, hidden_states: Tensor) -> Tensor:
        """Add the streams that passed the norm side by side."""
        if not self.norms_streams_apart:
            return hidden_states
        return hidden_states.reshape(2, -1, *hidden_states.shape[1:]).sum(dim=0)


extensions.repeated_layers = RepeatedLayers
