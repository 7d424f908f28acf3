"""Intervals and differences against plain loops, scipy, and simulations in which the truth is known."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy.stats import bootstrap as scipy_bootstrap

from st_reba.evaluation.items import Clusters
from st_reba.evaluation.metrics import spearman
from st_reba.evaluation.statistics import Difference, bootstrap, differences, interval

Evidence = Any


def mean(evidence: Evidence) -> float:
    return float(evidence.mean())


def test_values_are_the_metric_of_drawn_items() -> None:
    evidence = np.random.default_rng(3).normal(size=(50, 2))
    generator = np.random.default_rng(7)
    wanted = []
    for _ in range(200):
        rows = generator.integers(50, size=50).tolist()
        wanted.append(spearman(np.array([evidence[row] for row in rows])))
    found = bootstrap(evidence, spearman, draws=200, seed=7)
    assert found.tolist() == wanted
    low, high = interval(found)
    # 2.5 and 97.5 %, between the two values around them.
    ordered = sorted(wanted)
    assert low == pytest.approx(ordered[4] + 0.975 * (ordered[5] - ordered[4]))
    assert high == pytest.approx(ordered[194] + 0.025 * (ordered[195] - ordered[194]))
    assert not np.array_equal(found, bootstrap(evidence, spearman, draws=200, seed=8))


def test_intervals_are_scipys() -> None:
    right = (np.random.default_rng(5).random((300, 1)) < 0.7).astype(float)
    low, high = interval(bootstrap(right, mean))
    wanted = scipy_bootstrap((right[:, 0],), np.mean, n_resamples=10_000, method="percentile").confidence_interval
    assert (low, high) == pytest.approx((wanted.low, wanted.high), abs=0.01)
    assert interval(bootstrap(np.ones((7, 1)), mean)) == (1.0, 1.0)


def test_two_methods_meet_the_same_draws() -> None:
    """What does not depend on the method is the same in every draw, whatever is beside it."""
    items = np.arange(80, dtype=float)[:, None]
    beside = np.random.default_rng(0).normal(size=(80, 3))
    one = bootstrap(items, mean, seed=4)
    other = bootstrap(np.hstack([items, beside]), lambda drawn: float(drawn[:, 0].mean()), seed=4)
    assert np.array_equal(one, other)


def test_a_group_is_drawn_as_one() -> None:
    groups = ["a", "b", "c", "a", "b", "d", "d", "d"]
    seen: list[list[int]] = []
    items = np.arange(len(groups), dtype=float)[:, None]
    bootstrap(items, lambda drawn: seen.append(drawn[:, 0].astype(int).tolist()) or 0.0, groups=groups, draws=50)
    assert len({len(drawn) for drawn in seen}) > 1
    for drawn in seen:
        times = [drawn.count(row) for row in range(len(groups))]
        assert times[0] == times[3] and times[1] == times[4] and times[5] == times[6] == times[7]
        # As many groups as there are.
        assert times[0] + times[1] + times[2] + times[5] == 4
    # Ten that are alike tell as much as one.
    right = np.repeat((np.arange(40) % 4 > 0).astype(float), 10)[:, None]
    narrow, wide = (
        np.diff(interval(bootstrap(right, mean, groups=each)))[0] for each in (None, np.repeat(range(40), 10).tolist())
    )
    assert 2.5 < wide / narrow < 4


def test_a_v_measure_lies_in_its_interval() -> None:
    """Of chance clusters it is near 0, and far above in draws that hold items twice."""
    generator = np.random.default_rng(1)
    labels = generator.integers(5, size=100)
    evidence = np.stack([labels, *(generator.integers(5, size=(5, 100)))], axis=1).astype(float)
    metric = Clusters((), ()).metrics["v_measure"]
    value = metric(evidence)
    low, _ = interval(bootstrap(evidence, metric, draws=300))
    assert low > value
    moved = bootstrap(evidence, metric, draws=300, recentred=True)
    assert moved.mean() == pytest.approx(value)
    assert interval(moved)[0] < value < interval(moved)[1]


def methods(generator: Any, shares: list[float], count: int = 200) -> dict[str, Evidence]:
    """Methods that answer alike as far as items are easy or hard for all of them."""
    hard = generator.normal(size=(count, 1))
    answers = {}
    for number, share in enumerate(shares):
        noisy = hard + generator.normal(size=(count, 1))
        cut = np.sqrt(2) * {0.5: 0.0, 0.65: 0.38532}[share]
        answers[f"m{number}"] = (noisy < cut).astype(float)
    return answers


def compared(answers: dict[str, Evidence], against: str | None = None, draws: int = 300) -> list[Difference]:
    samples = {name: bootstrap(each, mean, draws=draws) for name, each in answers.items()}
    return differences({name: mean(each) for name, each in answers.items()}, samples, against)


def test_differences_are_of_pairs() -> None:
    answers = methods(np.random.default_rng(2), [0.5, 0.65, 0.5, 0.5])
    every, some = compared(answers), compared(answers, against="m1")
    assert [(each.first, each.second) for each in every] == [
        (f"m{one}", f"m{two}") for one in range(4) for two in range(one + 1, 4)
    ]
    assert [(each.first, each.second) for each in some] == [("m0", "m1"), ("m2", "m1"), ("m3", "m1")]
    for each in (*every, *some):
        assert each.value == pytest.approx(mean(answers[each.first]) - mean(answers[each.second]))
        # The interval of the paired difference, item by item.
        paired = interval(bootstrap(answers[each.first] - answers[each.second], mean, draws=300))
        assert each.interval == pytest.approx(paired, abs=1e-12)
    assert compared({"one": answers["m0"]}) == []


def test_corrected_intervals_are_wider() -> None:
    def width(bounds: tuple[float, float]) -> float:
        return bounds[1] - bounds[0]

    answers = methods(np.random.default_rng(2), [0.5] * 6)
    every = compared(answers, draws=1000)
    assert all(width(each.corrected) > 1.2 * width(each.interval) for each in every)
    # The more are compared, the wider; of two alone no wider than by what 1,000 draws leave to chance.
    (two,) = compared({name: answers[name] for name in ("m0", "m1")}, draws=1000)
    assert width(two.corrected) == pytest.approx(width(two.interval), rel=0.1)
    assert width(two.corrected) < width(every[0].corrected)


def test_methods_that_differ_by_the_same_everywhere() -> None:
    """No error but rounding: it widens no other's interval, and the difference is certain, if there is one."""
    answers = methods(np.random.default_rng(6), [0.5, 0.5])
    alone = compared(answers)[0].corrected
    shifted = {**answers, "m0 again": answers["m0"], "m0 + 0.1": answers["m0"] + 0.1}
    found = {(each.first, each.second): each for each in compared(shifted)}
    assert found["m0", "m0 again"].corrected == (0.0, 0.0) and not found["m0", "m0 again"].certain
    assert found["m0", "m0 + 0.1"].certain
    assert found["m0", "m0 + 0.1"].corrected == pytest.approx((-0.1, -0.1))
    assert found["m0", "m1"].corrected == pytest.approx(alone, abs=0.05)


