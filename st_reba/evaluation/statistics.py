"""Intervals of scores and of their differences, by one paired bootstrap over items.

Which items are drawn depends on their number and the seed alone, so that all methods are scored on the same draws:
what two methods share does not blur what tells them apart.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

Evidence = NDArray[np.float64]
Metric = Callable[[Evidence], float]

DRAWS = 1000
# Of an interval, and of all statements that are made at once.
LEVEL = 0.95
_ROUNDING = 1e-12


def bootstrap(
    evidence: Evidence,
    metric: Metric,
    *,
    groups: Sequence[object] | None = None,
    recentred: bool = False,
    draws: int = DRAWS,
    seed: int = 0,
) -> NDArray[np.float64]:
    """A metric's values on as many items as there are, drawn with replacement, again and again.

    Args:
        evidence: [items, numbers]: what is known of each item.
        metric: Makes a score of some items' evidence.
        groups: Each item's group; items of one group are alike, and are drawn together. None: each is drawn by itself.
        recentred: Move the values so that their mean is the metric of all items. For metrics that rise when items stand
            twice, as the v-measure does.
        draws: How often.
        seed: Of the draws.

    Returns:
        [draws] values.

    Example:
        >>> right = np.array([[1.0]] * 80 + [[0.0]] * 20)
        >>> low, high = interval(bootstrap(right, lambda evidence: float(evidence.mean())))
        >>> bool(0.70 < low < 0.8 < high < 0.90)
        True
    """
    generator = np.random.default_rng(seed)
    members: dict[object, list[int]] = {}
    for place, group in enumerate(range(len(evidence)) if groups is None else groups):
        members.setdefault(group, []).append(place)
    units = list(map(np.array, members.values()))
    values = np.empty(draws)
    for number in range(draws):
        chosen = generator.integers(len(units), size=len(units))
        rows = chosen if groups is None else np.concatenate([units[unit] for unit in chosen])
        values[number] = metric(evidence[rows])
    return values - values.mean() + metric(evidence) if recentred else values


def interval(values: NDArray[np.float64]) -> tuple[float, float]:
    """The 95 % interval of a bootstrap: its percentiles."""
    low, high = np.percentile(values, (100 * (1 - LEVEL) / 2, 100 * (1 + LEVEL) / 2))
    return float(low), float(high)


@dataclass(frozen=True)
class Difference:
    """How two methods differ on the same items.

    Args:
        first: A method.
        second: Another.
        value: The score of the first minus that of the second.
        interval: Its 95 % interval, taken by itself.
        corrected: Its interval when all differences of the comparison are to lie within theirs with 95 %.
    """

    first: str
    second: str
    value: float
    interval: tuple[float, float]
    corrected: tuple[float, float]

    @property
    def certain(self) -> bool:
        """Whether the two can be told apart, though many are compared."""
        return self.corrected[0] > 0 or self.corrected[1] < 0


def differences(
    scores: Mapping[str, float], samples: Mapping[str, NDArray[np.float64]], against: str | None = None
) -> list[Difference]:
    """The differences between methods, with intervals for each and for all at once.

    The corrected intervals are as many standard errors wide as the largest of the standardized differences is in 95 %
    of the draws (max-T), so that together they hold whatever the methods have in common.

    Args:
        scores: By method.
        samples: [draws] each, from :func:`bootstrap` of the same items by the same seed.
        against: Compare all with this one; None: every two.

    Returns:
        A difference a pair.

    Source:
        Westfall and Young 1993, Resampling-Based Multiple Testing (single-step max-T).

    Example:
        >>> one = np.array([[1.0]] * 60 + [[0.0]] * 40)
        >>> other = np.array([[1.0]] * 30 + [[0.0]] * 70)
        >>> mean = lambda evidence: float(evidence.mean())
        >>> samples = {"one": bootstrap(one, mean), "other": bootstrap(other, mean)}
        >>> (found,) = differences({"one": 0.6, "other": 0.3}, samples)
        >>> round(found.value, 2), found.certain
        (0.3, True)
    """
    pairs = list(combinations(scores, 2)) if against is None else [(n, against) for n in scores if n != against]
    if not pairs:
        return []
    drawn = np.stack([samples[first] - samples[second] for first, second in pairs])
    values = np.array([scores[first] - scores[second] for first, second in pairs])
    errors = drawn.std(axis=1)
    # Two that differ by the same in every draw have no error but rounding, by which nothing can be divided.
    errors[errors < _ROUNDING] = 0.0
    apart = np.abs(drawn - values[:, None])
    moved = np.divide(apart, errors[:, None], out=np.zeros_like(apart), where=errors[:, None] > 0)
    width = np.percentile(moved.max(axis=0), 100 * LEVEL) * errors
    return [
        Difference(first, second, float(value), interval(draws), (float(value - half), float(value + half)))
        for (first, second), value, draws, half in zip(pairs, values, drawn, width, strict=True)
    ]
