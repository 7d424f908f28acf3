"""Results as one table: a row a result and metric, and how methods and settings are told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from reporting_results import result, tables, write

from st_reba.evaluation.frame import natural, table_of
from st_reba.evaluation.report import make_report


def test_settings(tmp_path: Path) -> None:
    made = [
        result("a", "reba", 0.1),
        result("a", "reba", 0.2, settings={"layer": 10}),
        result("a", "reba", 0.3, settings={"layer": 9, "max_tokens": 64, "budget": "content"}),
    ]
    (rows,) = tables(write(tmp_path / "r", *made))
    assert {row["method"]: row["a"] for row in rows} == {
        "reba-2 last": "0.1000",
        "reba-2 last (layer 10)": "0.2000",
        "reba-2 last (layer 9, 64 tokens a copy)": "**0.3000**",
    }
    alike = [result(task, "reba", 0.5, settings={"limit": 6}) for task in "ab"]
    assert "- all: limit 6\n" in make_report([write(tmp_path / "s", *alike)]).to_markdown()


@pytest.mark.parametrize("metric", ["main", "paper", "both"])
def test_metrics(tmp_path: Path, metric: Any) -> None:
    scores = {"map_at_1000": 0.5, "ndcg_at_10": 0.25}
    made = [
        result("a", "reba", scores, main="ndcg_at_10", paper="map_at_1000"),
        result("b", "reba", scores, main="ndcg_at_10"),
        result("c", "reba", scores, main="map_at_1000"),
    ]
    found = tables(write(tmp_path / "r", *made), metric=metric)
    main = {"a (ndcg_at_10)": "0.2500", "b (ndcg_at_10)": "0.2500", "c (map_at_1000)": "0.5000"}
    paper = {"a (map_at_1000)": "0.5000", "b (ndcg_at_10)": "0.2500", "c (map_at_1000)": "0.5000"}
    # Beside the first table, the second has what it adds.
    wanted = {"main": [main], "paper": [paper], "both": [main, {"a": "0.5000"}]}[metric]
    shown = [{name: cell for name, cell in rows[0].items() if name in {*main, *paper, "a"}} for rows in found]
    assert shown == wanted
    with pytest.raises(ValueError, match="metric='best' is not known: choose main, paper or both"):
        make_report([tmp_path / "r"], "best")  # type: ignore[arg-type]


def test_a_row_a_result_and_metric() -> None:
    """A result that two folders hold alike stands once; where there is no interval its ends are no numbers."""
    scores = {"x": 0.5, "y": 0.25}
    one = result("a", "reba", scores, main="x", paper="y", intervals={"y": (0.1, 0.4)})
    frame = table_of([("", one), ("", one), ("other", one)], "both")
    cells = [tuple(row) for row in frame[["label", "shown", "metric", "value"]].to_numpy().tolist()]
    assert cells == [
        (name, shown, metric, scores[metric])
        for shown, metric in (("main", "x"), ("paper", "y"))
        for name in ("reba-2 last", "reba-2 last [other]")
    ]
    assert frame[["low", "high"]][frame.metric == "y"].to_numpy().tolist() == [[0.1, 0.4]] * 2
    assert frame[["low", "high"]][frame.metric == "x"].isna().all(axis=None)


def test_ten_comes_after_nine() -> None:
    assert sorted(["b10", "b9", "a", "b"], key=natural) == ["a", "b", "b9", "b10"]
