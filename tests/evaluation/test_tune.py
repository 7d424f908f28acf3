"""The choice without labels: its items, its texts, its budgets, what it writes, and what it refuses."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from searched import TEXTS, task_of

import st_reba
from st_reba.cli import main
from st_reba.evaluation import heldout
from st_reba.evaluation import tune as module
from st_reba.evaluation.crossfit import FOLDS, Scored
from st_reba.evaluation.halving import Halving
from st_reba.evaluation.heldout import digest
from st_reba.evaluation.ledger import Result
from st_reba.evaluation.methods import Base
from st_reba.evaluation.passes import Costs
from st_reba.evaluation.search_report import Report
from st_reba.evaluation.space import Space
from st_reba.evaluation.statistics import bootstrap
from st_reba.evaluation.trials import NO_FILTER, PAPERS, Arm, Filter, Read, Trial
from st_reba.evaluation.tune import tune
from st_reba.evaluation.tuning import (
    BUDGETS,
    CHEAPEST,
    HIGHEST,
    PLAIN,
    RESAMPLES,
    cheapest,
    chosen_again,
    for_budgets,
    settled,
)
from st_reba.evaluation.unlabelled import unlabelled
from st_reba.evaluation.views import Viewed
from st_reba.filters import PostFilter
from st_reba.persistence import load

SMALL = Space(
    templates=(None,), kinds=("forward",), sinks=False, layers=((0, 0, "mean"), (1, 1, "mean")), pooled=("mean",),
    filters=("center", {"kind": "abtt", "r": 1}),
)  # fmt: skip
LAST = Read(2, 2, True, "mean")
COSTS = Costs({arm.layout: {"a": 10 * arm.copies} for arm in (Arm(), Arm(repeats=2))}, 2)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few draws, small parts, and no figure."""
    monkeypatch.setattr(heldout, "FEWEST", 16)
    monkeypatch.setattr("st_reba.evaluation.items.bootstrap", partial(bootstrap, draws=60))
    monkeypatch.setattr("st_reba.evaluation.search_report._figure", lambda *given: None)
    monkeypatch.setattr("st_reba.evaluation.search_report.save_figure", lambda figure, path: Path(path).touch())


def run(base: Any, texts: Any, out: Path, **options: Any) -> tuple[Report, list[str]]:
    said: list[str] = []
    given = {"space": SMALL, "show_progress_bar": False, "say": said.append, **options}
    return tune(Base(base("gpt2"), device="cpu"), texts, out, **given), said


