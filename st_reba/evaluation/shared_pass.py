"""Several readouts of one forward pass: layers and attention outputs, pooled in several ways."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.util import batch_to_device
from torch import Tensor

from ..encode import (
    DEFAULT_BATCH_TOKENS,
    computed_positions,
    input_lengths,
    token_batches,
    transformer_of,
)
from ..modules import PromptEnsemble
from ..modules.capture import BackwardAttention, Capture
from ..modules.layers import watch_layers
from ..modules.layout import Features, Span, copy_starts, pooled_positions
from ..modules.outputs import OutputReader
from ..modules.selfcheck import run_ids
from ..modules.transformer import RepeatTransformer
from .stacked_reader import LayerRange, Reading, StackedReader
from .vectors import Vectors

# "mean" and "last" refer to the last copy's content, "end" to the very last position.
READOUT_POOLINGS = ("mean", "last", "end", "reba-mean", "reba-last")
# The most numbers that a batch's hidden states may hold, summed over the layers that are read.
_MAX_NUMBERS = 1 << 25

TokenRange = tuple[int, int]
"""First content token and end of a word."""


class Readout(NamedTuple):
    """One layer of a pass, pooled.

    Args:
        layer: 1 to L.
        pooling: One of ``READOUT_POOLINGS``.
        first_layer: None: the layer's states. Else the mean of the attention outputs from this
            layer up to ``layer``.
    """

    layer: int
    pooling: str
    first_layer: int | None = None

    @property
    def reading(self) -> Reading:
        """What is pooled."""
        if self.first_layer is None:
            return self.layer
        return self.first_layer, self.layer


def run_pass(
    model: SentenceTransformer,
    readouts: Sequence[Readout],
    texts: Sequence[str],
    *,
    token_ranges: Sequence[TokenRange] | None = None,
    batch_tokens: int = DEFAULT_BATCH_TOKENS,
    progress: Callable[[int], object] | None = None,
    **input_options: Any,
) -> dict[Readout, Vectors]:
    """Run texts through a model once, and pool every readout as a model built for it would.

    So states pass the final norm, and ReBA's maxima cover the layers up to that of the readout.

    Args:
        model: From :func:`st_reba.build`; no layer may run twice. Its PromptEnsemble is used, but
            not its pooling.
        readouts: Layers and poolings to read.
        texts, token_ranges, batch_tokens, progress, input_options: As for
            :func:`~st_reba.evaluation.readouts.encode_methods`.

    Returns:
        By readout, [N, d] float32, not scaled.
    """
    shared_pass = SharedPass(model, readouts, for_words=token_ranges is not None)
    if not texts:
        return dict.fromkeys(readouts, np.empty((0, shared_pass.width), np.float32))
    vectors_by_readout: dict[Readout, Vectors] = {}
    computed = computed_positions(shared_pass.transformer, texts, input_options)
    for batch in shared_pass.plan_batches(texts, batch_tokens, input_options):
        batch_texts = [texts[row_index] for row_index in batch]
        batch_ranges = None
        if token_ranges is not None:
            batch_ranges = [token_ranges[row_index] for row_index in batch]
        batch_vectors = shared_pass.run_batch(batch_texts, batch_ranges, input_options)
        for readout, rows in batch_vectors.items():
            if readout not in vectors_by_readout:
                vectors_by_readout[readout] = np.empty((len(texts), rows.shape[1]), np.float32)
            vectors_by_readout[readout][batch] = rows.cpu().numpy()
        if progress is not None:
            progress(sum(computed[row_index] for row_index in batch))
    return vectors_by_readout


class SharedPass:
    """The passes of a model that give several readouts.

    Args:
        model, readouts: As for :func:`run_pass`.
        for_words: The vectors are of words.

    Raises:
        ValueError: There is no such layer or pooling.
    """

    def __init__(
        self,
        model: SentenceTransformer,
        readouts: Sequence[Readout],
        for_words: bool,
    ) -> None:
        self.model = model
        self.transformer = transformer_of(model)
        self.readouts = readouts
        self.width: int = self.transformer.get_embedding_dimension()
        for readout in readouts:
            if (
                not 1 <= readout.layer <= self.transformer.depth
                or readout.pooling not in READOUT_POOLINGS
            ):
                choices = f"a layer from 1 to {self.transformer.depth}, and one of {', '.join(READOUT_POOLINGS)}"
                raise ValueError(f"{readout}: give {choices}.")
        readings = {readout.reading for readout in readouts}
        self.layers = sorted(reading for reading in readings if isinstance(reading, int))
        reads_inner_layers = any(layer < self.transformer.depth for layer in self.layers)
        if reads_inner_layers and run_ids(self.transformer.model, [[0]]).shape[-1] != self.width:
            raise ValueError(
                f"layer={self.layers[0]}: the base projects its last states to another size, so its other layers "
                "cannot be read in the same pass. Leave layer out."
            )
        layer_ranges = sorted(reading for reading in readings if isinstance(reading, tuple))
        self.output_readers: dict[LayerRange, OutputReader] = {}
        for first_layer, last_layer in layer_ranges:
            output_reader = OutputReader(self.transformer, first_layer, last_layer)
            self.output_readers[first_layer, last_layer] = output_reader
        self.capture = self._make_capture(for_words)
        watch_layers(self.transformer.model)

    def _make_capture(self, for_words: bool) -> Capture | None:
        """The rows of backward attention that the poolings need."""
        poolings = {readout.pooling for readout in self.readouts}
        if "reba-mean" in poolings or (for_words and "reba-last" in poolings):
            return Capture("copy")
        if "reba-last" in poolings:
            return Capture("last")
        return None

    def plan_batches(
        self,
        texts: Sequence[str],
        batch_tokens: int,
        input_options: dict[str, Any],
    ) -> list[list[int]]:
        """Indices of the texts of each batch, whose states fit into memory."""
        lengths = input_lengths(
            self.transformer,
            texts,
            input_options,
            is_batched=self.capture is None,
        ).positions
        whole_lengths = input_lengths(
            self.transformer, texts, input_options, is_batched=False
        ).positions
        reading_count = len(self.layers) + len(self.output_readers)
        max_whole_positions = _MAX_NUMBERS // (self.width * reading_count)
        # Rows that share a prefix still hold its states, so they take as much memory as whole rows.
        max_positions = max_whole_positions * sum(lengths) // max(1, sum(whole_lengths))
        return token_batches(lengths, max(1, min(batch_tokens, max_positions)))

    def run_batch(
        self,
        texts: list[str],
        token_ranges: Sequence[TokenRange] | None,
        input_options: dict[str, Any],
    ) -> dict[Readout, Tensor]:
        """Vectors [B, d] of each readout."""
        transformer = self.transformer
        features = batch_to_device(
            transformer.preprocess(texts, **input_options), self.model.device
        )
        weights = TextWeights(transformer, features, token_ranges)
        reader = StackedReader(
            self.layers,
            self.output_readers,
            transformer.depth,
            weights.keep_backward,
        )
        previous_reader = transformer.reader
        transformer.reader = reader
        try:
            with torch.inference_mode():
                hidden_states = transformer(features, capture=self.capture)["token_embeddings"]
        finally:
            transformer.reader = previous_reader
        return self._join_templates(weights.pool(self.readouts, reader, hidden_states))

    def _join_templates(self, vectors_by_readout: dict[Readout, Tensor]) -> dict[Readout, Tensor]:
        """Join the vectors that a text has in several templates into one."""
        for module in self.model:
            if isinstance(module, PromptEnsemble):
                for readout, rows in vectors_by_readout.items():
                    joined_features = module({"sentence_embedding": rows})
                    vectors_by_readout[readout] = joined_features["sentence_embedding"]
        return vectors_by_readout


class TextWeights:
    """Weights of a batch's positions in the sums of each pooling.

    Args:
        transformer: The module that runs the batch.
        features: Output of its ``preprocess``.
        token_ranges: The content tokens of each text that its vector stands for; None: all.

    Raises:
        ValueError: A range is not in its text.
    """

    def __init__(
        self,
        transformer: RepeatTransformer,
        features: Features,
        token_ranges: Sequence[TokenRange] | None,
    ) -> None:
        spans: list[Span] = features["spans"]
        copy_ids: Tensor = features["copy_ids"]
        if token_ranges is None:
            token_ranges = [(0, span.text_length) for span in spans]
        for (first_token, end_token), span in zip(token_ranges, spans, strict=True):
            if not 0 <= first_token < end_token <= span.text_length:
                tokens = f"tokens {first_token} to {end_token}"
                raise ValueError(
                    f"token_ranges: {tokens} are not among the {span.text_length} of the text, as cut."
                )
        ranges = torch.tensor(token_ranges, device=copy_ids.device)
        # First token and end of each range, [B, 1].
        self.first_token, self.end_token = ranges[:, :, None].unbind(dim=1)
        positions = torch.arange(copy_ids.shape[1], device=copy_ids.device)
        in_range, is_last = self._select_tokens(
            positions - copy_starts(copy_ids, transformer.copies)
        )
        is_last_copy = copy_ids == transformer.copies
        row_lengths = torch.tensor([[span.row_length] for span in spans], device=copy_ids.device)
        real_tokens = positions < row_lengths
        is_end = pooled_positions("end", transformer.copies, copy_ids, real_tokens, row_lengths, 0)
        selected = torch.stack([in_range & is_last_copy, is_last & is_last_copy, is_end], dim=1)
        # For mean, last and end, [B, 3, T].
        self.position_weights = _average_weights(selected)
        # For ReBA's mean and last, by the layer that they reach up to, [B, 2, T].
        self.backward_weights: dict[int, Tensor] = {}

    def keep_backward(self, layer: int, captured: BackwardAttention) -> None:
        """Keep ReBA's weights of the layers up to this one."""
        snapshot = copy.copy(captured)
        snapshot.maxima = [maxima.clone() for maxima in captured.maxima]
        rows: Tensor = snapshot.rows()
        if rows.shape[1] == 1:
            self.backward_weights[layer] = rows.expand(-1, 2, -1).float()
            return
        tokens = torch.arange(rows.shape[1], device=rows.device)
        row_weights = _average_weights(torch.stack(self._select_tokens(tokens), dim=1))
        summed_rows = torch.bmm(row_weights.to(rows.dtype), rows)
        self.backward_weights[layer] = summed_rows.float()

    def pool(
        self,
        readouts: Sequence[Readout],
        reader: StackedReader,
        hidden_states: Tensor,
    ) -> dict[Readout, Tensor]:
        """Vectors [B, d] of each readout, pooled from the output of a pass."""
        rows_by_reading: dict[Reading, Tensor] = {}
        vectors_by_readout: dict[Readout, Tensor] = {}
        for readout in readouts:
            reading = readout.reading
            if reading not in rows_by_reading:
                block = reader.block_of(hidden_states, reading)
                rows_by_reading[reading] = torch.bmm(self._weights_of(reading), block.float())
            pooling_index = READOUT_POOLINGS.index(readout.pooling)
            vectors_by_readout[readout] = rows_by_reading[reading][:, pooling_index]
        return vectors_by_readout

    def _weights_of(self, reading: Reading) -> Tensor:
        """The weights of all poolings of a reading, [B, 3 or 5, T]."""
        if isinstance(reading, int) and reading in self.backward_weights:
            return torch.cat([self.position_weights, self.backward_weights[reading]], dim=1)
        return self.position_weights

    def _select_tokens(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Masks [B, T] of the content tokens in each text's range, and of its last token only."""
        in_range = (tokens >= self.first_token) & (tokens < self.end_token)
        return in_range, tokens == self.end_token - 1


def _average_weights(selected: Tensor) -> Tensor:
    return selected.float() / selected.sum(dim=-1, keepdim=True)
