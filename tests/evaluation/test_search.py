"""Whole searches: what is left out, how a base is loaded, what is refused, and the command."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
from searched import NARROW, TEXTS, rescored, rows_of, run, task_of

import st_reba
from st_reba.cli import main
from st_reba.evaluation import make_task
from st_reba.evaluation.heldout import parts_of
from st_reba.evaluation.methods import Base
from st_reba.evaluation.search import compose
from st_reba.evaluation.trials import PAPERS

pytestmark = pytest.mark.usefixtures("quick")


def test_an_input_that_leaves_no_room_is_left_out(base: Any, tmp_path: Path) -> None:
    report, said = run(base, task_of("STS", 40), tmp_path, space=NARROW, max_seq_length=12)
    assert [line for line in said if line.startswith("Left out: template 'echo': max_seq_length=12 leaves no room")]
    assert {row.name for row in report.rows} == {"classical", "echo", "reba", "nosink", "fast", "composed"}
    assert report.recipe["max_seq_length"] == 12


def test_a_base_says_how_it_is_loaded(base: Any, tmp_path: Path) -> None:
    """By another tokenizer here: the recipe has it, and builds what was scored."""
    task, other = task_of("STS", 40), base("gpt2", "plain")
    options: dict[str, Any] = {"space": NARROW, "say": lambda line: None, "show_progress_bar": False}
    report = compose(Base(base("gpt2"), tokenizer=other, device="cpu"), task, tmp_path / "out", **options)
    assert report.recipe["tokenizer"] == other
    parts = parts_of(task, None, 0.5, 0)
    model = st_reba.build(tmp_path / "out" / "recipe.yaml", device="cpu")
    assert report.best.heldout == pytest.approx(rescored(model, parts, parts.heldout), abs=1e-9)
    own = st_reba.build(tmp_path / "out" / "recipe.yaml", tokenizer=base("gpt2"), device="cpu")
    assert np.abs(own.encode(TEXTS[:3]) - model.encode(TEXTS[:3])).max() > 1e-3


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        ("STS", {"minutes": 0}, "compose: minutes=0 is not allowed: give a number from 0.01"),
        ("STS", {"speed": True}, "compose: speed=True is not allowed"),
        ("STS", {"preset": "tune"}, "preset .='tune'. is not known: choose from"),
        ("STS", {"fast": True}, "compose: fast .=True. is not known: choose from"),
        ("STS", {"space": {"kind": []}}, "space: kind .* is not known: .* Did you mean 'kinds'"),
        ("STS", {"preset": "nosink", "tokens": 5}, "tokens=5 belongs to preset 'compose'"),
        ("STS", {"everything": True}, "everything=True belongs to preset 'nosink'"),
        ("STS", {"preset": "nosink", "m": 0}, "nosink: m=0 is not allowed: give a whole number from 1"),
        ("STS", {"preset": "nosink", "pooling": "max"}, "nosink: pooling='max' is not allowed: give 'mean' or 'last'"),
        ("NER", {}, "NER is not composed"),
        ("WordSense", {}, "WordSense is not composed"),
        ("Retrieval", {}, "Retrieval is not searched with.*Reranking"),
    ],
)
def test_wrong_options(base: Any, kind: str, options: Any, message: str, tmp_path: Path) -> None:
    task = make_task("Retrieval", rows_of("Reranking", 90)) if kind == "Retrieval" else task_of(kind, 90)
    with pytest.raises(ValueError, match=message):
        run(base, task, tmp_path / "out", **options)
    assert not (tmp_path / "out").exists()


def test_from_the_command_line(
    base: Any, drawn: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    rows = pandas.DataFrame(rows_of("STS", 120), columns=["第一", "second", "score"])
    rows.to_csv("pairs.tsv", sep="\t", index=False)
    Path("small.yaml").write_text(
        "templates: [null]\nkinds: [forward]\npooled: [mean]\nlayers: [1, 2]\nfilters: [center]\n", encoding="utf-8"
    )
    words = ["compose", base("gpt2"), "pairs.tsv", "out", "--space", "small.yaml", "--device", "cpu", "--limit", "40"]
    words += ["--columns", "text1=第一,text2=second", "--speed", "0.6", "--minutes", "30"]
    monkeypatch.setattr("sys.argv", ["st-reba", *words])
    assert main(words) == 0
    told = capsys.readouterr().out
    assert "8 of 8 arms; less than a minute" in told and "Build it: st-reba build out/recipe.yaml OUT" in told
    assert Path("out/costs.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    monkeypatch.setattr("st_reba.evaluation.search_report.save_figure", lambda figure, path: None)
    assert main([*words, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert {row["name"] for row in found["rows"]} == {*PAPERS, "fast", "composed"} and found["metric"] in told
    text = Path("out/report.md").read_text(encoding="utf-8")
    assert "--columns 'text1=第一,text2=second'" in text and "Held-out, with 95 % for all comparisons together" in text
    for row in found["rows"]:
        line = next(line for line in text.splitlines() if f"| {row['method']} |" in line)
        assert f"{row['validation']:.4f}" in line and f"{row['heldout']:.4f}" in line and f"{row['cost']:.2f}" in line
    assert main(["build", "out/recipe.yaml", "model", "--device", "cpu"]) == 0
    capsys.readouterr()
    assert main([*words, "--preset", "nosink"]) == 2 and "belongs to preset 'compose'" in capsys.readouterr().err
