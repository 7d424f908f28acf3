"""The commands evaluate, compare and report: what they print, write, refuse, and return."""

from __future__ import annotations

import json
import logging
import random
import re
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from mteb_data import texts, unseeded
from reporting_results import many, parsed, write

import st_reba
from st_reba.cli import evaluate as commands
from st_reba.cli import main
from st_reba.evaluation import items
from st_reba.evaluation.methods import Method
from st_reba.evaluation.results import Result, Results
from st_reba.evaluation.statistics import bootstrap

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run a command in a folder of its own: its status, and what it prints."""
    monkeypatch.chdir(tmp_path)
    # Fewer draws, and no search through mteb's many objects after each method.
    monkeypatch.setattr(items, "bootstrap", partial(bootstrap, draws=50))
    monkeypatch.setattr("gc.collect", lambda: 0)

    def call(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["st-reba", *map(str, arguments)])
        capsys.readouterr()
        status = main([*map(str, arguments)])
        out, err = capsys.readouterr()
        return status, out, err

    return call


def pairs(folder: Path, name: str = "pairs.tsv", columns: str = "text1\ttext2\tscore") -> str:
    draw = random.Random(0)
    rows = [f"{one}\t{other}\t{draw.randrange(5)}\n" for one, other in zip(texts(24), texts(24, 5), strict=True)]
    (folder / name).write_text(f"{columns}\n{''.join(rows)}", encoding="utf-8")
    return name


def test_compare_four_methods_in_one_command(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A table and a figure, without mteb."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "mteb"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "mteb", None)
    status, out, err = run("compare", pairs(tmp_path))
    assert status == 0
    table = parsed(out)[0]
    assert [row["method"] for row in table] == ["classical last", "prompteol last", "echo-2 last", "reba-2 last"]
    found = {each.method: each for each in Results("comparison").all()}
    for row in table:
        score = f"{found[row['method']].scores['cosine_spearman']:.4f} ["
        assert row["pairs"].replace("**", "").startswith(score)
    assert sum("**" in row["pairs"] for row in table) == 1 and "of 6 differences" in out
    report = tmp_path / "comparison" / "report"
    assert (report / "report.md").read_text(encoding="utf-8").startswith("# Results of st-reba evaluate")
    assert "STS-cosine_spearman-mini.png" in {path.name for path in (report / "figures").iterdir()}
    assert "```sh\nst-reba compare pairs.tsv\n```" in out
    # Again: nothing is built, and the report is replaced.
    monkeypatch.setattr(Method, "build", lambda *arguments, **options: pytest.fail("built again"))
    assert run("compare", "pairs.tsv")[:2] == (0, out)
    (printed, *_) = json.loads(run("compare", "pairs.tsv", "--json")[1])
    assert (printed["task"], printed["items"], printed["main"]) == ("pairs", 24, "cosine_spearman")


@pytest.mark.slow
def test_compare_takes_saved_models_too(run: Run, tmp_path: Path) -> None:
    st_reba.build("mini", "echo", pooling="mean").save_pretrained("saved")
    status, out, _ = run("compare", pairs(tmp_path), "--model", "saved", "--model", "mini", "--methods", "classical")
    assert status == 0 and [(row["base"], row["method"]) for row in parsed(out)[0]] == [
        ("mini", "classical last"),
        ("saved", "as saved"),
    ]
    assert run("compare", "pairs.tsv", "--model", "saved", "--out", "alone")[0] == 0


def test_evaluate_prints_a_line_a_result(run: Run, tmp_path: Path) -> None:
    given = ["evaluate", pairs(tmp_path), "--model", "mini", "--methods", "classical", "--methods", "echo:pooling=mean"]
    status, out, _ = run(*given, "--limit", 20)
    assert status == 0
    lines = out.splitlines()
    assert lines[0].split() == ["task", "model", "method", "metric", "score", "items"]
    for line, each in zip(lines[1:3], [Results("results").all()[place] for place in (0, 1)], strict=True):
        low, high = each.intervals["cosine_spearman"]
        score = f"{each.scores['cosine_spearman']:.4f} [{low:.4f}, {high:.4f}]"
        assert line.split("  ")[0] == "pairs" and each.method in line and score in line and line.endswith(" 20")
    assert lines[-1] == "results: st-reba report results makes tables and figures"
    (first, second) = json.loads(run(*given, "--limit", 20, "--json")[1])
    assert (first["method"], second["method"]) == ("classical last", "echo-2 mean")
    assert first["command"].startswith("st-reba evaluate pairs.tsv --model mini")
    assert len(parsed(run("report", "results")[1])[0]) == 2


def test_what_was_left_out_is_told_once_a_task() -> None:
    def result(task: str, method: str, **left_out: list[str]) -> Result:
        return Result("STS", task, "mini", method, "", {"spearman": 0.5}, "spearman", left_out=left_out)

    found = commands._left_out(
        [
            result("one", "echo", label=["a"]),
            result("one", "reba", label=["a"]),
            result("two", "echo", label=["a"], unseen=["b"]),
            result("two", "reba", label=["a"], unseen=["b", "c"]),
        ]
    )
    assert found == [
        ("one", "label", ("a",)),
        ("two", "label", ("a",)),
        ("two, echo", "unseen", ("b",)),
        ("two, reba", "unseen", ("b", "c")),
    ]


def test_the_list_needs_no_mteb(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mteb", None)
    status, out, _ = run("evaluate", "--list")
    assert status == 0 and "C-MTEB: 31 tasks" in out and "CMedQAv1-reranking" in out and "MTEB-56: 56 tasks" in out


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (["pairs.tsv"], "Name a TASK and a --model"),
        (["STSBB", "--model", "mini"], "'STSBB' is neither a file.*like it are.*'STSB'"),
        (["nope.tsv", "--model", "mini"], "FILE 'nope.tsv': there is no such file"),
        (["strange.tsv", "--model", "mini"], "no columns for .* were found; there are .*'asked'.*--columns"),
        (["pairs.tsv", "--model", "mini", "--columns", "text1=missing"], "there is no column .missing.; there are"),
        (["pairs.tsv", "--model", "mini", "--prompts", "nosink"], "'nosink' has none of the tasks"),
        (["pairs.tsv", "--model", "mini", "--methods", "rebaa"], "'rebaa' is not known.*Did you mean 'reba'"),
        (["STSB", "--model", "mini", "--limit", "5"], "--limit 5: mteb's own tasks are scored whole"),
        (["pairs.tsv", "--model", "saved", "--methods", "reba"], "'saved' is an embedder already.*Drop the option"),
        (["pairs.tsv", "--model", "./nope"], "'./nope': there is no such folder"),
        (["pairs.tsv", "--model", "mini", "--out", "pairs.tsv"], "a file is there; name a folder .--out"),
        (["pairs.tsv", "--model", "mini", "--out", "saved"], "holds no results of st-reba; give another folder"),
    ],
)
def test_errors_come_before_any_model_is_loaded(
    given: list[str], told: str, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pairs(tmp_path)
    pairs(tmp_path, "strange.tsv", "asked\tknown\tvalue")
    (tmp_path / "saved").mkdir()
    for name in ("modules.json", "config.json"):
        (tmp_path / "saved" / name).write_text("[]", encoding="utf-8")
    monkeypatch.setattr(Method, "build", lambda *arguments, **options: pytest.fail("built"))
    unseeded(monkeypatch)
    status, out, err = run("evaluate", *given)
    assert (status, out) == (2, "") and err.count("\n") == 1
    assert re.search(told, err)


def test_a_failing_task_leaves_the_others(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Status 1; --verbose shows the error in full."""

    def unreachable(*arguments: Any, **options: Any) -> Any:
        raise ConnectionError("the Hub cannot be reached")

    monkeypatch.setattr("mteb.abstasks.abstask.load_dataset", unreachable)
    given = ["evaluate", "STSB", pairs(tmp_path), "--model", "mini", "--methods", "classical"]
    status, out, err = run(*given)
    assert status == 1 and "pairs" in out and "STSB: its data" in err and "cannot be reached" in err
    assert err.endswith("1 failed. The rest is kept: run the same command again to continue.\n")
    assert "Traceback" not in err
    logger = logging.getLogger("st_reba")
    level = logger.level
    try:
        handler = logging.StreamHandler(sys.stderr)
        logger.addHandler(handler)
        assert "Traceback" in run(*given, "--verbose")[2]
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
    status, out, _ = run("evaluate", "STSB", "--model", "mini", "--methods", "classical", "--json")
    assert (status, json.loads(out)) == (1, [])
    assert run("evaluate", "STSB", "--model", "mini", "--methods", "classical")[:2] == (1, "")


