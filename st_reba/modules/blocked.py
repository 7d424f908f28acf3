"""Attention computed block by block over the queries, so that a capture can see its probabilities."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from .capture import Capture

# A block of probabilities holds about this many numbers at most, but never fewer than 16 rows.
BLOCK_NUMBERS = 1 << 20


@dataclass(frozen=True)
class BlockedAttention:
    """One layer's attention.

    Args:
        query: [B, H, T, D].
        key: [B, H', S, D], H' dividing H (grouped-query attention: keys are not repeated).
        value: [B, H', S, D'].
        mask: [B or 1, 1 or H, T, S], boolean (True: visible) or additive; None: everything but what ``causal`` hides.
        causal: With mask=None: a query sees no later key.
        scaling: Factor on query·key; None: 1/sqrt(D).
        softcap: Scores become softcap · tanh(score / softcap).
        sinks: [H], one more logit in every softmax, without a value.
        bias: [1 or B, H, T, S], added to the scores.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    mask: Tensor | None = None
    causal: bool = False
    scaling: float | None = None
    softcap: float | None = None
    sinks: Tensor | None = None
    bias: Tensor | None = None

    def run(self, capture: Capture | None = None, *, dropout: float = 0.0, both_ways: bool = False) -> Tensor:
        """Compute the attention.

        Args:
            capture: Sees every block's probabilities.
            dropout: Dropout rate on the probabilities.
            both_ways: The capture gets rows and columns of the whole instead, which a layer that does not only look
                back needs.

        Returns:
            [B, T, H, D'].
        """
        batch, heads, queries, _ = self.query.shape
        groups, keys = self.key.shape[1], self.key.shape[2]
        triangular = self.mask is None and self.causal and queries == keys
        output = self.value.new_empty(batch, queries, heads, self.value.shape[-1])
        totals = []
        rows = max(16, BLOCK_NUMBERS // (batch * heads * keys))
        for start in range(0, queries, rows):
            stop = min(start + rows, queries)
            visible = stop if triangular else keys
            scores = self._scores(slice(start, stop), slice(0, visible))
            probabilities, total = self._softmax(scores, total=both_ways)
            if total is not None:
                totals.append(total)
            elif capture is not None:
                capture.update(probabilities, start)
            weights = nn.functional.dropout(probabilities.to(self.value.dtype), dropout, training=dropout > 0)
            mixed = torch.matmul(weights.reshape(batch, groups, -1, visible), self.value[:, :, :visible])
            output[:, start:stop] = mixed.view(batch, heads, stop - start, -1).transpose(1, 2)
        if capture is not None and both_ways:
            self._show_both_ways(capture, torch.cat(totals, dim=2))
        return output

    def _show_both_ways(self, capture: Capture, totals: Tensor) -> None:
        """Hand over the anchors' rows and columns, a block of anchors at a time.

        A column needs every query's total, which is known only after the first pass over all blocks.
        """
        batch, heads, length, _ = self.query.shape
        size = max(1, BLOCK_NUMBERS // (batch * heads * length))
        anchors = capture.anchors()
        for start in range(0, anchors.shape[1], size):
            chosen = anchors[:, start : start + size]
            rows, _ = self._softmax(self._scores(chosen, slice(0, length)), total=False)
            columns = torch.exp(self._scores(slice(0, length), chosen).to(totals.dtype) - totals)
            capture.update_both_ways(rows, columns, start)

    def _scores(self, queries: slice | Tensor, keys: slice | Tensor) -> Tensor:
        """Masked scores [B, H, Q, K] of some queries and keys: a slice, or [B, n] positions of each text."""
        batch, heads, _, width = self.query.shape
        scaling = width**-0.5 if self.scaling is None else self.scaling
        query, key = _pick(self.query, queries, 2), _pick(self.key, keys, 2)
        grouped = (query * scaling).reshape(batch, self.key.shape[1], -1, width)
        scores = torch.matmul(grouped, key.transpose(2, 3)).view(batch, heads, query.shape[2], key.shape[2])
        # The scores' own type: under autocast it is not the queries'.
        lowest = torch.finfo(scores.dtype).min
        if self.softcap is not None:
            scores = torch.tanh(scores / self.softcap) * self.softcap
        if self.bias is not None:
            scores = scores + _pick(_pick(self.bias, queries, 2), keys, 3)
        if self.mask is not None:
            mask = _pick(_pick(self.mask, queries, 2), keys, 3)
            return scores.masked_fill(~mask, lowest) if mask.dtype == torch.bool else scores + mask
        if self.causal:
            positions = torch.arange(self.key.shape[2], device=scores.device)[None, None, None].expand(batch, 1, 1, -1)
            hidden = _pick(positions, keys, 3) > _pick(positions, queries, 3).transpose(2, 3)
            scores = scores.masked_fill(hidden, lowest)
        return scores

    def _softmax(self, scores: Tensor, *, total: bool) -> tuple[Tensor, Tensor | None]:
        """Probabilities, in float32 at least, and on request the logarithm of each row's sum [B, H, Q, 1]."""
        precision = torch.promote_types(self.query.dtype, torch.float32)
        if self.sinks is None:
            everything = scores
        else:
            sinks = self.sinks.reshape(1, -1, 1, 1).expand(scores.shape[0], -1, scores.shape[2], 1).to(scores.dtype)
            everything = torch.cat([scores, sinks], dim=-1)
        probabilities = torch.softmax(everything, dim=-1, dtype=precision)[..., : scores.shape[-1]]
        return probabilities, everything.to(precision).logsumexp(dim=-1, keepdim=True) if total else None


def _pick(tensor: Tensor, positions: slice | Tensor, dim: int) -> Tensor:
    """A slice of positions along ``dim`` of a [B, n, Q, K] tensor, or [B, n] positions of each text."""
    if isinstance(positions, slice):
        return tensor[(slice(None),) * dim + (positions,)]
    shape = list(tensor.shape)
    shape[0] = positions.shape[0]
    tensor = tensor.expand(shape)
    shape[dim] = positions.shape[1]
    place = [1, 1, 1, 1]
    place[0], place[dim] = positions.shape
    return tensor.gather(dim, positions.view(place).expand(shape))
