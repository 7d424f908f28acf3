"""A folder of results: what it keeps, finds again, and refuses."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from st_reba.evaluation.results import FORMAT, Result, Results, read_results, slug

RESULT = Result(
    kind="STS",
    task="天气/weather",
    base="org/model",
    method="reba-2 last",
    identity="0123456789abcdef",
    scores={"spearman": 0.5, "pearson": 0.25},
    main="spearman",
    paper="pearson",
    intervals={"spearman": (0.4, 0.6)},
    settings={"layer": 3, "prompt": "问：{text}"},
    arguments={"method": "reba", "template": {"query": "{text}", "document": "{text} {text}"}},
    items=7,
    left_out={"not there": ["line 3"]},
    texts=14,
    tokens=99,
    seconds=0.5,
    command="st-reba evaluate",
)


def test_results_come_back_as_they_were(tmp_path: Path) -> None:
    results = Results(tmp_path / "deep" / "out")
    results.add(RESULT)
    results.add(replace(RESULT, identity="fedcba9876543210", scores={"spearman": 0.1, "pearson": 0.0}))
    again = Results(tmp_path / "deep" / "out")
    assert again.find(RESULT.identity) == RESULT
    assert again.find("0123") is None
    assert read_results(again.folder) == again.all() and len(again.all()) == 2
    assert RESULT.versions["st-reba"] and RESULT.versions["torch"]
    # What the task is called does not leave the folder.
    assert all(path.is_relative_to(again.folder) for path in map(again.path, again.all()))
    assert slug("../..") == "unnamed" and slug("a/b c") == "a-b-c"


def test_a_result_is_replaced_by_its_like(tmp_path: Path) -> None:
    results = Results(tmp_path / "out")
    results.add(RESULT)
    results.add(replace(RESULT, seconds=9.0))
    assert [each.seconds for each in Results(tmp_path / "out").all()] == [9.0]


def test_a_folder_of_other_things_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine", encoding="utf-8")
    with pytest.raises(FileExistsError, match="holds no results"):
        Results(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]
    with pytest.raises(FileExistsError, match="a file is there"):
        Results(tmp_path / "notes.txt")
    with pytest.raises(FileNotFoundError, match="no results of st-reba evaluate"):
        read_results(tmp_path)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ("", "not JSON"),
        ("[]", "not a result"),
        ('{"format": 1', "not JSON"),
        ({"format": FORMAT + 1}, "written by a later st-reba"),
        ({"main": "accuracy"}, "'accuracy' is none of the scores"),
        ({"scores": None}, "not a whole result"),
        ({"intervals": {"spearman": [1]}}, "not a whole result"),
    ],
)
def test_files_that_are_no_results_are_named(change: Any, told: str, tmp_path: Path) -> None:
    results = Results(tmp_path / "out")
    results.add(RESULT)
    path = results.path(RESULT)
    text = change if isinstance(change, str) else json.dumps({**RESULT.to_json(), **change})
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=told) as caught:
        Results(tmp_path / "out")
    assert path.name in str(caught.value)


@pytest.mark.parametrize("score", [float("nan"), float("inf")])
def test_scores_are_numbers(score: float) -> None:
    with pytest.raises(ValueError, match="not a number"):
        replace(RESULT, scores={"spearman": score, "pearson": 0.0})
