"""The folder of a run: what is on disk after a kill, and which folders are refused."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from st_reba.evaluation.tuning.trials import Ledger, Trial, best

ABOUT: dict[str, Any] = {"base": "mini", "task": {"name": "t", "fingerprint": "00"}, "options": {"m": 1}}


def trial(k: int, validation: float | None = 0.5, **values: Any) -> Trial:
    return replace(Trial("mask0-bidir", k, None, 1, "mean", f"stack {k}", validation, 0.4, 1.25), **values)


def test_trials_come_back(tmp_path: Path) -> None:
    made = [trial(1), trial(2, None, heldout=None, error="新 \ud800"), trial(2, setting="mask0-mid", k0=1)]
    with Ledger(tmp_path / "a" / "run", ABOUT) as ledger:
        for one in made:
            ledger.add(one)
            # On disk before the next one begins.
            lines = (tmp_path / "a" / "run" / "trials.jsonl").read_bytes().splitlines()
            assert json.loads(lines[-1]) == asdict(one)
        ledger.find(layers=6)
    with Ledger(tmp_path / "a" / "run", ABOUT) as ledger:
        assert list(ledger.trials.values()) == made
        assert ledger.found == {"layers": 6}
    assert json.loads((tmp_path / "a" / "run" / "run.json").read_text()) == {**ABOUT, "found": {"layers": 6}}


@pytest.mark.parametrize("cut", [1, 5, 40])
def test_a_torn_line_is_dropped(tmp_path: Path, cut: int) -> None:
    with Ledger(tmp_path, ABOUT) as ledger:
        for k in (1, 2, 3):
            ledger.add(trial(k))
    path = tmp_path / "trials.jsonl"
    whole = path.read_bytes()
    path.write_bytes(whole[:-cut])
    with Ledger(tmp_path, ABOUT) as ledger:
        assert [key[1] for key in ledger.trials] == [1, 2]
        ledger.add(trial(3))
    assert path.read_bytes() == whole


def test_a_last_line_of_zeros_is_dropped(tmp_path: Path) -> None:
    with Ledger(tmp_path, ABOUT) as ledger:
        ledger.add(trial(1))
    path = tmp_path / "trials.jsonl"
    whole = path.read_bytes()
    path.write_bytes(whole + b"\0" * 50 + b"\n")
    with Ledger(tmp_path, ABOUT) as ledger:
        assert len(ledger.trials) == 1
    assert path.read_bytes() == whole


@pytest.mark.parametrize("garbage", [b"{}", b"[1]", b"\xff", b'{"k": 1'])
def test_garbage_in_the_middle_is_refused(tmp_path: Path, garbage: bytes) -> None:
    with Ledger(tmp_path, ABOUT) as ledger:
        ledger.add(trial(1))
    path = tmp_path / "trials.jsonl"
    path.write_bytes(garbage + b"\n" + path.read_bytes())
    with pytest.raises(ValueError, match=r"trials.jsonl, line 1: no trial; remove the line"):
        Ledger(tmp_path, ABOUT)


def test_another_run_is_refused_with_what_differs(tmp_path: Path) -> None:
    with Ledger(tmp_path, ABOUT) as ledger:
        ledger.add(trial(1))
    before = sorted((path.name, path.read_bytes()) for path in tmp_path.iterdir())
    for change, message in (
        ({"base": "other"}, "base was 'mini', now 'other'"),
        ({"task": {"name": "t", "fingerprint": "11"}}, "task.fingerprint was '00', now '11'"),
        ({"options": {"m": 2}}, "options.m was 1, now 2"),
        ({"new": 1}, "new was None, now 1"),
        ({"options": {}}, "options.m was 1, now None"),
    ):
        with pytest.raises(ValueError, match=f"another run is there: {message}. Give another folder, or what run.json"):
            Ledger(tmp_path, {**ABOUT, **change})
    assert sorted((path.name, path.read_bytes()) for path in tmp_path.iterdir()) == before


def test_a_run_without_trials_is_replaced(tmp_path: Path) -> None:
    with Ledger(tmp_path, ABOUT) as ledger:
        ledger.find(layers=6)
    other = {**ABOUT, "base": "other"}
    with Ledger(tmp_path, other) as ledger:
        assert ledger.found == {}
    assert json.loads((tmp_path / "run.json").read_text()) == other


def test_other_folders_are_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "precious").write_text("x")
    with pytest.raises(FileExistsError, match="a file is there; name a folder"):
        Ledger(tmp_path / "file", ABOUT)
    with pytest.raises(FileExistsError, match=r"not the folder of a run \(no run.json\); give another"):
        Ledger(tmp_path / "full", ABOUT)
    for content in ("", "[]", "{"):
        (tmp_path / "full" / "run.json").write_text(content)
        with pytest.raises(ValueError, match="run.json: not readable as JSON"):
            Ledger(tmp_path / "full", ABOUT)
    (tmp_path / "empty").mkdir()
    Ledger(tmp_path / "empty", ABOUT).close()


def test_best_by_validation_then_the_smaller_k() -> None:
    trials = [trial(3, 0.7), trial(2, 0.7, heldout=0.1), trial(1, 0.6, heldout=0.9), trial(0, None)]
    assert best(trials) is trials[1]
    combined = [trial(2, 0.7, k0=2), trial(2, 0.7, k0=1), trial(2, 0.7, setting="inplace-bidir")]
    assert best(combined) is combined[2]
    assert best(combined[:2]) is combined[1]
    assert best([trial(1, -0.2), trial(2, -0.1)]) == trial(2, -0.1)
    assert best([trial(0, None)]) is None is best([])
