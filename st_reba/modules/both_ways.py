"""Rows of A^new where a layer looks both ways, or where the columns before an anchor count too."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from .blocks import ScoreTerms, attend_in_blocks
from .capture import BackwardAttention
from .extensions import extensions

# Probabilities of the heads that run at a time, which bounds the memory that they take.
_PROBABILITIES_AT_A_TIME = 1 << 22


def heads_at_a_time(heads: int, groups: int, max_heads: int) -> int:
    """How many heads run at a time: at most ``max_heads``, but one at least, and whole groups or a divisor of a group.

    Example:
        >>> heads_at_a_time(heads=8, groups=8, max_heads=3), heads_at_a_time(heads=12, groups=2, max_heads=4)
        (3, 3)
    """
    group_size = heads // groups
    max_heads = max(1, max_heads)
    if group_size == 1:
        return min(max_heads, heads)
    return max(
        size for size in range(1, group_size + 1) if group_size % size == 0 and size <= max_heads
    )


def attend_both_ways(
    backward: BackwardAttention,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    terms: ScoreTerms,
) -> Tensor:
    """Attention of one layer, [B, T, H, D'], whose sums of rows and columns update the maxima.

    Few heads run at a time, as both are taken within one head; heads of one group share a key.
    """
    batch, heads, length, _ = query.shape
    group_size = heads // key.shape[1]
    max_heads = _PROBABILITIES_AT_A_TIME // (batch * length * length)
    step = heads_at_a_time(heads, key.shape[1], max_heads)
    precision = torch.promote_types(query.dtype, torch.float32)
    outputs = []
    for first_head in range(0, heads, step):
        some_heads = slice(first_head, first_head + step)
        some_groups = slice(first_head // group_size, -(-(first_head + step) // group_size))
        head_count = len(query[0, some_heads])
        probabilities = torch.zeros(
            batch, head_count, length, length, dtype=precision, device=query.device
        )
        head_terms = terms_of_heads(terms, some_heads)
        head_queries = query[:, some_heads]
        head_keys, head_values = key[:, some_groups], value[:, some_groups]
        keep_block = partial(_keep_block, probabilities)
        outputs.append(
            attend_in_blocks(head_queries, head_keys, head_values, head_terms, keep_block)
        )
        backward.update_maxima(sum_rows_and_columns(backward, probabilities))
    return torch.cat(outputs, dim=2)


def _keep_block(target: Tensor, block: Tensor, texts: slice, start: int) -> None:
    target[texts, :, start : start + block.shape[2], : block.shape[3]] = block


def terms_of_heads(terms: ScoreTerms, heads: slice) -> ScoreTerms:
    """The terms of some heads."""
    mask, bias, sinks = terms.mask, terms.bias, terms.sinks
    if mask is not None and mask.shape[1] > 1:
        mask = mask[:, heads]
    if bias is not None and bias.shape[1] > 1:
        bias = bias[:, heads]
    if sinks is not None:
        sinks = sinks[heads]
    return terms._replace(mask=mask, bias=bias, sinks=sinks)


def sum_rows_and_columns(backward: BackwardAttention, probabilities: Tensor) -> Tensor:
    """A[i, t] + A[t, i], but A[i, i] at t = i, the maximum over heads of [B, H, T, T].

    Before i it is 0, unless ``backward`` keeps earlier columns.
    """
    _, heads, _, length = probabilities.shape
    anchors = backward.anchors[:, :, None]
    index = backward.anchors[:, None, :, None].expand(-1, heads, -1, length)
    anchor_rows = probabilities.gather(2, index)
    anchor_columns = probabilities.mT.gather(2, index)
    positions = torch.arange(length, device=anchors.device)
    largest = torch.where(
        (positions == anchors)[:, None], anchor_rows, anchor_rows + anchor_columns
    ).amax(dim=1)
    if backward.earlier_columns:
        return largest
    return largest.masked_fill(positions < anchors, 0.0)


extensions.attend_both_ways = attend_both_ways
