"""Reports: every number in the tables comes from a result, and what cannot be compared is not."""

from __future__ import annotations

import random
import re
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
from reporting_results import METHODS, TASKS, many, parsed, result, write

from st_reba.cli.report import METRICS
from st_reba.evaluation.reporting import make_report
from st_reba.evaluation.reporting.tables import family, natural


def number(cell: str) -> float:
    return float(re.sub(r"\*\*|\[.*|\(.*", "", cell))


def tables(*folders: Path, metric: Any = "both") -> list[list[dict[str, str]]]:
    return parsed(make_report(folders, metric).to_markdown())


# Numbers


def test_every_number_comes_from_a_result(tmp_path: Path) -> None:
    made = many()
    first, second = tables(write(tmp_path / "r", *made))
    seen = 0
    for rows, metric in ((first, "cosine_spearman"), (second, "cosine_pearson")):
        assert len(rows) == 2 * len(METHODS)
        for row in rows:
            own = [each for each in made if (each.base, each.method) == (row["base"], row["method"])]
            for each in own:
                low, high = each.intervals[metric]
                assert number(row[each.task]) == round(each.scores[metric], 4)
                assert row[each.task].endswith(f" [{low:.4f}, {high:.4f}]")
                seen += 1
            assert number(row["average"]) == round(fmean(each.scores[metric] for each in own), 4)
            assert set(row) - {"s/text", "tokens/text"} == {"base", "method", *TASKS, "average"}
    assert seen == 2 * len(made)
    for row in first:
        own = [each for each in made if (each.base, each.method) == (row["base"], row["method"])]
        texts = sum(each.texts for each in own)
        assert float(row["s/text"]) == pytest.approx(sum(each.seconds for each in own) / texts, rel=6e-3)
        assert float(row["tokens/text"]) == pytest.approx(sum(each.tokens or 0 for each in own) / texts, rel=6e-3)
    # Cost stands once.
    assert "s/text" not in second[0]


def test_order_of_rows(tmp_path: Path) -> None:
    rows = tables(write(tmp_path / "r", *many()))[0]
    names = ["classical last", "echo-2 last", "reba-2 last", "reba-2 mean", "reba-3 last", "reba-10 last"]
    assert [(row["base"], row["method"]) for row in rows] == [
        (base, name) for base in ("mini", "org/other") for name in names
    ]
    assert sorted(["b10", "b9", "a", "b"], key=natural) == ["a", "b", "b9", "b10"]
    assert family("nosink mask0-bidir mean k=4") == "nosink"


def test_the_best_of_each_base_is_bold(tmp_path: Path) -> None:
    rows = tables(write(tmp_path / "r", *many()), metric="main")[0]
    for base in ("mini", "org/other"):
        for column in (*TASKS, "average"):
            own = {row["method"]: row[column] for row in rows if row["base"] == base}
            best = max(map(number, own.values()))
            assert {name for name, cell in own.items() if "**" in cell} == {
                name for name, cell in own.items() if number(cell) == best
            }


def test_ties_are_all_bold_and_one_alone_is_not(tmp_path: Path) -> None:
    made = [
        result("a", "classical", 0.50001),
        result("a", "echo", 0.50004),
        result("a", "reba", 0.4),
        result("a", "reba", 0.9, base="alone"),
        result("loss", "classical", {"log_loss": 0.25}, main="log_loss", kind="x"),
        result("loss", "reba", {"log_loss": 0.75}, main="log_loss", kind="x"),
    ]
    first, second = tables(write(tmp_path / "r", *made))
    cells = {(row["base"], row["method"]): row["a"] for row in first}
    assert cells == {
        ("alone", "reba-2 last"): "0.9000",
        ("mini", "classical last"): "**0.5000**",
        ("mini", "echo-2 last"): "**0.5000**",
        ("mini", "reba-2 last"): "0.4000",
    }
    # Less is better.
    assert [row["loss"] for row in second] == ["**0.2500**", "0.7500"]


def test_tasks_are_missing(tmp_path: Path) -> None:
    made = [each for each in many() if (each.base, each.method, each.task) != ("mini", "reba-2 last", "LCQMC")]
    report = make_report([write(tmp_path / "r", *made)], "main")
    rows = {(row["base"], row["method"]): row for row in parsed(report.to_markdown())[0]}
    gap = rows["mini", "reba-2 last"]
    assert (gap["LCQMC"], gap["average"]) == ("–", "–")
    assert all(row["average"] != "–" for key, row in rows.items() if key != ("mini", "reba-2 last"))
    text = report.to_markdown()
    assert "- average: over all 3 tasks." in text
    assert "- no average, for want of some of these tasks: mini, reba-2 last." in text


