"""Running maxima of attention: what ReBA keeps of A^new, never a matrix per layer and head.

ReBA needs A^new, the elementwise maximum over all layers l and heads h of (A^{l,h} + (A^{l,h})ᵀ)/2, only in the
rows of a few *anchor* positions: one row for a sentence's last token, n rows for its words. Attention of a causal
decoder is lower triangular, so row r of A^new is ½ · max A[t, r] right of the diagonal (a column of A), A[r, r] on
it, and ½ · max A[r, t] left of it. A layer that looks ahead fills both halves: there the sum A[r, t] + A[t, r] is taken
within the head, before the maximum. Each layer raises these maxima and is then forgotten.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from .scores import Scores, pick

# Queries and anchors that are looked at together: fewer multiply slower, more do not stay in a core's cache, and waste
# work above the diagonal.
BLOCK_QUERIES = 256
BLOCK_ANCHORS = 256
# So many texts are looked at together that a head's block holds about this many numbers.
BLOCK_NUMBERS = 1 << 17
AnchorRows = Literal["last", "copy", "end", "half"]


@dataclass(frozen=True)
class CaptureSpec:
    """Which rows of A^new a forward pass keeps.

    Args:
        rows: The anchors. ``"last"``: the last content token of copy 1. ``"copy"``: every content token of copy 1.
            ``"end"``: the very last real position. ``"half"``: the first half of all real positions.
        both: Keep the columns before the anchor too, not only those from the anchor on.
    """

    rows: AnchorRows
    both: bool = False

    def __post_init__(self) -> None:
        if self.rows not in get_args(AnchorRows):
            raise ValueError(f"rows={self.rows!r} is not known: choose one of {list(get_args(AnchorRows))}.")

    def anchors(self, copy_ids: Tensor, attention_mask: Tensor) -> tuple[Tensor, Tensor]:
        """The anchors of each text: a run of positions.

        Args:
            copy_ids: [B, T] int, 0 for special, template and padding positions, c for the content of copy c.
            attention_mask: [B, T], 1 at real positions.

        Returns:
            First anchor position [B] and number of anchors [B], both int64.
        """
        inside = (copy_ids == 1) if self.rows in ("last", "copy") else attention_mask.bool()
        first = inside.int().argmax(dim=1)
        count = inside.sum(dim=1)
        if self.rows in ("last", "end"):
            return first + count - 1, torch.ones_like(count)
        if self.rows == "half":
            return first, (count // 2).clamp(min=1)
        return first, count


class Capture(ABC):
    """Observes the attention of one forward pass, layer by layer."""

    def __init__(self) -> None:
        self.layers = 0

    def begin(self) -> None:
        """A layer begins."""
        self.layers += 1

    @abstractmethod
    def update(self, probabilities: Tensor, first_query: int) -> None:
        """See one block of a layer's attention.

        Args:
            probabilities: [B, H, Q, K] for the queries from ``first_query`` on and the keys 0 .. K - 1; keys from K
                on have no weight.
            first_query: Position of the block's first query.
        """


class BackwardAttention(Capture):
    """Accumulates the anchors' rows of A^new while the layers of one forward pass run.

    The maxima are kept as logarithms: A[t, r] = exp(score(t, r) - total(t)), and where only the largest is wanted, no
    exponential needs to be taken but the last.

    Args:
        first: First anchor position of each text, [B] int64.
        count: Number of anchors of each text, [B] int64.
        length: Sequence length T, padding included.
        both: Whether columns before the anchor are kept too.
    """

    def __init__(self, first: Tensor, count: Tensor, length: int, *, both: bool = False) -> None:
        super().__init__()
        self.first, self.count, self.length, self.both = first, count, length, both
        self.rows = int(count.max())
        # Where all texts share their first anchor, a slice finds the anchors; else they are gathered.
        self._start = int(first.min())
        self._shared = bool((first == self._start).all())
        offsets = torch.arange(self.rows, device=first.device)
        self._anchors = (first[:, None] + offsets).clamp_(max=length - 1)
        self._valid = offsets < count[:, None]
        shape = (first.shape[0], length, self.rows)
        self._later = torch.full(shape, -torch.inf, dtype=torch.float32, device=first.device)
        self._earlier = torch.full_like(self._later, -torch.inf) if both else None
        # Of what is kept: a probability's logarithm; of a sum of two, log 2.
        self._most = 0.0
        self._finished = False

    def update(self, probabilities: Tensor, first_query: int) -> None:
        """Raise the maxima by the probabilities of a layer that only looks back; see :meth:`Capture.update`."""
        maxima = probabilities.detach().amax(dim=1)[:, None]
        keys, last_query = maxima.shape[3], first_query + maxima.shape[2]
        columns = pick(maxima, self._anchors.clamp(max=keys - 1), 3)[:, 0].log()
        columns = columns.masked_fill((self._anchors >= keys)[:, None, :], -torch.inf)
        _raise(self._later[:, first_query:last_query], columns)
        if self._earlier is None:
            return
        offset = self._anchors - first_query
        here = (offset >= 0) & (offset < maxima.shape[2])
        rows = pick(maxima, offset.clamp(0, maxima.shape[2] - 1), 2)[:, 0].log()
        _raise(self._earlier[:, :keys], rows.masked_fill(~here[:, :, None], -torch.inf).transpose(1, 2))

    @torch.no_grad()
    def update_layer(self, scores: Scores, totals: Tensor, *, both_ways: bool = False) -> None:
        """Raise the maxima by a whole layer, of which only the anchors' rows and columns are computed.

        Args:
            scores: The layer's scores. What a causal layer hides may show: :meth:`matrix` drops it.
            totals: Logarithms of the rows' sums, [B, H, T].
            both_ways: Whether the layer looks ahead, so that A[r, t] and A[t, r] have to be added within a head.
        """
        # Queries that are not there belong to a beginning that was run before, in front of every anchor.
        before = self.length - scores.query.shape[2]
        start = 0 if both_ways else self._start - before
        # One anchor a text needs no blocks.
        size = max(BLOCK_QUERIES, BLOCK_NUMBERS // self.rows)
        together = max(1, BLOCK_NUMBERS // (min(size, self.length) * min(self.rows, BLOCK_ANCHORS)))
        for texts in _slices(0, len(totals), together):
            here, sums = scores.of_texts(texts), totals[texts]
            for some in _slices(0, self.rows, BLOCK_ANCHORS):
                for queries in _slices(start, self.length - before, size):
                    if both_ways:
                        self._update_sums(here, sums, texts, some, queries)
                    else:
                        self._update_columns(here, sums, texts, some, queries, before)
        if both_ways:
            self._most = math.log(2)
        elif self._earlier is not None:
            for some in _slices(0, self.rows, max(1, 8 * BLOCK_NUMBERS // (len(totals) * self.length))):
                self._update_rows(self._earlier, scores, totals, some, before)

    def _update_columns(
        self, scores: Scores, totals: Tensor, texts: slice, some: slice, queries: slice, before: int
    ) -> None:
        """What some queries give to some of the anchors: A[t, r]."""
        anchors: slice | Tensor = self._anchors[texts, some]
        if self._shared:
            # No anchor beyond the last query.
            anchors = slice(self._start + some.start, min(self._start + some.stop, before + queries.stop))
            if anchors.start >= anchors.stop:
                return
        best = _best(scores, queries, anchors, totals[:, :, queries])
        columns = slice(some.start, some.start + best.shape[2])
        _raise(self._later[texts, before + queries.start : before + queries.stop, columns], best)

    def _update_rows(self, earlier: Tensor, scores: Scores, totals: Tensor, some: slice, before: int) -> None:
        """What some of the anchors give to the keys up to themselves: A[r, t]."""
        anchors = self._anchors[:, some]
        keys = slice(0, int(anchors.max()) + 1)
        queries = (anchors - before).clamp(min=0)
        own = pick(totals[..., None], queries, 2)[..., 0]
        best = _best(scores, queries, keys, own)
        _raise(earlier[:, keys, some], best.transpose(1, 2))

    def _update_sums(self, scores: Scores, totals: Tensor, texts: slice, some: slice, positions: slice) -> None:
        """A[t, r] + A[r, t] for some positions t and some of the anchors."""
        anchors = self._anchors[texts, some]
        own = pick(totals[..., None], anchors, 2)[..., 0]

        def of_heads(heads: slice) -> Tensor:
            columns = scores.log_probabilities(heads, positions, anchors, totals[:, heads, positions])
            rows = scores.log_probabilities(heads, anchors, positions, own[:, heads])
            return torch.logaddexp(columns, rows.transpose(2, 3))

        sums = _maximum(of_heads, totals)
        here = torch.arange(positions.start, positions.stop, device=sums.device)
        # The diagonal is kept whole, all else twice: matrix() halves it.
        sums = torch.where(here[:, None] == anchors[:, None], sums - math.log(2), sums)
        for maxima in (self._later, self._earlier):
            if maxima is not None:
                _raise(maxima[texts, positions, some], sums)

    def matrix(self) -> Tensor:
        """The anchors' rows of A^new. They take the place of what was accumulated, which is complete then.

        Returns:
            [B, R, T] float32, R the largest number of anchors; zero beyond a text's own anchors, and left of the
            anchor unless ``both``.
        """
        if not self._finished:
            self._finish()
            self._finished = True
        return self._later.transpose(1, 2)

    def _finish(self) -> None:
        anchors = self._anchors[:, None]
        for some in _slices(0, self.length, BLOCK_QUERIES):
            positions = torch.arange(some.start, some.stop, device=anchors.device)[:, None]
            later = self._later[:, some]
            # The kernel's sums and our products are rounded each by itself, in bfloat16 the latter to three digits.
            later.clamp_(max=self._most).exp_()
            # The diagonal keeps its full weight: (A[r, r] + A[r, r]) / 2.
            later.mul_(torch.where(positions == anchors, 1.0, 0.5))
            before = positions < anchors
            if self._earlier is None:
                later.masked_fill_(before, 0.0)
            else:
                later.copy_(torch.where(before, 0.5 * self._earlier[:, some].clamp(max=self._most).exp(), later))
            later.masked_fill_(~self._valid[:, None], 0.0)


def _slices(start: int, stop: int, size: int) -> Iterator[slice]:
    for first in range(start, stop, size):
        yield slice(first, min(first + size, stop))


def _best(scores: Scores, queries: slice | Tensor, keys: slice | Tensor, totals: Tensor) -> Tensor:
    """The largest log-probability over all heads, [B, Q, K], for the queries' totals [B, H, Q]."""
    batch, heads, rows = totals.shape
    columns = keys.stop - keys.start if isinstance(keys, slice) else keys.shape[1]
    if batch * heads * rows * columns <= BLOCK_NUMBERS:
        # So few that a call a head would take longer than what it computes.
        together = scores.of_all_heads(queries, keys).to(scores.precision)
        return together.sub_(totals[..., None]).amax(dim=1)
    return _maximum(lambda some: scores.log_probabilities(some, queries, keys, totals[:, some]), totals)


def _maximum(of_heads: Callable[[slice], Tensor], totals: Tensor) -> Tensor:
    """The maximum over all heads, [B, Q, K], of what is [B, h, Q, K] for some of them."""
    batch, heads, _ = totals.shape
    # The heads of one text are multiplied together, and those of several texts one by one: each way without a copy.
    together = next(number for number in (4, 3, 2, 1) if heads % number == 0 and (batch == 1 or number == 1))
    best: Tensor | None = None
    for some in _slices(0, heads, together):
        values = of_heads(some)
        best = values if best is None else torch.maximum(best, values, out=best)
    assert best is not None
    return best.amax(dim=1) if together > 1 else best[:, 0]


def _raise(maxima: Tensor, values: Tensor) -> None:
    torch.maximum(maxima, values.to(maxima.dtype), out=maxima)