def test_rounding_is_no_error() -> None:
    """A difference that only rounding moves does not widen the intervals of others."""
    noise = np.random.default_rng(0).normal(size=1000)
    # 0.1 + 0.2, which is not 0.3, but in some draws.
    steady = np.where(np.arange(1000) < 20, 0.3, 0.1 + 0.2)
    samples = {"zero": np.zeros(1000), "noise": noise, "steady": steady}
    # Kept with fewer digits, it lies a billion such errors away.
    scores = {"zero": 0.0, "noise": 0.0, "steady": 0.30000001}
    found = {each.first: each for each in differences(scores, samples, "zero")}
    (alone,) = differences({"zero": 0.0, "noise": 0.0}, {"zero": np.zeros(1000), "noise": noise}, "zero")
    assert found["noise"].corrected == pytest.approx(alone.corrected)
    assert found["steady"].certain and not alone.certain


def test_the_family_wise_error_is_five_per_cent() -> None:
    """Of six methods that are all alike, some two are told apart in about one of twenty trials."""
    generator = np.random.default_rng(11)
    wrong = single = 0
    trials = 120
    for _ in range(trials):
        found = compared(methods(generator, [0.5] * 6, 100), draws=200)
        wrong += any(each.certain for each in found)
        single += any(each.interval[0] > 0 or each.interval[1] < 0 for each in found)
    assert 0.01 <= wrong / trials <= 0.10
    # The premise: without the correction there are many.
    assert single / trials > 0.25


def test_a_real_difference_is_found() -> None:
    generator = np.random.default_rng(12)
    found = [compared(methods(generator, [0.5, 0.5, 0.65], 300), draws=200) for _ in range(30)]
    hits = sum(each.certain and each.value < 0 for trial in found for each in trial if each.second == "m2")
    assert hits >= 50  # of 60