@pytest.fixture(scope="module")
def tuned(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Callable[[], tuple[Report, list[str]]]:
    """One whole run, made when the first test asks for it, which sets up what is quick."""
    made: list[tuple[Report, list[str]]] = []

    def get() -> tuple[Report, list[str]]:
        if not made:
            made.append(run(request.getfixturevalue("base"), TEXTS[:220], tmp_path_factory.mktemp("tuned") / "out"))
        return made[0]

    return get


def found_each_other(first: Any, second: Any) -> float:
    """The mean reciprocal rank in both directions, in plain loops; what is as near stands before."""
    units = [[row / np.sqrt((row * row).sum()) for row in np.asarray(side, np.float64)] for side in (first, second)]
    total = 0.0
    for asked, others in (units, units[::-1]):
        for place, vector in enumerate(asked):
            near = [round(float((vector * other).sum()), 6) for other in others]
            total += 1 / sum(each >= near[place] for each in near)
    return total / 2 / len(units[0])


# Items


def test_a_score_is_how_well_views_find_each_other() -> None:
    random = np.random.default_rng(0)
    views = [(f"a{n}", f"b{n // 2}") for n in range(30)]
    items = Viewed.of([f"text {n}" for n in range(30)], views)
    vectors = random.normal(size=(len(items.texts), 3))
    vectors[5:9] = vectors[4]
    rows = np.array([1, 2, 3, 8, 11, 12, 20, 29])
    for chosen in (None, rows):
        pairs = [views[row] for row in (range(30) if chosen is None else rows)]
        first, second = ([vectors[items.texts.index(pair[side])] for pair in pairs] for side in (0, 1))
        assert items.metrics["mrr"](items.evidence(vectors, chosen)) == pytest.approx(found_each_other(first, second))
    part = items.subset(rows)
    assert part.fitted_on[:8] == tuple(f"text {row}" for row in rows) and set(part.fitted_on[8:]) == set(part.texts)


def test_a_draw_is_of_different_texts_of_every_script(tmp_path: Path) -> None:
    chinese = [f"第{n}家银行今天在城里开了门。" for n in range(200)]
    english = [f"The bank number {n} opened in town today." for n in range(70)]
    texts = [*chinese, *english, *english, "short", " ", "好"]
    drawn = unlabelled(texts, sample=100)
    assert drawn.writing == {"LATIN": 50, "CJK": 50} and len(set(drawn.texts)) == len(drawn.items) == 100
    assert drawn.left_out == {"repeated": 70, "too short for two views": 2, "empty or not readable": 1}
    assert drawn.read == len(texts) and "100 of 343 texts" in str(drawn) and "100 texts are few" in drawn.warning
    assert unlabelled(texts[::-1], sample=100).texts == drawn.texts
    assert unlabelled(texts, sample=100, seed=1).texts != drawn.texts
    # One filter for several scripts is told of, with the remedy; a few texts of another, or none, are no second script.
    settings = module._settings("balanced", SMALL)
    assert all(module.MIXED in module._notes(drawn, settings, labels) for labels in (None, "pairs.tsv"))
    for other in (
        [],
        english[:9],
        [f"{n} + 1 = 2 - 3 + 4" for n in range(90)],
        [f"ひらがなだけのぶんです{n}" for n in range(90)],
    ):
        assert module.MIXED not in module._notes(unlabelled([*chinese, *other]), settings, None)
    # All of the script that has fewer.
    assert unlabelled(texts, sample=250).writing == {"LATIN": 70, "CJK": 180}
    assert "too short" in unlabelled([*chinese[:60], *"甲乙丙丁戊己庚辛壬癸"]).warning
    (tmp_path / "a.txt").write_text("\n".join(chinese), encoding="utf-8")
    (tmp_path / "b.jsonl").write_text("".join(json.dumps({"text": each}) + "\n" for each in english))
    assert unlabelled(tmp_path, sample=100).texts == drawn.texts


@pytest.mark.parametrize(
    ("texts", "options", "message"),
    [
        (TEXTS[:10], {}, "the list: 10 different texts can be used, but 50 are needed at the least"),
        (["the same words every time"] * 500, {}, "1 different texts .* 499 are repeated"),
        ([" "] * 80, {}, "0 different texts .* 80 are empty or not readable"),
        ([f"word{n}" for n in range(300)], {}, "0 different texts .* 300 are too short for two views. Give .* longer"),
        ([], {}, "0 different texts"),
        (TEXTS, {"like": "pear"}, "like='pear' is not known.*Did you mean 'pairs'"),
        (TEXTS, {"budget": "fast"}, "budget='fast' is not known"),
        (TEXTS, {"quick": True}, "quick=True does not go with space"),
        (TEXTS, {"sample": 10}, "sample=10 must be a whole number from 50"),
        (TEXTS, {"labels": task_of("NER", 90)}, "NER is not searched with"),
    ],
)
def test_what_cannot_be_used_is_refused_before_a_model_loads(
    texts: Any, options: Any, message: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=message):
        tune("no/such-model", texts, tmp_path / "out", **{"space": SMALL, **options})
    assert not (tmp_path / "out").exists()


# The choice


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


@pytest.mark.parametrize(("like", "mild"), [("pairs", True), ("search", False), ("topics", True)])
def test_filters_that_views_speak_too_well_of(like: str, mild: bool) -> None:
    space = module._searched(module.QUICK, like)
    kinds = {(each.kind, each.power) for each in space.postfilters}
    assert (("whiten", 0.75) in kinds) is not mild and (("whiten", 0.5) in kinds) is mild


def test_below_the_last_layers_mean_on_held_out_texts_that_is_the_recipe(tuned: Any) -> None:
    report, _ = tuned()
    worse = [row if row.name != "balanced" else type(row)(**{**vars(row), "heldout": -1.0}) for row in report.rows]
    changed = settled(report.found, worse)
    assert next(iter(changed.recipes.items())) == (PLAIN, "recipe.yaml") and "below" in changed.notes[0]
    assert settled(report.found, report.rows).recipes == report.found.recipes


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


# A whole run


def test_scores_are_those_of_the_models(tuned: Any, base: Any) -> None:
    """By plain loops, and by filters applied by NumPy: held-out, and of the plain method also what chose."""
    report, said = tuned()
    validation, asked = report.parts.validation, report.parts.heldout
    assert not set(validation.names) & set(asked.names) and len(validation) == 2 * len(asked) + len(validation) % 2
    for name in (PLAIN, "balanced"):
        row = report.row(name)
        arguments = row.trial.arguments(report.found.depth)
        model = st_reba.build(base("gpt2"), **arguments, device="cpu")
        vectors = model.encode(list(asked.texts))
        if row.trial.filter != NO_FILTER:
            fitted = PostFilter.load(report.folder / "heldout" / f"{digest(row.trial)}.safetensors")
            assert fitted.count == len(validation.fitted_on)
            vectors = fitted.apply(vectors)
        score = found_each_other(*(vectors[[item[side] for item in asked.items]] for side in (0, 1)))
        assert row.heldout == pytest.approx(score, abs=2e-3)
    plain = st_reba.build(base("gpt2"), "classical", pooling="mean", device="cpu").encode(list(validation.texts))
    parts = []
    for part in validation.folds(FOLDS):
        items = [validation.items[row] for row in part]
        parts.append(found_each_other(*(plain[[item[side] for item in items]] for side in (0, 1))))
    assert report.row(PLAIN).validation == pytest.approx(float(np.mean(parts)), abs=2e-3)
    assert report.row("balanced").validation >= report.row(PLAIN).validation
    assert report.row("balanced").cost <= 1 and {*PAPERS, PLAIN, "balanced"} <= {row.name for row in report.rows}


def test_what_is_written(tuned: Any, base: Any) -> None:
    report, said = tuned()
    text = (report.folder / "report.md").read_text(encoding="utf-8")
    assert "Nothing here is labelled" in text and "Steadiness: of 200 resamples" in text
    assert CHEAPEST in text and "over balanced" in text and said[-1] == f"Model: {report.folder / 'model'}"
    built = st_reba.build(str(report.folder / "recipe.yaml"), device="cpu")
    saved = load(str(report.folder / "model"), device="cpu")
    assert np.abs(built.encode(TEXTS[:5]) - saved.encode(TEXTS[:5])).max() < 1e-6
    trial = report.row("balanced").trial
    if trial.filter != NO_FILTER:
        # On all texts, also those that only reported.
        items = unlabelled(TEXTS[:220]).items
        assert saved[0].stage("filter").texts == len(items.fitted_on) > len(report.parts.validation.fitted_on)


def test_a_second_call_goes_on(tuned: Any, base: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    report, _ = tuned()
    monkeypatch.setattr(Halving, "scored", lambda *given: pytest.fail("an arm ran again"))
    again, said = run(base, TEXTS[:220], report.folder)
    assert again.found == report.found and again.rows == report.rows and any("going on after" in line for line in said)
    with pytest.raises(ValueError, match="another run is there: task.fingerprint"):
        run(base, TEXTS[:150], report.folder)


@pytest.mark.slow
def test_labels_choose_where_there_are_some(base: Any, tmp_path: Path) -> None:
    report, _ = run(base, TEXTS[:120], tmp_path / "out", labels=task_of("STS", 90), budget="speed")
    text = (tmp_path / "out" / "report.md").read_text(encoding="utf-8")
    assert (
        report.metric == "cosine_spearman"
        and "The labelled items chose" in text
        and HIGHEST in text
        and "Steadiness" not in text
    )
    assert report.best.name == "speed" and (tmp_path / "out" / "model" / "modules.json").is_file()


@pytest.mark.slow
def test_build_auto(base: Any) -> None:
    model = st_reba.build(base("gpt2"), "auto", texts=TEXTS[:120], device="cpu", prompts={"query": "q: "})
    vectors = model.encode(TEXTS[:3])
    assert np.allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5) and model.prompts["query"] == "q: "
    spec = st_reba.spec_of(model)
    again = st_reba.build(base("gpt2"), "auto", texts=TEXTS[119::-1], device="cpu")
    # The order of the texts does not matter.
    assert st_reba.spec_of(again) == spec and np.abs(again.encode(TEXTS[:3]) - vectors).max() < 1e-5
    for given, message in (
        ({"method": "auto"}, "needs texts="),
        ({"method": "auto", "texts": TEXTS, "stages": []}, "stages: method='auto' finds"),
        ({"method": "auto", "texts": TEXTS, "pooling": "mean"}, "pooling: method='auto' finds"),
        ({"method": "echo", "texts": TEXTS}, "texts belong to method='auto'"),
        ({"method": "auto", "texts": TEXTS[:9]}, "50 are needed"),
    ):
        with pytest.raises(ValueError, match=message):
            st_reba.build(base("gpt2"), **given)
    with pytest.raises(ValueError, match="'zoo:mini-reba' is a recipe"):
        st_reba.build("zoo:mini-reba", "auto", texts=TEXTS)


def test_from_the_command_line(
    base: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("texts.txt").write_text("\n".join(TEXTS[:90]), encoding="utf-8")
    Path("small.yaml").write_text(
        "templates: [null]\nkinds: [forward]\npooled: [mean]\nlayers: [1, 2]\nfilters: [center]\n", encoding="utf-8"
    )
    words = [
        "tune",
        base("gpt2"),
        "texts.txt",
        "out",
        "--space",
        "small.yaml",
        "--device",
        "cpu",
        "--budget",
        "quality",
    ]
    monkeypatch.setattr("sys.argv", ["st-reba", *words])
    assert main([*words, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["model"] == str(Path("out/model")) and found["metric"] == "mrr" and found["against"] == "quality"
    assert "--budget quality" in Path("out/recipe.yaml").read_text(encoding="utf-8")
    assert "Caution: 90 texts are few" in Path("out/report.md").read_text(encoding="utf-8")
    assert main(["info", "out/model"]) == 0
    assert main([*words, "--like", "pears"]) == 2 and "'pairs'" in capsys.readouterr().err
