"""INTER, EXTRA and EXTEND: layers that run a second time in a pass, and how both results join."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from .extensions import extensions
from .layers import ModuleCall, watch_layers
from .passes import ForwardPass

if TYPE_CHECKING:
    from .nosink import NoSinkTransformer


class RepeatedLayers:
    """The layers of a NoSinkTransformer that run twice; a hook of its passes.

    - INTER sums both runs of every converted layer. By its authors' code, a second stream of states begins before the
      first converted layer, runs through all layers above, and is added before the final norm.
    - EXTRA has such a second stream from the embeddings on, through the converted layers alone. By the paper each
      stream passes the final norm by itself, and the results are added; by its authors' code they are added before it.
    - EXTEND runs the last layer again, on top.
    """

    def __init__(self, transformer: NoSinkTransformer) -> None:
        if getattr(transformer.config.get_text_config(), "num_kv_shared_layers", 0):
            raise ValueError("Layers share keys and values, which a second run would replace. Use 'inplace-…'.")
        watch_layers(transformer.model)
        self.depth = transformer.depth
        self.is_extended = transformer.architecture == "extend"
        is_authors = transformer.implementation == "authors"
        is_extra = transformer.architecture == "extra"
        # The layer before which the second stream begins; None: there is none.
        self.stream_start_layer: int | None = None
        if is_extra:
            self.stream_start_layer = 0
        elif is_authors and not self.is_extended:
            self.stream_start_layer = transformer.second[0][0]
        self.norms_streams_apart = is_extra and not is_authors

    def before_layers(self, state: ForwardPass) -> None:
        """Run layers again after their usual run."""
        state.after_layer.append(LayerReruns(self, state).after_layer)

    def after_layers(self, state: ForwardPass, hidden_states: Tensor) -> Tensor:
        """Add the streams that passed the norm side by side."""
        if not self.norms_streams_apart:
            return hidden_states
        both_streams = hidden_states.reshape(2, -1, *hidden_states.shape[1:])
        return both_streams.sum(dim=0)


class LayerReruns:
    """The second runs of one pass, and its second stream of states, [B, T, d]."""

    def __init__(self, repeated_layers: RepeatedLayers, state: ForwardPass) -> None:
        self.repeated_layers = repeated_layers
        self.masks = state.masks
        self.second_stream: Tensor | None = None

    def after_layer(
        self,
        layer_index: int,
        layer_call: ModuleCall,
        hidden_states: Tensor,
    ) -> Tensor:
        """What a layer hands on: ``hidden_states``, to which its second runs may add."""
        if layer_index == self.repeated_layers.stream_start_layer:
            self.second_stream = layer_call.hidden_states
        for second_layer, mask_name in self.masks.second:
            if second_layer == layer_index:
                hidden_states = self.run_again(layer_call, mask_name, hidden_states)
        is_last_layer = layer_index == self.repeated_layers.depth - 1
        if self.second_stream is None or not is_last_layer:
            return hidden_states
        if self.repeated_layers.norms_streams_apart:
            # Side by side, as rows of the batch, both pass the final norm.
            return torch.cat([hidden_states, self.second_stream])
        return hidden_states + self.second_stream

    def run_again(
        self,
        layer_call: ModuleCall,
        mask_name: str,
        hidden_states: Tensor,
    ) -> Tensor:
        """Run a layer once more with a mask, and return what it hands on."""
        input_states = layer_call.hidden_states
        if self.repeated_layers.is_extended:
            input_states = hidden_states
        elif self.second_stream is not None:
            input_states = self.second_stream
        self.masks.rerun_mask = mask_name
        output_states = layer_call.repeat(input_states)
        self.masks.rerun_mask = None
        if self.repeated_layers.is_extended:
            return output_states
        if self.second_stream is None:
            return hidden_states + output_states
        self.second_stream = output_states
        return hidden_states


extensions.repeated_layers = RepeatedLayers
