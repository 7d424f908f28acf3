"""Attention by blocks of queries: for ReBA, which needs its probabilities, and for what SDPA does not compute."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from .layout import PARTS


class ScoreTerms(NamedTuple):
    """Everything but query · key that decides a layer's scores; query [B, H, T, D], key [B, G, S, D], G divides H."""

    mask: Tensor | None = None  # [B or 1, 1 or H, T, S], boolean (True: visible) or additive
    causal: bool = False  # without a mask: a query sees no later key
    scaling: float = 1.0
    softcap: float | None = None  # scores become softcap · tanh(score / softcap)
    sinks: Tensor | None = None  # [H], one more logit in every softmax, without a value
    bias: Tensor | None = None  # [B or 1, H, T, S], added
    dropout: float = 0.0


def attend(
    query: Tensor, key: Tensor, value: Tensor, terms: ScoreTerms, backward: Any = None
) -> tuple[Tensor, Tensor | None]:
    """Attention of one layer, [B, T, H, D'], and the columns [B, R, T] that a BackwardAttention takes of it."""
    columns: list[Tensor] = []
    observe = None if backward is None else lambda block, start: columns.append(backward.columns(block))
    output = blocked_attention(query, key, value, terms, observe)
    # They are joined as they lie in memory, [B, T, R].
    return output, torch.cat([each.mT for each in columns], dim=1).mT if columns else None


def blocked_attention(
    query: Tensor, key: Tensor, value: Tensor, terms: ScoreTerms, observe: Callable[[Tensor, int], object] | None = None
) -> Tensor:
    """Attention [B, T, H, D']; ``observe`` gets each block's probabilities [B, H, Q, K] and the first of its queries.

    No block holds more than some million probabilities, whatever the length.
    """
    batch, heads, length, width = query.shape
    groups, keys = key.shape[1:3]
    key, value = key.contiguous(), value.contiguous()  # else every block copies them
    precision = torch.promote_types(query.dtype, torch.float32)
    numbers = 1 << (18 if query.device.type == "cpu" else 24)  # in a block of probabilities
    size = max(16, numbers // (batch * heads * keys))
    blocks = []
    for start in range(0, length, size):
        stop = min(start + size, length)
        # A causal block needs no keys after its last query.
        seen = keys - length + stop if terms.causal else keys
        # The heads of a group share its key.
        scaled = (query[:, :, start:stop] * terms.scaling).reshape(batch, groups, -1, width)
        scores = (scaled @ key[:, :, :seen].mT).view(batch, heads, stop - start, seen).to(precision)
        if terms.softcap is not None:
            scores = torch.tanh(scores / terms.softcap) * terms.softcap
        if terms.bias is not None:
            scores = scores + terms.bias[:, :, start:stop, :seen]
        if terms.mask is not None:
            mask = terms.mask[:, :, start:stop, :seen]
            scores = scores.masked_fill_(~mask, -torch.inf) if mask.dtype == torch.bool else scores + mask
        elif terms.causal:
            # Only among a block's own positions is there a later one.
            later = torch.ones(stop - start, stop - start, dtype=torch.bool, device=scores.device).triu(1)
            scores[..., start - stop :].masked_fill_(later, -torch.inf)
        if terms.sinks is not None:
            sink = terms.sinks.to(precision)[None, :, None, None].expand(batch, -1, stop - start, 1)
            scores = torch.cat([scores, sink], dim=-1)
        probabilities = scores.softmax(dim=-1)[..., :seen]
        if observe is not None:
            observe(probabilities, start)
        weights = nn.functional.dropout(probabilities.to(value.dtype), terms.dropout, training=terms.dropout > 0)
        mixed = weights.reshape(batch, groups, -1, seen) @ value[:, :, :seen]
        blocks.append(mixed.view(batch, heads, stop - start, -1).transpose(1, 2))
    return torch.cat(blocks, dim=1)


PARTS |= {"terms": ScoreTerms, "blocks": attend}