@pytest.mark.parametrize(
    ("held", "averaged"),
    [
        # By method: the tasks that it has, and those that averages are over.
        ({"classical": "abc", "echo": "abc", "reba": "ab"}, "abc"),
        ({"classical": "abx", "echo": "aby", "reba": "abz"}, "ab"),
        ({"classical": "abc", "echo": "abcd", "reba": "e"}, "abc"),
        ({"classical": "a", "echo": "b", "reba": "ab"}, "ab"),
        ({"classical": "ab", "echo": "bc", "reba": "ca"}, ""),
        ({"classical": "a", "echo": "a"}, ""),
    ],
)
def test_what_averages_are_over(tmp_path: Path, held: dict[str, str], averaged: str) -> None:
    draw = random.Random(1)
    made = [result(task, words, draw.random()) for words, tasks in held.items() for task in tasks]
    # All of them in one table.
    report = make_report([write(tmp_path / "r", *made)])
    assert len(report.tables) == 1
    (rows,) = parsed(report.to_markdown())
    assert ("average" in rows[0]) == bool(averaged)
    for words, tasks in held.items():
        name = next(each.method for each in made if each.method.startswith(words))
        row = next(row for row in rows if row["method"] == name)
        if averaged and set(averaged) <= set(tasks):
            scores = [each.scores["cosine_spearman"] for each in made if each.method == name and each.task in averaged]
            assert number(row["average"]) == round(fmean(scores), 4)
        else:
            assert row.get("average", "–") == "–"


def test_bases_without_a_common_task_have_their_own_tables(tmp_path: Path) -> None:
    made = [result(task, "reba", 0.5, base=base) for base, task in [("a", "t1"), ("b", "t2"), ("c", "t1"), ("c", "t3")]]
    found = tables(write(tmp_path / "r", *made))
    assert [[row["base"] for row in rows] for rows in found] == [["a", "c"], ["b"]]


def test_tokens_that_were_not_counted(tmp_path: Path) -> None:
    made = [
        result("a", "reba", 0.5, tokens=None, texts=10, seconds=1.0),
        result("b", "reba", 0.5, tokens=90, texts=30, seconds=3.0),
        result("a", "echo", 0.5, tokens=None),
        result("b", "echo", 0.5, tokens=None, texts=0),
    ]
    echo, reba = tables(write(tmp_path / "r", *made))[0]
    assert (reba["s/text"], reba["tokens/text"]) == ("0.1", "3")
    assert (echo["s/text"], echo["tokens/text"]) == ("0.2", "–")


def test_settings(tmp_path: Path) -> None:
    made = [
        result("a", "reba", 0.1),
        result("a", "reba", 0.2, settings={"layer": 10}),
        result("a", "reba", 0.3, settings={"layer": 9, "max_tokens": 64, "budget": "content"}),
        result("b", "reba", 0.4, settings={"seed": 7}),
    ]
    report = make_report([write(tmp_path / "r", *made)])
    (rows,) = parsed(report.to_markdown())
    found = {row["method"]: (row["a"], row["b"]) for row in rows}
    # A seed that all results of a task have alike splits no row, and is told below.
    assert found == {
        "reba-2 last": ("0.1000", "0.4000"),
        "reba-2 last (layer 10)": ("0.2000", "–"),
        "reba-2 last (layer 9, 64 tokens a copy)": ("**0.3000**", "–"),
    }
    assert "- b: seed 7." in report.to_markdown()
    alike = [result(task, "reba", 0.5, settings={"limit": 6}) for task in "ab"]
    assert "- all tasks: limit 6." in make_report([write(tmp_path / "s", *alike)]).to_markdown()


def test_prompts_are_written_out_below(tmp_path: Path) -> None:
    made = [
        result("a", words, 0.5, settings={"prompt_number": number, "prompt": f"Say |{number}|:\n{{text}}"})
        for words in ("classical", "nosink:setting=mask0-bidir,k=2")
        for number in (2, 10)
    ]
    text = make_report([write(tmp_path / "r", *made)]).to_markdown()
    names = ["classical last", "nosink mask0-bidir mean k=2"]
    assert [row["method"] for row in parsed(text)[0]] == [
        f"{name} (prompt number {n})" for name in names for n in (2, 10)
    ]
    notes = [line for line in text.splitlines() if line.startswith("- prompt ")]
    assert notes[0] == f"- prompt 2 ({', '.join(names)}): 'Say \\|2\\|:\\\\n{{text}}'" and len(notes) == 2


def test_left_out_items_and_odd_names(tmp_path: Path) -> None:
    left = {"no word|there": [f"w{place}" for place in range(7)], "nothing": []}
    made = [
        result("t|1", words, 0.5, kind="odd|kind", left_out=left if words != "echo" else {"cut\nshort": ["x"]})
        for words in ("classical", "echo", "reba")
    ]
    report = make_report([write(tmp_path / "r", *made)])
    text = report.to_markdown()
    assert [row["t|1"] for row in parsed(text)[0]] == ["**0.5000**"] * 3
    who = "mini, classical last; mini, reba-2 last"
    assert f"- t\\|1: 7 left out (no word\\|there): w0; w1; w2; w3; w4 and 2 more; in {who}." in text
    assert "- t\\|1: 1 left out (cut short): x; in mini, echo-2 last." in text
    assert "nothing" not in text and "## odd\\|kind" in text


@pytest.mark.parametrize("metric", METRICS)
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
    shown = [{name: cell for name, cell in rows[0].items() if name[0] in "abc" and cell[0] == "0"} for rows in found]
    assert [{name: cell for name, cell in each.items() if name != "average"} for each in shown] == wanted
    assert all(("s/text" in rows[0]) == (place == 0) for place, rows in enumerate(found))


def test_unknown_metric(tmp_path: Path) -> None:
    folder = write(tmp_path / "r", result("a", "reba", 0.5))
    with pytest.raises(ValueError, match=r"metric='best' is not known: choose one of \['main', 'paper', 'both'\]"):
        make_report([folder], "best")  # type: ignore[arg-type]
