"""Damage of any file is refused, by opening or by verify."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import sqlite3
import stat
from collections.abc import Callable
from contextlib import closing
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from indexes import MODEL, QUIET, build, make_documents, make_texts, run_sql

from st_reba.corpus.records import INDEX_FORMAT
from st_reba.index import Index
from st_reba.index.changes import changing
from st_reba.index.store import Store
from st_reba.index.vector_file import write_index

faiss: Any = import_module("faiss")
FLIPPED_BYTES = 60


@pytest.fixture(scope="module")
def built_index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An index with something in every table."""
    path = tmp_path_factory.mktemp("built") / "index"
    index = build(path, make_documents(40), factory="IVF2,Flat")
    index.add([*make_texts(9, 1), " "], strict=False, **QUIET)
    index.delete(["d1", "d2", "42"])
    index.close()  # all is in the file, and nothing in SQLite's log
    return path


def is_refused(path: Path) -> bool:
    """True if opening or verifying is an error."""
    try:
        Index.open(path).verify()
    except (ValueError, OSError):
        return True
    return False


def is_refused_with(
    built_index: Path,
    index_copy: Path,
    file_name: str,
    file_content: bytes,
) -> bool:
    """True if a copy of an index with another content of a file is refused."""
    shutil.copytree(built_index, index_copy)
    (index_copy / file_name).write_bytes(file_content)
    return is_refused(index_copy)


FILES = [
    lambda folder: next(folder.glob("*.faiss")),
    lambda folder: folder / "index.sqlite",
]


