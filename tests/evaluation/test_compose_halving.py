"""Which arms go on, and what they may cost: successive halving on scripted scores."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from st_reba.evaluation import Filter, Space
from st_reba.evaluation.composing.costs import Costs
from st_reba.evaluation.composing.halving import RATE, Halving, best_of, papers_of, rung_sizes
from st_reba.evaluation.composing.heldout import reported
from st_reba.evaluation.composing.reading import part_of
from st_reba.evaluation.composing.results import Result, Results
from st_reba.evaluation.composing.scoring import Scored
from st_reba.evaluation.composing.trial import NO_FILTER, PAPERS, Arm, Read, Trial

halving_module: Any = import_module("st_reba.evaluation.composing.halving")

DEPTH = 6
SPACE = Space(
    layers=((6, 6, "mean"), (2, 2, "mean"), (1, 5, "mean")), pooled=("mean", "end", "reba mean"), filters=(NO_FILTER,)
)
ARMS = SPACE.arms(DEPTH)
PAIRS = part_of("pairs", [(f"a{n}", f"b{n}", float(n % 6)) for n in range(900)])
COSTS = Costs({arm.layout: dict.fromkeys(PAIRS.texts, 3 + 10 * arm.copies) for arm in ARMS}, DEPTH)


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Callable[..., Halving]]:
    """A halving whose arms cost what they cost, and score what a function of the whole method says."""
    opened: list[Results] = []

    def get(value: Callable[[Trial], float], space: Space = SPACE, **options: Any) -> Halving:
        def encode(transformer: Any, arm: Arm, reads: Any, texts: Any) -> Any:
            return SimpleNamespace(vectors=(arm, reads), tokens=COSTS.total(arm, texts))

        def scores(part: Any, vectors: Any, filters: Any, looked_at: int) -> list[Scored]:
            arm, reads = vectors
            return [Scored(read, each, value(Trial(arm, read, each))) for read in reads for each in filters]

        monkeypatch.setattr(halving_module, "encode_arm", encode)
        monkeypatch.setattr(halving_module, "score_reads", scores)
        opened.append(Results(tmp_path / f"run{len(opened)}", {}))
        given = {"speed": 0.5, "seed": 0, "show_progress_bar": False, "say": lambda line: None, **options}
        return Halving(opened[-1], lambda: None, PAIRS, space, COSTS, **given)  # type: ignore[arg-type, return-value]

    yield get
    for results in opened:
        results.close()


def drawn_scores(seed: int) -> Callable[[Trial], float]:
    return lambda trial: random.Random(f"{seed} {trial}").random()


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
def test_who_goes_on(scripted: Callable[..., Halving], seed: int) -> None:
    halving = scripted(drawn_scores(seed))
    made = halving.run(ARMS)
    sizes = [sum(result.rung == rung for result in made) for rung in range(3)]
    assert [result.items for result in made if result.arm == made[-1].arm] == [100, 300, 900] == rung_sizes(900)
    counts = [-(-size // RATE) for size in sizes]
    # A paper whose best arm is not among the best comes on top.
    assert sizes[0] == len(ARMS) and all(0 <= sizes[n + 1] - counts[n] <= len(PAPERS) for n in (0, 1))
    for rung in (0, 1):
        before = [result for result in made if result.rung == rung]
        after = {result.arm for result in made if result.rung == rung + 1}
        count = counts[rung]
        assert set(ranked(before, lambda trial: True)[: -(-count // 2)]) <= after
        assert set(ranked(before, lambda trial: COSTS.of(trial) <= 0.5)[: -(-count // 4)]) <= after
        for paper in PAPERS:
            order = ranked(before, lambda trial, paper=paper: trial.paper(DEPTH) == paper)  # type: ignore[misc]
            assert set(order[: -(-count // 20)]) <= after
    # The items of a rung are among those of the next.
    texts = [set(part.texts) for part in halving.parts]
    assert texts[0] < texts[1] < texts[2] == set(PAIRS.texts)


def test_single_papers_are_kept_though_they_are_the_worst(scripted: Callable[..., Halving]) -> None:
    made = scripted(lambda trial: 0.9 if trial.paper(DEPTH) == "composed" else 0.1).run(ARMS)
    found = reported(made, COSTS, 0.5)
    assert set(found) == {*PAPERS, "fast", "composed"}
    assert all(found[paper][0].paper(DEPTH) == paper and found[paper][1] == 0.1 for paper in PAPERS)
    assert found["fast"][1] == found["composed"][1] == 0.9 and COSTS.of(found["fast"][0]) <= 0.5
    assert scripted(lambda trial: 0.5).kept([result for result in made if result.rung == 0], 1)


def test_ties_go_to_the_cheaper_then_the_plainer_then_the_earlier() -> None:
    cheap, dear = Read(1, 1, True, "mean"), Read(6, 6, True, "mean")
    rows = [Scored(dear, NO_FILTER, 0.5), Scored(cheap, Filter("center"), 0.5), Scored(cheap, NO_FILTER, 0.5)]
    result = Result(Arm(), 0, 900, 1, 6, 1.0, (*rows, Scored(Read(1, 1, True, "last"), NO_FILTER, 0.5)))
    best = best_of([result], lambda trial: True, COSTS)
    assert best == (Trial(Arm(), cheap), 0.5)
    assert best_of([result], lambda trial: trial.arm.repeats == 2, COSTS) is None
    better = replace(result, scored=(*rows, Scored(dear, Filter("center"), 0.6)))
    assert best_of([better], lambda trial: True, COSTS) == (Trial(Arm(), dear, Filter("center")), 0.6)


@pytest.mark.parametrize("share", [0.02, 0.2, 0.3, 0.6, 1.0, 3.0])
def test_no_more_runs_than_the_budget_allows(scripted: Callable[..., Halving], share: float) -> None:
    whole = scripted(drawn_scores(0)).run(ARMS)
    budget = share * sum(result.tokens for result in whole)
    spent = []
    for seed in range(3):
        halving = scripted(drawn_scores(seed), seed=seed)
        arms = halving.drawn(ARMS, budget)
        always = [arm for arm in ARMS if papers_of(arm, SPACE, DEPTH)]
        assert set(always) <= set(arms) and arms == [arm for arm in ARMS if arm in arms]
        made = halving.run(arms, budget)
        spent.append(sum(result.tokens for result in made))
        least = sum(halving._cost(arm, 0) for arm in always)
        dearest = max(ARMS, key=COSTS.tokens)
        least += sum((len(PAPERS) + 2) * halving._cost(dearest, rung) for rung in (1, 2))
        first = sum(halving._cost(arm, 0) for arm in always)
        assert spent[-1] <= max(budget, least)
        # The first rung leaves what the others may need.
        assert sum(halving._cost(arm, 0) for arm in arms) <= max(first, budget - (least - first))
        assert {trial.paper(DEPTH) for trial, _ in reported(made, COSTS, 0.5).values()} >= set(PAPERS)
        if share >= 0.6:
            assert spent[-1] > 0.7 * min(budget, sum(result.tokens for result in whole))
        if share >= 3:
            assert arms == ARMS
    if share == 0.6:
        one, two = (scripted(drawn_scores(0), seed=seed).drawn(ARMS, budget) for seed in (0, 1))
        assert set(one) != set(two)


def test_minutes_are_measured_on_what_always_runs(scripted: Callable[..., Halving]) -> None:
    halving = scripted(drawn_scores(0))
    made = halving._made

    def timed(arm: Arm, rung: int) -> Result:
        result = made(arm, rung)
        return replace(result, seconds=result.tokens / 50, **({"scored": ()} if arm.kind != "forward" else {}))

    halving._made = timed  # type: ignore[method-assign]
    assert halving.rate(ARMS) == pytest.approx(50, rel=1e-3)
    assert set(halving._results.trials) == {(arm, 0) for arm in ARMS if papers_of(arm, SPACE, DEPTH)}
    broken = scripted(drawn_scores(0))
    broken._made = lambda arm, rung: replace(timed(arm, rung), scored=())  # type: ignore[method-assign]
    with pytest.raises(ValueError, match="no measure for minutes"):
        broken.rate(ARMS)


def test_an_arm_that_cannot_run_ends_alone(scripted: Callable[..., Halving], monkeypatch: pytest.MonkeyPatch) -> None:
    halving = scripted(drawn_scores(0))
    encode = halving_module.encode_arm

    def failing(transformer: Any, arm: Arm, reads: Any, texts: Any) -> Any:
        if arm.kind == "bidirectional" or broken:
            raise ValueError("cannot look ahead")
        return encode(transformer, arm, reads, texts)

    broken = False
    monkeypatch.setattr(halving_module, "encode_arm", failing)
    made = halving.run(ARMS)
    failed = [result for result in made if result.error]
    assert failed and all(result.arm.kind == "bidirectional" and result.tokens == 0 for result in failed)
    assert {result.error for result in failed} == {"cannot look ahead"} and {result.rung for result in failed} == {0}
    broken = True
    with pytest.raises(ValueError, match="no arm could be scored: cannot look ahead"):
        scripted(drawn_scores(0))
        monkeypatch.setattr(halving_module, "encode_arm", failing)
        Halving(
            Results(Path(halving._results.folder).parent / "again", {}),
            lambda: None,  # type: ignore[arg-type, return-value]
            PAIRS,
            SPACE,
            COSTS,
            speed=0.5,
            seed=0,
            show_progress_bar=False,
            say=print,
        ).run(ARMS)
