"""The paired bootstrap."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import t as student_t

from st_reba.evaluation.statistics import Difference, Evidence, paired_bootstrap


def mean(item_evidence: Evidence) -> float:
    return float(item_evidence.mean())


def correct_items(correct_count: int, item_count: int = 400, seed: int = 0) -> Evidence:
    """Evidence [items, 1]: 1 for correct items, in random order."""
    shuffled_items = np.random.default_rng(seed).permutation(item_count)
    return (shuffled_items < correct_count).astype(float)[:, None]


def compare_two(first: Evidence, second: Evidence) -> Difference:
    _, (difference,) = paired_bootstrap({"first": first, "second": second}, mean)
    return difference


def test_intervals_are_those_of_the_draws() -> None:
    item_evidence = np.random.default_rng(1).normal(size=(400, 2))
    intervals, (difference,) = paired_bootstrap(
        {
            "a": item_evidence[:, :1],
            "b": item_evidence[:, 1:],
        },
        mean,
    )
    item_indices = np.random.default_rng(0).integers(400, size=(1000, 400))
    means = item_evidence[item_indices].mean(axis=1)
    np.testing.assert_allclose(
        list(intervals.values()),
        np.percentile(means, [2.5, 97.5], axis=0).T,
    )
    value = mean(item_evidence[:, 0]) - mean(item_evidence[:, 1])
    half_width = np.percentile(np.abs(means[:, 0] - means[:, 1] - value), 95)
    half_width *= student_t.ppf(0.975, 399) / 1.959964 * (400 / 399) ** 0.5
    bounds = [difference.low, difference.value, difference.high]
    np.testing.assert_allclose(bounds, [value - half_width, value, value + half_width])


def test_one_method_has_no_differences() -> None:
    intervals, differences = paired_bootstrap({"a": correct_items(200)}, mean)
    assert list(intervals) == ["a"]
    assert differences == []


def test_shared_items_make_a_difference_more_certain() -> None:
    base = correct_items(200)
    better = base.copy()
    wrong_items = np.flatnonzero(base[:, 0] == 0)
    better[wrong_items[:20]] = 1
    paired = compare_two(better, base)
    unpaired = compare_two(correct_items(220, seed=1), correct_items(200, seed=2))
    assert paired.value == pytest.approx(unpaired.value)
    assert paired.significant
    assert not unpaired.significant
    assert paired.high - paired.low < unpaired.high - unpaired.low


def test_equal_methods_have_an_interval_of_0() -> None:
    difference = compare_two(correct_items(200), correct_items(200))
    assert (difference.low, difference.high, difference.significant) == (0, 0, False)


def test_more_pairs_make_wider_intervals() -> None:
    evidences = {str(seed): correct_items(200, seed=seed) for seed in range(6)}
    single = compare_two(evidences["0"], evidences["1"])
    _, differences = paired_bootstrap(evidences, mean)
    assert len(differences) == 15
    corrected = differences[0]
    assert (corrected.first, corrected.second, corrected.value) == ("0", "1", single.value)
    assert corrected.high - corrected.low > 1.2 * (single.high - single.low)


def test_items_of_a_group_are_drawn_together() -> None:
    item_evidence = np.repeat(correct_items(20, 40), 10, axis=0)
    groups = np.repeat(np.arange(40), 10).tolist()
    low, high = paired_bootstrap({"a": item_evidence}, mean)[0]["a"]
    low_of_groups, high_of_groups = paired_bootstrap(
        {"a": item_evidence},
        mean,
        groups=groups,
    )[0]["a"]
    assert high_of_groups - low_of_groups > 2 * (high - low)


def test_recentred_intervals_contain_the_score_of_a_metric_that_rises() -> None:
    def rising_metric(item_evidence: Evidence) -> float:
        has_repeated_items = len(np.unique(item_evidence[:, 1])) < len(item_evidence)
        return float(item_evidence[:, 0].mean()) + 0.3 * has_repeated_items

    item_evidence = np.column_stack([correct_items(200), np.arange(400)])
    low, _ = paired_bootstrap({"a": item_evidence}, rising_metric)[0]["a"]
    assert low > rising_metric(item_evidence)
    low, high = paired_bootstrap({"a": item_evidence}, rising_metric, recentred=True)[0]["a"]
    assert low < rising_metric(item_evidence) < high


@pytest.mark.parametrize("groups", [(), [1] * 10 + list(range(8))])
def test_few_items_have_no_intervals(groups: list[int]) -> None:
    item_count = len(groups) or 9
    evidences = {"a": correct_items(item_count, item_count), "b": correct_items(0, item_count)}
    assert paired_bootstrap(evidences, mean, groups=groups) == ({}, [])


def test_methods_of_one_distribution_rarely_differ() -> None:
    """Ten items of each; without the correction it is one run in nine."""
    generator = np.random.default_rng(0)
    false_alarms = 0
    for _ in range(400):
        first, second = generator.normal(size=(2, 10, 1))
        _, (difference,) = paired_bootstrap({"a": first, "b": second}, mean, draws=200)
        false_alarms += difference.significant
    assert false_alarms <= 0.08 * 400
