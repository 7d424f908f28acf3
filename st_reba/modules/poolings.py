"""How the rows of A^new become the weights of a sentence vector: a registry; a new pooling is one more entry."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from torch import Tensor

Rows = Literal["last", "copy", "end", "half"]


@dataclass(frozen=True)
class SentencePooling:
    """A sentence vector of backward attention.

    Args:
        rows: The rows of A^new that it needs: of copy 1's ``"last"`` token, or of every token of the ``"copy"``.
        weights: From these rows [B, R, T], zero beyond a text's own and at padding, and the numbers of tokens [B, 1]
            to one weight a position, [B, T]; what is not summed over is dropped from these.
        published: The rows that the authors' code takes in its place.
        formula: The vector, for readers.
    """

    rows: Rows
    weights: Callable[[Tensor, Tensor], Tensor]
    published: Rows
    formula: str


POOLINGS: dict[str, SentencePooling] = {
    # e_n.
    "last": SentencePooling("last", lambda rows, count: rows.sum(dim=1), "end", "e_n"),
    # The mean of e_1 .. e_n: the weights are summed, not the vectors.
    "mean": SentencePooling("copy", lambda rows, count: rows.sum(dim=1) / count, "half", "(1/n) Σ_i e_i"),
}
