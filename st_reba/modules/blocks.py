"""Attention by blocks of queries: for ReBA, which needs its probabilities, and for what SDPA does not compute."""

from __future__ import annotations

from math import isqrt
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from .extensions import extensions

BLOCK = 1 << 20  # probabilities that stay in a processor's cache; a GPU takes 16 times as many at once


class ScoreTerms(NamedTuple):
    """Everything but query · key that decides a layer's scores; query [B, H, T, D], key [B, G, S, D], G divides H."""

    mask: Tensor | None = None  # [B or 1, 1 or H, T, S], boolean (True: visible) or additive
    causal: bool = False  # without a mask: a query sees no later key
    scaling: float = 1.0
    softcap: float | None = None  # scores become softcap · tanh(score / softcap)
    sinks: Tensor | None = None  # [H], one more logit in every softmax, without a value
    bias: Tensor | None = None  # [B or 1, H, T, S], added
    dropout: float = 0.0

    def of(self, texts: slice, queries: slice, keys: int) -> ScoreTerms:
        """The terms of a block: some texts, some of their queries, the first keys."""
        mask, bias = (
            each if each is None else (each if len(each) == 1 else each[texts])[:, :, queries, :keys]
            for each in (self.mask, self.bias)
        )
        return self._replace(mask=mask, bias=bias)


def attend(query: Tensor, key: Tensor, value: Tensor, terms: ScoreTerms, observe: Any = None) -> Tensor:
    """Attention of one layer, [B, T, H, D'].

    ``observe`` gets the probabilities [b, H, Q, S] of each block, whose texts they are, and the first of its queries.
    With gradients, which keep all probabilities anyway, a layer is one block.
    """
    batch, heads, length, _ = query.shape
    groups, keys = key.shape[1:3]
    texts, most = batch, length * keys  # most: probabilities of a text and head in a block
    if not torch.is_grad_enabled():
        most = BLOCK * (1 if query.device.type == "cpu" else 16) // heads
        texts = min(batch, max(1, most // keys // 32))  # few where they are long, so that a block has 32 queries
        most //= texts
    cuts = [0]
    while cuts[-1] < length:
        # A causal block needs no key after its last query: the first blocks have more queries.
        before = keys - length + cuts[-1]
        count = (isqrt(before**2 + 4 * most) - before) // 2 if terms.causal else most // keys
        cuts.append(min(cuts[-1] + max(16, count), length))
    later = query.new_full((cuts[1], cuts[1]), -torch.inf, dtype=torch.float32).triu(1)
    output = value.new_empty(batch, length, heads, value.shape[3])
    for first in range(0, batch, texts):
        some = slice(first, first + texts)
        own_key, own_value = key[some].contiguous(), value[some].contiguous()  # else every block copies them
        for start, stop in zip(cuts, cuts[1:], strict=False):
            seen = keys - length + stop if terms.causal else keys
            mine = terms.of(some, slice(start, stop), seen)
            probabilities = _probabilities(query[some, :, start:stop], own_key[:, :, :seen], mine, later)
            if observe is not None:
                observe(probabilities, some, start)
            weights = nn.functional.dropout(probabilities.to(value.dtype), terms.dropout, training=terms.dropout > 0)
            mixed = weights.reshape(len(weights), groups, -1, seen) @ own_value[:, :, :seen]
            output[some, start:stop] = mixed.view(len(weights), heads, stop - start, -1).transpose(1, 2)
    return output


def _probabilities(query: Tensor, key: Tensor, terms: ScoreTerms, later: Tensor) -> Tensor:
    """Attention [B, H, Q, K] of a block, in float32 or better; where it is causal, its queries are the last keys."""
    batch, heads, queries, width = query.shape
    groups, keys = key.shape[1:3]
    # The heads of a group share its key.
    rows = (query * terms.scaling).reshape(batch, groups, -1, width)
    scores = (rows @ key.mT).view(batch, heads, queries, keys).to(torch.promote_types(query.dtype, torch.float32))
    if terms.softcap is not None:
        scores = torch.tanh(scores / terms.softcap) * terms.softcap
    if terms.bias is not None:
        scores = scores + terms.bias
    if terms.mask is not None:
        hidden = terms.mask.dtype == torch.bool
        scores = scores.masked_fill_(~terms.mask, -torch.inf) if hidden else scores + terms.mask
    elif terms.causal:
        # Only among a block's own positions is there a later one.
        scores[..., keys - queries :].add_(later[:queries, :queries])
    if terms.sinks is not None:
        sink = terms.sinks.to(scores.dtype)[None, :, None, None].expand(batch, -1, queries, 1)
        scores = torch.cat([scores, sink], dim=-1)
    return torch.softmax(scores, dim=-1, out=None if torch.is_grad_enabled() else scores)[..., :keys]


extensions.score_terms = ScoreTerms
extensions.attend_in_blocks = attend
