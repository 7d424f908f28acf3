"""Damage of any file is refused, by opening or by verify."""

from __future__ import annotations

import hashlib
import os
import shutil
import sqlite3
import stat
from contextlib import closing
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from indexes import MODEL, QUIET, build, documents, texts

from st_reba.index import Index
from st_reba.index.changes import changing
from st_reba.index.vectors import write_index

faiss: Any = import_module("faiss")


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An index with something in every table."""
    path = tmp_path_factory.mktemp("built") / "index"
    index = build(path, documents(40), factory="IVF2,Flat")
    index.add([*texts(9, 1), " "], strict=False, **QUIET)
    index.delete(["d1", "d2", "42"])
    index.close()  # all is in the file, and nothing in SQLite's log
    return path


def damaged(path: Path) -> bool:
    """True if somebody is told."""
    try:
        Index.open(path).verify()
    except (ValueError, OSError):
        return True
    return False


def test_files_cut_short_and_flipped_bytes(built: Path, tmp_path: Path) -> None:
    random, harmless = np.random.default_rng(0), 0
    assert not damaged(built)
    for file in (next(built.glob("*.faiss")), built / "index.sqlite"):
        data = file.read_bytes()
        flipped = [data[:n] + bytes([data[n] ^ 0x55]) + data[n + 1 :] for n in random.integers(0, len(data), 60)]
        for content in [data[:size] for size in (0, 1, len(data) // 2, -1)] + flipped:
            copy = Path(shutil.copytree(built, tmp_path / "copy"))
            (copy / file.name).write_bytes(content)
            if not damaged(copy):
                # Free space of SQLite's pages, or the table of what was set aside.
                assert file.suffix == ".sqlite" and sqlite3_dump(copy) == sqlite3_dump(built) and content in flipped
                harmless += 1
            shutil.rmtree(copy)
    assert harmless < 60


def sqlite3_dump(path: Path) -> list[str]:
    """All statements that make the database, but for what was set aside."""
    with closing(sqlite3.connect(path / "index.sqlite")) as connection:
        return [line for line in connection.iterdump() if "rejects" not in line]


@pytest.mark.parametrize(
    "statement",
    [
        "DELETE FROM documents WHERE id = 'd3'", "UPDATE documents SET text = 'cat' WHERE id = 'd3'",
        "DELETE FROM pending WHERE key = 41", "UPDATE pending SET vector = zeroblob(64) WHERE key = 41",
        "INSERT INTO tombstones VALUES (7)", "DELETE FROM tombstones WHERE key = 1", "DELETE FROM meta", "DROP TABLE meta",
        "UPDATE meta SET state = replace(state, '\"changes\": ', '\"changes\": 1')",
        "UPDATE meta SET sha256 = '', state = replace(state, '\"format\": 7', '\"format\": 4')",
        "UPDATE meta SET sha256 = '', state = replace(state, '\"vectors-', '\"../copy/vectors-')",
        "DELETE FROM sqlite_master WHERE name = 'documents_content_hash'",
    ],
)  # fmt: skip
def test_altered_tables(built: Path, tmp_path: Path, statement: str) -> None:
    copy = Path(shutil.copytree(built, tmp_path / "copy"))
    index = Index.open(copy, MODEL)
    connection = sqlite3.connect(copy / "index.sqlite")
    connection.create_function("digest", 1, lambda state: hashlib.sha256(state.encode()).hexdigest())
    before = list(connection.iterdump())
    connection.execute("PRAGMA writable_schema = ON")
    connection.execute(statement)
    if "sha256" in statement:
        connection.execute("UPDATE meta SET sha256 = digest(state)")
    assert list(connection.iterdump()) != before
    connection.commit()
    connection.close()
    assert damaged(copy)
    if "DELETE FROM documents" in statement or "DELETE FROM meta" in statement:
        with pytest.raises(FileNotFoundError if "meta" in statement else ValueError):
            index.delete(["d5"]) if "meta" in statement else index.search("cat", 99)


def test_what_is_no_index(tmp_path: Path, built: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").touch()
    for name in ("missing", "empty", "file"):
        with pytest.raises(FileNotFoundError):
            Index.open(tmp_path / name)
    copy = Path(shutil.copytree(built, tmp_path / "copy"))
    next(copy.glob("*.faiss")).unlink()
    with pytest.raises(FileNotFoundError):
        Index.open(copy)
    (tmp_path / "other").mkdir()
    connection = sqlite3.connect(tmp_path / "other" / "index.sqlite")
    connection.execute("CREATE TABLE a (b)")
    connection.close()
    with pytest.raises(ValueError, match="no such table"):
        Index.open(tmp_path / "other")


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="folders have no such permissions")
def test_a_folder_that_is_only_read(built: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copy = Path(shutil.copytree(built, tmp_path / "copy"))
    before = sorted(copy.iterdir())
    copy.chmod(stat.S_IRUSR | stat.S_IXUSR)
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # root may write everywhere
    try:
        index = Index.open(copy, MODEL)
        assert len(index.search("cat", 99)) == len(index)
        with index._store.reading() as tx:
            assert tx.execute("SELECT 1 FROM meta").fetchone() and sorted(copy.iterdir()) == before
        if os.geteuid():
            with pytest.raises(PermissionError):
                index.delete(["d5"])
    finally:
        copy.chmod(stat.S_IRWXU)


def test_descriptors_are_closed(built: Path) -> None:
    count = len(os.listdir("/proc/self/fd")) if Path("/proc/self/fd").exists() else 0
    for _ in range(20):
        Index.open(built, MODEL).search("cat")
    assert not count or len(os.listdir("/proc/self/fd")) <= count + 3


def test_a_vector_file_of_another_kind_is_refused(tmp_path: Path) -> None:
    """Also where its digest is right."""
    index = build(tmp_path / "index", documents(3), factory="Flat")
    dimension = int(MODEL.get_embedding_dimension() or 0)
    graph = faiss.IndexIDMap(faiss.IndexHNSWFlat(dimension, 4, faiss.METRIC_INNER_PRODUCT))
    graph.add_with_ids(np.ones((3, dimension), np.float32), np.arange(3))
    with changing(index._store) as writer:
        state = writer.state
        path = index.path / str(state.vector_file)
        state.vector_file_size, state.vector_file_sha256 = write_index(path, graph)
    with pytest.raises(ValueError, match="IndexIDMap is not used here"):
        Index.open(index.path)


def test_words_of_an_unknown_language_are_refused(tmp_path: Path) -> None:
    index = build(tmp_path / "index", documents(3))
    with changing(index._store) as writer:
        writer.state.words = "klingon"
    with pytest.raises(ValueError, match="words='klingon' is no language"):
        Index.open(index.path)


@pytest.mark.parametrize("table", ["documents", "meta", "pending"])
def test_a_view_in_place_of_a_table_is_refused(built: Path, tmp_path: Path, table: str) -> None:
    """One that never ends would hang whoever opens the index."""
    path = Path(shutil.copytree(built, tmp_path / "index"))
    endless = "WITH RECURSIVE number(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM number)"
    with closing(sqlite3.connect(path / "index.sqlite")) as connection:
        connection.execute(f"ALTER TABLE {table} RENAME TO hidden")
        connection.execute(f"CREATE VIEW {table} AS {endless} SELECT hidden.* FROM hidden, number")
        connection.commit()
    with pytest.raises(ValueError, match=f"'{table}' is a view"):
        Index.open(path)
