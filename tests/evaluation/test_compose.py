"""The search: its space, which arms go on, NoSink's choice, what a kill leaves, and what held-out items are worth."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas
import pytest
import yaml
from marks import slow_but
from scipy.spatial.distance import cdist
from scipy.stats import spearmanr
from searched import TEXTS, rows_of, task_of
from sklearn.linear_model import LogisticRegression

import st_reba
from st_reba import NoSink
from st_reba.cli import main
from st_reba.evaluation import halving as module
from st_reba.evaluation import heldout, make_task, rungs, search
from st_reba.evaluation.choice import Choice, Chosen
from st_reba.evaluation.crossfit import Scored
from st_reba.evaluation.halving import Compose, Halving, reported
from st_reba.evaluation.heldout import Parts, parts_of
from st_reba.evaluation.items import Items
from st_reba.evaluation.ledger import Ledger, Result
from st_reba.evaluation.methods import Base
from st_reba.evaluation.passes import Costs
from st_reba.evaluation.rungs import Search, rung_sizes
from st_reba.evaluation.search import compose
from st_reba.evaluation.search_report import Report
from st_reba.evaluation.space import Space, read_space, write_space
from st_reba.evaluation.statistics import bootstrap
from st_reba.evaluation.trials import NO_FILTER, PAPERS, Arm, Filter, Read, Trial

LAST = Read(6, 6, True, "mean")
SMALL = Space(
    templates=(None, "prompteol"),
    kinds=("bidirectional",),
    sinks=False,
    layers=((1, 1, "mean"), (0, 2, "mean")),
    pooled=("mean", "reba mean"),
    filters=("center", {"kind": "abtt", "r": 1}),
)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """Few draws, small parts, and no figure but where it is looked at."""
    monkeypatch.setattr(heldout, "FEWEST", 16)
    monkeypatch.setattr("st_reba.evaluation.items.bootstrap", partial(bootstrap, draws=60))
    if "drawn" not in request.fixturenames:
        monkeypatch.setattr("st_reba.evaluation.search_report._figure", lambda *given: None)
        monkeypatch.setattr("st_reba.evaluation.search_report.save_figure", lambda figure, path: Path(path).touch())


@pytest.fixture
def drawn() -> None:
    """With figures."""


# Spaces


@pytest.mark.parametrize(
    "space",
    [
        Space(),
        Space(
            layers=((3, 3, "mean"), (0, 2, "concat")),
            filters=({"kind": "abtt", "r": 2}, {"kind": "whiten", "r": 1, "share": 0.5, "power": 0.9}),
        ),
        Space(
            templates=(None, "总结：{text}"),
            separators=("", "\n"),
            kinds=("forward",),
            norms=(False, True),
            sinks=False,
        ),
    ],
)
def test_a_space_is_read_as_it_was_written(space: Space, tmp_path: Path) -> None:
    path = tmp_path / "space.yaml"
    path.write_text(write_space(space), encoding="utf-8")
    assert read_space(path) == space and Filter() in space.postfilters


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[1]", r"space: \[1\] must be a mapping of"),
        ("repeat: [1]", "space: repeat .* is not known: choose from .*'repeats'.* Did you mean 'repeats'"),
        ("repeats: 2", "space: repeats=2 is not allowed: give a list of whole numbers from 1"),
        ("repeats: [true]", r"space: repeats=\(True,\) is not allowed"),
        ("repeats: []", r"space: repeats=\(\) is not allowed"),
        ("templates: [metaeol]", "space: templates: 'metaeol' must be one template's name or text"),
        ("templates: [ecko]", "space: templates: .*ecko"),
        ("templates: [echo-instruct]", "for all texts alike"),
        ("kinds: [foward]", "kind .*'foward'.* is not known: choose from .* Did you mean 'forward'"),
        ("sinks: 1", "space: sinks=1 is not allowed: give True or False"),
        ("pooled: [max]", r"space: pooled=\('max',\) is not allowed"),
        ("layers: [-1]", "space: layers: -1 must be a layer from 0"),
        ("layers: [[3, 1]]", r"space: layers: \[3, 1\] must be"),
        ("filters: [centre]", "filters: kind='centre' is not allowed: .* Did you mean 'center'"),
        ("filters: [{r: 1}]", "filters: r=1 does not belong to kind='none'"),
        ("filters: [{kind: abtt}]", "filters: r=0 of abtt must be a whole number from 1 on"),
        ("filters: [{kind: center, r: 1}]", "filters: r=1 does not belong to kind='center'"),
        ("filters: [{kind: whiten, share: 0}]", "filters: share=0 is not allowed: give a number from 0.001 to 1"),
        ("filters: [{kind: whiten, power: 2}]", "filters: power=2 is not allowed"),
    ],
)
def test_a_wrong_space_is_named(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "space.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=f"space.yaml.*{message}"):
        read_space(path)


def test_arms_are_different_passes_and_the_papers_are_among_them() -> None:
    arms = Space().arms(6)
    plans = {(arm.template, arm.repeats, json.dumps(arm.plan(6).to_dict(), sort_keys=True)) for arm in arms}
    # One input: unconverted, 6 + 6 conversions, and 15 that hide the sink above another layer.
    assert len(plans) == len(arms) == 4 * (1 + 12 + 15) and all(Arm.of(arm.to_json()) == arm for arm in arms)
    # However narrow a space is.
    narrow = Space(
        templates=("总：{text}",), kinds=("forward",), layers=((1, 1, "mean"),), pooled=("mean",), filters=("none",)
    )
    found: dict[str, set[Trial]] = {}
    for arm in narrow.arms(6):
        for read in narrow.reads(arm, 6):
            found.setdefault(Trial(arm, read).paper(6), set()).add(Trial(arm, read))
    assert set(found) == {*PAPERS, "composed"}
    assert Trial(Arm("总：{text}"), Read(1, 1, True, "mean")) in found["composed"]
    assert {trial.read.pooled for trial in found["classical"]} == {"mean", "last"} and len(found["nosink"]) == 12
    with pytest.raises(ValueError, match="there is no layer 7: the base has 0"):
        Space(layers=((7, 7, "mean"),)).arms(6)


@pytest.mark.parametrize(
    ("trial", "paper"),
    [
        (Trial(Arm(), LAST), "classical"),
        (Trial(Arm(), Read(6, 6, True, "last")), "classical"),
        (Trial(Arm(), LAST, Filter("center")), "composed"),
        (Trial(Arm(), Read(5, 5, True, "mean")), "composed"),
        (Trial(Arm(), Read(6, 6, False, "mean")), "composed"),
        # One copy in a template is no classical method, whatever is pooled.
        (Trial(Arm("prompteol"), LAST), "composed"),
        (Trial(Arm("echo-classical"), Read(6, 6, True, "last")), "composed"),
        (Trial(Arm("prompteol"), Read(6, 6, True, "end")), "prompteol"),
        (Trial(Arm("总：{text}。"), Read(6, 6, True, "end")), "composed"),
        (Trial(Arm("echo"), LAST), "echo"),
        (Trial(Arm(repeats=3), LAST), "echo"),
        (Trial(Arm(repeats=2, separator=" / "), LAST), "composed"),
        (Trial(Arm(repeats=2), Read(6, 6, True, "reba last")), "reba"),
        (Trial(Arm("echo"), Read(6, 6, True, "reba last")), "composed"),
        (Trial(Arm(repeats=2, kind="bidirectional"), Read(6, 6, True, "reba last")), "composed"),
        (Trial(Arm(kind="bidirectional", first=3, sink=4), LAST), "nosink"),
        (Trial(Arm(nosink=NoSink("mask0-bidir", k=2)), LAST), "nosink"),
        (Trial(Arm(kind="rerouted"), LAST), "composed"),
        (Trial(Arm(repeats=2, kind="bidirectional"), LAST), "composed"),
    ],
)
def test_a_papers_name_is_for_its_published_form(trial: Trial, paper: str) -> None:
    assert trial.paper(6) == paper


# Halving, on scripted scores

HALVED = Space(
    layers=((6, 6, "mean"), (2, 2, "mean"), (1, 5, "mean")), pooled=("mean", "end", "reba mean"), filters=("none",)
)
ARMS = HALVED.arms(6)
PAIRS = make_task("STS", [(f"a{n}", f"b{n}", float(n % 6)) for n in range(900)])
COSTS = Costs({arm.layout: dict.fromkeys(PAIRS.items.texts, 3 + 10 * arm.copies) for arm in ARMS}, 6)
Value = Callable[[Trial], float]


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., Any]:
    """A search whose arms cost what they cost, and score what a function of the whole method says."""

    def get(value: Value, kind: type[Search] = Halving, *, seed: int = 0, **options: Any) -> Any:
        def halved(self: Halving, arm: Arm, rung: int) -> tuple[int, list[Scored]]:
            reads = self.space.reads(arm, 6)
            made = [
                Scored(read, each, value(Trial(arm, read, each))) for read in reads for each in self.space.postfilters
            ]
            return COSTS.total(arm, self.items[rung].texts), made

        def chosen(self: Chosen, arm: Arm, rung: int) -> tuple[int, list[Scored]]:
            return self.cost(arm, rung), [Scored(LAST, NO_FILTER, value(Trial(arm, LAST)))]

        monkeypatch.setattr(Halving, "scored", halved)
        monkeypatch.setattr(Chosen, "scored", chosen)
        for place in (rungs, module):
            monkeypatch.setattr(place, "costs_of", lambda *given: COSTS)
        monkeypatch.setattr(
            Ledger, "add", lambda self, result: self.results.update({(result.arm, result.rung): result})
        )
        said: list[str] = []
        model: Any = [SimpleNamespace(depth=6)]
        parts = Parts(PAIRS, PAIRS.items, PAIRS.items)
        settings = Compose(HALVED.to_dict(), **options) if kind is Halving else Choice(**options)
        made: Any = kind(Ledger(tmp_path), model, parts, settings, seed=seed, disable=True, say=said.append)
        made.said = said
        return made

    return get


def drawn_scores(seed: int) -> Value:
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
def test_who_goes_on(scripted: Callable[..., Any], seed: int) -> None:
    halving = scripted(drawn_scores(seed))
    made = halving.rungs(ARMS)
    sizes = [sum(result.rung == rung for result in made) for rung in range(3)]
    assert [result.items for result in made if result.arm == made[-1].arm] == [100, 300, 900] == rung_sizes(900)
    assert rung_sizes(90_000) == [10_000, 30_000, 90_000]
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
    # The items of a rung are among those of the next.
    texts = [set(items.texts) for items in halving.items]
    assert texts[0] < texts[1] < texts[2] == set(PAIRS.items.texts)


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
    found = halving.found()
    assert sum(result.tokens for result in found.results) < 7 * tokens
    assert {result.arm for result in found.results} < set(ARMS)
    assert " arms; about " in halving.said[0]


def test_an_arm_that_cannot_run_ends_alone(scripted: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    halving = scripted(drawn_scores(0))
    score = Halving.scored

    def failing(self: Halving, arm: Arm, rung: int) -> Any:
        if arm.kind == "bidirectional" or broken:
            raise ValueError("cannot look ahead")
        return score(self, arm, rung)

    broken = False
    monkeypatch.setattr(Halving, "scored", failing)
    made = halving.rungs(ARMS)
    failed = [result for result in made if result.error]
    assert failed and all(result.arm.kind == "bidirectional" and result.tokens == 0 for result in failed)
    assert {result.error for result in failed} == {"cannot look ahead"} and {result.rung for result in failed} == {0}
    broken = True
    halving.ledger.results.clear()
    with pytest.raises(ValueError, match="no arm could be scored: cannot look ahead"):
        halving.rungs(ARMS)


# NoSink's choice


def plain_choice(value: Callable[[NoSink], float]) -> list[NoSink]:
    """What the paper does, in plain loops: the settings that are tried, the chosen one last."""
    tried = [NoSink()] + [NoSink("inplace-bidir", k=k) for k in range(1, 7)]
    best_k, best = 0, value(NoSink())
    for k in range(1, 7):
        if value(NoSink("inplace-bidir", k=k)) > best:
            best_k, best = k, value(NoSink("inplace-bidir", k=k))
    masked, best = 0, -1.0
    for k in range(1, 7):
        tried.append(NoSink("mask0-bidir", k=k))
        if value(NoSink("mask0-bidir", k=k)) > best:
            masked, best = k, value(NoSink("mask0-bidir", k=k))
    if max(1, masked // 2) <= best_k:
        tried.append(NoSink("mask0-mid", k=best_k, k0=masked))
    if masked <= best_k:
        tried.append(NoSink("mask0-last", k=best_k, k0=masked))
    top = max(value(each) for each in tried)
    return [*tried, min((each for each in tried if value(each) == top), key=lambda each: (each.k or 0, each.plan.k0))]


def by_stack(seed: int, ties: bool) -> Callable[[NoSink], float]:
    """Scores by the layers that run; with ties, of a few values."""

    def value(nosink: NoSink) -> float:
        score = random.Random(f"{seed} {nosink.plan.resolve(6)}").random()
        return round(score, 1) if ties else round(score, 6)

    return value


@pytest.mark.parametrize("seed", range(12))
def test_nosinks_choice_is_that_of_plain_loops(scripted: Callable[..., Any], seed: int) -> None:
    value = by_stack(seed, seed % 2 == 0)
    found = scripted(lambda trial: value(trial.arm.nosink or NoSink()), Chosen).found()
    *tried, chosen = plain_choice(value)
    assert {result.arm.nosink for result in found.results} == set(tried) and len(found.results) == len(tried)
    assert [file for file in found.recipes.values()] == ["recipe.yaml"] and found.against == "BASELINE"
    trial, score = found.chosen[next(iter(found.recipes))]
    assert (trial.arm.nosink, score) == (chosen, value(chosen))
    # Each setting's best is told.
    for name in {each.setting for each in tried}:
        best = max(value(each) for each in tried if each.setting == name)
        assert [score for trial, score in found.chosen.values() if trial.arm.nosink.setting == name] == [best]  # type: ignore[union-attr]


def test_the_grids_of_the_figures(scripted: Callable[..., Any]) -> None:
    value = by_stack(1, False)
    found = scripted(lambda trial: value(trial.arm.nosink or NoSink()), Chosen, everything=True).found()
    tried = {(each.setting, each.k, each.k0) for result in found.results if (each := result.arm.nosink)}
    masked = max(range(1, 7), key=lambda k: value(NoSink("mask0-bidir", k=k)))
    wanted: set[Any] = {("baseline", None, None)}
    for name in ("inplace", "inter", "extra", "extend"):
        wanted |= {(f"{name}-{kind}", k, None) for kind in ("back", "bidir") for k in range(1, 6 + (name != "extend"))}
    wanted |= {(f"mask0-{kind}", k, None) for kind in ("for", "bidir", "all") for k in range(1, 7)}
    wanted |= {(f"mask0-{k0}", k, None) for k0 in (1, 2, 3) for k in range(k0, 7)}
    wanted |= {("mask0-mid", k, masked) for k in range(max(1, masked // 2), 7)}
    wanted |= {("mask0-last", k, masked) for k in range(masked, 7)}
    assert tried == wanted
    # What runs the same layers, as MASK0-2 with k = 2 and MASK0-BIDIR, runs once.
    ran = [result for result in found.results if result.tokens]
    stacks = {str(result.arm.plan(6).resolve(6)) for result in found.results}
    assert len(ran) == len({str(result.arm.plan(6).resolve(6)) for result in ran}) == len(stacks)


# Whole runs


def run(base: Any, task: Any, out: Path, **options: Any) -> tuple[Report, list[str]]:
    said: list[str] = []
    given = {"show_progress_bar": False, "say": said.append, **options}
    if options.get("preset") != "nosink":
        given = {"space": SMALL, **given}
    return compose(Base(base("gpt2"), dtype=given.pop("dtype", None), device="cpu"), task, out, **given), said


def rescored(model: Any, parts: Parts, part: Items, learn: Items | None = None) -> float:
    """A score by scipy and scikit-learn."""
    if part.kind == "Classification" and learn is not None:
        known, asked = ([items.texts[item[0]] for item in items.items] for items in (learn, part))
        fitted = LogisticRegression(max_iter=100).fit(model.encode(known), [item[1] for item in learn.items])
        return float(np.mean(fitted.predict(model.encode(asked)) == [item[1] for item in part.items]))
    if part.kind == "WordSense":
        fours = st_reba.encode_words(model, part.words).reshape(len(part), 4, -1)  # type: ignore[attr-defined]
        odd = [int(cdist(four, four, "cosine").sum(axis=0).argmax()) for four in fours]
        return float(np.mean([one == item[2] for one, item in zip(odd, part.items, strict=True)]))
    vectors = model.encode(list(part.texts)).astype(float)
    if part.kind == "STS":
        cosines = [vectors[one] @ vectors[two] for one, two, _ in part.items]
        return float(spearmanr(np.round(cosines, 6), [item[2] for item in part.items]).statistic)
    return part.metrics[part.main](part.evidence(vectors))


@pytest.mark.parametrize(
    ("kind", "count"),
    slow_but([("STS", 216), ("Clustering", 40), ("Classification", 40), ("Reranking", 36)], "STS", rows=True),
)
def test_the_recipe_is_what_was_reported(
    base: Any, kind: str, count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, task = tmp_path / "out", task_of(kind, count)
    if kind == "STS":
        rows = [(f"text {n}", f"more {n * 7 % 97} of {n}", float(n % 5)) for n in range(count)]
        task = make_task("STS", rows, "my items")

    def with_filter(results: Any, *given: Any) -> Any:
        filtered = [each for one in results for each in one.trials() if each[0].filter != NO_FILTER]
        return {**reported(results, *given), "composed": max(filtered, key=lambda each: each[1])}

    if kind == "STS":
        # Of the others there are too few texts for one.
        monkeypatch.setattr(module, "reported", with_filter)
    report, said = run(base, task, out)
    parts = parts_of(task, None, 0.5, 0)
    files = {path.name for path in out.iterdir()}
    assert {
        "recipe.yaml",
        "recipe-fast.yaml",
        "report.md",
        "trials.csv",
        "costs.png",
        "run.json",
        "space.yaml",
    } <= files
    assert not [name for name in files if name.startswith(".vectors")]
    for name, file in report.found.recipes.items():
        row = report.row(name)
        assert yaml.safe_load((out / file).read_text(encoding="utf-8")) == report.recipe_of(name)
        assert (row.trial.filter != NO_FILTER) == (report.filter_of(name) in files)
        model = st_reba.build(out / file, device="cpu")
        assert row.heldout == pytest.approx(rescored(model, parts, parts.heldout, parts.validation), abs=1e-9)
        assert row.interval[0] < row.heldout < row.interval[1]
    assert (report.best.trial.filter != NO_FILTER) == (kind == "STS")
    if kind != "STS":
        assert report.row("composed").validation == max(row.validation for row in report.rows)
    assert report.row("fast").cost <= 0.5 and {row.name for row in report.rows} == {*PAPERS, "fast", "composed"}
    assert report.row(report.found.against).validation == max(
        row.validation for row in report.rows if row.name in PAPERS
    )
    for each in report.differences:
        assert each.second == report.found.against
        assert each.value == pytest.approx(report.row(each.first).heldout - report.row(each.second).heldout)
    # The unfiltered papers' validation scores, by models of their own: the mean of the five folds' scores.
    row, items = report.row("classical"), parts.validation
    model = st_reba.build(base("gpt2"), **row.trial.arguments(2), device="cpu")
    every = np.arange(len(items))
    folds = [(items.subset(own), items.subset(np.setdiff1d(every, own))) for own in items.folds(5)]
    assert row.validation == pytest.approx(np.mean([rescored(model, parts, *fold) for fold in folds]), abs=2e-5)
    assert said[0] == f"Task: {parts}" and said[-1] == str(report)
    table = pandas.read_csv(out / "trials.csv", keep_default_na=False)
    scored = {(result.rung, trial) for result in report.found.results for trial, _ in result.trials()}
    assert len(table) == len(scored) and set(table["method"]) == {*PAPERS, "composed"}
    assert table.score.max() >= report.row("composed").validation


@pytest.mark.parametrize(
    ("kind", "everything"),
    slow_but(
        [("STS", False), ("NER", False), ("WordSense", False), ("STS", True)],
        ("STS", False),
        "NER",
        "WordSense",
        rows=True,
    ),
)
def test_a_run_of_nosink(base: Any, kind: str, everything: bool, tmp_path: Path) -> None:
    task = task_of(kind, 40)
    report, _ = run(base, task, tmp_path / "out", preset="nosink", everything=everything)
    parts = parts_of(task, None, 0.5, 0)
    scores = {}
    for result in report.found.results:
        assert result.error is None and result.arm.nosink is not None
        if kind != "NER" and result.arm.nosink.setting in ("mask0-bidir", "inter-back"):
            model = st_reba.build(base("gpt2"), "classical", pooling="mean", stages=[result.arm.nosink], device="cpu")
            assert result.scored[0].score == pytest.approx(rescored(model, parts, parts.validation), abs=2e-5)
        scores[result.arm] = result.scored[0].score
    assert report.best.validation == max(scores.values()) and (kind != "WordSense" or len(set(scores.values())) > 1)
    model = st_reba.build(tmp_path / "out" / "recipe.yaml", device="cpu")
    both, count = parts.heldout.joined(parts.validation), len(parts.heldout)
    vectors = both.vectors(model)
    known = np.arange(count, len(both)) if both.learns else None
    wanted = both.metrics[both.main](both.evidence(vectors, np.arange(count), known))
    assert report.best.heldout == pytest.approx(wanted, abs=1e-9)
    assert "Validation scores by k:" in (tmp_path / "out" / "report.md").read_text()


def lines(out: Path) -> list[dict[str, Any]]:
    rows = [json.loads(line) for line in (out / "trials.jsonl").read_text().splitlines()]
    return [{name: value for name, value in row.items() if name != "seconds"} for row in rows]


@pytest.fixture(scope="module")
def undisturbed(base: Any, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    found = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rungs, "FEWEST", 6)
        patch.setattr(heldout, "FEWEST", 16)
        patch.setattr("st_reba.evaluation.items.bootstrap", partial(bootstrap, draws=60))
        patch.setattr("st_reba.evaluation.search_report._figure", lambda *given: None)
        patch.setattr("st_reba.evaluation.search_report.save_figure", lambda figure, path: None)
        for preset in ("compose", "nosink"):
            out = tmp_path_factory.mktemp("runs") / preset
            options = {"tokens": 9_000} if preset == "compose" else {}
            found[preset] = (run(base, task_of("STS", 40), out, preset=preset, **options)[0], lines(out))
    return found


@pytest.mark.parametrize(
    ("preset", "stop"),
    slow_but(
        [(a, b) for a in ("compose", "nosink") for b in ("torn", "heldout")],
        "compose",
        ("nosink", "heldout"),
        rows=True,
    ),
)
def test_a_run_that_was_killed_goes_on(
    base: Any, undisturbed: dict[str, Any], preset: Any, stop: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rungs, "FEWEST", 6)
    whole, wanted = undisturbed[preset]
    options: dict[str, Any] = {"preset": preset, **({"tokens": 9_000} if preset == "compose" else {})}
    assert preset == "nosink" or len({row["arm"].get("first") for row in wanted}) > 1
    kind: Any = Halving if preset == "compose" else Chosen
    calls = 0

    def killed(real: Callable[..., Any], most: int) -> Callable[..., Any]:
        def call(*given: Any, **named: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls > most:
                raise KeyboardInterrupt
            return real(*given, **named)

        return call

    said: list[str] = []
    with monkeypatch.context() as patch:
        if stop == "heldout":
            patch.setattr(heldout, "_tested", killed(heldout._tested, 2))
        else:
            patch.setattr(kind, "scored", killed(kind.scored, 3))
        with pytest.raises(KeyboardInterrupt):
            run(base, task_of("STS", 40), tmp_path, say=said.append, **options)
    assert "the same command goes on from there" in said[-1] and not (tmp_path / "recipe.yaml").exists()
    # As a kill leaves it: a line that is not whole, a file that was being written, vectors of a pass.
    (tmp_path / ".vectors-left").mkdir()
    if stop == "torn":
        with (tmp_path / "trials.jsonl").open("ab") as stream:
            stream.write(b'{"arm": {"repe')
        (tmp_path / ".run.json.0123.tmp").touch()
    report, said = run(base, task_of("STS", 40), tmp_path, **options)
    assert any("going on after" in line for line in said)
    assert lines(tmp_path) == wanted and report.rows == whole.rows and report.differences == whole.differences
    assert not [path for path in tmp_path.iterdir() if path.name.startswith((".vectors", ".run"))]
    with monkeypatch.context() as patch:
        # What is finished is not made again.
        patch.setattr(kind, "scored", None)
        patch.setattr(heldout, "_tested", None)
        assert run(base, task_of("STS", 40), tmp_path, **options)[0].rows == whole.rows


@pytest.mark.parametrize("preset", ["compose", "nosink"])
def test_no_choice_sees_what_reports(base: Any, preset: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    task = task_of("STS", 40)
    parts = parts_of(task, None, 0.5, 0)
    held = set(parts.heldout.texts) - set(parts.validation.texts)
    assert len(held) > 10
    seen: list[set[str]] = []

    def spied(place: Any, name: str, number: int) -> None:
        real = getattr(place, name)
        monkeypatch.setattr(
            place, name, lambda *given, **named: seen.append(set(given[number])) or real(*given, **named)
        )  # type: ignore[func-returns-value]

    spied(module, "encode_arm", 3)
    spied(heldout, "postfilter_of", 1)
    real = Items.vectors
    asked: list[Items] = []
    monkeypatch.setattr(
        Items, "vectors", lambda self, *given, **named: asked.append(self) or real(self, *given, **named)
    )  # type: ignore[func-returns-value]
    report, _ = run(base, task, tmp_path / "one", preset=preset)
    assert not any(texts & held for texts in seen) and (preset == "nosink") == (not seen)
    # Held-out items are encoded at the end, and but once for each method that is reported.
    ends = [bool(set(items.texts) & held) for items in asked]
    assert ends == sorted(ends) and sum(ends) == len({row.trial for row in report.rows})
    # Other labels there change no choice.
    turned = replace(parts.heldout, items=tuple((one, two, -score) for one, two, score in parts.heldout.items))
    monkeypatch.setattr(search, "parts_of", lambda *given: replace(parts, heldout=turned))
    other, _ = run(base, task, tmp_path / "two", preset=preset)
    assert [(row.trial, row.validation) for row in other.rows] == [(row.trial, row.validation) for row in report.rows]
    assert [row.heldout for row in other.rows] == pytest.approx([-row.heldout for row in report.rows])


# Parts, folders, options


def test_what_chooses_does_not_report() -> None:
    rows = rows_of("STS", 100)
    task = make_task("STS", [*rows, *((two, one, score) for one, two, score in rows[:30])])
    parts = parts_of(task, None, 0.5, 0)
    asked = [{frozenset(part.asked(item)) for item in part.items} for part in (parts.validation, parts.heldout)]  # type: ignore[call-overload]
    assert not asked[0] & asked[1] and len(parts.validation) + len(parts.heldout) == 130
    # Of a file of its own what validation asks for is left out, and counted.
    test = make_task("STS", rows_of("STS", 170)[50:])
    parts = parts_of(make_task("STS", rows), test, 0.5, 0)
    assert (len(parts.validation), len(parts.heldout), parts.again) == (100, 70, 50)
    assert "50 items that validation has are left out" in str(parts)
    with pytest.raises(ValueError, match=r"0 items held out, but .* needs 16"):
        parts_of(task, task, 0.5, 0)
    with pytest.raises(ValueError, match="holds Triples, and items STS"):
        parts_of(task, task_of("Triples", 60), 0.5, 0)
    with pytest.raises(ValueError, match="validation=1 must be a fraction"):
        parts_of(task, None, 1, 0)


def test_another_run_in_the_folder_is_refused(base: Any, tmp_path: Path) -> None:
    task, out = task_of("STS", 40), tmp_path / "out"
    copied = shutil.copytree(base("gpt2"), tmp_path / "base")

    def again(**options: Any) -> None:
        run(lambda name: str(copied), task, out, **{"preset": "nosink", **options})

    again()
    for options, message in (
        ({"pooling": "last"}, "options.pooling was 'mean', now 'last'"),
        ({"seed": 1}, "options.seed was 0, now 1"),
        ({"dtype": "bfloat16"}, "base.dtype was 'float32', now 'bfloat16'"),
        ({"preset": "compose"}, "preset was 'nosink', now 'compose'"),
    ):
        with pytest.raises(ValueError, match=f"another run is there: .*{message}"):
            again(**options)
    # One number in the middle of the weights.
    weights = copied / "model.safetensors"
    data = bytearray(weights.read_bytes())
    data[len(data) // 2] ^= 1
    weights.write_bytes(bytes(data))
    with pytest.raises(ValueError, match="another run is there: base.weights was"):
        again()
    (tmp_path / "else").mkdir()
    (tmp_path / "else" / "mine.txt").touch()
    with pytest.raises(FileExistsError, match="not the folder of a run"):
        run(base, task, tmp_path / "else")


def test_an_input_that_leaves_no_room_is_left_out(base: Any, tmp_path: Path) -> None:
    space = {"templates": [None], "kinds": ["forward"], "layers": [1], "pooled": ["mean"], "filters": ["none"]}
    report, said = run(base, task_of("STS", 40), tmp_path, space=space, max_seq_length=12)
    assert [line for line in said if line.startswith("Left out: template 'echo': max_seq_length=12 leaves no room")]
    assert {row.name for row in report.rows} == {"classical", "echo", "reba", "nosink", "fast", "composed"}
    assert report.recipe["max_seq_length"] == 12


def test_a_base_says_how_it_is_loaded(base: Any, tmp_path: Path) -> None:
    """By another tokenizer here: the recipe has it, and builds what was scored."""
    task, other = task_of("STS", 40), base("gpt2", "plain")
    space = {"templates": [None], "kinds": ["forward"], "layers": [1], "pooled": ["mean"], "filters": ["none"]}
    options: dict[str, Any] = {"space": space, "say": lambda line: None, "show_progress_bar": False}
    report = compose(Base(base("gpt2"), tokenizer=other, device="cpu"), task, tmp_path / "out", **options)
    assert report.recipe["tokenizer"] == other
    parts = parts_of(task, None, 0.5, 0)
    model = st_reba.build(tmp_path / "out" / "recipe.yaml", device="cpu")
    assert report.best.heldout == pytest.approx(rescored(model, parts, parts.heldout), abs=1e-9)
    own = st_reba.build(tmp_path / "out" / "recipe.yaml", tokenizer=base("gpt2"), device="cpu")
    assert np.abs(own.encode(TEXTS[:3]) - model.encode(TEXTS[:3])).max() > 1e-3


def test_one_writer_at_a_time(base: Any, tmp_path: Path) -> None:
    with Ledger.opened(tmp_path, {}), pytest.raises(BlockingIOError, match="another process is writing here"):
        run(base, task_of("STS", 40), tmp_path, preset="nosink")


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        ("STS", {"minutes": 0}, "compose: minutes=0 is not allowed: give a number from 0.01"),
        ("STS", {"speed": True}, "compose: speed=True is not allowed"),
        ("STS", {"preset": "tune"}, "preset .='tune'. is not known: choose from"),
        ("STS", {"fast": True}, "compose: fast .=True. is not known: choose from"),
        ("STS", {"space": {"kind": []}}, "space: kind .* is not known: .* Did you mean 'kinds'"),
        ("STS", {"preset": "nosink", "tokens": 5}, "tokens=5 belongs to preset 'compose'"),
        ("STS", {"everything": True}, "everything=True belongs to preset 'nosink'"),
        ("STS", {"preset": "nosink", "m": 0}, "nosink: m=0 is not allowed: give a whole number from 1"),
        ("STS", {"preset": "nosink", "pooling": "max"}, "nosink: pooling='max' is not allowed: give 'mean' or 'last'"),
        ("NER", {}, "NER is not composed"),
        ("WordSense", {}, "WordSense is not composed"),
        ("Retrieval", {}, "Retrieval is not searched with.*Reranking"),
    ],
)
def test_wrong_options(base: Any, kind: str, options: Any, message: str, tmp_path: Path) -> None:
    task = make_task("Retrieval", rows_of("Reranking", 90)) if kind == "Retrieval" else task_of(kind, 90)
    with pytest.raises(ValueError, match=message):
        run(base, task, tmp_path / "out", **options)
    assert not (tmp_path / "out").exists()


def test_from_the_command_line(
    base: Any, drawn: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    rows = pandas.DataFrame(rows_of("STS", 120), columns=["第一", "second", "score"])
    rows.to_csv("pairs.tsv", sep="\t", index=False)
    Path("small.yaml").write_text(
        "templates: [null]\nkinds: [forward]\npooled: [mean]\nlayers: [1, 2]\nfilters: [center]\n", encoding="utf-8"
    )
    words = ["compose", base("gpt2"), "pairs.tsv", "out", "--space", "small.yaml", "--device", "cpu", "--limit", "40"]
    words += ["--columns", "text1=第一,text2=second", "--speed", "0.6", "--minutes", "30"]
    monkeypatch.setattr("sys.argv", ["st-reba", *words])
    assert main(words) == 0
    told = capsys.readouterr().out
    assert "8 of 8 arms; less than a minute" in told and "Build it: st-reba build out/recipe.yaml OUT" in told
    assert main([*words, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert {row["name"] for row in found["rows"]} == {*PAPERS, "fast", "composed"} and found["metric"] in told
    text = Path("out/report.md").read_text(encoding="utf-8")
    assert "--columns 'text1=第一,text2=second'" in text and "Held-out, with 95 % for all comparisons together" in text
    for row in found["rows"]:
        line = next(line for line in text.splitlines() if f"| {row['method']} |" in line)
        assert f"{row['validation']:.4f}" in line and f"{row['heldout']:.4f}" in line and f"{row['cost']:.2f}" in line
    assert Path("out/costs.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    assert main(["build", "out/recipe.yaml", "model", "--device", "cpu"]) == 0
    words[words.index("--space") :] = ["--columns", "text1=第一,text2=second", "--preset", "nosink"]
    words[3] = "tuned"
    assert main(words) == 0 and Path("tuned/costs.png").stat().st_size > 10_000
    capsys.readouterr()
    assert main([*words, "--minutes", "1"]) == 2 and "belongs to preset 'compose'" in capsys.readouterr().err
