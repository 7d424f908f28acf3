"""The choice of tune: the cheapest of equals within a budget, never below the plain mean, and how steady it is."""

from __future__ import annotations

import numpy as np
import pytest

from st_reba.evaluation.crossfit import Scored
from st_reba.evaluation.heldout import Found, Row
from st_reba.evaluation.ledger import Result
from st_reba.evaluation.passes import Costs
from st_reba.evaluation.trials import Arm, Filter, Read, Trial
from st_reba.evaluation.tuning import (
    BUDGETS,
    CHEAPEST,
    PLAIN,
    RESAMPLES,
    cheapest,
    chosen_again,
    for_budgets,
    settled,
)

LAST = Read(2, 2, True, "mean")
COSTS = Costs({arm.layout: {"a": 10 * arm.copies} for arm in (Arm(), Arm(repeats=2))}, 2)


def results(**scores: float) -> list[Result]:
    """Cheap: a quarter of the last layer's; dear: twice."""
    trials = {
        "plain": Trial(Arm(), LAST),
        "cheap": Trial(Arm(), Read(1, 1, True, "mean"), Filter("center")),
        "equal": Trial(Arm(), LAST, Filter("center")),
        "dear": Trial(Arm(repeats=2), LAST),
    }
    return [
        Result(
            arm, 0, 90, 1, 1.0, tuple(Scored(t.read, t.filter, scores[n]) for n, t in trials.items() if t.arm == arm)
        )
        for arm in (Arm(), Arm(repeats=2))
    ]


@pytest.mark.parametrize(
    ("scores", "budget", "chosen", "others", "told"),
    [
        ((0.5, 0.6, 0.7, 0.8), "speed", "cheap", {"balanced", "quality"}, 0),
        ((0.5, 0.6, 0.7, 0.8), "balanced", "equal", {"speed", "quality"}, 0),
        ((0.5, 0.6, 0.7, 0.8), "quality", "dear", {"speed", "balanced"}, 0),
        ((0.5, 0.6, 0.6, 0.6), "quality", "cheap", set(), 2),
        # Below the plain one nothing is chosen, whatever it saves.
        ((0.5, 0.4, 0.7, 0.8), "speed", "equal", {"quality"}, 2),
        ((0.5, 0.4, 0.4, 0.4), "balanced", "plain", {"speed"}, 1),
    ],
)
def test_the_best_within_a_budget(
    scores: tuple[float, ...], budget: str, chosen: str, others: set[str], told: int
) -> None:
    made = results(**dict(zip(("plain", "cheap", "equal", "dear"), scores, strict=True)))
    best, notes = for_budgets(made, COSTS, budget, {})
    named = {"cheap": (0.5, "center"), "equal": (1.0, "center"), "dear": (2.0, "none"), "plain": (1.0, "none")}
    trial, score = best[budget]
    assert (COSTS.of(trial), trial.filter.kind) == named[chosen] and score >= best[PLAIN][1] == scores[0]
    assert set(best) == {PLAIN, budget, *others} and list(best)[-1] == budget and len(notes) == 1 + told
    assert all(COSTS.of(best[other][0]) <= BUDGETS[other] for other in others)


def test_below_the_last_layers_mean_on_held_out_texts_that_is_the_recipe() -> None:
    best, notes = for_budgets(results(plain=0.5, cheap=0.6, equal=0.7, dear=0.8), COSTS, "balanced", {})
    recipes = {"balanced": "recipe.yaml", "speed": "recipe-speed.yaml"}
    found = Found((), best, "balanced", recipes, 2, COSTS, tuple(notes))

    def rows(plain: float, balanced: float) -> list[Row]:
        heldout = {PLAIN: plain, "balanced": balanced}
        return [Row(name, best[name][0], 1, 1, 0, score, (0, 1)) for name, score in heldout.items()]

    assert settled(found, rows(0.4, 0.4)) == found
    changed = settled(found, rows(0.4, 0.3999))
    assert list(changed.recipes.items()) == [(PLAIN, "recipe.yaml"), ("speed", "recipe-speed.yaml")]
    assert "balanced is below" in changed.notes[0] and changed.notes[1:] == found.notes


def test_of_methods_that_cannot_be_told_apart_the_cheapest() -> None:
    """Each against a paired standard error in plain loops: by a hair within it, and by a hair beyond."""
    random = np.random.default_rng(1)
    dear, plain = random.random(60), random.random(60) / 9
    trials = {
        "dear": Trial(Arm(repeats=2), LAST),
        "cheap": Trial(Arm(), Read(1, 1, True, "mean"), Filter("center")),
        "equal": Trial(Arm(), LAST, Filter("center")),
        "plain": Trial(Arm(), LAST),
    }
    noise = random.normal(size=60)
    noise -= noise.mean()
    error = sum(each * each for each in noise) ** 0.5 / 59**0.5 / 60**0.5
    near, far = dear + noise - 0.99 * error, dear + noise - 1.01 * error
    # A small loss on every item is certain, however much the items differ from each other.
    certain = dear - 1e-4
    for cheap, equal, quality, balanced, moved in (
        (near, certain, "cheap", "cheap", {"quality", "balanced"}),
        (far, near, "equal", "equal", {"quality"}),
        (far, certain, "dear", "equal", set()),
        (certain, dear, "equal", "equal", set()),
    ):
        rows = {trials[name]: row for name, row in zip(trials, (dear, cheap, equal, plain), strict=True)}
        assert cheapest(rows, COSTS) == trials[quality]
        made = results(**{name: rows[trial].mean() for name, trial in trials.items()})
        for budget, wanted in (("quality", quality), ("balanced", balanced)):
            best, notes = for_budgets(made, COSTS, budget, rows)
            assert best[budget] == (trials[wanted], pytest.approx(rows[trials[wanted]].mean()))
            assert notes[0] == CHEAPEST and any(f"{budget}: the highest" in note for note in notes) is (budget in moved)
    # What cannot be told from the best is not taken where it is below the plain mean.
    rows = {trials["dear"]: dear, trials["cheap"]: near, trials["equal"]: certain, trials["plain"]: dear - 0.001}
    made = results(**{name: rows[trial].mean() for name, trial in trials.items()})
    assert cheapest(rows, COSTS) == trials["cheap"] and near.mean() < rows[trials["plain"]].mean()
    assert for_budgets(made, COSTS, "quality", rows)[0]["quality"][0] == trials["dear"]


def test_how_often_a_method_is_chosen_again() -> None:
    random = np.random.default_rng(1)
    rows = {Trial(Arm(), Read(n, n, True, "mean")): random.random(40) for n in range(4)}
    drawn = np.random.default_rng(0).multinomial(40, np.full(40, 1 / 40), RESAMPLES)
    wanted = []
    for counts in drawn[:60]:
        items = [item for item in range(40) for _ in range(counts[item])]
        again = {trial: values[items] for trial, values in rows.items()}
        best = max(again.values(), key=lambda values: float(values.mean()))
        near = [
            trial
            for trial, values in again.items()
            if (best - values).mean() <= (best - values).std(ddof=1) / 40**0.5 + 1e-12
        ]
        wanted.append(min(near, key=lambda trial: (COSTS.of(trial), -again[trial].mean())))
    found = chosen_again(rows, COSTS)
    assert sum(found.values()) == RESAMPLES and set(found) >= set(wanted) and len(set(wanted)) > 1
    for trial in rows:
        assert found[trial] / RESAMPLES == pytest.approx(wanted.count(trial) / 60, abs=0.2)
