"""hub.verify: vectors and code of a folder, here and in a process of its own."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from st_reba.hub import verify
from st_reba.hub.verify import verify_fresh


@pytest.fixture
def copied(saved: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(saved, tmp_path / "model"))


def test_a_saved_model(saved: Path) -> None:
    report = verify(saved, device="cpu")
    assert report.ok and report.code is None and verify(saved, device="cpu", dtype="bfloat16").ok


def test_other_code(copied: Path) -> None:
    file = copied / "st_reba.py"
    text = file.read_text(encoding="utf-8")
    file.write_bytes(text.replace("\n", "\r\n").encode())
    assert verify(copied).ok
    file.write_text(text + "import os\n", encoding="utf-8")
    report = verify(copied)
    assert not report.ok and report.distance <= report.tolerance
    # Of another version nothing is known; it is said.
    file.write_text(text.replace("st_reba 0", "st_reba 99", 1), encoding="utf-8")
    report = verify(copied)
    assert report.ok and report.code and "99" in report.code
    file.unlink()
    report = verify(copied)
    assert report.ok and report.code


def test_other_vectors(copied: Path) -> None:
    settings = copied / "sentence_bert_config.json"
    value = json.loads(settings.read_text(encoding="utf-8"))
    settings.write_text(json.dumps({**value, "pooled": "all"}), encoding="utf-8")
    report = verify(copied)
    assert not report.ok and report.distance > report.tolerance
    with pytest.raises(ValueError):
        verify_fresh(copied)
    (copied / "golden.json").unlink()
    with pytest.raises(FileNotFoundError):
        verify(copied)


@pytest.mark.slow
def test_in_a_process_of_its_own(copied: Path) -> None:
    assert verify_fresh(copied).startswith("The vectors of 20 texts are ")
    (copied / "st_reba.py").write_text("# changed\n", encoding="utf-8")
    with pytest.raises(ValueError):
        verify_fresh(copied)
