"""Running maxima of attention: what ReBA keeps of A^new, never a matrix per layer and head.

ReBA needs A^new, the elementwise maximum over all layers l and heads h of (A^{l,h} + (A^{l,h})ᵀ)/2, only in the
rows of a few *anchor* positions: one row for a sentence's last token, n rows for its words. Attention of a causal
decoder is lower triangular, so row r of A^new is ½ · max A[t, r] right of the diagonal (a column of A), A[r, r] on
it, and ½ · max A[r, t] left of it. A layer that looks ahead fills both halves: there the sum A[r, t] + A[t, r] is taken
within the head, before the maximum. Each layer raises these maxima and is then forgotten.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

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
    """Observes the attention of one forward pass, layer by layer.

    ``symmetric`` says that a layer which does not only look back is to be shown by its anchors' rows and columns.
    """

    symmetric = False

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

    def anchors(self) -> Tensor:
        """Positions whose rows and columns :meth:`update_both_ways` is to see, [B, R] int64."""
        raise NotImplementedError

    def update_both_ways(self, rows: Tensor, columns: Tensor, start: int) -> None:
        """See the rows [B, H, r, T] and columns [B, H, T, r] of the anchors from number ``start`` on."""
        raise NotImplementedError


class BackwardAttention(Capture):
    """Accumulates the anchors' rows of A^new while the layers of one forward pass run.

    Args:
        first: First anchor position of each text, [B] int64.
        count: Number of anchors of each text, [B] int64.
        length: Sequence length T, padding included.
        both: Whether columns before the anchor are kept too.
    """

    symmetric = True

    def __init__(self, first: Tensor, count: Tensor, length: int, *, both: bool = False) -> None:
        super().__init__()
        self.first, self.count, self.length, self.both = first, count, length, both
        self.rows = int(count.max())
        # Where all texts share their first anchor (right padding), columns are a view; else they are gathered.
        start = int(first.min())
        self._slice = slice(start, start + self.rows) if bool((first == start).all()) else None
        offsets = torch.arange(self.rows, device=first.device)
        self._anchors = (first[:, None] + offsets).clamp_(max=length - 1)
        self._valid = offsets < count[:, None]
        shape = (first.shape[0], length, self.rows)
        self._later = torch.zeros(shape, dtype=torch.float32, device=first.device)
        self._earlier = torch.zeros(shape, dtype=torch.float32, device=first.device) if both else None

    def update(self, probabilities: Tensor, first_query: int) -> None:
        """Raise the maxima by one block of a layer that only looks back; see :meth:`Capture.update`."""
        probabilities = probabilities.detach()
        last_query = first_query + probabilities.shape[2]
        block = self._later[:, first_query:last_query]
        if self._slice is not None:
            columns = probabilities[..., self._slice].amax(dim=1)
            block = block[..., : columns.shape[-1]]
        else:
            keys = probabilities.shape[-1]
            index = self._anchors.clamp(max=keys - 1)[:, None, None, :].expand(*probabilities.shape[:3], self.rows)
            columns = probabilities.gather(3, index).amax(dim=1)
            columns = columns.masked_fill((self._anchors >= keys)[:, None, :], 0.0)
        torch.maximum(block, columns.to(block.dtype), out=block)
        if self._earlier is not None:
            self._update_earlier(self._earlier, probabilities, first_query)

    def _update_earlier(self, earlier: Tensor, probabilities: Tensor, first_query: int) -> None:
        """The rows of A at the anchors themselves: A[r, t] for the keys t up to r."""
        queries, keys = probabilities.shape[2:]
        offset = self._anchors - first_query
        here = (offset >= 0) & (offset < queries)
        if not bool(here.any()):
            return
        index = offset.clamp(0, queries - 1)[:, :, None].expand(-1, -1, keys)
        rows = probabilities.amax(dim=1).gather(1, index).masked_fill(~here[:, :, None], 0.0)
        block = earlier[:, :keys]
        torch.maximum(block, rows.transpose(1, 2).to(block.dtype), out=block)

    def anchors(self) -> Tensor:
        """The anchors' positions, [B, R]; past a text's own count any position."""
        return self._anchors

    def update_both_ways(self, rows: Tensor, columns: Tensor, start: int) -> None:
        """Raise the maxima by a layer that looks ahead; see :meth:`Capture.update_both_ways`."""
        sums = (rows + columns.transpose(2, 3)).detach().amax(dim=1).transpose(1, 2)
        stop = start + sums.shape[2]
        positions = torch.arange(self.length, device=sums.device)
        # The diagonal is kept whole, all else twice: matrix() halves it.
        diagonal = positions[:, None] == self._anchors[:, None, start:stop]
        sums = torch.where(diagonal, 0.5 * sums, sums)
        for maxima in (self._later, self._earlier):
            if maxima is not None:
                block = maxima[:, :, start:stop]
                torch.maximum(block, sums.to(block.dtype), out=block)

    def matrix(self) -> Tensor:
        """The anchors' rows of A^new.

        Returns:
            [B, R, T] float32, R the largest number of anchors; zero beyond a text's own anchors, and left of the
            anchor unless ``both``.
        """
        later = self._later.transpose(1, 2)
        positions = torch.arange(self.length, device=later.device)
        anchors = self._anchors[:, :, None]
        # The diagonal keeps its full weight: (A[r, r] + A[r, r]) / 2.
        matrix = torch.where(positions == anchors, later, 0.5 * later)
        if self._earlier is not None:
            matrix = torch.where(positions < anchors, 0.5 * self._earlier.transpose(1, 2), matrix)
        else:
            matrix = matrix.masked_fill(positions < anchors, 0.0)
        return matrix.masked_fill(~self._valid[:, :, None], 0.0)
