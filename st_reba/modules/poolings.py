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
        rows: The rows of A^new that it needs: of copy 1's ``"last"`` token, or of every token of the ``"copy"``; of the
            very last position (``"end"``), or of the first ``"half"`` of all.
        weights: Called with these rows and the numbers of tokens n [B, 1]; gives one weight a position, [B, T]. The
            rows [B, R, T] do not sum to 1; row i holds only the positions from token i on; rows behind a text's n, and
            columns at padding, are zero. Weights of positions that are not summed over are dropped afterwards.
        published: The rows that the authors' code sums in its place; None: it has no such pooling.
        formula: The vector, for readers.
    """

    rows: Rows
    weights: Callable[[Tensor, Tensor], Tensor]
    published: Rows | None
    formula: str


POOLINGS: dict[str, SentencePooling] = {
    # e_n.
    "last": SentencePooling("last", lambda rows, count: rows.sum(dim=1), "end", "e_n"),
    # The mean of e_1 .. e_n: the weights are summed, not the vectors.
    "mean": SentencePooling("copy", lambda rows, count: rows.sum(dim=1) / count, "half", "(1/n) Σ_i e_i"),
}


def rows_of(pooling: str, variant: str) -> Rows:
    """The rows that a pooling takes; an error for one that the authors' code does not have."""
    rows = POOLINGS[pooling].rows if variant == "paper" else POOLINGS[pooling].published
    if rows is None:
        raise ValueError(f"pooling={pooling!r} is not in the authors' code. Drop variant={variant!r}.")
    return rows
