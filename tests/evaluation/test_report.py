"""Reports: every number in the tables comes from a result, and what cannot be compared is not."""

from __future__ import annotations

import argparse
import json
import random
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
from reporting_results import GPT2, parsed, result, write

from st_reba.cli.report import METRICS, add_report
from st_reba.evaluation.reporting import Report, make_report, write_report
from st_reba.evaluation.reporting.tables import family, natural
from st_reba.evaluation.results import Result

Run = Callable[..., str]
METHODS = ("classical", "echo", "reba", "reba-3", "reba:pooling=mean", "reba-10")
TASKS = ("AFQMC", "LCQMC", "STSB")


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Run the command; what it prints."""

    def call(*arguments: object) -> str:
        top = argparse.ArgumentParser()
        add_report(top.add_subparsers())
        options = top.parse_args(["report", *map(str, arguments)])
        capsys.readouterr()
        options.command(options)
        return capsys.readouterr().out

    return call


def number(cell: str) -> float:
    return float(re.sub(r"\*\*|\[.*|\(.*", "", cell))


def ours(rows: list[dict[str, str]]) -> list[dict[str, str]]:
    return [row for row in rows if not row["method"].startswith("paper: ")]


def tables(*folders: Path, metric: Any = "both") -> list[list[dict[str, str]]]:
    return parsed(make_report(folders, metric).to_markdown())


# Numbers


def many(seed: int = 0) -> list[Result]:
    """Two bases, six methods, three tasks, two metrics, with intervals."""
    draw = random.Random(seed)
    made = []
    for base in ("mini", "org/other"):
        for words in METHODS:
            for task in TASKS:
                scores = {"cosine_spearman": draw.random(), "cosine_pearson": draw.random()}
                bounds = {name: (value - 0.01, value + 0.02) for name, value in scores.items()}
                texts = draw.randrange(10, 1000)
                made.append(
                    result(
                        task, words, scores, base=base, paper="cosine_pearson", intervals=bounds, texts=texts,
                        tokens=draw.randrange(100, 100000), seconds=draw.random() * 100,
                    )
                )  # fmt: skip
    return made


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


def test_prompts_are_written_out_below(tmp_path: Path) -> None:
    made = [
        result("a", words, 0.5, settings={"prompt_number": number, "prompt": f"Say |{number}|:\n{{text}}"})
        for words in ("classical", "nosink:setting=mask0-bidir:k=2")
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


# Several folders


def test_folders_that_complete_each_other(tmp_path: Path) -> None:
    shared = result("a", "reba", 0.3)
    one = write(tmp_path / "x" / "one", shared, result("b", "reba", 0.5))
    two = write(
        tmp_path / "y" / "one", replace(shared, seconds=9.0), result("a", "echo", 0.4), result("b", "echo", 0.6)
    )
    report = make_report([one, two])
    (rows,) = parsed(report.to_markdown())
    assert [(row["method"], row["a"], row["b"], row["average"]) for row in rows] == [
        ("echo-2 last", "**0.4000**", "**0.6000**", "**0.5000**"),
        ("reba-2 last", "0.3000", "0.5000", "0.4000"),
    ]
    assert "folder" not in rows[0] and not report.collection.conflicts
    text = report.to_markdown()
    assert "- x/one: 2 results\n- y/one: 3 results\n- 1 of them stand in several folders alike" in text
    # Named twice, or by another way: once.
    assert make_report([one, one, one / ".." / "one"]).to_markdown() == make_report([one]).to_markdown()


def test_folders_are_compared(tmp_path: Path) -> None:
    same = result("a", "reba", 0.3)
    before = write(tmp_path / "before", same, result("b", "reba", 0.5), result("b", "echo", 0.1))
    after = write(tmp_path / "after", same, result("b", "reba", 0.75, data="new"))
    for folders in ([before, after], [after, before]):
        report = make_report(folders)
        rows = parsed(report.to_markdown())[0]
        found = [(row["folder"], row["method"], row["a"], row["b"]) for row in rows]
        # The task that both have alike stands in both rows, so that both have an average.
        wanted = {
            "before": ("before", "reba-2 last", "**0.3000**", "0.5000"),
            "after": ("after", "reba-2 last", "**0.3000**", "**0.7500**"),
        }
        assert found == [("", "echo-2 last", "–", "0.1000"), *(wanted[folder.name] for folder in folders)]
        assert not report.collection.conflicts


def test_conflicts_are_pointed_out(tmp_path: Path) -> None:
    first = result("a", "reba", {"cosine_spearman": 0.5, "other": 0.1})
    one = write(tmp_path / "one", first)
    two = write(tmp_path / "two", replace(first, scores={"cosine_spearman": 0.5, "other": 0.2}))
    report = make_report([one, two])
    told = "STS, a, mini, reba-2 last: one other 0.1; two other 0.2"
    assert report.collection.conflicts == (told,)
    assert f"- **Conflict**: one identity, different numbers: {told}" in report.to_markdown()
    assert [row["folder"] for row in parsed(report.to_markdown())[0]] == ["one", "two"]


def test_versions(tmp_path: Path) -> None:
    made = [
        result("a", "reba", 0.5, versions={"torch": "2.0", "numpy": "2.1", "mteb": None}),
        result("b", "reba", 0.5, versions={"torch": "2.1", "numpy": "2.1", "mteb": None}),
    ]
    text = make_report([write(tmp_path / "r", *made)]).to_markdown()
    assert "- made with numpy 2.1\n- **Versions differ**: results are of torch 2.0 and 2.1\n" in text
    assert "mteb" not in text


# Errors


def test_folders_that_are_no_results(tmp_path: Path, run: Run) -> None:
    with pytest.raises(FileNotFoundError, match="gone: there is no such folder. Make one: st-reba evaluate"):
        make_report([tmp_path / "gone"])
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "a.txt").touch()
    with pytest.raises(FileNotFoundError, match="other: no results of st-reba evaluate there"):
        run(tmp_path / "other")
    with pytest.raises(FileNotFoundError, match="empty: it holds no results yet. Run: st-reba evaluate"):
        make_report([write(tmp_path / "empty")])
    with pytest.raises(ValueError, match="name one at least"):
        make_report([])


def test_results_of_a_later_format(tmp_path: Path) -> None:
    folder = write(tmp_path / "r", result("a", "reba", 0.5))
    (path,) = folder.glob("*/*/*.json")
    path.write_text(json.dumps({**json.loads(path.read_text()), "format": 99}))
    with pytest.raises(ValueError, match=r"reba.*\.json: written by a later st-reba \(format 99\)"):
        make_report([folder])


def test_results_that_cannot_be_told_apart(tmp_path: Path) -> None:
    made = [result("a", "reba", 0.5, data=data, command=f"run {data}") for data in ("one", "two")]
    folder = write(tmp_path / "r", *made)
    with pytest.raises(ValueError) as caught:
        make_report([folder])
    message = str(caught.value)
    assert "r: two results are called mini, reba-2 last, on a (STS), but their base, options or data differ" in message
    assert all(f"identity {each.identity[:12]} (by: {each.command})" in message for each in made)
    assert "Give one run a folder of its own (--out)" in message


# Output


def test_the_same_inputs_give_the_same_bytes(tmp_path: Path) -> None:
    made = many()
    folder = write(tmp_path / "r", *made)
    text = make_report([folder]).to_markdown(figures=True)
    draw = random.Random(3)
    draw.shuffle(made)
    assert make_report([write(tmp_path / "s" / "r", *made)]).to_markdown(figures=True) == text
    # Nothing of where it was made.
    assert str(tmp_path) not in text and text.endswith("\n") and not text.endswith("\n\n")


def test_command_prints(tmp_path: Path, run: Run) -> None:
    folder = write(tmp_path / "r", *many())
    assert run(folder) == make_report([folder]).to_markdown()
    assert len(parsed(run(folder, "--metric", "main"))) == 1
    assert "![" not in run(folder)
    with pytest.raises(ValueError, match="--no-figures: without --out"):
        run(folder, "--no-figures")


def test_command_writes(tmp_path: Path, run: Run) -> None:
    folder, out = write(tmp_path / "r", *many()), tmp_path / "new" / "report"
    assert run(folder, "--out", out) == f"{out / 'report.md'}: 2 tables, 4 figures\n"
    text = (out / "report.md").read_text(encoding="utf-8")
    links = re.findall(r"!\[[^\]]+\]\(([^)]+)\)", text)
    assert sorted(links) == sorted(path.relative_to(out).as_posix() for path in out.glob("*/*")) and len(links) == 4
    assert all((out / link).read_bytes().startswith(b"\x89PNG\r\n") for link in links)
    assert text.partition("## Figures")[0].rstrip() in make_report([folder]).to_markdown()
    # Again, with fewer figures: the earlier report is gone.
    run(write(tmp_path / "q", result("a", "reba", 0.5)), "--out", out)
    assert sorted(path.name for path in out.iterdir()) == ["report.md"]
    run(folder, "--out", out, "--no-figures")
    assert [path.name for path in out.iterdir()] == ["report.md"] and "![" not in (out / "report.md").read_text()


def test_other_folders_are_not_replaced(tmp_path: Path) -> None:
    folder = write(tmp_path / "r", *many())
    report = make_report([folder])
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(FileExistsError, match="not a report of st-reba, so it is not replaced"):
        write_report(report, folder)
    assert sorted(tmp_path.rglob("*")) == before
    out = tmp_path / "out"
    write_report(report, out)
    for path, text in ((out / "mine.txt", "kept"), (out / "figures" / "mine.txt", "kept")):
        path.write_text(text)
        with pytest.raises(FileExistsError, match="not a report of st-reba"):
            write_report(report, out)
        assert path.read_text() == text
        path.unlink()
    (out / "report.md").write_text("# Something else\n")
    with pytest.raises(FileExistsError, match="not a report of st-reba"):
        write_report(report, out)


def test_nothing_is_written_where_a_figure_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    report = make_report([write(tmp_path / "r", *many())])
    out = tmp_path / "out"
    write_report(make_report([write(tmp_path / "q", result("a", "reba", 0.5))]), out)
    before = (out / "report.md").read_bytes()
    calls = []

    def fails(figure: Any, path: Path) -> None:
        calls.append(path)
        if len(calls) == 2:
            raise OSError("No space left on device")
        path.write_bytes(b"\x89PNG")

    monkeypatch.setattr("st_reba.evaluation.reporting.report.save_figure", fails)
    with pytest.raises(OSError, match="No space left"):
        write_report(report, out)
    assert [path.name for path in out.iterdir()] == ["report.md"] and (out / "report.md").read_bytes() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "q", "r"]


def test_without_matplotlib(tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Any:
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    monkeypatch.setattr("st_reba.evaluation.optional.import_module", missing)
    folder, out = write(tmp_path / "r", *many()), tmp_path / "out"
    assert parsed(run(folder))
    with pytest.raises(ImportError, match=r"needs matplotlib.*pip install 'st-reba\[evaluation\]'"):
        run(folder, "--out", out)
    assert not out.exists()
    run(folder, "--out", out, "--no-figures")
    assert (out / "report.md").is_file()


def test_json(tmp_path: Path, run: Run) -> None:
    made = [
        *many(),
        result("STSB", "reba", {"cosine_pearson": 0.5, "x": 0.1}, base=GPT2, main="x", paper="cosine_pearson"),
    ]
    folder = write(tmp_path / "r", *made)
    values = json.loads(run(folder, "--json"))
    report: Report = make_report([folder])
    assert values == json.loads(json.dumps(report.to_json()))
    # All results are in it, as they were.
    read = {each.identity: each for each in (Result.from_json(value) for value in values["results"])}
    assert read == {each.identity: each for each in made}
    # It says what the Markdown says.
    for table, rows in zip(values["tables"], parsed(report.to_markdown()), strict=True):
        assert len(table["rows"]) == len(ours(rows))
        for row, shown in zip(table["rows"], ours(rows), strict=True):
            for cell in row["cells"]:
                name = cell["task"] if cell["task"] in shown else f"{cell['task']} ({cell['metric']})"
                assert f"{cell['value']:.4f}" in shown[name] and ("**" in shown[name]) == cell["best"]
                assert read[cell["identity"]].scores[cell["metric"]] == cell["value"]
    papers = [paper for table in values["tables"] for row in table["rows"] for paper in row["papers"]]
    assert [(paper["source"], [cell["task"] for cell in paper["cells"]]) for paper in papers] == [
        ("ReBA, Table 3", ["STSB"])
    ]
    out = tmp_path / "out"
    assert json.loads(run(folder, "--json", "--out", out)) == values and (out / "report.md").is_file()
