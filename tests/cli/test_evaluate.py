"""The commands compare, evaluate and tune."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pandas as pd
import pytest

import st_reba
from st_reba.cli import main

WORDS = ["cat", "tiger", "lion", "dog", "wolf", "fox", "rain", "snow", "hail", "storm", "fog", "sun"]
COLUMNS = ["--column", "text1=a", "--column", "text2=b"]


@pytest.fixture
def pairs(tmp_path: Path) -> Path:
    rows = {"a": WORDS, "b": WORDS[::-1], "score": range(12)}
    pd.DataFrame(rows).to_csv(tmp_path / "pairs.tsv", sep="\t", index=False)
    return tmp_path / "pairs.tsv"


def test_compare(pairs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["compare", "mini", str(pairs), "classical:pooling=mean", "echo", *COLUMNS]
    files = ["--out", str(tmp_path / "r.jsonl"), "--figure", str(tmp_path / "f.png")]
    assert main([*arguments, *files]) == 0
    shown = capsys.readouterr().out
    assert "| classical:pooling=mean |" in shown
    assert len((tmp_path / "r.jsonl").read_text().splitlines()) == 2
    assert (tmp_path / "f.png").exists()
    assert main([*arguments, "--limit", "11", "--metric", "paper", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [(each["metric"], each["items"]) for each in found["results"]] == [("cosine_pearson", 11)] * 2
    assert len(found["differences"]) == 1
    assert main([*arguments, "--vary", "layer=2,3"]) == 0
    assert capsys.readouterr().out.splitlines()[0] == "|  | 2 | 3 |"
    for wrong in (["--vary", "layer"], ["--column", "text1"], ["--kind", "Pairs"]):
        assert main([*arguments, *wrong]) in (1, 2)
        said = capsys.readouterr().err
        assert said.startswith("st-reba: ") and wrong[0].strip("-") in said


def test_evaluate(pairs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    st_reba.build("mini", "echo").save(str(tmp_path / "model"))
    arguments = ["evaluate", str(tmp_path / "model"), f"STS={pairs}", "toy:S1,en", *COLUMNS]
    assert main([*arguments, "--limit", "12"]) == 0
    shown = capsys.readouterr().out
    assert re.search(r"^\| pairs \| cosine_spearman( \| -?[01]\.\d{3}){3} \|$", shown, re.MULTILINE), shown
    assert main(["evaluate", str(tmp_path / "model"), "toy:S1,en", "--limit", "12", "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)
    assert (found["task"], found["method"], found["items"]) == ("S1 en", "echo", 12)


def test_tune(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    import st_reba.evaluation.tune as tuning

    calls = []
    monkeypatch.setattr(tuning, "tune", lambda *args, say, **given: say("-") or calls.append((args, given)) or "report")
    (tmp_path / "t.txt").write_text("one\ntwo\n", encoding="utf-8")
    out = str(tmp_path / "out")
    assert main(["tune", "mini", str(tmp_path / "t.txt"), out, "--seed", "3", "--most-cost", "1.5"]) == 0
    (args, options), shown = calls[0], capsys.readouterr()
    assert shown.out == "report\n" and shown.err.startswith(f"-\nThe model is in {Path(out, 'model')}")
    assert (args[0], args[1], str(args[2])) == ("mini", ["one", "two"], out)
    given = ("seed", "most_cost", "sample")
    assert {name: options[name] for name in given} == {"seed": 3, "most_cost": 1.5, "sample": 1000}
    assert "labels" not in options
    labels = pd.DataFrame({"text": WORDS, "label": list("ab") * 6})
    labels.to_csv(tmp_path / "l.csv", index=False)
    assert main(["tune", "mini", str(tmp_path / "t.txt"), out, "--labels", str(tmp_path / "l.csv")]) == 0
    assert (calls[1][1]["labels"].kind, calls[1][1]["labels"].items[1]) == ("Classification", (1, "b"))
    labels.to_csv(tmp_path / "t.csv", index=False)
    assert main(["tune", "mini", str(tmp_path / "t.csv"), out, "--column", "text=nowhere"]) == 1
    assert "nowhere" in capsys.readouterr().err
    assert main(["tune", "mini", str(tmp_path / "t.txt"), out, "--kind", "STS"]) in (1, 2)
