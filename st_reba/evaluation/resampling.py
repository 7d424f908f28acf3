"""Intervals by the bootstrap: how far a score would move with other items of the same kind."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

DRAWS = 1000
# Numbers drawn at a time.
_DRAWN_TOGETHER = 1 << 22


def resampled(counts: NDArray[np.float64], draws: int, seed: int) -> NDArray[np.float64]:
    """Sums over as many units as there are, drawn with replacement, again and again.

    Args:
        counts: [units, sums]: what each unit adds to each sum.
        draws: How often.
        seed: Of the draws: the same units of two methods are drawn alike.

    Returns:
        [draws, sums].
    """
    units = len(counts)
    generator = np.random.default_rng(seed)
    together = max(1, _DRAWN_TOGETHER // units)
    sums = []
    for start in range(0, draws, together):
        rows = min(together, draws - start)
        drawn = generator.integers(units, size=(rows, units))
        # How often each draw holds each unit: one product then serves all sums.
        flat = (drawn + units * np.arange(rows)[:, None]).ravel()
        times = np.bincount(flat, minlength=rows * units).reshape(rows, units)
        sums.append(times @ counts)
    return np.concatenate(sums)


def interval(
    counts: NDArray[np.float64], score: Callable[[NDArray[np.float64]], NDArray[np.float64]], seed: int = 0
) -> tuple[float, float]:
    """A score's 95 % interval by the percentile bootstrap.

    Args:
        counts: What each unit adds to the sums that the score is computed from, [units, sums]: a unit is what is drawn
            as a whole, as a sentence or a topic.
        score: The sums of each draw, [draws, sums] → its score, [draws].
        seed: Of the draws.

    Returns:
        The bounds.

    Example:
        >>> right = np.array([1.0] * 80 + [0.0] * 20)
        >>> low, high = interval(np.stack([right, np.ones(100)], axis=1), lambda sums: sums[:, 0] / sums[:, 1])
        >>> bool(0.70 < low < 0.8 < high < 0.90)
        True
    """
    low, high = np.percentile(score(resampled(counts, DRAWS, seed)), (2.5, 97.5))
    return float(low), float(high)
