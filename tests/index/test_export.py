"""Exports hold all documents with their vectors."""

from __future__ import annotations

import errno
import json
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import faiss
import numpy as np
import pandas as pd
import pytest
from indexes import QUIET, build, encoded, ids_of, make_documents, make_texts, texts_of
from pyarrow import parquet  # type: ignore[import-untyped, unused-ignore]

from st_reba.index import Index, export
from st_reba.index.store import Store


@pytest.fixture(params=["Flat", "IVF2,Flat"])
def index(
    request: pytest.FixtureRequest,
    index_path: Path,
) -> Index:
    index = build(index_path, make_documents(60), factory=request.param)
    index.add(make_texts(5, 1), **QUIET)
    index.delete(["d4", "62"])
    return index


def test_a_parquet_file_has_all_documents_and_vectors(
    index: Index,
    tmp_path: Path,
) -> None:
    assert index.export(tmp_path / "a.parquet") == 63
    exported_table = pd.read_parquet(tmp_path / "a.parquet")
    stored_documents = list(index)
    table_texts = exported_table["text"].tolist()
    assert exported_table["id"].tolist() == ids_of(stored_documents)
    assert table_texts == texts_of(stored_documents)
    metadata = [document.metadata for document in stored_documents]
    assert exported_table["metadata"].map(json.loads).tolist() == metadata
    assert np.abs(np.stack(exported_table["vector"]) - encoded(table_texts)).max() < 1e-6


def test_rows_may_be_written_in_small_groups(
    index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index.export(tmp_path / "a.parquet")
    monkeypatch.setattr(export, "_ROW_CHARACTERS", 100)
    index.export(tmp_path / "b.parquet")
    assert parquet.ParquetFile(tmp_path / "b.parquet").num_row_groups > 5
    tables = [pd.read_parquet(tmp_path / name) for name in ("a.parquet", "b.parquet")]
    pd.testing.assert_frame_equal(*tables)


def test_groups_of_rows_are_as_large_as_they_may_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(export, "_ROW_CHARACTERS", 10)
    lengths = [4, 6, 1, 9, 12, 3, 3]
    rows = [(0, "a" * length, None) for length in lengths]
    groups = export._bounded_groups(rows)
    assert list(map(len, groups)) == [2, 2, 1, 2]


@pytest.mark.parametrize("name", ["a.parquet", "a.faiss"])
def test_vectors_are_written_before_the_whitening(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """All of them: a disk that is full is noticed while an earlier export has its own whitening."""
    sizes: list[int] = []

    def record_size(*_: Any) -> None:
        (unfinished,) = tmp_path.glob(f".{name}.*.tmp")
        sizes.append(unfinished.stat().st_size)

    monkeypatch.setattr(export, "_write_whitening", record_size)
    build(tmp_path / "index", make_documents(9)).export(tmp_path / name)
    assert sizes == [(tmp_path / name).stat().st_size]


def test_a_faiss_file_finds_the_vectors_by_key(
    index: Index,
    tmp_path: Path,
) -> None:
    index.export(tmp_path / "a.parquet")
    assert index.export(tmp_path / "a.faiss") == 63
    exported_table = pd.read_parquet(tmp_path / "a.parquet")
    vectors = np.stack(exported_table["vector"])
    _, nearest_keys = faiss.read_index(str(tmp_path / "a.faiss")).search(vectors, 1)
    rows = np.searchsorted(exported_table["key"], nearest_keys[:, 0])
    assert np.abs(vectors - vectors[rows]).max() < 1e-6


@pytest.mark.parametrize("is_read_first", [False, True])
def test_an_export_outlives_a_compaction(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    is_read_first: bool,
) -> None:
    """The compaction comes before or after the export has read the vector file that it replaces."""
    # It would wait for the transaction.
    monkeypatch.setattr(Store, "clear_log", lambda store: True)
    index = build(tmp_path / "index", make_documents(20))
    index.delete(["d4"])
    read_snapshot = index._snapshots.read

    def read_while_compacting(connection: Any, **options: Any) -> Any:
        connection.execute("SELECT * FROM meta").fetchone()
        if is_read_first:
            snapshot = read_snapshot(connection, **options)
        assert Index.open(index.path).compact().deleted == 1
        if not is_read_first:
            snapshot = read_snapshot(connection, **options)
        assert connection.in_transaction
        return snapshot

    monkeypatch.setattr(index._snapshots, "read", read_while_compacting)
    assert index.export(tmp_path / "a.parquet") == 19


@pytest.mark.parametrize(
    ("file_name", "reason"),
    [
        ("mine.parquet", "already there"),
        ("a.csv", "give it such a name"),
        ("no/a.faiss", "no such folder"),
        ("index/a.parquet", "in the folder of the index"),
        ("link/a.parquet", "in the folder of the index"),
    ],
)
def test_a_target_that_is_no_new_file_is_refused(
    tmp_path: Path,
    file_name: str,
    reason: str,
) -> None:
    index = build(tmp_path / "index", ["cat"])
    (tmp_path / "mine.parquet").write_text("mine", encoding="utf-8")
    (tmp_path / "link").symlink_to(index.path)
    with pytest.raises((ValueError, OSError), match=reason):
        index.export(tmp_path / file_name)
    assert (tmp_path / "mine.parquet").read_text(encoding="utf-8") == "mine"


def test_overwriting_removes_files_of_a_killed_export(tmp_path: Path) -> None:
    index = build(tmp_path / "index", ["cat"])
    export_path = tmp_path / "mine.parquet"
    export_path.write_text("mine", encoding="utf-8")
    leftovers = []
    for name in ("mine.parquet", "mine.parquet.whitening.safetensors"):
        leftovers.append(tmp_path / f".{name}.0123456789ab.tmp")
        leftovers[-1].touch()
    assert index.export(export_path, overwrite=True) == 1
    assert not any(leftover.exists() for leftover in leftovers)


def test_a_folder_is_not_overwritten(tmp_path: Path) -> None:
    index = build(tmp_path / "index", ["cat"])
    (tmp_path / "a.parquet").mkdir()
    with pytest.raises(FileExistsError, match="already there"):
        index.export(tmp_path / "a.parquet", overwrite=True)


def test_an_empty_index_is_not_exported(tmp_path: Path) -> None:
    index = build(tmp_path / "index", ["cat"])
    index.delete(["0"])
    with pytest.raises(ValueError, match="empty"):
        index.export(tmp_path / "a.parquet")


@pytest.mark.parametrize(
    ("name", "writer_name"),
    [("a.parquet", "_write_parquet"), ("a.faiss", "write_index_into")],
)
def test_after_a_full_disk_an_earlier_export_has_its_own_whitening(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    writer_name: str,
) -> None:
    out = tmp_path / name
    whitening_path = tmp_path / f"{name}.whitening.safetensors"
    index = build(tmp_path / "index", make_documents(60), whiten=True)
    index.export(out)
    exported = out.read_bytes()
    index.compact(whiten=False)
    full_disk = Mock(side_effect=OSError(errno.ENOSPC, "No space left on device"))
    monkeypatch.setattr(export, writer_name, full_disk)
    with pytest.raises(OSError, match="make room"):
        index.export(out, overwrite=True)
    assert out.read_bytes() == exported
    assert whitening_path.is_file()
