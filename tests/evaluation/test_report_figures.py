"""Figures of reports: each is there when its data are, and its axes hold the numbers of the results."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from reporting_results import GPT2, result, write

from st_reba.evaluation.reporting import make_report
from st_reba.evaluation.reporting.drawing import readable


def drawn(folder: Path, *results: Any, metric: Any = "main") -> dict[str, Any]:
    """matplotlib's figures, by name."""
    pytest.importorskip("matplotlib")
    return {each.name: each.draw() for each in make_report([write(folder, *results)], metric).figures}


def lines(axes: Any) -> dict[str, dict[float, float]]:
    """By label: the points of each line."""
    return {
        line.get_label(): dict(zip(map(float, line.get_xdata()), map(float, line.get_ydata()), strict=True))
        for line in axes.get_lines()
    }


def test_one_result_makes_no_figure(tmp_path: Path) -> None:
    assert drawn(tmp_path / "r", result("a", "reba", 0.5)) == {}
    assert drawn(tmp_path / "s", result("a", "reba", 0.5, kind="word sense")) == {}


def test_word_accuracy(tmp_path: Path) -> None:
    draw = random.Random(0)
    made = [
        result(task, words, {"accuracy cosine": (value := draw.random())}, kind="word sense", main="accuracy cosine",
               base=base, intervals={"accuracy cosine": (value - 0.05, value + 0.1)})
        for base in ("mini", "other") for words in ("classical", "echo", "reba") for task in ("SLPWC", "WSD")
        if (base, words, task) != ("other", "echo", "WSD")
    ]  # fmt: skip
    figures = drawn(tmp_path / "r", *made)
    assert sorted(figures) == ["word-sense-main-bars", "word-sense-main-heat"]
    panels = figures["word-sense-main-bars"].axes
    assert [axes.get_title() for axes in panels] == ["mini", "other"]
    for axes in panels:
        own = [each for each in made if each.base == axes.get_title()]
        assert [label.get_text() for label in axes.get_xticklabels()] == ["SLPWC", "WSD"]
        bars = {}
        for container in axes.containers:
            for bar in container.patches:
                task = ["SLPWC", "WSD"][round(bar.get_x() + bar.get_width() / 2)]
                bars[container.get_label(), task] = bar
        assert {key: bar.get_height() for key, bar in bars.items()} == {
            (each.method, each.task): each.scores["accuracy cosine"] for each in own
        }
        # Intervals stand on the middle of their bars.
        whiskers = {tuple(map(tuple, part)) for each in axes.collections for part in each.get_segments()}
        for each in own:
            bar = bars[each.method, each.task]
            middle = bar.get_x() + bar.get_width() / 2
            low, high = each.intervals["accuracy cosine"]
            assert any(np.allclose(part, [(middle, low), (middle, high)]) for part in whiskers)
        assert len(whiskers) == len(own)
        assert lines(axes)["chance"] == {0.0: 0.25, 1.0: 0.25}
    # No two bars in one place.
    places = [bar.get_x() for container in panels[0].containers for bar in container.patches]
    assert len({round(place, 6) for place in places}) == 6


def test_layers(tmp_path: Path) -> None:
    made = [
        result(task, words, 0.1 + 0.01 * place + 0.1 * (task == "WSD"), kind="word sense",
               settings={} if layer is None else {"layer": layer})
        for words in ("classical", "reba") for task in ("SLPWC", "WSD")
        for place, layer in enumerate((0, 2, 10, None))
    ]  # fmt: skip
    figures = drawn(tmp_path / "r", *made)
    # Bars and heat map are of the last layer alone.
    assert sorted(figures) == ["word-sense-main-bars", "word-sense-main-heat", "word-sense-main-layers-mini"]
    for axes, first in zip(figures["word-sense-main-layers-mini"].axes, (0.1, 0.2), strict=False):
        curve = {0.0: first, 2.0: first + 0.01, 10.0: first + 0.02, 11.0: first + 0.03}
        assert {name: pytest.approx(curve) for name in ("classical last", "reba-2 last")} == lines(axes)
        assert [label.get_text() for label in axes.get_xticklabels()] == ["0", "2", "10", "last"]
    assert len(figures["word-sense-main-bars"].axes[0].patches) == 4


def test_heat_map(tmp_path: Path) -> None:
    draw = random.Random(4)
    made = [
        result(task, words, draw.random())
        for words in (
            "classical",
            "classical:pooling=mean",
            "reba",
            "reba:pooling=mean",
            "nosink:setting=mask0-for,k=1",
        )
        for task in ("a", "b")
        if (words, task) != ("reba", "b")
    ]
    (figure,) = drawn(tmp_path / "r", *made).values()
    axes = figure.axes[0]
    rows = [label.get_text() for label in axes.get_yticklabels()]
    heads = [label.get_text() for label in axes.get_xticklabels()]
    assert rows == ["classical last", "classical mean", "reba-2 last", "reba-2 mean", "nosink mask0-for mean k=1"]
    assert heads == ["a", "b", "average"]
    scores = {(each.method, each.task): each.scores["cosine_spearman"] for each in made}
    for name in rows:
        if (name, "b") in scores:
            scores[name, "average"] = (scores[name, "a"] + scores[name, "b"]) / 2
    # The numbers in the cells.
    written = {
        (rows[int(text.get_position()[1])], heads[int(text.get_position()[0])]): text.get_text() for text in axes.texts
    }
    assert written == {key: f"{value:.4f}" for key, value in scores.items()}
    # The colours: the difference to classical of the same pooling.
    colours = np.ma.filled(axes.images[0].get_array(), np.nan)
    for line, name in enumerate(rows):
        classical = "classical mean" if " mean" in name else "classical last"
        for place, head in enumerate(heads):
            if (name, head) in scores:
                assert colours[line, place] == pytest.approx(scores[name, head] - scores[classical, head])
            else:
                assert np.isnan(colours[line, place])
    low, high = axes.images[0].get_clim()
    assert low == -high == pytest.approx(-np.nanmax(abs(colours)))


