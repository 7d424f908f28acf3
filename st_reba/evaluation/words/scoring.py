"""Which of four vectors is the odd one out, and how far a share of right answers can be trusted."""

from __future__ import annotations

from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from ..resampling import resampled

# Sums that differ by less than this share of the largest are tied: that is rounding.
TIE = 1e-9
RESAMPLES = 10_000
# Of the resamples, whatever is evaluated: intervals of two methods rest on the same ones.
_SEED = 0


def odd_one_out(vectors: NDArray[np.floating]) -> dict[str, NDArray[np.intp]]:
    """Of each group of vectors, the one whose distances to the others have the largest sum.

    Of several that are equally far, the first. Cosine distance is 1 − cos; a zero vector has a cosine of 0 with all.

    Args:
        vectors: [groups, n, d].

    Returns:
        By distance (``"euclidean"``, ``"cosine"``), an index from 0 to n − 1 a group.

    Source:
        ReBA, section 4 (word embedding evaluation).

    Example:
        >>> group = np.array([[[1.0, 0.0], [2.0, 0.0], [9.0, 0.0], [1.0, 1.0]]])
        >>> {name: odd.tolist() for name, odd in odd_one_out(group).items()}
        {'euclidean': [2], 'cosine': [3]}
    """
    sums = {name: np.zeros(vectors.shape[:2]) for name in ("euclidean", "cosine")}
    lengths = np.stack([_lengths(vectors[:, each]) for each in range(vectors.shape[1])], axis=1)
    # A pair at a time: the vectors of a thousand questions and a large model are read once, and not held twice.
    for first, second in combinations(range(vectors.shape[1]), 2):
        one, other = vectors[:, first].astype(np.float64), vectors[:, second].astype(np.float64)
        scale = lengths[:, first] * lengths[:, second]
        dots = np.sum(one * other, axis=1)
        cosine = np.divide(dots, scale, out=np.zeros_like(dots), where=scale > 0)
        for name, distance in (
            ("euclidean", np.linalg.norm(one - other, axis=1)),
            ("cosine", np.clip(1 - cosine, 0, 2)),
        ):
            sums[name][:, first] += distance
            sums[name][:, second] += distance
    return {name: np.argmax(sums[name] >= sums[name].max(axis=1, keepdims=True) * (1 - TIE), axis=1) for name in sums}


def bootstrap_intervals(
    right: NDArray[np.bool_], *, resamples: int = RESAMPLES, seed: int = _SEED
) -> list[tuple[float, float]]:
    """95 % intervals of shares of right answers: percentiles over resampled questions.

    Args:
        right: [questions, m]: m ways of answering, which share their resamples.
        resamples: How often as many questions are drawn, with replacement.
        seed: Of the draws.

    Returns:
        m pairs of bounds.

    Example:
        >>> bootstrap_intervals(np.array([[True], [False]] * 50))
        [(0.4, 0.6)]
    """
    shares = resampled(right.astype(np.float64), resamples, seed) / len(right)
    bounds = np.percentile(shares, [2.5, 97.5], axis=0)
    return [(float(low), float(high)) for low, high in bounds.T]


def _lengths(vectors: NDArray[np.floating]) -> NDArray[np.float64]:
    lengths: NDArray[np.float64] = np.linalg.norm(vectors.astype(np.float64), axis=1)
    return lengths
