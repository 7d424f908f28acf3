"""ChunkedReBAPooling: backward attention within pieces of a text, at a cost that grows with its length alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Literal

import torch
from torch import Tensor

from .capture import Capture
from .layout import Frame, pad, published
from .pooling import ReBAPooling

# Positions of a forward pass over pieces, so that memory does not grow with the text.
_POSITIONS = 1 << 14


@dataclass(frozen=True)
class Pieces:
    """Pieces of texts, each repeated by itself, with the same tokens around it as around the text.

    Args:
        chunk: Content tokens that a piece holds at most.
        repeats: Copies of each piece.
        last_only: Only each text's last piece.
    """

    chunk: int
    repeats: int
    last_only: bool

    def batches(self, features: Mapping[str, Any]) -> Iterator[tuple[list[tuple[int, int, int]], dict[str, Any]]]:
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
        while pieces:
            number = max(1, _POSITIONS // (around + self.repeats * pieces[0][2]))
            batch, pieces = pieces[:number], pieces[number:]
            placed = []
            for row, start, size in batch:
                first, length, total = spans[row]
                # Positions in the text's own row, which stand for their ids until the end.
                frame = Frame((tuple(range(first)), *[None] * self.repeats, tuple(range(first + length, total))))
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

    config_keys = ["embedding_dimension", "chunk", "pooling", "repeats", "include_special", "normalize_weights"]

    def __init__(
        self,
        embedding_dimension: int,
        chunk: int,
        pooling: Literal["last", "mean"] = "last",
        repeats: int = 2,
        include_special: bool = False,
        normalize_weights: bool = False,
    ) -> None:
        super().__init__(embedding_dimension, pooling, "paper", include_special, normalize_weights)
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
        """Check that the text runs once, and that a full piece's copies fit."""
        super().on_model_ready(model)
        if model[0].copies != 1 or model[0].rows != 1:
            raise ValueError(f"chunk={self.chunk}: the text itself runs once. Give RepeatTransformer repeats=1.")

    def forward(self, features: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        """Pool, as ReBAPooling does."""
        self._check(features)
        if self.pooling == "last":
            counts = [span.length - 1 for span in features["spans"]]
            share = torch.nn.functional.one_hot(torch.tensor(counts), max(counts) + 1).float()
            return {**features, "sentence_embedding": self._sums(features, share)}
        counts = [span.length for span in features["spans"]]
        share = torch.stack([(torch.arange(max(counts)) < count) / count for count in counts])
        return {**features, "sentence_embedding": self._sums(features, share)}

    def token_vectors(self, features: dict[str, Any], normalize: bool = False) -> Tensor:
        """The e_i of every token, [B, n, d]."""
        return self._sums(features, None, normalize)

    def span_embeddings(self, features: dict[str, Any], spans: Tensor, *, normalize: bool = False) -> Tensor:
        """Vectors of words or spans; see ReBAPooling."""
        return self._sums(features, spans.cpu() / spans.cpu().sum(dim=1, keepdim=True).clamp_min(1), normalize)

    def _sums(self, features: dict[str, Any], share: Tensor | None, normalize: bool = False) -> Tensor:
        """Σ_i share_i · e_i of each text, [B, d], for shares [B, n]; None: every e_i, [B, n, d]."""
        hidden = features["token_embeddings"]
        longest, device = max(span.length for span in features["spans"]), hidden.device
        precision = torch.promote_types(hidden.dtype, torch.float32)
        result = hidden.new_zeros(len(hidden) * (longest if share is None else 1), hidden.shape[-1], dtype=precision)
        for batch, output in features["pieces"]:
            weights = self._weights(output, normalize)
            row, start, size = torch.tensor(batch).to(device, non_blocking=True)[:, :, None].unbind(dim=1)
            first = torch.tensor([[features["spans"][row].start] for row, _, _ in batch]).to(device, non_blocking=True)
            # The captured rows are those of the piece's tokens in copy 1, or of the last one alone.
            rows = torch.arange(weights.shape[1], device=device)
            offset = torch.minimum(rows, size - 1) if len(rows) > 1 else size - 1
            token, here = start + offset, (first + offset)[:, :, None]
            own, later = weights.gather(2, here), weights.scatter(2, here, 0.0)
            vectors = torch.bmm(later.to(precision), output["token_embeddings"].to(precision))
            vectors = vectors + own * hidden[row, first + token].to(precision)
            if share is None:
                result = result.index_add(0, (row * longest + token).flatten(), vectors.flatten(0, 1))
            else:
                parts = share.to(device, non_blocking=True)[row, token][:, None].to(precision)
                result = result.index_add(0, row.flatten(), torch.bmm(parts, vectors)[:, 0])
        shaped: Tensor = result.view(len(hidden), -1, hidden.shape[-1]) if share is None else result
        return shaped.to(hidden.dtype)


def cuts(count: int, chunk: int) -> list[int]:
    """Where a text of so many tokens is cut: the first token of every piece, and the number at the end.

    Example:
        >>> cuts(10, 4)
        [0, 3, 6, 10]
    """
    pieces = -(-count // chunk)
    return [piece * count // pieces for piece in range(pieces + 1)]
