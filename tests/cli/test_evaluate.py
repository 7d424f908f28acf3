"""The commands compare, evaluate and tune."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from tiny import TASK_WORDS

import st_reba
from st_reba.cli import main

COLUMNS = ["--column", "text1=a", "--column", "text2=b"]
Capture = pytest.CaptureFixture[str]


@pytest.fixture
def pairs_file(tmp_path: Path) -> Path:
    file = tmp_path / "pairs.tsv"
    columns = {"a": TASK_WORDS, "b": TASK_WORDS[::-1], "score": range(12)}
    pd.DataFrame(columns).to_csv(file, sep="\t", index=False)
    return file


@pytest.fixture
def compare_words(pairs_file: Path) -> list[str]:
    """A command line that compares two methods."""
    return [
        "compare",
        "mini",
        str(pairs_file),
        "classical:pooling=mean",
        "echo",
        *COLUMNS,
    ]


def test_compare_prints_a_table_and_writes_files(
    compare_words: list[str], tmp_path: Path, capsys: Capture
) -> None:
    results_file = tmp_path / "r.jsonl"
    figure_file = tmp_path / "f.png"
    files = ["--out", str(results_file), "--figure", str(figure_file)]
    assert main([*compare_words, *files]) == 0
    assert "| classical:pooling=mean |" in capsys.readouterr().out
    assert len(results_file.read_text(encoding="utf-8").splitlines()) == 2
    assert figure_file.exists()


def test_compare_prints_json(compare_words: list[str], capsys: Capture) -> None:
    assert main([*compare_words, "--limit", "11", "--metric", "paper", "--json"]) == 0
    scores = json.loads(capsys.readouterr().out)
    assert scores.keys() == {"task", "results", "differences"}
    (difference,) = scores["differences"]
    assert difference["significant"] == (difference["low"] > 0 or difference["high"] < 0)
    assert len(scores["results"]) == 2
    for result in scores["results"]:
        assert result["metric"] == "cosine_pearson"
        assert result["items"] == 11


def test_compare_varies_an_option(compare_words: list[str], capsys: Capture) -> None:
    assert main([*compare_words, "--vary", "layer=2,3"]) == 0
    assert capsys.readouterr().out.splitlines()[0] == "|  | 2 | 3 |"
    assert main([*compare_words, "--vary", "layer=2,3", "--json"]) == 0
    scores = json.loads(capsys.readouterr().out)
    assert scores.keys() == {"classical:pooling=mean", "echo"}
    assert scores["echo"].keys() == {"2", "3"}


@pytest.mark.parametrize(
    ("option", "value"), [("--vary", "layer"), ("--column", "text1"), ("--kind", "Pairs")]
)
def test_compare_names_a_wrong_option(
    option: str, value: str, compare_words: list[str], capsys: Capture
) -> None:
    assert main([*compare_words, option, value]) == 2
    error = capsys.readouterr().err
    assert error.startswith("st-reba: ")
    assert option.strip("-") in error


@pytest.fixture(scope="module")
def saved_model(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("evaluate") / "model"
    st_reba.build("mini", "echo").save(str(folder))
    return str(folder)


def test_evaluate_prints_a_table(saved_model: str, pairs_file: Path, capsys: Capture) -> None:
    tasks = [f"STS={pairs_file}", "toy:S1,en"]
    assert main(["evaluate", saved_model, *tasks, *COLUMNS, "--limit", "12"]) == 0
    table = capsys.readouterr().out
    row_pattern = r"^\| pairs \| cosine_spearman( \| -?[01]\.\d{3}){3} \|$"
    assert re.search(row_pattern, table, re.MULTILINE), table


def test_evaluate_prints_json(saved_model: str, capsys: Capture) -> None:
    assert main(["evaluate", saved_model, "toy:S1,en", "--limit", "12", "--json"]) == 0
    (result,) = json.loads(capsys.readouterr().out)
    assert result["task"] == "S1 en"
    assert result["method"] == "echo"
    assert result["items"] == 12
    # Of tune's folders, too, whose models are all called so.
    assert result["model"] == f"{Path(saved_model).parent.name}/model"


def test_evaluate_reads_the_tasks_before_it_loads(capsys: Capture) -> None:
    assert main(["evaluate", "no-such-model", "no_such_table.tsv"]) == 1
    error = capsys.readouterr().err
    assert "no_such_table.tsv" in error and "no-such-model'" not in error


@pytest.fixture
def tune_calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """The calls of `tune`, which does nothing: base, texts, folder, options. The current folder has tables."""
    calls: list[tuple[Any, ...]] = []

    def fake_tune(
        base: str,
        texts: list[str],
        out: Path,
        *,
        report_step: Callable[[str], object],
        **options: Any,
    ) -> str:
        report_step("-")
        calls.append((base, texts, out, options))
        return "report"

    monkeypatch.setattr("st_reba.evaluation.tune.tune", fake_tune)
    monkeypatch.chdir(tmp_path)
    Path("t.txt").write_text("one\ntwo\n", encoding="utf-8")
    labelled_words = pd.DataFrame({"text": TASK_WORDS, "label": list("ab") * 6})
    labelled_words.to_csv("l.csv", index=False)
    return calls


def test_tune_hands_on_its_options(tune_calls: list[tuple[Any, ...]], capsys: Capture) -> None:
    assert main(["tune", "mini", "t.txt", "out", "--seed", "3", "--max-cost", "1.5"]) == 0
    ((base, texts, out, options),) = tune_calls
    assert (base, texts, out) == ("mini", ["one", "two"], Path("out"))
    assert options == {
        "purpose": "similarity",
        "seed": 3,
        "max_cost": 1.5,
        "sample": 1000,
    }
    printed = capsys.readouterr()
    assert printed.out == "report\n"
    assert printed.err.startswith(f"-\nThe model is in {Path('out', 'model')}")


def test_tune_reads_labels(tune_calls: list[tuple[Any, ...]]) -> None:
    command = ["tune", "mini", "t.txt", "out", "--labels", "l.csv"]
    assert main(command) == 0
    assert main([*command, "--label", "a=1", "--label", "b=2"]) == 0
    labels, renamed_labels = (options["labels"] for *_, options in tune_calls)
    assert labels.kind == "Classification"
    assert labels.items[1] == (1, "b")
    assert renamed_labels.items[1] == (1, "2")


def test_tune_for_search_reads_rankings(tune_calls: list[tuple[Any, ...]]) -> None:
    rows = [(word, f"{word} {grade}", grade) for word in TASK_WORDS for grade in (0, 1)]
    rankings = pd.DataFrame(rows, columns=["asked", "document", "relevance"])
    rankings.to_csv("r.csv", index=False)
    labels = ["--labels", "r.csv", "--column", "query=asked"]
    command = ["tune", "mini", "t.txt", "out", "--for", "search", *labels]
    assert main(command) == 0
    assert main([*command, "--kind", "Reranking"]) == 0
    assert [options["labels"].kind for *_, options in tune_calls] == ["Retrieval", "Reranking"]


def test_tune_names_a_missing_column(tune_calls: list[tuple[Any, ...]], capsys: Capture) -> None:
    assert main(["tune", "mini", "l.csv", "out", "--text-column", "nowhere"]) == 2
    assert "nowhere" in capsys.readouterr().err
    assert tune_calls == []


def test_tune_refuses_a_kind_without_labels(tune_calls: list[tuple[Any, ...]]) -> None:
    assert main(["tune", "mini", "t.txt", "out", "--kind", "STS"]) == 2
    assert tune_calls == []
