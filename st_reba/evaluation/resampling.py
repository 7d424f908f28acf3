"""Intervals by the bootstrap: how far a score would move with other items of the same kind."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

DRAWS = 1000


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
    random = np.random.default_rng(seed)
    units = len(counts)
    # How often each unit is drawn: draws and units never stand side by side as indices.
    sums = np.stack([random.multinomial(units, np.full(units, 1 / units)) @ counts for _ in range(DRAWS)])
    low, high = np.percentile(score(sums), (2.5, 97.5))
    return float(low), float(high)
