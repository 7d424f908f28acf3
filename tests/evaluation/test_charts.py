"""Figures of a report: they hold the numbers of its results."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import pytest
from pandas import DataFrame
from reporting_results import result, write

from st_reba.evaluation.charts import bars, spread
from st_reba.evaluation.report import make_report, write_report
from st_reba.evaluation.toy import toy_tasks


def drawn(folder: Path, *results: Any, metric: Any = "main") -> dict[str, Any]:
    """matplotlib's figures, by name."""
    return {each.name: each.draw() for each in make_report([write(folder, *results)], metric).charts()}


def lines(axes: Any) -> dict[str, dict[float, float]]:
    """By label: the points of each line; whiskers have no label of their own."""
    return {
        line.get_label(): dict(zip(map(float, line.get_xdata()), map(float, line.get_ydata()), strict=True))
        for line in axes.get_lines()
        if not line.get_label().startswith("_")
    }


def ticks(axes: Any) -> list[str]:
    return [label.get_text() for label in axes.get_xticklabels()]


def test_bars(tmp_path: Path) -> None:
    draw = random.Random(0)
    made = [
        result(task, words, {"accuracy": (value := draw.random())}, kind="WordSense", main="accuracy",
               base=base, intervals={"accuracy": (value - 0.05, value + 0.1)})
        for base in ("mini", "other") for words in ("classical", "echo", "reba") for task in ("SLPWC", "WSD")
        if (base, words, task) != ("other", "echo", "WSD")
    ]  # fmt: skip
    figures = drawn(tmp_path / "r", *made)
    assert sorted(figures) == ["WordSense-accuracy-mini", "WordSense-accuracy-other"]
    for base in ("mini", "other"):
        (axes,) = figures[f"WordSense-accuracy-{base}"].axes
        own = [each for each in made if each.base == base]
        assert ticks(axes) == ["SLPWC", "WSD"] and axes.get_title() == f"WordSense, {base}"
        there = {}
        for container in axes.containers:
            for bar in container.patches:
                task = ["SLPWC", "WSD"][round(bar.get_x() + bar.get_width() / 2)]
                there[container.get_label(), task] = bar
        assert {key: bar.get_height() for key, bar in there.items()} == {
            (each.method, each.task): each.scores["accuracy"] for each in own
        }
        # Intervals stand on the middle of their bars; no two bars in one place.
        whiskers = [np.asarray(line.get_data()).T for line in axes.get_lines()]
        for each in own:
            bar = there[each.method, each.task]
            middle = bar.get_x() + bar.get_width() / 2
            low, high = each.intervals["accuracy"]
            assert any(np.allclose(part, [(middle, low), (middle, high)]) for part in whiskers)
        assert len(whiskers) == len(own) == len({round(bar.get_x(), 6) for bar in there.values()})


def test_layers(tmp_path: Path) -> None:
    made = [
        result(task, words, 0.1 + 0.01 * place + 0.1 * (task == "WSD"), kind="WordSense",
               settings={} if layer is None else {"layer": layer})
        for words in ("classical", "reba") for task in ("SLPWC", "WSD")
        for place, layer in enumerate((0, 2, 10, None))
    ]  # fmt: skip
    figures = drawn(tmp_path / "r", *made)
    assert sorted(figures) == ["WordSense-cosine_spearman-layer-mini", "WordSense-cosine_spearman-mini"]
    panels = figures["WordSense-cosine_spearman-layer-mini"].axes
    for axes, first in zip(panels, (0.1, 0.2), strict=True):
        curve = {0.0: first, 2.0: first + 0.01, 10.0: first + 0.02, 11.0: first + 0.03}
        assert {name: pytest.approx(curve) for name in ("classical last", "reba-2 last")} == lines(axes)
        assert ticks(axes) == ["0", "2", "10", "last"] and axes.get_xlabel() == "layer"
    # Bars are of the last layer alone.
    assert len(figures["WordSense-cosine_spearman-mini"].axes[0].patches) == 4


