"""Reports: every number comes from a result, what cannot be compared is not, and files are whole or not there."""

from __future__ import annotations

import json
import random
import re
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import pytest
from reporting_results import GPT2, METHODS, TASKS, many, parsed, result, tables, write

from st_reba.evaluation import make_task
from st_reba.evaluation.report import make_report, markdown, write_report
from st_reba.evaluation.results import read_results
from st_reba.evaluation.statistics import differences


def number(cell: str) -> float:
    return float(re.sub(r"\*\*|\[.*|\(.*", "", cell))


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
            assert set(row) == {"base", "method", *TASKS, "average", "s/text", "tokens/text"}
            texts = sum(each.texts for each in own)
            assert float(row["s/text"]) == pytest.approx(sum(each.seconds for each in own) / texts, rel=6e-3)
            assert float(row["tokens/text"]) == pytest.approx(sum(each.tokens or 0 for each in own) / texts, rel=6e-3)
    assert seen == 2 * len(made)


def test_order_of_rows(tmp_path: Path) -> None:
    rows = tables(write(tmp_path / "r", *many()))[0]
    names = ["classical last", "echo-2 last", "reba-2 last", "reba-2 mean", "reba-3 last", "reba-10 last"]
    assert [(row["base"], row["method"]) for row in rows] == [
        (base, name) for base in ("mini", "org/other") for name in names
    ]


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
    ]
    (rows,) = tables(write(tmp_path / "r", *made))
    assert {(row["base"], row["method"]): row["a"] for row in rows} == {
        ("alone", "reba-2 last"): "0.9000",
        ("mini", "classical last"): "**0.5000**",
        ("mini", "echo-2 last"): "**0.5000**",
        ("mini", "reba-2 last"): "0.4000",
    }


@pytest.mark.parametrize(
    ("held", "averaged"),
    [
        # By method: the tasks that it has, and those that averages are over: those that all have.
        ({"classical": "abc", "echo": "abc", "reba": "ab"}, "ab"),
        ({"classical": "abx", "echo": "aby", "reba": "abz"}, "ab"),
        ({"classical": "abc", "echo": "abc"}, "abc"),
        ({"classical": "ab", "echo": "bc", "reba": "ca"}, ""),
        ({"classical": "a", "echo": "a"}, ""),
    ],
)
def test_what_averages_are_over(tmp_path: Path, held: dict[str, str], averaged: str) -> None:
    draw = random.Random(1)
    made = [result(task, words, draw.random()) for words, tasks in held.items() for task in tasks]
    (rows,) = tables(write(tmp_path / "r", *made))
    for row in rows:
        own = {each.task: each.scores["cosine_spearman"] for each in made if each.method == row["method"]}
        assert ("average" in row) == bool(averaged)
        if averaged:
            assert number(row["average"]) == round(fmean(own[task] for task in averaged), 4)
        assert {task for task in "abcxyz" if row.get(task, "–") != "–"} == set(own)


def test_tokens_that_were_not_counted(tmp_path: Path) -> None:
    made = [
        result("a", "reba", 0.5, tokens=None, texts=10, seconds=1.0),
        result("b", "reba", 0.5, tokens=90, texts=30, seconds=3.0),
        result("a", "echo", 0.5, tokens=40, texts=10, seconds=1.0),
        result("a", "classical", 0.5, texts=0),
    ]
    found = {row["method"]: (row["s/text"], row["tokens/text"]) for row in tables(write(tmp_path / "r", *made))[0]}
    assert found == {"reba-2 last": ("0.1", "–"), "echo-2 last": ("0.1", "4"), "classical last": ("–", "–")}