@pytest.mark.parametrize("find_file", FILES, ids=["vectors", "documents"])
def test_a_file_cut_short_is_refused(
    built_index: Path,
    tmp_path: Path,
    find_file: Callable[[Path], Path],
) -> None:
    file = find_file(built_index)
    file_content = file.read_bytes()
    assert not is_refused(built_index)
    for size in (0, 1, len(file_content) // 2, len(file_content) - 1):
        index_copy = tmp_path / f"cut at {size}"
        assert is_refused_with(built_index, index_copy, file.name, file_content[:size])


@pytest.mark.parametrize("find_file", FILES, ids=["vectors", "documents"])
def test_a_flipped_byte_is_refused_or_harmless(
    built_index: Path,
    tmp_path: Path,
    find_file: Callable[[Path], Path],
) -> None:
    file = find_file(built_index)
    file_content = file.read_bytes()
    offsets = np.random.default_rng(0).integers(0, len(file_content), FLIPPED_BYTES)
    harmless_count = 0
    for flip_number, offset in enumerate(offsets.tolist()):
        flipped = bytearray(file_content)
        flipped[offset] ^= 0x55
        index_copy = tmp_path / str(flip_number)
        if not is_refused_with(built_index, index_copy, file.name, bytes(flipped)):
            # Free space of SQLite's pages, or the table of rejects.
            assert file.suffix == ".sqlite"
            assert dump(index_copy) == dump(built_index)
            harmless_count += 1
    assert harmless_count < FLIPPED_BYTES


def dump(path: Path) -> list[str]:
    """All statements that make the database, but for rejects."""
    with closing(sqlite3.connect(path / "index.sqlite")) as connection:
        return [line for line in connection.iterdump() if "rejects" not in line]


def alter_with_digest(
    path: Path,
    statement: str,
) -> None:
    """Run a statement on an index; where it changes a digest, the state gets the one that fits."""
    with closing(sqlite3.connect(path / "index.sqlite")) as connection:
        statements_before = list(connection.iterdump())
        connection.execute("PRAGMA writable_schema = ON")
        connection.execute(statement)
        if "sha256" in statement:
            connection.create_function("digest", 1, digest_of)
            connection.execute("UPDATE meta SET sha256 = digest(state)")
        assert list(connection.iterdump()) != statements_before
        connection.commit()


def digest_of(state: str) -> str:
    return hashlib.sha256(state.encode()).hexdigest()


@pytest.mark.parametrize(
    "statement",
    [
        "DELETE FROM documents WHERE id = 'd3'",
        "UPDATE documents SET text = 'cat' WHERE id = 'd3'",
        "DELETE FROM pending WHERE key = 41",
        "UPDATE pending SET vector = zeroblob(64) WHERE key = 41",
        "INSERT INTO tombstones VALUES (7)",
        "DELETE FROM tombstones WHERE key = 1",
        "DELETE FROM meta",
        "DROP TABLE meta",
        "UPDATE meta SET state = replace(state, '\"changes\": ', '\"changes\": 1')",
        "UPDATE meta SET sha256 = '', state = replace(state, '\"format\": ', '\"format\": 9')",
        "UPDATE meta SET sha256 = '', state = replace(state, '\"vectors-', '\"../copy/vectors-')",
        "UPDATE meta SET sha256 = '', state = replace(state, 'nprobe=2', 'nprobe=0')",
        "DELETE FROM sqlite_master WHERE name = 'documents_content_hash'",
        "DROP TABLE whitening",
    ],
)
def test_altered_tables_are_refused(
    built_index: Path,
    tmp_path: Path,
    statement: str,
) -> None:
    index_copy = Path(shutil.copytree(built_index, tmp_path / "copy"))
    alter_with_digest(index_copy, statement)
    assert is_refused(index_copy)


def test_a_search_notices_that_a_document_is_missing(
    built_index: Path,
    tmp_path: Path,
) -> None:
    index_copy = Path(shutil.copytree(built_index, tmp_path / "copy"))
    index = Index.open(index_copy, MODEL)
    run_sql(index_copy, "DELETE FROM documents WHERE id = 'd3'")
    with pytest.raises(ValueError):
        index.search("cat", 99)


def test_an_index_whose_pending_vectors_are_missing_is_not_opened(
    built_index: Path,
    tmp_path: Path,
) -> None:
    index_copy = Path(shutil.copytree(built_index, tmp_path / "copy"))
    run_sql(index_copy, "DELETE FROM pending WHERE key = 41")
    with pytest.raises(ValueError, match="pending vectors are not what was written"):
        Index.open(index_copy)


def test_verify_reads_pending_vectors_again(
    built_index: Path,
    tmp_path: Path,
) -> None:
    index_copy = Path(shutil.copytree(built_index, tmp_path / "copy"))
    index = Index.open(index_copy)
    index.verify()
    run_sql(index_copy, "UPDATE pending SET vector = zeroblob(64) WHERE key = 41")
    with pytest.raises(ValueError, match="pending vectors are not what was written"):
        index.verify()


def test_a_deletion_notices_that_the_state_is_missing(
    built_index: Path,
    tmp_path: Path,
) -> None:
    index_copy = Path(shutil.copytree(built_index, tmp_path / "copy"))
    index = Index.open(index_copy, MODEL)
    run_sql(index_copy, "DELETE FROM meta")
    with pytest.raises(FileNotFoundError):
        index.delete(["d5"])


def test_an_index_of_another_format_is_to_be_built_again(
    built_index: Path,
    tmp_path: Path,
) -> None:
    """Also where its tables are others, and where it is to be replaced."""
    index_copy = Path(shutil.copytree(built_index, tmp_path / "copy"))
    run_sql(index_copy, "ALTER TABLE tombstones RENAME TO dead")
    older_format = INDEX_FORMAT - 1
    state_text = json.dumps({"format": older_format, "stamp": ""})
    alter_with_digest(index_copy, f"UPDATE meta SET sha256 = '', state = '{state_text}'")
    message = (
        rf"another version \(format {older_format}, not {INDEX_FORMAT}\); "
        "remove the folder and build the index again"
    )
    for use in (Index.open, lambda path: build(path, overwrite=True)):
        with pytest.raises(ValueError, match=message):
            use(index_copy)


@pytest.mark.parametrize("name", ["missing", "empty", "file"])
def test_a_folder_without_an_index_is_refused(
    tmp_path: Path,
    name: str,
) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").touch()
    with pytest.raises(FileNotFoundError):
        Index.open(tmp_path / name)


def test_a_folder_without_an_index_is_refused_to_a_reader_who_cannot_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(FileNotFoundError, match="no index is there"):
        Index.open(tmp_path)


def test_a_database_of_others_is_refused(tmp_path: Path) -> None:
    run_sql(tmp_path, "CREATE TABLE a (b)")
    with pytest.raises(ValueError, match="no such table"):
        Index.open(tmp_path)


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="folders have no such permissions")
def test_a_read_only_folder_can_be_searched(
    built_index: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    index_copy = Path(shutil.copytree(built_index, tmp_path / "copy"))
    files_before = sorted(index_copy.iterdir())
    index_copy.chmod(stat.S_IRUSR | stat.S_IXUSR)
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # root may write everywhere
    try:
        index = Index.open(index_copy, MODEL)
        assert len(index.search("cat", 99)) == len(index)
        with index._store.reading() as connection:
            assert connection.execute("SELECT 1 FROM meta").fetchone()
            assert sorted(index_copy.iterdir()) == files_before
        if os.geteuid():
            with pytest.raises(PermissionError):
                index.delete(["d5"])
    finally:
        index_copy.chmod(stat.S_IRWXU)


def test_a_reader_who_cannot_lock_learns_of_a_change_by_others(
    built_index: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    index_copy = Path(shutil.copytree(built_index, tmp_path / "copy"))
    index = Index.open(index_copy, MODEL)
    with monkeypatch.context() as patch:
        patch.setattr(os, "access", lambda path, mode: False)
        document_iterator = iter(index)
        next(document_iterator)
    index.delete(["d5"])
    index.compact()
    with pytest.raises(BlockingIOError, match="another user changed the index meanwhile"):
        list(document_iterator)


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="descriptors are not listed")
def test_descriptors_are_closed(built_index: Path) -> None:
    count_before = len(os.listdir("/proc/self/fd"))
    for _ in range(20):
        Index.open(built_index, MODEL).search("cat")
    assert len(os.listdir("/proc/self/fd")) <= count_before + 3


def test_a_vector_file_of_another_kind_is_refused(index_path: Path) -> None:
    """Also where its digest is right."""
    index = build(index_path, make_documents(3), factory="Flat")
    dimension = int(MODEL.get_embedding_dimension() or 0)
    graph = faiss.IndexIDMap(faiss.IndexHNSWFlat(dimension, 4, faiss.METRIC_INNER_PRODUCT))
    graph.add_with_ids(np.ones((3, dimension), np.float32), np.arange(3))
    with changing(index._store) as writer:
        path = index.path / str(writer.state.vector_file)
        size, digest = write_index(path, graph)
        writer.state.vector_file_size = size
        writer.state.vector_file_sha256 = digest
    with pytest.raises(ValueError, match="IndexIDMap is not used here"):
        Index.open(index.path)


def test_words_of_an_unknown_language_are_refused(index_path: Path) -> None:
    index = build(index_path, make_documents(3))
    with changing(index._store) as writer:
        writer.state.words = "klingon"
    with pytest.raises(ValueError, match="words='klingon' is not a language"):
        Index.open(index.path)


def test_the_schema_of_a_file_is_not_trusted(index_path: Path) -> None:
    store = build(index_path, make_documents(3))._store
    with store.reading() as reader, store.writing(create=False) as writer:
        for connection in (reader, writer):
            assert connection.execute("PRAGMA trusted_schema").fetchone() == (0,)


@pytest.mark.parametrize("table", ["documents", "meta", "pending"])
def test_a_view_in_place_of_a_table_is_refused(
    built_index: Path,
    index_path: Path,
    table: str,
) -> None:
    """One that never ends would hang whoever opens the index."""
    path = Path(shutil.copytree(built_index, index_path))
    endless = "WITH RECURSIVE number(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM number)"
    run_sql(path, f"ALTER TABLE {table} RENAME TO hidden")
    run_sql(path, f"CREATE VIEW {table} AS {endless} SELECT hidden.* FROM hidden, number")
    with pytest.raises(ValueError, match=f"'{table}' is a view"):
        Index.open(path)


@pytest.mark.parametrize(
    ("locked_name", "error_number"),
    [(None, errno.EIO), ("index.sqlite", errno.EACCES), ("index", errno.EACCES)],
    ids=["nothing", "the file", "the folder"],
)
def test_a_file_that_cannot_be_opened_is_told_by_what_the_user_may_write(
    index_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    locked_name: str | None,
    error_number: int,
) -> None:
    """A lack of room, or of permission."""
    (index_path / "index.sqlite").mkdir(parents=True)
    (index_path / "index.sqlite-wal").touch()
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path).name != locked_name)
    with pytest.raises(OSError, match="unable to open") as raised:
        Store(index_path).state()
    assert raised.value.errno == error_number
    assert ("if the disk is full" in str(raised.value)) == (locked_name is None)


def test_a_file_that_cannot_be_made_is_told_as_a_lack_of_room(
    index_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) == index_path)
    with (
        pytest.raises(OSError, match="if the disk is full") as raised,
        Store(index_path).writing(create=True),
    ):
        pass
    assert raised.value.errno == errno.EIO
