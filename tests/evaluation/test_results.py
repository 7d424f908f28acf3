"""A folder of results: what it keeps, finds again, and refuses; one writer, and nothing half written."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from st_reba.evaluation import results as module
from st_reba.evaluation.methods import Base, Method
from st_reba.evaluation.results import FORMAT, Result, Results, identity, one_line, read_results, slug

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
EVIDENCE = np.arange(6.0).reshape(3, 2)
DRAWS = {"spearman": np.array([0.1, 0.7])}


def kept(folder: Path, *each: Result) -> Results:
    results = Results(folder)
    with results.writing():
        for one in each or (RESULT,):
            results.add(one, EVIDENCE, DRAWS)
    return results


def test_results_come_back_as_they_were(tmp_path: Path) -> None:
    other = replace(RESULT, identity="fedcba9876543210", scores={"spearman": 0.1, "pearson": 0.0})
    results = kept(tmp_path / "deep" / "out", RESULT, other, replace(other, seconds=9.0))
    again = read_results(results.folder)
    assert again.find(RESULT.identity) == RESULT and again.find("0123") is None
    # Its like is replaced.
    assert [each.seconds for each in again.all()] == [0.5, 9.0]
    np.testing.assert_array_equal(again.evidence(RESULT), EVIDENCE)
    assert {name: draws.tolist() for name, draws in again.draws(RESULT).items()} == {"spearman": [0.1, 0.7]}
    assert RESULT.versions["st-reba"] and RESULT.versions["torch"]
    # What the task is called does not leave the folder, however long it is.
    assert slug("../..") == "unnamed" and slug("a/b c") == "a-b-c" and len(slug("模型" * 99).encode()) <= 80
    long = replace(RESULT, base="模" * 300, method="法" * 300, task="题" * 300, kind="类" * 300)
    assert kept(tmp_path / "long", long).all() == [long]


def test_of_mtebs_own_tasks_there_is_no_evidence(tmp_path: Path) -> None:
    results = Results(tmp_path / "out")
    with results.writing():
        results.add(RESULT)
    assert results.evidence(RESULT) is None and results.draws(RESULT) == {}


def test_a_folder_of_other_things_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine", encoding="utf-8")
    with pytest.raises(FileExistsError, match="holds no results"):
        Results(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]
    with pytest.raises(FileExistsError, match="a file is there"):
        Results(tmp_path / "notes.txt")
    with pytest.raises(FileNotFoundError, match="no results of st-reba evaluate"):
        read_results(tmp_path)


def test_one_writer(tmp_path: Path) -> None:
    one, other = Results(tmp_path / "out"), Results(tmp_path / "out")
    with one.writing():
        with pytest.raises(BlockingIOError, match="another process is writing"), other.writing():
            pass
        one.add(RESULT)
    with other.writing():
        # What was written meanwhile is known.
        assert other.find(RESULT.identity) == RESULT


@pytest.mark.parametrize("at", [0, 1])
def test_a_kill_leaves_no_half_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: int) -> None:
    """Killed while the evidence is written, or after it."""
    folder = tmp_path / "out"
    left: list[Path] = []
    plain = module.whole_file

    def killed(path: Path) -> Any:
        left.append(path)
        if len(left) == at + 1:
            path.with_name(f".{path.name}.0123456789ab.tmp").write_bytes(b"half")
            raise KeyboardInterrupt
        return plain(path)

    results = Results(folder)
    with results.writing(), monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(module, "whole_file", killed)
        results.add(RESULT, EVIDENCE, DRAWS)
    assert results.find(RESULT.identity) is None and read_results(folder).all() == []
    again = kept(folder)
    assert again.all() == [RESULT] and again.evidence(RESULT) is not None
    assert not list(folder.rglob("*.tmp"))


def test_a_kill_before_the_first_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def killed(path: Path) -> Any:
        path.with_name(f".{path.name}.0123456789ab.tmp").write_bytes(b"half")
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(module, "whole_file", killed)
        with Results(tmp_path / "out").writing():
            pass
    assert kept(tmp_path / "out").all() == [RESULT]


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ("", "not JSON"),
        ("[]", "not a result"),
        ('{"format": 1', "not JSON"),
        ({"format": FORMAT + 1}, "written by another version of st-reba"),
        ({"format": FORMAT - 1}, "written by another version of st-reba"),
        ({"main": "accuracy"}, "'accuracy' is none of the scores"),
        ({"scores": None}, "not a whole result"),
        ({"intervals": {"spearman": [1]}}, "not a whole result"),
    ],
)
def test_files_that_are_no_results_are_named(change: Any, told: str, tmp_path: Path) -> None:
    kept(tmp_path / "out")
    (path,) = (tmp_path / "out").glob("*/*/*.json")
    path.write_text(change if isinstance(change, str) else json.dumps({**RESULT.to_json(), **change}), encoding="utf-8")
    with pytest.raises(ValueError, match=told) as caught:
        Results(tmp_path / "out")
    assert path.name in str(caught.value)


@pytest.mark.parametrize("left", [0, 100, -5])
def test_damaged_evidence_is_named(tmp_path: Path, left: int) -> None:
    results = kept(tmp_path / "out")
    (path,) = (tmp_path / "out").glob("*/*/*.npz")
    path.write_bytes(path.read_bytes()[:left])
    with pytest.raises(ValueError, match="Delete it and its .json") as caught:
        results.evidence(RESULT)
    assert path.name in str(caught.value)


@pytest.mark.parametrize("score", [float("nan"), float("inf")])
def test_scores_are_numbers(score: float) -> None:
    with pytest.raises(ValueError, match="not a number"):
        replace(RESULT, scores={"spearman": score, "pearson": 0.0})


def test_an_identity_holds_versions_and_settings(base: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> None:
    def key(**settings: Any) -> str:
        return identity(Base("mini"), Method({"method": "echo"}), **settings)

    plain = key(data="a", settings={"max_tokens": 5})
    assert key(settings={"max_tokens": 5}, data="a") == plain
    others = [key(data="b", settings={"max_tokens": 5}), key(data="a", settings={"max_tokens": 6}), key(data="a")]
    versions = dict(module.package_versions())
    for package in ("mteb", "torch", "st-reba"):
        monkeypatch.setattr(module, "package_versions", lambda package=package: {**versions, package: "0"})
        others.append(key(data="a", settings={"max_tokens": 5}))
    assert len({plain, *others}) == 7


def test_one_line() -> None:
    assert one_line(ValueError("a\n  b")) == "a b" and one_line(KeyError()) == "KeyError"