def test_heat_map(tmp_path: Path) -> None:
    draw = random.Random(4)
    words = ("classical", "classical:pooling=mean", "reba", "nosink:setting=mask0-for,k=1")
    made = [result(task, each, draw.random()) for each in words for task in "abc" if (each, task) != ("reba", "b")]
    axes = drawn(tmp_path / "r", *made)["STS-cosine_spearman-mini-map"].axes[0]
    rows, heads = [label.get_text() for label in axes.get_yticklabels()], ticks(axes)
    assert sorted(rows) == sorted({each.method for each in made}) and heads == ["a", "b", "c"]
    scores = {(each.method, each.task): each.scores["cosine_spearman"] for each in made}
    # The numbers in the cells, and the colours: how far they are from their task's mean.
    written = {
        (rows[int(text.get_position()[1])], heads[int(text.get_position()[0])]): text.get_text() for text in axes.texts
    }
    assert written == {key: f"{value:.3f}" for key, value in scores.items()}
    colours = np.ma.filled(axes.images[0].get_array(), np.nan)
    for (name, head), value in scores.items():
        mean = fmean(each for (_, task), each in scores.items() if task == head)
        assert colours[rows.index(name), heads.index(head)] == pytest.approx(value - mean)
    assert np.isnan(colours).sum() == 1
    low, high = axes.images[0].get_clim()
    assert low == -high == pytest.approx(-np.nanmax(abs(colours)))


def test_budgets(tmp_path: Path) -> None:
    draw = random.Random(6)
    budgets = (16, 128, 64)
    made = [
        result(task, words, draw.random(), settings={"max_tokens": tokens, "budget": "total"})
        for words in ("classical", "echo") for task in ("a", "b", "c", "d") for tokens in budgets
    ]  # fmt: skip
    figures = drawn(tmp_path / "r", *made)
    assert sorted(figures) == ["STS-cosine_spearman-max_tokens-mini"]
    panels = figures["STS-cosine_spearman-max_tokens-mini"].axes
    assert [axes.get_title() for axes in panels if axes.get_title()] == ["a", "b", "c", "d"]
    for axes in panels[:4]:
        assert axes.get_xscale() == "log" and axes.get_xlabel() == "tokens" and ticks(axes) == ["16", "64", "128"]
        own = [each for each in made if each.task == axes.get_title()]
        for name, curve in lines(axes).items():
            assert list(curve) == sorted(budgets)
            assert curve == {
                each.settings["max_tokens"]: each.scores["cosine_spearman"] for each in own if each.method == name
            }


def test_two_things_that_are_swept_make_lines_of_their_own(tmp_path: Path) -> None:
    made = [
        result("a", "echo", 0.01 * tokens, settings={"max_tokens": tokens, "budget": budget, "prompts": prompts})
        for tokens in (16, 32) for budget in ("total", "content") for prompts in ("none", "nosink")
    ]  # fmt: skip
    (figure,) = drawn(tmp_path / "r", *made).values()
    assert sorted(lines(figure.axes[0])) == [
        f"echo-2 last (budget {budget}, prompts {prompts})"
        for budget in ("content", "total")
        for prompts in ("none", "nosink")
    ]
    assert all(list(curve) == [16, 32] for curve in lines(figure.axes[0]).values())


def test_copies(tmp_path: Path) -> None:
    draw = random.Random(7)
    words = ("classical", "reba-1", "reba-2", "reba-10", "echo-2", "echo-3", "reba-2:pooling=mean")
    made = [result(task, each, draw.random()) for each in words for task in "ab"]
    figures = drawn(tmp_path / "r", *made)
    assert sorted(figures) == ["STS-cosine_spearman-mini", "STS-cosine_spearman-mini-copies"]
    for axes in figures["STS-cosine_spearman-mini-copies"].axes:
        scores = {each.method: each.scores["cosine_spearman"] for each in made if each.task == axes.get_title()}
        assert lines(axes) == {
            "reba last": {k: scores[f"reba-{k} last"] for k in (1, 2, 10)},
            "echo last": {k: scores[f"echo-{k} last"] for k in (2, 3)},
            "reba mean": {2: scores["reba-2 mean"]},
        }


def test_templates(tmp_path: Path) -> None:
    draw = random.Random(8)
    made = [
        result("a", words, draw.random(), settings={"template": number, "language": language})
        for words in ("classical", "reba") for language in ("en", "zh") for number in range(1, 6)
    ]  # fmt: skip
    (figure,) = drawn(tmp_path / "r", *made).values()
    (axes,) = figure.axes
    names = [f"{name} (language {language})" for name in ("classical last", "reba-2 last") for language in ("en", "zh")]
    assert ticks(axes) == [f"{name}\na" for name in names]
    for name in names:
        own = [each for each in made if f"{each.method} (language {each.settings['language']})" == name]
        median = np.median([each.scores["cosine_spearman"] for each in own])
        assert any(np.allclose(line.get_ydata(), median) for line in axes.get_lines())


