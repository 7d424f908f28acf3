"""Rows of A^new, the maximum over layers and heads of (A + Aᵀ) / 2: those of the tokens that ReBA pools.

In a causal layer, row r is ½ · max A[t, r] right of the diagonal, and max A[r, r] on it. Where it looks ahead,
A[r, t] + A[t, r] is taken within the head. The factor ½ is applied at the end.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import torch
from torch import Tensor

from .attention import ForwardPass, Scores, blocked_attention, show_attention
from .layout import PARTS, Span


@dataclass(frozen=True)
class Capture:
    """Rows of A^new that a pooling asks for.

    Args:
        rows: The anchors, which are the positions whose rows are kept. ``"last"``: the last content token of copy 1;
            ``"copy"``: every content token of copy 1; ``"end"``: the very last real position; ``"half"``: the first
            half of all real positions.
        both: Keep the columns before the anchor too.
        zeros: A text whose states are not finite gets zeros, as in the authors' code; otherwise it is an error.
        pieces: Where given, the rows are those of pieces of the text, each repeated by itself.
    """

    rows: str
    both: bool = False
    zeros: bool = False
    pieces: Any = None

    def begin(self, state: ForwardPass) -> None:
        """Keep the rows while the layers of a pass run."""
        if not show_attention(state.transformer.model):
            state.arguments["output_attentions"] = True
        state.capture = BackwardAttention(self, state.spans, state.real)

    def finish(self, state: ForwardPass, hidden: Tensor) -> Tensor:
        """Hand the rows over as ``backward_attention`` [B, R, T]; an error where a layer's attention was not seen."""
        config, seen = state.transformer.config.get_text_config(), state.capture.layers
        types = getattr(config, "layer_types", None) or getattr(config, "layers_block_type", None) or ()
        kinds = [each for each in types if each == "hybrid" or ("attention" in each and "linear" not in each)]
        expected = len(kinds) or config.num_hidden_layers
        if seen < expected + (0 if state.masks is None else len(state.masks.second)):
            raise ValueError(f"ReBA needs the attention of {expected} layers, but {seen} showed theirs. Use Echo.")
        state.features["backward_attention"] = state.capture.rows()
        return hidden

    def anchors(self, span: Span) -> tuple[int, int]:
        """First anchor and number of anchors of a text."""
        copy, half = (span.start, span.length), max(1, span.total // 2)
        last, end = (span.start + span.length - 1, 1), (span.total - 1, 1)
        return {"last": last, "copy": copy, "end": end, "half": (0, half)}[self.rows]


class BackwardAttention:
    """The rows of A^new that a capture keeps of texts at ``spans``, raised while the layers of a pass run."""

    def __init__(self, capture: Capture, spans: Sequence[Span], real: Tensor) -> None:
        self.both, self.real = capture.both, real  # real: [B, T] bool
        runs = [capture.anchors(span) for span in spans]
        self.firsts, self.counts = [first for first, _ in runs], [count for _, count in runs]
        first, count = torch.tensor(runs).to(real.device, non_blocking=True)[:, :, None].unbind(dim=1)
        offset = torch.arange(max(self.counts), device=real.device)
        self.anchors = (first + offset).clamp(max=real.shape[1] - 1)  # [B, R]
        self.valid = offset < count
        self.layers = 0
        self.maxima: list[Tensor] = []  # [B, R, T] each; more than one only while gradients are wanted
        self._rows: Tensor | None = None

    def attend(self, query: Tensor, key: Tensor, value: Tensor, scores: Scores, looks_ahead: bool) -> Tensor:
        """Attention of one layer, [B, T, H, D'], whose rows raise the maxima."""
        if not (looks_ahead or self.both):
            found = PARTS["fused"](query, key, value, scores, self) if "fused" in PARTS else None
            if found is None:
                columns: list[Tensor] = []
                output = blocked_attention(
                    query, key, value, scores, lambda block, start: columns.append(self.columns(block, start))
                )
                found = output, torch.cat(columns, dim=2)
            self.add(found[1])
            return found[0]
        attended: Tensor = PARTS["both_ways"](self, query, key, value, scores)
        return attended

    def columns(self, probabilities: Tensor, start: int) -> Tensor:
        """Columns of the anchors, [B, R, Q], the maximum over heads, of probabilities [B, H, Q, K]."""
        keys = probabilities.shape[3]
        index = self.anchors.clamp(max=keys - 1)[:, None]  # [B, 1, R]
        if index.shape[2] == 1:
            largest = probabilities.gather(3, index[:, None].expand(*probabilities.shape[:3], -1)).amax(dim=1)
        else:
            largest = probabilities.amax(dim=1).gather(2, index.expand(-1, probabilities.shape[2], -1))
        return largest.masked_fill(self.anchors[:, None] >= keys, 0.0).mT

    def add(self, layer: Tensor, *, first: bool = True) -> None:
        """Raise the maxima by those of a layer, or of some of its heads, [B, R, T]; ``first``: count a new layer."""
        if self._rows is not None:
            return  # Gradient checkpointing runs a layer once more.
        self.layers += first
        if layer.requires_grad or not self.maxima:
            self.maxima.append(layer)
        else:
            torch.maximum(self.maxima[0], layer, out=self.maxima[0])

    def rows(self) -> Tensor:
        """[B, R, T], zero at padding, after a text's own rows, and before the anchor unless ``both``."""
        if self._rows is None:
            position = torch.arange(self.real.shape[1], device=self.real.device)
            kept = self.valid[:, :, None] & self.real[:, None]
            if not self.both:
                kept = kept & (position >= self.anchors[:, :, None])
            largest = reduce(torch.maximum, self.maxima)
            self._rows = (largest * torch.where(self.here(), 1.0, 0.5)).masked_fill(~kept, 0.0)
            self.maxima = []
        return self._rows

    def here(self) -> Tensor:
        """Where a column is its row's anchor, [B, R, T]."""
        return torch.arange(self.real.shape[1], device=self.real.device) == self.anchors[:, :, None]
