"""A paired bootstrap over items: intervals of scores, and of the differences of all pairs of methods at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

Evidence = NDArray[np.float64]
DRAWS, LEVEL = 1000, 0.95
_ROUNDING = 1e-12


@dataclass(frozen=True)
class Difference:
    """The first method's score minus the second's, with an interval that holds for all pairs together with 95 %."""

    first: str
    second: str
    value: float
    low: float
    high: float

    @property
    def significant(self) -> bool:
        """The interval excludes 0."""
        return self.low > 0 or self.high < 0


def check_seed(seed: int) -> None:
    """Refuse a seed that no generator takes, before the work."""
    if not isinstance(seed, (int, np.integer)) or seed < 0:
        raise ValueError(f"seed={seed!r} must be a whole number from 0 on.")


def paired_bootstrap(
    evidences: Mapping[str, Evidence],
    metric: Callable[[Evidence], float],
    *,
    groups: Sequence[object] = (),
    recentred: bool = False,
    draws: int = DRAWS,
    seed: int = 0,
) -> tuple[dict[str, tuple[float, float]], list[Difference]]:
    """Draw items with replacement, the same for all methods.

    Args:
        evidences: By method, [items, numbers]: what is known of each item.
        metric: Makes a score of items' evidence.
        groups: A group an item; items of one group are drawn together. Empty: each by itself.
        recentred: Move the values to the score of all items: of metrics that rise when items are drawn twice.
        draws, seed: How often, and of the draws.

    Returns:
        The 95 % interval of each method's score, and the difference of each pair. Corrected intervals are as many
        standard errors wide as the largest standardized difference is in 95 % of the draws.

    Source:
        Westfall and Young 1993, Resampling-Based Multiple Testing (single-step max-T).

    Example:
        >>> one, other = (np.array([[1.0]] * right + [[0.0]] * (100 - right)) for right in (60, 30))
        >>> intervals, (found,) = paired_bootstrap({"one": one, "other": other}, lambda rows: float(rows.mean()))
        >>> round(found.value, 2), found.significant
        (0.3, True)
    """
    generator, scores = np.random.default_rng(seed), {name: metric(each) for name, each in evidences.items()}
    members: dict[object, list[int]] = {}
    for place, group in enumerate(groups or range(len(next(iter(evidences.values()))))):
        members.setdefault(group, []).append(place)
    units = list(map(np.array, members.values()))
    samples = {name: np.empty(draws) for name in evidences}
    for number in range(draws):
        chosen = np.concatenate([units[unit] for unit in generator.integers(len(units), size=len(units))])
        for name, evidence in evidences.items():
            samples[name][number] = metric(evidence[chosen])
    if recentred:
        samples = {name: each - each.mean() + scores[name] for name, each in samples.items()}
    ends = 100 * (1 - LEVEL) / 2, 100 * (1 + LEVEL) / 2
    intervals: dict[str, Any] = {name: tuple(np.percentile(each, ends).tolist()) for name, each in samples.items()}
    pairs = list(combinations(evidences, 2))
    if not pairs:
        return intervals, []
    values = np.array([scores[first] - scores[second] for first, second in pairs])
    spread = np.stack([samples[first] - samples[second] for first, second in pairs]) - values[:, None]
    errors = spread.std(axis=1)
    errors[errors < _ROUNDING] = 0.0
    moved = np.divide(np.abs(spread), errors[:, None], out=np.zeros_like(spread), where=errors[:, None] > 0)
    half = np.percentile(moved.max(axis=0), 100 * LEVEL) * errors
    rows = zip(pairs, values.tolist(), (values - half).tolist(), (values + half).tolist(), strict=True)
    return intervals, [Difference(*pair, value, low, high) for pair, value, low, high in rows]
