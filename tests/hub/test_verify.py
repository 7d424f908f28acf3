"""hub.verify: vectors and code of a folder."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from st_reba.hub import verify


def test_a_saved_model(saved: Path) -> None:
    report, half = (verify(saved, device="cpu", dtype=each) for each in (None, "bfloat16"))
    assert report.ok and report.code is None and half.ok and report.distance < 1e-5 < half.distance


def test_other_code(copied: Path) -> None:
    """Of another version, or none, nothing is known; that is said."""
    file = copied / "st_reba.py"
    text = file.read_text(encoding="utf-8")
    for code, ok, says in (
        (text.replace("\n", "\r\n"), True, "None"),
        (text + "import os\n", False, "Do not trust"),
        (text.replace("st_reba 0", "st_reba 99", 1), True, "99"),
    ):
        file.write_bytes(code.encode())
        report = verify(copied)
        assert report.ok == ok and says in str(report.code) and report.distance <= report.tolerance
    file.unlink()
    report = verify(copied)
    assert report.ok and report.code


def test_other_vectors(copied: Path) -> None:
    settings = copied / "sentence_bert_config.json"
    value = json.loads(settings.read_text(encoding="utf-8"))
    settings.write_text(json.dumps({**value, "pooled": "all"}), encoding="utf-8")
    report = verify(copied)
    assert not report.ok and report.distance > report.tolerance
    (copied / "golden.json").unlink()
    with pytest.raises(FileNotFoundError):
        verify(copied)
