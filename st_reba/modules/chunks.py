"""ChunkedReBAPooling: backward attention within chunks of a text, at a cost that grows with its length alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .capture import Capture
from .layout import MAX_REPEATS, Features, RowLayout, Span, pad, published
from .pooling import ReBAPooling

# Positions of a forward pass over chunks, so that memory does not grow with the text.
_POSITIONS = 1 << 14


class Chunk(NamedTuple):
    """Some tokens of a text that follow one another."""

    row: int  # of the text in its batch
    start: int  # first token
    length: int


@dataclass(frozen=True)
class ChunkPlan:
    """How texts are cut; each chunk runs by itself, repeated, with the same tokens around it as around the text.

    Args:
        chunk: Content tokens that a chunk holds at most.
        repeats: Copies of each chunk.
        last_only: Only each text's last chunk.
    """

    chunk: int
    repeats: int
    last_only: bool

    def batches(
        self,
        features: Features,
        position_count: int,
    ) -> Iterator[tuple[list[Chunk], Features]]:
        """Batches of chunks, longest first, and their features; ``position_count`` 0: no limit."""
        spans: list[Span] = features["spans"]
        chunks: list[Chunk] = []
        for row, span in enumerate(spans):
            bounds = list(pairwise(chunk_bounds(span.text_length, self.chunk)))
            for start, end in bounds[-1 if self.last_only else 0 :]:
                chunks.append(Chunk(row, start, end - start))
        chunks.sort(key=lambda chunk: -chunk.length)
        overhead = max(span.row_length - span.text_length for span in spans)
        if overhead + self.repeats * chunks[0].length > position_count > 0:
            raise ValueError(
                f"chunk={self.chunk}: the copies and what is around them need more than {position_count} positions."
            )
        while chunks:
            batch_size = max(1, _POSITIONS // (overhead + self.repeats * chunks[0].length))
            batch, chunks = chunks[:batch_size], chunks[batch_size:]
            yield batch, self.features_of(batch, features)

    def features_of(self, chunks: Sequence[Chunk], features: Features) -> Features:
        """Features of the rows of chunks."""
        token_ids: Tensor = features["input_ids"]
        rows = []
        for chunk in chunks:
            span: Span = features["spans"][chunk.row]
            # Positions in the text's own row, which stand for their token ids until the end.
            prefix = range(span.start)
            suffix = range(span.start + span.text_length, span.row_length)
            layout = RowLayout((tuple(prefix), *[None] * self.repeats, tuple(suffix)))
            first_position = span.start + chunk.start
            rows.append(layout.build_row(range(first_position, first_position + chunk.length)))
        chunk_features = pad(rows)
        for name in ("input_ids", "copy_ids", "attention_mask"):
            chunk_features[name] = chunk_features[name].to(token_ids.device, non_blocking=True)
        text_rows = torch.tensor([[chunk.row] for chunk in chunks])
        text_rows = text_rows.to(token_ids.device, non_blocking=True)
        chunk_features["input_ids"] = token_ids[text_rows, chunk_features["input_ids"]]
        return chunk_features


@published
class ChunkedReBAPooling(ReBAPooling):
    """ReBA for long texts: the text runs once, and only its chunks are repeated.

    v_t are the hidden states of the text's own run. Each chunk runs ``repeats`` times in a row,
    which gives A^new and the hidden states v'_t:

        e_i = A^new[i, i] · v_i + Σ_t A^new[i, t] · v'_t over the content positions t > i of the
        chunk's run.

    A text of n tokens makes P = ⌈n / chunk⌉ chunks; chunk p = 0 … P − 1 begins at token ⌊p · n /
    P⌋.

    Args:
        embedding_dimension: Dimension d of the hidden states.
        chunk: Content tokens that a chunk holds at most.
        pooling: ``"last"``: e_n, for which only the last chunk runs; ``"mean"``: the mean of e_1 …
            e_n.
        repeats: Copies of each chunk.
        include_special: Sum over template and special positions of the chunk's run too.
        normalize_weights: Divide the weights of each e_i by their sum.

    Source:
        ReBA, section 5 (proposed there for long texts; how to cut is this project's choice).

    Example:
        >>> import st_reba
        >>> model = st_reba.build("mini", "reba", pooling="mean", chunk=8)
        >>> model.encode("你好，世界。" * 100).shape
        (192,)
    """

    config_keys = [*ReBAPooling.config_keys, "chunk", "repeats"]

    def __init__(
        self,
        embedding_dimension: int,
        pooling: str = "last",
        *,
        chunk: int,
        repeats: int = 2,
        **options: bool,
    ) -> None:
        super().__init__(embedding_dimension, pooling, **options)
        self.chunk = chunk
        self.repeats = repeats
        if chunk < 1 or repeats not in range(1, MAX_REPEATS + 1):
            raise ValueError(
                f"chunk={chunk}, repeats={repeats}: give 1 or more, and at most {MAX_REPEATS} copies."
            )

    @property
    def capture(self) -> Capture:
        """The rows of the chunks that the sentence vector needs."""
        plan = ChunkPlan(self.chunk, self.repeats, last_only=self.pooling == "last")
        return replace(super().capture, chunk_plan=plan)

    @property
    def token_capture(self) -> Capture:
        """The rows of the chunks that words and tokens need."""
        plan = ChunkPlan(self.chunk, self.repeats, last_only=False)
        return replace(super().token_capture, chunk_plan=plan)

    def on_model_ready(self, model: Any) -> None:
        """Check that the text runs once."""
        super().on_model_ready(model)
        if model[0].copies != 1 or model[0].template_count != 1:
            raise ValueError(
                f"chunk={self.chunk}: the text itself runs once. Give RepeatTransformer repeats=1."
            )

    def token_vectors(self, features: Features, normalize: bool = False) -> Tensor:
        """The e_i of every token, [B, n, d]; or of the last, [B, 1, d], if only last chunks ran."""
        text_states: Tensor = features["token_embeddings"]
        spans: list[Span] = features["spans"]
        last_only = features["capture"].chunk_plan.last_only
        longest = 1 if last_only else max(span.text_length for span in spans)
        vectors = text_states.new_zeros(len(text_states), longest, text_states.shape[2])
        precision = torch.promote_types(text_states.dtype, torch.float32)
        for chunks, output in features["chunk_outputs"]:
            chunk_weights = self._weights(output, normalize).to(precision)
            for chunk, weights, chunk_states in zip(
                chunks, chunk_weights, output["token_embeddings"], strict=True
            ):
                # The rows are those of the chunk's tokens in copy 1, or of the last of them.
                row_count = 1 if last_only else chunk.length
                copy_end = spans[chunk.row].start + chunk.length
                later_weights = weights[:row_count].clone()
                diagonal = later_weights[:, copy_end - row_count : copy_end].diagonal()
                own_weights = diagonal.clone()
                diagonal.zero_()
                text_end = copy_end + chunk.start
                own_states = text_states[chunk.row, text_end - row_count : text_end].to(precision)
                later_sums = later_weights @ chunk_states.to(precision)
                token_sums = own_weights[:, None] * own_states + later_sums
                first_row = 0 if last_only else chunk.start
                token_sums = token_sums.to(text_states.dtype)
                vectors[chunk.row, first_row : first_row + row_count] = token_sums
        return vectors


def chunk_bounds(token_count: int, chunk: int) -> list[int]:
    """Where a text of ``token_count`` tokens is cut: the first token of every chunk, and ``token_count`` itself.

    Example:
        >>> chunk_bounds(10, 4)
        [0, 3, 6, 10]
    """
    chunk_count = -(-token_count // chunk)
    return [number * token_count // chunk_count for number in range(chunk_count + 1)]
