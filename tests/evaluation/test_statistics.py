"""The paired bootstrap."""

from __future__ import annotations

import numpy as np
import pytest

from st_reba.evaluation.statistics import Evidence, paired_bootstrap


def mean(rows: Evidence) -> float:
    return float(rows.mean())


def right(count: int, of: int = 400, seed: int = 0) -> Evidence:
    return np.random.default_rng(seed).permutation(np.arange(of) < count).astype(float)[:, None]


def test_intervals_are_those_of_the_draws() -> None:
    rows = np.random.default_rng(1).normal(size=(400, 2))
    intervals, (pair,) = paired_bootstrap({"a": rows[:, :1], "b": rows[:, 1:]}, mean)
    draws = rows[np.random.default_rng(0).integers(400, size=(1000, 400))].mean(axis=1)
    np.testing.assert_allclose([*intervals.values()], np.percentile(draws, [2.5, 97.5], axis=0).T)
    value = mean(rows[:, 0]) - mean(rows[:, 1])
    half = np.percentile(np.abs(draws[:, 0] - draws[:, 1] - value), 95)
    np.testing.assert_allclose([pair.low, pair.value, pair.high], [value - half, value, value + half])
    assert paired_bootstrap({"a": rows}, mean)[1] == []


def test_what_two_methods_share_does_not_blur_their_difference() -> None:
    base = right(200)
    better = base.copy()
    better[np.flatnonzero(base[:, 0] == 0)[:20]] = 1
    (paired,) = paired_bootstrap({"better": better, "base": base}, mean)[1]
    (apart,) = paired_bootstrap({"better": right(220, seed=1), "base": right(200, seed=2)}, mean)[1]
    assert paired.value == pytest.approx(apart.value)
    assert paired.significant and not apart.significant
    assert paired.high - paired.low < apart.high - apart.low
    (equal,) = paired_bootstrap({"a": base, "b": base}, mean)[1]
    assert (equal.low, equal.high, equal.significant) == (0, 0, False)


def test_more_pairs_make_wider_intervals() -> None:
    evidences = {str(seed): right(200, seed=seed) for seed in range(6)}
    (alone,) = paired_bootstrap({name: evidences[name] for name in "01"}, mean)[1]
    among = paired_bootstrap(evidences, mean)[1]
    assert (len(among), among[0].first, among[0].second, among[0].value) == (15, "0", "1", alone.value)
    assert among[0].high - among[0].low > 1.2 * (alone.high - alone.low)


def test_items_of_a_group_are_drawn_together() -> None:
    alike = np.repeat(right(20, 40), 10, axis=0)
    groups = [n // 10 for n in range(400)]
    (low, high), (one, other) = (paired_bootstrap({"a": alike}, mean, groups=given)[0]["a"] for given in ((), groups))
    assert other - one > 2 * (high - low)


def test_recentred() -> None:
    def rises(rows: Evidence) -> float:
        return float(rows[:, 0].mean()) + 0.3 * (len(np.unique(rows[:, 1])) < len(rows))

    evidence = np.column_stack([right(200), np.arange(400)])
    plain = paired_bootstrap({"a": evidence}, rises)[0]["a"]
    moved = paired_bootstrap({"a": evidence}, rises, recentred=True)[0]["a"]
    assert plain[0] > rises(evidence)
    assert moved[0] < rises(evidence) < moved[1]