def test_left_out_items_and_odd_names(tmp_path: Path) -> None:
    left = {"no word|there": [f"w{place}" for place in range(6)], "nothing": []}
    made = [
        result("t|1", words, 0.5, kind="odd|kind", left_out=left if words != "echo" else {"cut\nshort": ["x"]})
        for words in ("classical", "echo", "reba")
    ]
    text = make_report([write(tmp_path / "r", *made)]).to_markdown()
    assert [row["t|1"] for row in parsed(text)[0]] == ["**0.5000**"] * 3
    assert "- t\\|1, 6 left out (no word\\|there): w0; w1; w2; w3; w4 …\n" in text
    assert "- t\\|1, 1 left out (cut short): x\n" in text
    assert "nothing" not in text and "## odd\\|kind" in text


def test_markdown_escapes(tmp_path: Path) -> None:
    made = replace(result("a|b", "reba", 0.5, base="x|y"), method="re|ba\nlast", command="st-reba a\nb")
    text = make_report([write(tmp_path / "r", made)]).to_markdown(figures=True)
    (row,) = parsed(text)[0]
    assert (row["base"], row["method"], row["a|b"]) == ("x|y", "re|ba last", "0.5000")
    assert "```sh\nst-reba a b\n```" in text


def test_columns_of_numbers_stand_on_the_right() -> None:
    rows = [{"method": "reba-2 last", "score": "**0.5000**", "gain": "–0.1"}, {"method": "echo", "score": "0.4000"}]
    assert markdown(rows)[:2] == ["| method | score | gain |", "|---|--:|--:|"]


# Which can be told apart


def scored(task: str, methods: dict[str, float], seed: int) -> tuple[list[Any], dict[str, Any]]:
    """Results of made-up answers to the same items, with evidence and draws as a run keeps them."""
    items = make_task("Triples", [(f"{task} {n}", "b", "c") for n in range(60)], task).items
    chance = np.random.default_rng(seed)
    hard = chance.random(60)
    made, draws = [], {}
    for words, skill in methods.items():
        evidence = np.stack([(hard < skill).astype(float), np.full(60, 0.5)], axis=1)
        scores = {name: metric(evidence) for name, metric in items.metrics.items()}
        one = result(task, words, scores, kind="Triples", main="accuracy")
        made.append(replace(one, data=items.fingerprint))
        draws[one.identity] = (evidence, {"accuracy": items.draws(evidence, "accuracy")})
    return made, draws


def test_what_can_be_told_apart_is_paired_and_corrected(tmp_path: Path) -> None:
    """Intervals overlap where the paired difference is certain."""
    skills = {"classical": 0.50, "echo": 0.51, "reba": 0.70}
    made, draws = [], {}
    for seed, task in enumerate(("one", "two")):
        some, theirs = scored(task, skills, seed)
        made += some
        draws |= theirs
    report = make_report([write(tmp_path / "r", *made, draws=draws)])
    kept = read_results(tmp_path / "r")
    names = ["classical last", "echo-2 last", "reba-2 last"]
    for task in ("one", "two", "average"):
        tasks = ["one", "two"] if task == "average" else [task]
        own = {name: [each for each in made if each.method == name and each.task in tasks] for name in names}
        values = {name: fmean(each.scores["accuracy"] for each in some) for name, some in own.items()}
        drawn = {n: np.mean([kept.draws(each)["accuracy"] for each in some], axis=0) for n, some in own.items()}
        wanted = differences(values, drawn)
        found = [each for each in report.to_json()["differences"] if each["task"] == f"mini, {task}"]
        assert [(each["first"], each["second"]) for each in found] == list(combinations(names, 2))
        for one, other in zip(found, wanted, strict=True):
            assert (one["value"], one["interval"], one["corrected"]) == (other.value, other.interval, other.corrected)
        certain = sum(each.certain for each in wanted)
        text = report.to_markdown()
        said = f"- mini, {task}: {certain} of 3 differences between methods are significant (95 %, corrected for all)"
        assert [line for line in text.splitlines() if line.startswith(said)]
    # Each alone, the two are not told apart.
    low = kept.draws(made[2])["accuracy"]
    high = kept.draws(made[0])["accuracy"]
    assert np.percentile(high, 97.5) > np.percentile(low, 2.5)
    assert "reba-2 last > classical last by " in text