def test_heat_map_without_classical(tmp_path: Path) -> None:
    made = [result(task, words, 0.1 + 0.2 * place) for words in ("echo", "reba") for place, task in enumerate("ab")]
    (figure,) = drawn(tmp_path / "r", *made).values()
    assert np.allclose(figure.axes[0].images[0].get_array(), [[0.1, 0.3, 0.2]] * 2)


def test_budgets(tmp_path: Path) -> None:
    draw = random.Random(6)
    budgets = (16, 128, 64)
    made = [
        result(task, words, draw.random(), settings={"max_tokens": tokens, "budget": "total"})
        for words in ("classical", "echo") for task in ("a", "b", "c", "d") for tokens in budgets
    ]  # fmt: skip
    # Another base under one budget makes no curve, and stays in the heat map.
    one = {"max_tokens": 512, "budget": "total"}
    made += [result(task, words, 0.5, base=GPT2, settings=one) for words in ("classical", "reba") for task in "ab"]
    figures = drawn(tmp_path / "r", *made)
    assert sorted(figures) == ["STS-main-budgets-mini", "STS-main-heat"]
    panels = figures["STS-main-budgets-mini"].axes
    assert [axes.get_title() for axes in panels if axes.get_title()] == ["a", "b", "c", "d"]
    for axes in panels[:4]:
        assert axes.get_xscale() == "log" and axes.get_xlabel() == "tokens a text (total)"
        wanted: dict[str, dict[float, float]] = {}
        for each in sorted(made, key=lambda each: int(each.settings["max_tokens"])):
            if (each.task, each.base) == (axes.get_title(), "mini"):
                wanted.setdefault(each.method, {})[each.settings["max_tokens"]] = each.scores["cosine_spearman"]
        found = lines(axes)
        assert found == wanted and all(list(curve) == sorted(budgets) for curve in found.values())
    assert len(figures["STS-main-heat"].axes[0].get_yticklabels()) == 2


def test_copies(tmp_path: Path) -> None:
    draw = random.Random(7)
    words = ("classical", "reba-1", "reba-2", "reba-10", "echo-2", "echo-3", "reba-2:pooling=mean")
    made = [result(task, each, draw.random()) for each in words for task in "ab"]
    figures = drawn(tmp_path / "r", *made)
    assert sorted(figures) == ["STS-main-heat", "STS-main-repeats-mini"]
    for axes in figures["STS-main-repeats-mini"].axes[:2]:
        scores = {each.method: each.scores["cosine_spearman"] for each in made if each.task == axes.get_title()}
        found = lines(axes)
        classical = found.pop("classical last")
        assert set(classical.values()) == {scores["classical last"]}
        assert found == {
            "reba last": {k: scores[f"reba-{k} last"] for k in (1, 2, 10)},
            "echo last": {k: scores[f"echo-{k} last"] for k in (2, 3)},
            "reba mean": {2: scores["reba-2 mean"]},
        }


def test_prompts(tmp_path: Path) -> None:
    draw = random.Random(8)
    made = [
        result("a", words, draw.random(), settings={"prompt_number": number, "prompt": f"p{number}"})
        for words in ("classical", "reba") for number in range(1, 6)
    ]  # fmt: skip
    (figure,) = drawn(tmp_path / "r", *made).values()
    (axes,) = figure.axes
    assert [label.get_text() for label in axes.get_xticklabels()] == ["classical last", "reba-2 last"]
    for place, name in enumerate(("classical last", "reba-2 last")):
        scores = [each.scores["cosine_spearman"] for each in made if each.method == name]
        (dots,) = [line for line in axes.get_lines() if line.get_label() == name]
        assert sorted(dots.get_ydata()) == sorted(scores)
        assert all(abs(x - place) < 0.3 for x in dots.get_xdata())
        # The box's middle is the median.
        medians = [line.get_ydata() for line in axes.get_lines() if np.allclose(line.get_ydata(), np.median(scores))]
        assert medians
    assert drawn(tmp_path / "s", made[0], made[5]) == {}


def test_names_of_files_and_texts(tmp_path: Path) -> None:
    made = [
        result(task, words, 0.5, kind=kind, base="org/模型")
        for kind in ("a b", "a-b") for words in ("echo", "echo-3") for task in ("任务", "$x$")
    ]  # fmt: skip
    figures = drawn(tmp_path / "r", *made)
    assert sorted(figures) == [
        "a-b-main-heat",
        "a-b-main-heat-2",
        "a-b-main-repeats-org-模型",
        "a-b-main-repeats-org-模型-2",
    ]
    assert [axes.get_title() for axes in figures["a-b-main-repeats-org-模型"].axes[:2]] == ["$x$", "??"]
    assert readable("a…模–é") == "a...?-?"
    for number, figure in enumerate(figures.values()):
        figure.savefig(tmp_path / f"{number}.png")


def test_both_metrics_have_their_figures(tmp_path: Path) -> None:
    made = [
        result(task, words, {"x": 0.5, "y": 0.25}, main="x", paper="y") for words in ("echo", "reba") for task in "ab"
    ]
    figures = drawn(tmp_path / "r", *made, metric="both")
    assert sorted(figures) == ["STS-main-heat", "STS-paper-heat"]
    assert float(figures["STS-paper-heat"].axes[0].images[0].get_array()[0][0]) == 0.25