# report


def test_report_prints_and_writes(run: Run, tmp_path: Path) -> None:
    write(tmp_path / "r", *many()[:6])
    status, text, _ = run("report", "r")
    assert status == 0 and len(parsed(text)) == 2 and "![" not in text
    assert len(parsed(run("report", "r", "--metric", "main")[1])) == 1
    assert run("report", "r", "--out", "new/report") == (0, f"{Path('new/report/report.md')}\n", "")
    assert list((tmp_path / "new" / "report" / "figures").glob("*.png"))
    values = json.loads(run("report", "r", "--json", "--out", "new/report", "--no-figures")[1])
    assert len(values["results"]) == 6 and not (tmp_path / "new" / "report" / "figures").exists()
    assert run("report", "r", "--no-figures")[0] == 2
    status, _, err = run("report", "r", "--out", "r")
    assert status == 2 and "not a report of st-reba, so it is not replaced" in err


def test_without_matplotlib(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "r", *many()[:6])
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert run("report", "r")[0] == 0
    status, _, err = run("report", "r", "--out", "out")
    assert status == 2 and "needs matplotlib" in err and "pip install 'st-reba[evaluation]'" in err
    assert not (tmp_path / "out").exists()
    assert run("report", "r", "--out", "out", "--no-figures")[0] == 0