@pytest.mark.parametrize(("methods", "more"), [(4, ""), (5, "; and 4 more")])
def test_six_differences_are_told(tmp_path: Path, methods: int, more: str) -> None:
    skills = dict(zip(("classical", "echo", "reba", "reba-3", "reba-4"), (0.1, 0.3, 0.5, 0.7, 0.9), strict=True))
    made, draws = scored("one", dict([*skills.items()][:methods]), 0)
    text = make_report([write(tmp_path / "r", *made, draws=draws)]).to_markdown()
    (line,) = [line for line in text.splitlines() if line.startswith("- mini, one: ")]
    assert line.count(" by ") == 6 and line.endswith(f"]{more}")


def test_results_of_other_items_are_not_compared(tmp_path: Path) -> None:
    one, draws = scored("t", {"classical": 0.2, "echo": 0.9}, 0)
    other = replace(one[1], data="of another file")
    report = make_report([write(tmp_path / "r", one[0], other, draws=draws)])
    assert report.to_json()["differences"] == []
    assert "- **t: its rows are not of the same items**" in report.to_markdown()


# Folders


def test_folders_that_complete_each_other(tmp_path: Path) -> None:
    shared = result("a", "reba", 0.3)
    one = write(tmp_path / "one", shared, result("b", "reba", 0.5))
    two = write(tmp_path / "two", replace(shared, seconds=9.0), result("a", "echo", 0.4), result("b", "echo", 0.6))
    (rows,) = tables(one, two)
    assert [(row["method"], row["a"], row["b"], row["average"]) for row in rows] == [
        ("echo-2 last", "**0.4000**", "**0.6000**", "**0.5000**"),
        ("reba-2 last", "0.3000", "0.5000", "0.4000"),
    ]
    # Named twice: once.
    assert make_report([one, one]).to_markdown() == make_report([one]).to_markdown()


def test_folders_are_compared(tmp_path: Path) -> None:
    same = result("a", "reba", 0.3)
    before = write(tmp_path / "before", same, result("b", "reba", 0.5), result("b", "echo", 0.1))
    after = write(tmp_path / "after", same, result("b", "reba", 0.75, data="new"))
    for folders in ([before, after], [after, before]):
        (rows,) = tables(*folders)
        # The task that both have alike stands in both rows.
        assert {row["method"]: (row["a"], row["b"]) for row in rows} == {
            "echo-2 last": ("–", "0.1000"),
            f"reba-2 last [{before}]": ("**0.3000**", "0.5000"),
            f"reba-2 last [{after}]": ("**0.3000**", "**0.7500**"),
        }


def test_what_is_told_of_folders(tmp_path: Path) -> None:
    first = result("a", "reba", 0.5, versions={"torch": "2.0", "numpy": "2.1", "mteb": None})
    one = write(tmp_path / "one", first)
    other = result("b", "reba", 0.5, versions={"torch": "2.1"})
    two = write(tmp_path / "two", replace(first, scores={"cosine_spearman": 0.6}), other)
    text = make_report([one, two]).to_markdown()
    assert f"- **Conflict**: {two} has other numbers of mini, reba-2 last, a\n" in text
    assert "- made with numpy 2.1, torch 2.0 and 2.1 (**versions differ**)\n" in text
    # Of two with the same names, the later one counts.
    made = [result("a", "reba", value, data=str(value)) for value in (0.3, 0.7, 0.5)]
    report = make_report([write(tmp_path / "r", *made)])
    assert parsed(report.to_markdown())[0][0]["a"] == "0.5000"
    assert f"- {tmp_path / 'r'}: 2 results are left out, as later ones have the same names\n" in report.to_markdown()


def test_folders_that_are_no_results(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "a.txt").touch()
    for name in ("gone", "other"):
        with pytest.raises(FileNotFoundError, match=f"{name}: no results of st-reba evaluate there"):
            make_report([tmp_path / name])
    with pytest.raises(FileNotFoundError, match="empty: there are no results yet. Run: st-reba evaluate"):
        make_report([write(tmp_path / "empty")])
    with pytest.raises(ValueError, match="name one at least"):
        make_report([])


