"""Attention by blocks of queries: for ReBA, which needs its probabilities, and for what SDPA does not compute."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from math import isqrt
from typing import NamedTuple

import torch
from torch import Tensor, nn

from .extensions import extensions

# Probabilities of a block: this many fit a CPU's cache; a GPU takes 16 times as many.
BLOCK_SIZE = 1 << 20


class ScoreTerms(NamedTuple):
    """Everything but query · key that decides a layer's scores; query [B, H, T, D], key [B, G, S, D], G divides H."""

    mask: Tensor | None = None  # [B or 1, 1 or H, T, S], boolean (True: visible) or additive
    causal: bool = False  # without a mask: a query sees no later key
    scaling: float = 1.0
    softcap: float | None = None  # scores become softcap · tanh(score / softcap)
    sinks: Tensor | None = None  # [H], one more logit in every softmax, without a value
    bias: Tensor | None = None  # [B or 1, H, T, S], added
    dropout: float = 0.0

    def slice_block(self, texts: slice, queries: slice, key_count: int) -> ScoreTerms:
        """The terms of a block: some texts, some of their queries, the first keys."""
        mask = _slice_term(self.mask, texts, queries, key_count)
        bias = _slice_term(self.bias, texts, queries, key_count)
        return self._replace(mask=mask, bias=bias)


def _slice_term(term: Tensor | None, texts: slice, queries: slice, key_count: int) -> Tensor | None:
    if term is None:
        return None
    return (term if len(term) == 1 else term[texts])[:, :, queries, :key_count]


def attend_in_blocks(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    terms: ScoreTerms,
    observe: Callable[[Tensor, slice, int], object] | None = None,
) -> Tensor:
    """Attention of one layer, [B, T, H, D'], computed block by block.

    ``observe`` gets the probabilities [b, H, Q, S] of each block, whose texts they are, and the
    first of its queries. With gradients, which keep all probabilities anyway, a layer is one block.
    """
    batch, heads, length, _ = query.shape
    groups, key_count = key.shape[1:3]
    text_count = batch
    block_size = length * key_count  # probabilities of one text and head in a block
    if not torch.is_grad_enabled():
        room = BLOCK_SIZE * (1 if query.device.type == "cpu" else 16) // heads
        # No more texts than leave room for 32 queries of each.
        text_count = min(batch, max(1, room // key_count // 32))
        block_size = room // text_count
    bounds = query_bounds(length, key_count, block_size, terms.causal)
    causal_bias: Tensor | None = None
    if terms.causal:
        block_shape = (bounds[1], bounds[1])  # of the first block, which has most queries
        causal_bias = query.new_full(block_shape, -torch.inf, dtype=torch.float32).triu(1)
    output = value.new_empty(batch, length, heads, value.shape[3])
    for first_text in range(0, batch, text_count):
        texts = slice(first_text, first_text + text_count)
        # Contiguous, as otherwise every block would copy them.
        text_keys = key[texts].contiguous()
        text_values = value[texts].contiguous()
        for start, end in pairwise(bounds):
            visible_count = key_count - length + end if terms.causal else key_count
            block_terms = terms.slice_block(texts, slice(start, end), visible_count)
            block_keys = text_keys[:, :, :visible_count]
            block_values = text_values[:, :, :visible_count]
            scores = scores_of(query[texts, :, start:end], block_keys, block_terms, causal_bias)
            reused_memory = None if torch.is_grad_enabled() else scores
            probabilities = torch.softmax(scores, dim=-1, out=reused_memory)
            probabilities = probabilities[..., :visible_count]  # without the sinks' column
            if observe is not None:
                observe(probabilities, texts, start)
            weights = nn.functional.dropout(
                probabilities.to(value.dtype), terms.dropout, training=terms.dropout > 0
            )
            mixed = weights.reshape(len(weights), groups, -1, visible_count) @ block_values
            mixed = mixed.view(len(weights), heads, end - start, -1)
            output[texts, start:end] = mixed.transpose(1, 2)
    return output


def query_bounds(length: int, key_count: int, block_size: int, is_causal: bool) -> list[int]:
    """Bounds of blocks, from 0 to ``length``; a block has at most ``block_size`` probabilities, or else 16 queries."""
    bounds = [0]
    while bounds[-1] < length:
        query_count = block_size // key_count
        if is_causal:
            # A causal block needs no key after its last query, so it takes the most queries with
            # query_count · (keys_before + query_count) ≤ block_size.
            keys_before = key_count - length + bounds[-1]
            query_count = (isqrt(keys_before**2 + 4 * block_size) - keys_before) // 2
        bounds.append(min(bounds[-1] + max(16, query_count), length))
    return bounds


def scores_of(
    query: Tensor,
    key: Tensor,
    terms: ScoreTerms,
    causal_bias: Tensor | None = None,
) -> Tensor:
    """Scores [B, H, Q, S], S + 1 with sinks, in float32 or better; if causal, queries are at the last keys."""
    batch, heads, query_count, width = query.shape
    groups, key_count = key.shape[1:3]
    # The heads of a group share its key.
    group_queries = (query * terms.scaling).reshape(batch, groups, -1, width)
    scores = (group_queries @ key.mT).view(batch, heads, query_count, key_count)
    scores = scores.to(torch.promote_types(query.dtype, torch.float32))
    if terms.softcap is not None:
        scores = torch.tanh(scores / terms.softcap) * terms.softcap
    if terms.bias is not None:
        scores = scores + terms.bias
    if terms.mask is not None and terms.mask.dtype == torch.bool:
        scores = scores.masked_fill_(~terms.mask, -torch.inf)
    elif terms.mask is not None:
        scores = scores + terms.mask
    elif terms.causal:
        assert causal_bias is not None
        # A later key exists only among the block's own positions.
        scores[..., key_count - query_count :].add_(causal_bias[:query_count, :query_count])
    if terms.sinks is not None:
        sink = terms.sinks.to(scores.dtype)[None, :, None, None].expand(batch, -1, query_count, 1)
        scores = torch.cat([scores, sink], dim=-1)
    return scores


extensions.score_terms = ScoreTerms
extensions.attend_in_blocks = attend_in_blocks
