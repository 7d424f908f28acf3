"""What `verify` finds: every byte and every row that is not what was written."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from indexes import MODEL

from st_reba.index import Index


def test_one_byte_less_or_another(path: Path, tmp_path: Path) -> None:
    """A shorter file is found when it is opened, an altered one by `verify`; none gives other texts or crashes."""
    (name,) = (file.name for file in path.glob("*.faiss"))
    original = (path / name).read_bytes()
    for bad in (original[:-1], b"", original + b"x"):
        (path / name).write_bytes(bad)
        with pytest.raises(ValueError, match=f"{name}: damaged.*build the index again"):
            Index.open(path, MODEL)
    for place in (0, 9, len(original) // 2, len(original) - 1):
        changed = bytearray(original)
        changed[place] ^= 0x20
        (path / name).write_bytes(changed)
        with pytest.raises(ValueError, match=name):
            Index.open(path).verify()
    (path / name).write_bytes(os.urandom(len(original)))
    with pytest.raises(ValueError, match=name):
        Index.open(path)
    (path / name).unlink()
    with pytest.raises(FileNotFoundError, match=f"{name}: no such file"):
        Index.open(path)
    (path / name).mkdir()
    with pytest.raises(ValueError, match=f"{name}: damaged"):
        Index.open(path)
    (path / name).rmdir()
    (path / name).write_bytes(original)
    whole = (path / "index.sqlite").read_bytes()
    for bad in (whole[:4096], whole[:100], b"garbage" * 1000, os.urandom(len(whole))):
        (path / "index.sqlite").write_bytes(bad)
        with pytest.raises(ValueError, match="index.sqlite: damaged.*build the index again"):
            Index.open(path).verify()
    (path / "index.sqlite").write_bytes(b"")
    with pytest.raises(FileNotFoundError, match="no index is there"):
        Index.open(path)
    (path / "index.sqlite").write_bytes(whole)
    assert Index.open(path).verify()["documents"] == 42


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE documents SET text = 'x' WHERE key = 9",
        "UPDATE documents SET metadata = '{}' WHERE key = 9",
        "UPDATE documents SET id = 'x' WHERE key = 9",
        "DELETE FROM documents WHERE key = 9",
        "INSERT INTO documents VALUES (900, 'x', '{}', NULL, 'x')",
        "UPDATE pending SET vector = zeroblob(64) WHERE key = 40",
        "DELETE FROM pending WHERE key = 40",
        "DELETE FROM dead WHERE key = 3",
        "UPDATE meta SET state = replace(state, 'nprobe=4', 'nprobe=1')",
        "UPDATE meta SET sha256 = 'x'",
        "DELETE FROM meta",
        "DROP TABLE meta",
        "DROP TABLE pending",
    ],
)
def test_rows_that_somebody_changed(path: Path, statement: str) -> None:
    with closing(sqlite3.connect(path / "index.sqlite")) as connection:
        assert connection.execute(statement).rowcount
        connection.commit()
    with pytest.raises((ValueError, FileNotFoundError), match="index.sqlite: damaged|no index is there"):
        Index.open(path).verify()