def test_a_report_of_some_results(tmp_path: Path) -> None:
    made = many()
    folder = write(tmp_path / "r", *made)
    report = make_report([folder], only=made[:3])
    assert report.results and {each.identity for each in report.results} == {each.identity for each in made[:3]}


def test_the_same_inputs_give_the_same_text(tmp_path: Path) -> None:
    made = many()
    text = make_report([write(tmp_path / "r", *made)]).to_markdown(figures=True)
    random.Random(3).shuffle(made)
    assert make_report([write(tmp_path / "s", *made)]).to_markdown(figures=True) == text
    # Nothing of where it was made.
    assert str(tmp_path) not in text and text.endswith("\n") and not text.endswith("\n\n")


# Files


def test_a_report_is_written_and_replaced(tmp_path: Path) -> None:
    made = many()[:6]
    report, out = make_report([write(tmp_path / "r", *made)]), tmp_path / "new" / "report"
    assert write_report(report, out) == out / "report.md"
    text = (out / "report.md").read_text(encoding="utf-8")
    links = re.findall(r"!\[[^\]]+\]\(([^)]+)\)", text)
    assert sorted(links) == sorted(path.relative_to(out).as_posix() for path in out.glob("*/*")) and links
    assert all((out / link).read_bytes().startswith(b"\x89PNG\r\n") for link in links)
    assert text.partition("## Figures")[0].rstrip() in report.to_markdown()
    write_report(report, out, figures=False)
    assert [path.name for path in out.iterdir()] == ["report.md"] and "![" not in (out / "report.md").read_text()


def test_other_folders_are_not_replaced(tmp_path: Path) -> None:
    report, out = make_report([write(tmp_path / "r", *many()[:2])]), tmp_path / "out"
    with pytest.raises(FileExistsError, match="not a report of st-reba, so it is not replaced"):
        write_report(report, tmp_path / "r")
    write_report(report, out)
    for path in (out / "mine.txt", out / "figures" / "mine.txt", out / "more" / "a.png"):
        path.parent.mkdir(exist_ok=True)
        path.write_text("kept")
        with pytest.raises(FileExistsError, match="not a report of st-reba"):
            write_report(report, out)
        assert path.read_text() == "kept"
        path.unlink()
    (out / "report.md").write_text("# Something else\n")
    with pytest.raises(FileExistsError, match="not a report of st-reba"):
        write_report(report, out)


def test_nothing_is_written_where_a_figure_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    report, out = make_report([write(tmp_path / "r", *many()[:6])]), tmp_path / "out"
    write_report(report, out, figures=False)
    before = (out / "report.md").read_bytes()
    calls = []

    def fails(figure: Any, path: Path) -> None:
        calls.append(path)
        if len(calls) == 2:
            raise OSError("No space left on device")
        path.write_bytes(b"\x89PNG")

    monkeypatch.setattr("st_reba.evaluation.report.save_figure", fails)
    with pytest.raises(OSError, match="No space left"):
        write_report(report, out)
    assert [path.name for path in out.iterdir()] == ["report.md"] and (out / "report.md").read_bytes() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "r"]


def test_json_holds_all(tmp_path: Path) -> None:
    own = {"cosine_pearson": 0.5, "x": 0.1}
    made = [*many()[:6], result("STSB", "reba", own, base=GPT2, main="x", paper="cosine_pearson")]
    values = json.loads(json.dumps(make_report([write(tmp_path / "r", *made)]).to_json()))
    assert {each["identity"] for each in values["results"]} == {each.identity for each in made}
    (paper,) = values["papers"]
    assert (paper["task"], paper["metric"], paper["base"]) == ("STSB", "cosine_pearson", GPT2)
    assert paper["difference"] == pytest.approx(0.5 - paper["value"])
    assert values["averages"] == [] and values["differences"] == []
