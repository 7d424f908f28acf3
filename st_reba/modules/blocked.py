"""Attention computed block by block over the queries, where no fused kernel computes what is asked for."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from .scores import Scores

# A block of probabilities holds about this many numbers at most, but never fewer than 16 rows.
BLOCK_NUMBERS = 1 << 20


def blocked_attention(
    scores: Scores,
    value: Tensor,
    *,
    sinks: Tensor | None = None,
    dropout: float = 0.0,
    see: Callable[[Tensor, int], None] | None = None,
) -> tuple[Tensor, Tensor]:
    """Compute one layer's attention.

    Args:
        scores: What the softmax is taken of.
        value: [B, H', S, D'].
        sinks: [H], one more logit in every softmax, without a value.
        dropout: Dropout rate on the probabilities.
        see: Called with every block's probabilities [B, H, Q, K], and the position of its first query.

    Returns:
        The output [B, T, H, D'], and the logarithm of every row's sum, [B, H, T].
    """
    batch, heads, queries, _ = scores.query.shape
    groups, keys = scores.key.shape[1], scores.key.shape[2]
    triangular = scores.mask is None and scores.causal and queries == keys
    output = value.new_empty(batch, queries, heads, value.shape[-1])
    totals = []
    rows = max(16, BLOCK_NUMBERS // (batch * heads * keys))
    for start in range(0, queries, rows):
        stop = min(start + rows, queries)
        visible = stop if triangular else keys
        block = scores.of_all_heads(slice(start, stop), slice(0, visible)).to(scores.precision)
        highest = block.amax(dim=-1, keepdim=True)
        exponentials = torch.exp(block - highest)
        total = (highest + exponentials.sum(dim=-1, keepdim=True).log()).squeeze(-1)
        if sinks is not None:
            total = torch.logaddexp(total, sinks.to(total.dtype)[None, :, None])
        probabilities = exponentials * torch.exp(highest - total[..., None])
        totals.append(total.detach())
        if see is not None:
            see(probabilities, start)
        weights = nn.functional.dropout(probabilities.to(value.dtype), dropout, training=dropout > 0)
        mixed = torch.matmul(weights.reshape(batch, groups, -1, visible), value[:, :, :visible])
        output[:, start:stop] = mixed.view(batch, heads, stop - start, -1).transpose(1, 2)
    return output, torch.cat(totals, dim=2)
