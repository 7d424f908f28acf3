"""The numbers that one layer's softmax is taken of, for whichever queries, keys and heads are asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch._subclasses import FakeTensor

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

        def some(tensor: Tensor | None) -> Tensor | None:
            return tensor if tensor is None or tensor.shape[0] == 1 else tensor[texts]

        return replace(self, query=self.query[texts], key=self.key[texts], mask=some(self.mask), bias=some(self.bias))

    def of_all_heads(self, queries: slice | Tensor, keys: slice | Tensor) -> Tensor:
        """Scores [B, H, Q, K] of some queries and keys: a slice, or [B, n] positions of each text."""
        batch, heads, _, width = self.query.shape
        query, key = pick(self.query, queries, 2), pick(self.key, keys, 2)
        # Whichever is smaller.
        if query.numel() <= key.numel():
            query = query * self.factor
        else:
            key = key * self.factor
        grouped = query.reshape(batch, self.key.shape[1], -1, width)
        scores = torch.matmul(grouped, key.transpose(2, 3)).view(batch, heads, query.shape[2], key.shape[2])
        return self._finished(scores, slice(0, heads), queries, keys)

    def head_groups(self, most: int) -> Iterator[slice]:
        """All heads in groups of at most ``most``, each of which shares its keys or has a key for every head."""
        heads = self.query.shape[1]
        size = heads // self.key.shape[1]
        step = min(most, heads)
        if size > 1:
            step = next(step for step in range(min(most, size), 0, -1) if size % step == 0)
        return slices(0, heads, step)

    def log_probabilities(
        self,
        heads: slice,
        queries: slice | Tensor,
        keys: slice | Tensor,
        totals: Tensor,
        out: Tensor | None = None,
    ) -> Tensor:
        """Logarithms of some heads' probabilities, in a tensor of their own; without gradient.

        Args:
            heads: Some of them; of several texts, one, or tensors are copied.
            queries: A slice, or [B, Q] positions of each text.
            keys: A slice, or [B, K] positions of each text.
            totals: Logarithms of the rows' sums, [B, h, Q], in :attr:`precision`.
            out: Memory that may hold the result: B·h·Q·K numbers.

        Returns:
            [B, h, Q, K] in :attr:`precision`.
        """
        query = pick(self.query[:, heads], queries, 2)
        batch, number = query.shape[:2]
        # The one key that a group of heads has in common, or each head's own.
        size = self.query.shape[1] // self.key.shape[1]
        key = self.key[:, heads.start // size : (heads.stop - 1) // size + 1].expand(-1, number, -1, -1)
        key = pick(key, keys, 2)
        flat = (query.flatten(0, 1), key.flatten(0, 1).transpose(1, 2))
        shape = (batch, number, query.shape[2], key.shape[2])
        offsets = totals.flatten(0, 1)[..., None]
        if self.softcap is not None:
            scores = torch.bmm(*flat).to(self.precision).mul_(self.factor).view(shape)
            return self._finished(scores, heads, queries, keys).sub_(totals[..., None])
        if out is not None:
            out = out.view(-1, *shape[2:])
        # One pass over memory where the way above has three.
        if query.dtype == self.precision == totals.dtype:
            scores = torch.baddbmm(-offsets, *flat, alpha=self.factor, out=out)
        else:
            products = torch.bmm(*flat)
            scores = products.to(self.precision) if out is None else out.copy_(products)
            scores = torch.add(-offsets, scores, alpha=self.factor, out=scores)
        return self._finished(scores.view(shape), heads, queries, keys)

    def _finished(self, scores: Tensor, heads: slice, queries: slice | Tensor, keys: slice | Tensor) -> Tensor:
        """Products [B, h, Q, K] of some heads → capped, biased and masked."""
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
            positions = torch.arange(self.key.shape[2], device=scores.device)[None, None, None]
            positions = positions.expand(scores.shape[0], 1, 1, -1)
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
        see: Called with every block's probabilities [B, H, Q, K], and the position of its first query.

    Returns:
        The output [B, T, H, D'], and the logarithm of every row's sum, [B, H, T].
    """
    batch, heads, queries, _ = scores.query.shape
    groups, keys = scores.key.shape[1], scores.key.shape[2]
    triangular = scores.mask is None and scores.causal and queries == keys
    output = value.new_empty(batch, queries, heads, value.shape[-1])
    totals = []
    numbers = BLOCK_NUMBERS if value.device.type == "cpu" else GPU_BLOCK_NUMBERS
    for rows in slices(0, queries, max(16, numbers // (batch * heads * keys))):
        visible = rows.stop if triangular else keys
        block = scores.of_all_heads(rows, slice(0, visible)).to(scores.precision)
        highest = block.amax(dim=-1, keepdim=True)
        exponentials = torch.exp(block - highest)
        total = (highest + exponentials.sum(dim=-1, keepdim=True).log()).squeeze(-1)
        if sinks is not None:
            total = torch.logaddexp(total, sinks.to(total.dtype)[None, :, None])
        probabilities = exponentials * torch.exp(highest - total[..., None])
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
    shape = list(tensor.shape)
    shape[0] = positions.shape[0]
    tensor = tensor.expand(shape)
    shape[dim] = positions.shape[1]
    place = [1, 1, 1, 1]
    place[0], place[dim] = positions.shape
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


def selected(mask: Tensor | None, indices: Tensor, keys: int) -> Tensor:
    """What is visible of the keys that an indexer chose.

    Args:
        mask: [B or 1, 1, T, S], boolean (True: visible) or additive; None: no key later than the query.
        indices: [B, T, n] int, the chosen keys of every query.
        keys: Number of keys S.

    Returns:
        [B, 1, T, S] bool.
    """
    batch, queries, _ = indices.shape
    chosen = torch.zeros(batch, 1, queries, keys, dtype=torch.bool, device=indices.device)
    chosen.scatter_(3, indices.long()[:, None], True)
    if mask is None:
        return chosen.tril(keys - queries)
    return chosen & (mask if mask.dtype == torch.bool else mask > torch.finfo(mask.dtype).min / 2)


def is_fake(tensor: Tensor) -> bool:
    """Whether a tensor has a shape and a device but no numbers: nothing can be read from it."""
    return isinstance(tensor, FakeTensor)


def identity(tensor: Tensor) -> tuple[object, ...]:
    """What tells a tensor from others for as long as it lives; the same for each view of the same part of it."""
    return (tensor.untyped_storage()._cdata, tensor.storage_offset(), tensor.shape, tensor.stride(), tensor.dtype)
