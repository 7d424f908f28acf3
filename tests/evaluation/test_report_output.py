"""Reports on several folders, what they refuse, and what the command writes."""

from __future__ import annotations

import argparse
import json
import random
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from reporting_results import GPT2, many, parsed, result, write

from st_reba.cli.report import add_report
from st_reba.evaluation.reporting import Report, make_report, write_report
from st_reba.evaluation.results import Result

Run = Callable[..., str]


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


def ours(rows: list[dict[str, str]]) -> list[dict[str, str]]:
    return [row for row in rows if not row["method"].startswith("paper: ")]


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
    assert run(folder, "--out", out) == f"{out / 'report.md'} (tables: 2, figures: 6)\n"
    text = (out / "report.md").read_text(encoding="utf-8")
    links = re.findall(r"!\[[^\]]+\]\(([^)]+)\)", text)
    assert sorted(links) == sorted(path.relative_to(out).as_posix() for path in out.glob("*/*")) and len(links) == 6
    assert all((out / link).read_bytes().startswith(b"\x89PNG\r\n") for link in links)
    assert text.partition("## Figures")[0].rstrip() in make_report([folder]).to_markdown()
    # Again, with fewer figures: the earlier report is gone.
    run(write(tmp_path / "q", result("a", "reba", 0.5)), "--out", out)
    assert sorted(path.name for path in out.iterdir()) == ["report.md"]
    run(folder, "--out", out, "--no-figures")
    assert [path.name for path in out.iterdir()] == ["report.md"] and "![" not in (out / "report.md").read_text()


def test_other_folders_are_not_replaced(tmp_path: Path) -> None:
    folder = write(tmp_path / "r", *many()[:6])
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

    monkeypatch.setattr("st_reba.optional.import_module", missing)
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
    assert json.loads(run(folder, "--json", "--out", out, "--no-figures")) == values and (out / "report.md").is_file()
