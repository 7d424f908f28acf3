"""Fused attention on a CPU that also gives the log-sum-exp of each row, by which single probabilities are known.

The kernel is the one that SDPA itself runs, which drops the log-sum-exp. It is no public name of torch: it is tried on
a few numbers first, and where it does not agree, attention runs in blocks.
"""

from __future__ import annotations

import logging
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from .blocks import ScoreTerms, blocked_attention
from .capture import BackwardAttention
from .layout import PARTS

logger = logging.getLogger(__name__)

# Numbers in a block of scores.
_BLOCK = 1 << 20


def fused_attention(
    query: Tensor, key: Tensor, value: Tensor, terms: ScoreTerms, backward: BackwardAttention | None = None
) -> tuple[Tensor, Tensor | None] | None:
    """Attention of a layer that looks back, [B, T, H, D'], and the columns of the anchors, [B, R, T].

    None: blocks must do it (soft caps, biases, dropout, gradients, another device). Arguments: see blocked_attention.
    """
    wanted = torch.is_grad_enabled() and any(each.requires_grad for each in (query, key, value))
    if query.device.type != "cpu" or terms.softcap is not None or terms.bias is not None or terms.dropout or wanted:
        return None
    if query.dtype != key.dtype or query.dtype != value.dtype or not (terms.causal or terms.mask is not None):
        return None
    if not _works(query.dtype):
        return None
    mask = terms.mask
    if mask is not None and mask.dtype == torch.bool:
        mask = torch.zeros(mask.shape, dtype=query.dtype).masked_fill_(~mask, torch.finfo(query.dtype).min)
    mask = None if mask is None else mask.to(query.dtype)
    output, totals = _flash(query, key, value, mask, terms.scaling)
    if terms.sinks is not None:
        everything = torch.logaddexp(totals, terms.sinks.to(totals.dtype)[None, :, None])
        output = output * torch.exp(totals - everything)[..., None].to(output.dtype)
        totals = everything
    columns = None if backward is None else _columns(query, key, mask, totals, backward, terms.scaling)
    return output.transpose(1, 2), columns


def _flash(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scaling: float) -> tuple[Tensor, Tensor]:
    operator: Any = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    width, most = value.shape[-1], max(value.shape[-1], query.shape[-1])
    if value.shape[-1] != query.shape[-1]:
        query, key, value = (nn.functional.pad(each, (0, most - each.shape[-1])) for each in (query, key, value))
    output, totals = operator(query, key, value, 0.0, mask is None, attn_mask=mask, scale=scaling)
    return output[..., :width], totals


def _columns(
    query: Tensor, key: Tensor, mask: Tensor | None, totals: Tensor, backward: BackwardAttention, scaling: float
) -> Tensor:
    """Columns of the anchors from the first of them on, the maximum over heads, [B, R, T]; what lies before is 0."""
    batch, heads, length, width = query.shape
    groups, rows = key.shape[1], backward.anchors.shape[1]
    anchors = backward.anchors[:, None, :, None]
    keys = key.gather(2, anchors.expand(-1, groups, -1, width))  # [B, G, R, D]
    first, shared = min(backward.firsts), min(backward.firsts) == max(backward.firsts)
    largest = query.new_zeros(batch, length, rows, dtype=torch.float32)
    size = max(16, _BLOCK // (batch * heads * rows))
    for start in range(first, length, size):
        stop = min(start + size, length)
        # Of texts that begin together no anchor beyond the last query is needed.
        some = slice(0, min(rows, stop - first)) if shared else slice(0, rows)
        block = (query[:, :, start:stop] * scaling).reshape(batch, groups, -1, width)
        scores = (block @ keys[:, :, some].mT).view(batch, heads, stop - start, -1).to(totals.dtype)
        if mask is not None:
            part = mask[:, :, start:stop].expand(batch, -1, -1, -1)
            index = anchors[:, :, some].mT.expand(-1, part.shape[1], stop - start, -1)
            scores = scores + part.gather(3, index)
        largest[:, start:stop, some] = (scores - totals[:, :, start:stop, None]).amax(dim=1).exp()
    return largest.mT


@cache
def _works(dtype: torch.dtype) -> bool:
    """Whether the kernel computes what blocks compute."""
    generator = torch.Generator().manual_seed(0)
    query, key, value = (torch.randn(2, heads, 20, 8, generator=generator).to(dtype) for heads in (4, 2, 2))
    tolerance = 1e-4 if torch.finfo(dtype).bits >= 32 else 5e-2
    try:
        output, totals = _flash(query, key, value, None, 0.3)
        expected = blocked_attention(query.double(), key.double(), value.double(), ScoreTerms(causal=True, scaling=0.3))
        scores = query.double() * 0.3 @ key.double().repeat_interleave(2, 1).mT
        later = torch.ones(20, 20, dtype=torch.bool).triu(1)
        sums = scores.masked_fill(later, -torch.inf).logsumexp(dim=-1)
        torch.testing.assert_close(output.transpose(1, 2).double(), expected, rtol=tolerance, atol=tolerance)
        torch.testing.assert_close(totals.double(), sums, rtol=tolerance, atol=tolerance)
    except (AttributeError, AssertionError, NotImplementedError, RuntimeError, TypeError, ValueError) as error:
        reason = str(error).strip().partition("\n")[0]
        logger.warning("torch's attention kernel (%s) cannot be used: %s. Attention runs in blocks.", dtype, reason)
        return False
    return True


PARTS["fused"] = fused_attention
