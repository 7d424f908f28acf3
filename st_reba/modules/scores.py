"""The numbers that one layer's softmax is taken of, and attention that is computed from them block by block."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

# A block of probabilities holds about this many numbers at most, but never fewer than 16 rows.
BLOCK_NUMBERS = 1 << 20
# The same on a GPU, where a block of few rows takes longer to begin than to compute.
GPU_BLOCK_NUMBERS = 1 << 24
# Rows of a mask begin at multiples of this many numbers, as a GPU's kernels want it.
_ALIGNMENT = 16


@dataclass(frozen=True)
class Scores:
    """One layer's masked scores.

    Args:
        query: [B, H, T, D].
        key: [B, H', S, D], H' dividing H (grouped-query attention: keys are not repeated).
        mask: [B or 1, 1 or H, T, S], boolean (True: visible) or additive; None: everything but what ``causal`` hides.
        causal: With mask=None: a query sees no later key.
        scaling: Factor on query·key; None: 1/sqrt(D).
        softcap: Scores become softcap · tanh(score / softcap).
        bias: [1 or B, H, T, S], added to the scores.
    """

    query: Tensor
    key: Tensor
    mask: Tensor | None = None
    causal: bool = False
    scaling: float | None = None
    softcap: float | None = None
    bias: Tensor | None = None

    @property
    def factor(self) -> float:
        """The scaling, its default filled in."""
        return float(self.query.shape[-1] ** -0.5) if self.scaling is None else self.scaling

    @property
    def precision(self) -> torch.dtype:
        """What a softmax is computed in."""
        return torch.promote_types(self.query.dtype, torch.float32)

    def of_texts(self, texts: slice) -> Scores:
        """The scores of some texts of the batch."""
        given: dict[str, Any] = {name: getattr(self, name) for name in ("query", "key", "mask", "bias")}
        some = {name: each[texts] for name, each in given.items() if each is not None and len(each) > 1}
        return replace(self, **some)

    def of(
        self,
        queries: slice | Tensor,
        keys: slice | Tensor,
        heads: slice = slice(None),
        less: Tensor | None = None,
    ) -> Tensor:
        """Scores [B, h, Q, K] of positions (a slice, or [B, n]) and heads, which share a key or are all of some.

        ``less`` [B, h, Q, 1] is subtracted, in its own type; of one text, its heads share a key or have one each.
        """
        query = pick(self.query[:, heads], queries, 2)
        batch, number, _, width = query.shape
        size = self.query.shape[1] // self.key.shape[1]
        first = (heads.start or 0) // size
        key = pick(self.key[:, first : first + -(-number // size)], keys, 2)
        if less is not None and batch == 1 and query.dtype == less.dtype and self.softcap is None:
            # Head by head, products are rounded as in the kernel that told the totals: errors of both cancel. And it is
            # one pass over memory in place of three.
            each = key.expand(-1, number, -1, -1)[0]
            return self._seen(torch.baddbmm(-less[0], query[0], each.mT, alpha=self.factor)[None], queries, keys, heads)
        # Whichever is smaller.
        if query.numel() <= key.numel():
            query = query * self.factor
        else:
            key = key * self.factor
        grouped = query.reshape(batch, key.shape[1], -1, width)
        scores = torch.matmul(grouped, key.transpose(2, 3)).view(batch, number, query.shape[2], key.shape[2])
        scores = self._seen(scores, queries, keys, heads)
        return scores if less is None else scores.to(less.dtype).sub_(less)

    def _seen(self, scores: Tensor, queries: slice | Tensor, keys: slice | Tensor, heads: slice) -> Tensor:
        """Products, capped, biased and masked."""
        # The scores' own type: under autocast it is not the queries'.
        lowest = torch.finfo(scores.dtype).min
        if self.softcap is not None:
            scores = torch.tanh(scores / self.softcap) * self.softcap
        if self.bias is not None:
            scores = scores + pick(pick(self.bias[:, heads], queries, 2), keys, 3)
        if self.mask is not None:
            mask = self.mask if self.mask.shape[1] == 1 else self.mask[:, heads]
            mask = pick(pick(mask, queries, 2), keys, 3)
            return scores.masked_fill(~mask, lowest) if mask.dtype == torch.bool else scores + mask
        if self.causal:
            positions = torch.arange(self.key.shape[2], device=scores.device).expand(len(scores), 1, 1, -1)
            hidden = pick(positions, keys, 3) > pick(positions, queries, 3).transpose(2, 3)
            scores = scores.masked_fill(hidden, lowest)
        return scores


def blocked_attention(
    scores: Scores,
    value: Tensor,
    *,
    sinks: Tensor | None = None,
    dropout: float = 0.0,
    see: Callable[[Tensor, int], None] | None = None,
) -> tuple[Tensor, Tensor]:
    """Attention block by block over the queries, where no fused kernel computes what is asked for.

    Args:
        scores: What the softmax is taken of.
        value: [B, H', S, D'].
        sinks: [H], one more logit in every softmax, without a value.
        dropout: Dropout rate on the probabilities.
        see: Called with each block's probabilities [B, H, Q, K], and the position of its first query.

    Returns:
        The output [B, T, H, D'], and the logarithm of every row's sum, [B, H, T].
    """
    batch, heads, queries, _ = scores.query.shape
    groups, keys = scores.key.shape[1:3]
    triangular = scores.mask is None and scores.causal and queries == keys
    output = value.new_empty(batch, queries, heads, value.shape[-1])
    totals = []
    numbers = BLOCK_NUMBERS if value.device.type == "cpu" else GPU_BLOCK_NUMBERS
    for rows in slices(0, queries, max(16, numbers // (batch * heads * keys))):
        visible = rows.stop if triangular else keys
        block = scores.of(rows, slice(0, visible)).to(scores.precision)
        probabilities = block.softmax(dim=-1)
        total = block.amax(dim=-1) - probabilities.amax(dim=-1).log()
        if sinks is not None:
            everything = torch.logaddexp(total, sinks.to(total.dtype)[None, :, None])
            probabilities = probabilities * torch.exp(total - everything)[..., None]
            total = everything
        totals.append(total.detach())
        if see is not None:
            see(probabilities, rows.start)
        weights = nn.functional.dropout(probabilities.to(value.dtype), dropout, training=dropout > 0)
        mixed = torch.matmul(weights.reshape(batch, groups, -1, visible), value[:, :, :visible])
        output[:, rows] = mixed.view(batch, heads, rows.stop - rows.start, -1).transpose(1, 2)
    return output, torch.cat(totals, dim=2)


def slices(start: int, stop: int, size: int) -> Iterator[slice]:
    """The range from ``start`` to ``stop``, in parts of at most ``size``."""
    for first in range(start, stop, size):
        yield slice(first, min(first + size, stop))


def pick(tensor: Tensor, positions: slice | Tensor, dim: int) -> Tensor:
    """A slice of positions along ``dim`` of a [B, n, Q, K] tensor, or [B, n] positions of each text."""
    if isinstance(positions, slice):
        return tensor[(slice(None),) * dim + (positions,)]
    shape = [len(positions), *tensor.shape[1:]]
    tensor = tensor.expand(shape)
    shape[dim] = positions.shape[1]
    place = [len(positions), 1, 1, 1]
    place[dim] = positions.shape[1]
    return tensor.gather(dim, positions.view(place).expand(shape))


def additive(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """A boolean or additive mask [B, H, T, S] as numbers of some type to add to scores."""
    lowest = torch.finfo(dtype).min
    keys = mask.shape[-1]
    room = keys if mask.device.type == "cpu" else -(-keys // _ALIGNMENT) * _ALIGNMENT
    numbers = torch.zeros(*mask.shape[:-1], room, dtype=dtype, device=mask.device)[..., :keys]
    if mask.dtype == torch.bool:
        return numbers.masked_fill_(~mask, lowest)
    return numbers.copy_(mask).clamp_(min=lowest)


def identity(tensor: Tensor) -> tuple[object, ...]:
    """What tells a tensor from others for as long as it lives; the same for each view of the same part of it."""
    return (tensor.untyped_storage()._cdata, tensor.storage_offset(), tensor.shape, tensor.stride(), tensor.dtype)
