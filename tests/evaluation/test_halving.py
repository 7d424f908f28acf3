"""Halving on scripted scores: which arms go on, what a budget allows, and what is chosen at the end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from marks import slow_but
from scripted import ARMS, COSTS, HALVED, drawn_scores

from st_reba.evaluation.crossfit import Scored
from st_reba.evaluation.halving import Compose, reported
from st_reba.evaluation.ledger import Result
from st_reba.evaluation.trials import NO_FILTER, PAPERS, Arm, Filter, Read, Trial


def ranked(made: list[Result], wanted: Callable[[Trial], bool]) -> list[Arm]:
    """Arms by the best of their trials that are wanted, by hand: where nothing is converted below, it is another's."""
    best: dict[Arm, float] = {}
    for result in made:
        for each in result.scored:
            arm, runs = result.arm, max(1, each.read.last)
            above = (arm.kind != "forward" and arm.first >= runs) or (arm.sink is not None and arm.sink >= runs)
            trial = Trial(arm, each.read, each.filter)
            other = trial.own.arm in {one.arm for one in made} if above else False
            if not other and wanted(trial.own):
                best[arm] = max(best.get(arm, 0.0), each.score)
    return sorted(best, key=lambda arm: -best[arm])


@pytest.mark.parametrize("seed", range(3))
def test_who_goes_on(scripted: Callable[..., Any], seed: int) -> None:
    halving = scripted(drawn_scores(seed))
    made = halving.rungs(ARMS)
    sizes = [sum(result.rung == rung for result in made) for rung in range(3)]
    counts = [-(-size // 3) for size in sizes]
    # A paper whose best arm is not among the best comes on top.
    assert sizes[0] == len(ARMS) and all(0 <= sizes[n + 1] - counts[n] <= len(PAPERS) for n in (0, 1))
    for rung, count in enumerate(counts[:2]):
        before = [result for result in made if result.rung == rung]
        after = {result.arm for result in made if result.rung == rung + 1}
        assert set(ranked(before, lambda trial: True)[: -(-count // 2)]) <= after
        assert set(ranked(before, lambda trial: COSTS.of(trial) <= 0.5)[: -(-count // 4)]) <= after
        for paper in PAPERS:
            order = ranked(before, lambda trial, paper=paper: trial.paper(6) == paper)  # type: ignore[misc]
            assert set(order[: -(-count // 20)]) <= after


def test_single_papers_are_kept_though_they_are_the_worst(scripted: Callable[..., Any]) -> None:
    halving = scripted(lambda trial: 0.9 if trial.paper(6) == "composed" else 0.1)
    found = halving.found()
    assert set(found.chosen) == {*PAPERS, "fast", "composed"} and found.against in PAPERS
    assert all(found.chosen[paper][0].paper(6) == paper and found.chosen[paper][1] == 0.1 for paper in PAPERS)
    assert found.chosen["fast"][1] == found.chosen["composed"][1] == 0.9
    assert COSTS.of(found.chosen["fast"][0]) <= 0.5
    assert halving.said[0].startswith(f"{len(ARMS)} of {len(ARMS)} arms; ")


def test_ties_go_to_the_cheaper_then_the_plainer_then_the_earlier() -> None:
    cheap, dear = Read(1, 1, True, "mean"), Read(6, 6, True, "mean")
    rows = [Scored(dear, NO_FILTER, 0.5), Scored(cheap, Filter("center"), 0.5), Scored(cheap, NO_FILTER, 0.5)]
    result = Result(Arm(), 0, 900, 1, 1.0, (*rows, Scored(Read(1, 1, True, "last"), NO_FILTER, 0.5)))
    assert reported([result], COSTS, 0.5)["composed"] == (Trial(Arm(), cheap), 0.5)
    better = replace(result, scored=(*rows, Scored(dear, Filter("center"), 0.6)))
    assert reported([better], COSTS, 0.5)["composed"] == (Trial(Arm(), dear, Filter("center")), 0.6)
    assert reported([better], COSTS, 0.5)["fast"] == (Trial(Arm(), cheap), 0.5)


@pytest.mark.parametrize("share", slow_but([0.02, 0.6, 3.0], 0.6))
def test_no_more_runs_than_the_budget_allows(scripted: Callable[..., Any], share: float) -> None:
    whole = scripted(drawn_scores(0)).rungs(ARMS)
    budget = share * sum(result.tokens for result in whole)
    for seed in range(2):
        halving = scripted(drawn_scores(seed), seed=seed)
        halving.costs = COSTS
        arms = halving.drawn(ARMS, budget)
        always = halving.always(ARMS)
        assert set(always) <= set(arms) and arms == [arm for arm in ARMS if arm in arms]
        made = halving.rungs(arms, budget)
        spent = sum(result.tokens for result in made)
        first = sum(halving.cost(arm, 0) for arm in always)
        dearest = max(ARMS, key=COSTS.tokens)
        later = sum((len(PAPERS) + 2) * halving.cost(dearest, rung) for rung in (1, 2))
        assert spent <= max(budget, first + later)
        # The first rung leaves what the others may need.
        assert sum(halving.cost(arm, 0) for arm in arms) <= max(first, budget - later)
        assert halving._allowed(0, 1.2 * later, ARMS) == pytest.approx(0.2 * later)
        assert {trial.paper(6) for trial, _ in reported(made, COSTS, 0.5).values()} >= set(PAPERS)
        assert share < 0.6 or spent > 0.7 * min(budget, sum(result.tokens for result in whole))
        assert share < 3 or arms == ARMS


def test_minutes_are_measured_on_the_papers_methods(scripted: Callable[..., Any]) -> None:
    halving = scripted(drawn_scores(0))
    make = halving._made
    halving._made = lambda arm, rung: replace(made := make(arm, rung), seconds=made.tokens / 50)
    tokens = sum(halving.cost(arm, 0) for arm in halving.always(ARMS))
    halving.options = Compose(HALVED.to_dict(), minutes=2 * tokens / 60 / 50)
    rungs, budgets = halving.rungs, []
    halving.rungs = lambda arms, budget: rungs(arms, budgets.append(budget) or budget)
    found = halving.found()
    assert budgets == [pytest.approx(2 * tokens)]
    assert sum(result.tokens for result in found.results) < 7 * tokens
    assert {result.arm for result in found.results} < set(ARMS)
    assert " arms; about " in halving.said[0]
