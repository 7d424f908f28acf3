"""The numbers that one layer's softmax is taken of, for whichever queries, keys and heads are asked for."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor


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
        for first in range(0, heads, step):
            yield slice(first, min(first + step, heads))

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
        key = pick(self._keys_of(heads), keys, 2)
        batch, number = query.shape[:2]
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

    def _keys_of(self, heads: slice) -> Tensor:
        """The keys [B, h, S, D] of some heads."""
        size = self.query.shape[1] // self.key.shape[1]
        first, last = heads.start // size, (heads.stop - 1) // size
        groups = self.key[:, first : last + 1]
        number = heads.stop - heads.start
        if size == 1:
            return groups
        if first == last:
            return groups.expand(-1, number, -1, -1)
        return groups[:, [head // size - first for head in range(heads.start, heads.stop)]]

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
