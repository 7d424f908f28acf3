"""Whether layers norm the outputs of their attention before they add them, which the formula of a card depends on."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from sentence_transformers.util import batch_to_device
from torch import Tensor

from ..modules.outputs import OutputReader
from ..modules.passes import ForwardPass
from ..modules.transformer import RepeatTransformer


class NormFinder(OutputReader):
    """Finds in a pass whether norms follow the attention of the layers that are read."""

    has_norms = False

    def after_layers(self, state: ForwardPass, hidden_states: Tensor) -> Tensor:
        """Keep what was found, and leave the hidden states as they are."""
        self.has_norms = state.hook_data[self].normed_sum is not None
        return hidden_states


@torch.no_grad()
def norms_attention_outputs(
    transformer: RepeatTransformer, field_values: Mapping[str, str]
) -> bool:
    """Whether norms follow the attention that a model reads, found by a pass with a short document.

    Args:
        transformer: The module, which reads attention outputs.
        field_values: Of the fields of a document's template.
    """
    reader = transformer.reader
    finder = NormFinder(transformer, reader.first_layer, reader.last_layer)
    features = transformer.preprocess(["a"], task="document", **field_values)
    batch = batch_to_device(features, transformer.model.device)
    transformer.run_pass(batch, [finder], {})
    return finder.has_norms
