"""What a search tells: its recipes build what was reported, and its files hold it all."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
import yaml
from marks import slow_but
from scripted import COSTS, PAIRS, drawn_scores
from searched import rescored, run, task_of

import st_reba
from st_reba.evaluation import halving as module
from st_reba.evaluation import make_task
from st_reba.evaluation.choice import Chosen
from st_reba.evaluation.halving import reported
from st_reba.evaluation.heldout import Found, Parts, Row, parts_of
from st_reba.evaluation.methods import Base
from st_reba.evaluation.search_report import Report, _figure, _frame
from st_reba.evaluation.trials import NO_FILTER, PAPERS


@pytest.mark.usefixtures("quick")
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


def drawn_of(found: Found, folder: Path) -> tuple[Any, Report]:
    """The axes of a report of made-up scores, and the report."""
    rows = tuple(
        Row(name, trial, found.costs.of(trial), 1.0, score, score, (score, score))
        for name, (trial, score) in found.chosen.items()
    )
    report = Report(Base("mini"), Parts(PAIRS, PAIRS.items, PAIRS.items), found, rows, (), {}, "", folder)
    return _figure(report, _frame(report)).axes[0], report


def test_what_is_drawn_of_a_search(scripted: Callable[..., Any], tmp_path: Path) -> None:
    """A point a method, what no cheaper one reaches, and a marker for each that is reported."""
    found = scripted(drawn_scores(0)).found()
    axes, report = drawn_of(found, tmp_path)
    scored = {trial: score for each in found.results if each.rung == 2 for trial, score in each.trials()}
    points = sorted((round(COSTS.of(trial), 4), score) for trial, score in scored.items())
    np.testing.assert_allclose(sorted(axes.collections[0].get_offsets().tolist()), points)
    best, *marks = axes.get_lines()
    assert best.get_xdata()[0] == points[0][0] and best.get_ydata()[-1] == max(scored.values())
    assert (np.diff(best.get_ydata()) >= 0).all()
    assert {line.get_label(): (*line.get_xdata(), *line.get_ydata()) for line in marks} == {
        {"echo": "Echo", "prompteol": "PromptEOL", "reba": "ReBA", "nosink": "NoSink", "fast": "composed, fast"}.get(
            row.name, row.name
        ): (row.cost, row.validation)
        for row in report.rows
    }


def test_what_is_drawn_of_nosinks_choice(scripted: Callable[..., Any], tmp_path: Path) -> None:
    found = scripted(drawn_scores(0), Chosen).found()
    axes, report = drawn_of(found, tmp_path)
    wanted: dict[str, dict[int, float]] = {}
    for result in found.results:
        assert result.arm.nosink is not None
        if result.arm.nosink.k:
            name = result.arm.nosink.setting.upper()
            wanted.setdefault(name, {})[result.arm.nosink.k] = result.scored[0].score
    level, *lines = axes.get_lines()
    assert level.get_label() == "BASELINE" and set(level.get_ydata()) == {report.row("BASELINE").validation}
    assert {
        line.get_label(): dict(zip(line.get_xdata().tolist(), line.get_ydata().tolist(), strict=True)) for line in lines
    } == wanted
    assert set(wanted) >= {"INPLACE-BIDIR", "MASK0-BIDIR"} and len(wanted["MASK0-BIDIR"]) == 6
