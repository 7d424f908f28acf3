"""ChunkedReBAPooling: backward attention within pieces of a text, at a cost that grows with its length alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from .capture import Capture
from .layout import Frame, pad, published
from .pooling import ReBAPooling

# Positions of a forward pass over pieces, so that memory does not grow with the text.
_POSITIONS = 1 << 14


@dataclass(frozen=True)
class Pieces:
    """How texts are cut; each piece runs by itself, repeated, with the same tokens around it as around the text.

    Args:
        chunk: Content tokens that a piece holds at most.
        repeats: Copies of each piece.
        last_only: Only each text's last piece.
    """

    chunk: int
    repeats: int
    last_only: bool

    def batches(self, features: Mapping[str, Any], config: Any) -> Iterator[tuple[list[Any], dict[str, Any]]]:
        """Batches of pieces, the longest first: (row of the text, first token, tokens) each, and their features."""
        spans, ids = features["spans"], features["input_ids"]
        pieces = [
            (row, start, stop - start)
            for row, span in enumerate(spans)
            for start, stop in pairwise(cuts(span.length, self.chunk))
            if stop == span.length or not self.last_only
        ]
        pieces.sort(key=lambda piece: -piece[2])
        around = max(span.total - span.length for span in spans)
        most = getattr(config.get_text_config(), "max_position_embeddings", None)
        if most and around + self.repeats * pieces[0][2] > most:
            raise ValueError(f"chunk={self.chunk}: the copies and what is around them need more than {most} positions.")
        while pieces:
            number = max(1, _POSITIONS // (around + self.repeats * pieces[0][2]))
            batch, pieces = pieces[:number], pieces[number:]
            placed = []
            for row, start, size in batch:
                span, first = spans[row], spans[row].start
                # Positions in the text's own row, which stand for their ids until the end.
                before, after = tuple(range(first)), tuple(range(first + span.length, span.total))
                frame = Frame((before, *[None] * self.repeats, after))
                placed.append(frame.place(range(first + start, first + start + size)))
            laid_out = pad(placed)
            moved = {name: laid_out[name].to(ids.device, non_blocking=True) for name in laid_out if name != "spans"}
            rows = torch.tensor([[row] for row, _, _ in batch]).to(ids.device, non_blocking=True)
            yield batch, {**moved, "spans": laid_out["spans"], "input_ids": ids[rows, moved["input_ids"]]}


@published
class ChunkedReBAPooling(ReBAPooling):
    """ReBA for long texts: the text runs once, and only its pieces are repeated.

    v_t are the hidden states of the text's own run. Each piece runs ``repeats`` times in a row, which gives A^new and
    the hidden states v'_t:

        e_i = A^new[i, i] · v_i + Σ_t A^new[i, t] · v'_t over the content positions t > i of the piece's run.

    A text of n tokens makes P = ⌈n / chunk⌉ pieces; piece p = 0 … P − 1 begins at token ⌊p · n / P⌋.

    Args:
        embedding_dimension: Dimension d of the hidden states.
        chunk: Content tokens that a piece holds at most.
        pooling: ``"last"``: e_n, for which only the last piece runs; ``"mean"``: the mean of e_1 … e_n.
        repeats: Copies of each piece.
        include_special: Sum over template and special positions of the piece's run too.
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
        self, embedding_dimension: int, pooling: str = "last", *, chunk: int, repeats: int = 2, **options: bool
    ) -> None:
        super().__init__(embedding_dimension, pooling, **options)
        self.chunk, self.repeats = chunk, repeats
        if chunk < 1 or repeats not in range(1, 65):
            raise ValueError(f"chunk={chunk}, repeats={repeats}: give 1 or more, and at most 64 copies.")

    @property
    def capture(self) -> Capture:
        """The rows of the pieces that the sentence vector needs."""
        return replace(super().capture, pieces=Pieces(self.chunk, self.repeats, self.pooling == "last"))

    @property
    def token_capture(self) -> Capture:
        """The rows of the pieces that words and tokens need."""
        return replace(super().token_capture, pieces=Pieces(self.chunk, self.repeats, False))

    def on_model_ready(self, model: Any) -> None:
        """Check that the text runs once."""
        super().on_model_ready(model)
        if model[0].copies != 1 or model[0].rows != 1:
            raise ValueError(f"chunk={self.chunk}: the text itself runs once. Give RepeatTransformer repeats=1.")

    def token_vectors(self, features: dict[str, Any], normalize: bool = False) -> Tensor:
        """The e_i of every token, [B, n, d]; of the last tokens alone, [B, 1, d], where only the last pieces ran."""
        hidden, spans = features["token_embeddings"], features["spans"]
        last_only = features["captured"].pieces.last_only
        vectors: Tensor = hidden.new_zeros(
            len(hidden), 1 if last_only else max(span.length for span in spans), hidden.shape[2]
        )
        precision = torch.promote_types(hidden.dtype, torch.float32)
        for batch, output in features["pieces"]:
            rows, states = self._weights(output, normalize).to(precision), output["token_embeddings"].to(precision)
            for (text, start, size), weights, repeated in zip(batch, rows, states, strict=True):
                # The rows are those of the piece's tokens in copy 1, or of the last of them.
                count = 1 if last_only else size
                stop = spans[text].start + size
                own = weights[:count, stop - count : stop].diagonal()
                later = weights[:count].clone()
                later[:, stop - count : stop].diagonal().zero_()
                once = hidden[text, stop + start - count : stop + start].to(precision)
                first = 0 if last_only else start
                vectors[text, first : first + count] = (own[:, None] * once + later @ repeated).to(hidden.dtype)
        return vectors


def cuts(count: int, chunk: int) -> list[int]:
    """Where a text of so many tokens is cut: the first token of every piece, and the number at the end.

    Example:
        >>> cuts(10, 4)
        [0, 3, 6, 10]
    """
    pieces = -(-count // chunk)
    return [piece * count // pieces for piece in range(pieces + 1)]