@pytest.mark.filterwarnings("ignore:Glyph")
def test_chinese_and_signs_stay_as_they_are(tmp_path: Path) -> None:
    made = [
        result(task, words, 0.5, base=base)
        for base in ("org/模型", "org-模型") for words in ("echo", "echo-3") for task in ("任务", "$_{")
    ]  # fmt: skip
    made = [replace(each, method=f"{each.method} $^{{") for each in made]
    out = tmp_path / "out"
    write_report(make_report([write(tmp_path / "r", *made)]), out)
    charts = make_report([tmp_path / "r"]).charts()
    # A file of its own for each, though their bases are spelt alike.
    assert len({each.name for each in charts}) == len(charts) == len(list((out / "figures").iterdir())) == 4
    figure = charts[0].draw()
    assert "任务" in ticks(figure.axes[0]) and "模型" in figure.axes[0].get_title()


def test_many_bars_can_be_drawn() -> None:
    tasks, methods = [f"task {n}" for n in range(40)], [f"echo-{n}" for n in range(40)]
    rows = [{"task": task, "label": label, "value": 0.5, "low": np.nan} for task in tasks for label in methods]
    figure = bars(DataFrame(rows), tasks, "accuracy", "many")
    assert max(figure.get_size_inches()) * figure.dpi < 2**16


@pytest.mark.parametrize("tasks", [2, 4, 5, 20])
@pytest.mark.parametrize("kind", ["bars", "spread"])
def test_labels_stand_apart(kind: str, tasks: int) -> None:
    names = [f"Sentences{number:02}" for number in range(tasks)]
    rows = [
        {"task": task, "label": label, "line": label, "value": value, "low": np.nan}
        for task in names for label in ("classical last", "echo-2 last") for value in (0.4, 0.6)
    ]  # fmt: skip
    frame = DataFrame(rows)
    figure = bars(frame, names, "accuracy", "") if kind == "bars" else spread(frame, "accuracy", "")
    figure.draw_without_rendering()
    labels = figure.axes[0].get_xticklabels()
    for one, other in pairwise(labels):
        if one.get_rotation():
            assert one.get_horizontalalignment() == "right"
        else:
            assert one.get_window_extent().x1 < other.get_window_extent().x0


def test_both_metrics_have_their_figures(tmp_path: Path) -> None:
    made = [
        result(task, words, {"x": 0.5, "y": 0.25}, main="x", paper="y") for words in ("echo", "reba") for task in "ab"
    ]
    figures = drawn(tmp_path / "r", *made, metric="both")
    assert sorted(figures) == ["STS-x-mini", "STS-y-mini"]
    assert {bar.get_height() for bar in figures["STS-y-mini"].axes[0].patches} == {0.25}


def test_cosines_of_the_toy_structures(tmp_path: Path) -> None:
    """A panel a method and task, from the evidence that is kept beside results."""
    draw, methods, made, kept = np.random.default_rng(0), ("classical", "echo"), [], {}
    tasks = toy_tasks(["S1", "S3"], ["en"], limit=12)
    for task in tasks:
        for words in methods:
            evidence = draw.random((12, 2))
            score = task.items.metrics["accuracy"](evidence)
            made.append(result(task.name, words, {"accuracy": score}, kind=task.kind, main="accuracy"))
            kept[made[-1].identity] = (evidence, {"accuracy": task.items.draws(evidence, "accuracy")})
    charts = make_report([write(tmp_path / "r", *made, draws=kept)], "main").charts()
    (chart,) = [each for each in charts if "cosines" in each.name]
    assert chart.name == "Toy-structures-cosines-mini"
    panels = chart.draw().axes[:4]
    assert [axes.get_title() for axes in panels[:2]] == ["classical last", "echo-2 last"]
    wanted = [f"accuracy {each.scores['accuracy']:.2f}" for each in made]
    assert [axes.texts[0].get_text() for axes in panels] == wanted and len(set(wanted)) > 1
