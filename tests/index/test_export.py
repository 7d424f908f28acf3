"""Exports, read back by other tools."""

from __future__ import annotations

import json
import logging
import sqlite3
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import pytest
from indexes import MODEL, QUIET, texts, unit

import st_reba
import st_reba.index.export as exporting
from st_reba.corpus import read_documents
from st_reba.index import Document, Index

GIVEN = texts(30)


@pytest.fixture
def index(tmp_path: Path) -> Index:
    """With what is deleted, and what is not in the FAISS file yet."""
    documents = [Document(text, f"d{n}", {"n": n, "名": "é"}) for n, text in enumerate(GIVEN[:25])]
    index = Index.build(MODEL, documents, tmp_path / "index", **QUIET)
    index.add(GIVEN[25:], **QUIET)
    index.delete(["d0", "d7", "26"])
    return index


def expected() -> tuple[list[str], list[str], Any]:
    rows = [n for n in range(30) if n not in (0, 7, 26)]
    ids = [f"d{n}" if n < 25 else str(n) for n in rows]
    return ids, [GIVEN[n] for n in rows], unit(MODEL.encode_document([GIVEN[n] for n in rows]))


def test_parquet(index: Index, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    for show in (True, False):
        assert index.export(tmp_path / "x.parquet", overwrite=True, show_progress_bar=show) == 27
        assert ("Exporting" in capsys.readouterr().err) == show
    table, (ids, given, vectors) = parquet.read_table(tmp_path / "x.parquet"), expected()
    assert table.column_names == ["id", "text", "metadata", "passage", "vector"]
    assert table["id"].to_pylist() == ids and table["text"].to_pylist() == given
    assert json.loads(table["metadata"][0].as_py()) == {"n": 1, "名": "é"} and table["passage"].null_count == 27
    assert [field.name for field in table.schema if field.nullable] == ["passage"]
    assert np.allclose(np.array(table["vector"].to_pylist()), vectors, atol=1e-6)
    assert table.schema.metadata[b"st_reba.metric"] == b"cosine"
    again = list(read_documents(tmp_path / "x.parquet"))
    assert [one.id for one in again] == ids and [one.text for one in again] == given


def test_faiss_and_a_folder(index: Index, tmp_path: Path) -> None:
    """The ids of FAISS files are keys, of exports as of the index's own."""
    index.export(tmp_path / "x.index", "faiss", **QUIET)
    (tmp_path / "x.index").rename(tmp_path / "x.faiss")
    assert index.export(tmp_path / "folder", **QUIET) == 27
    ids, given, vectors = expected()
    lines = [json.loads(line) for line in (tmp_path / "folder" / "documents.jsonl").read_text("utf-8").splitlines()]
    assert [(line["id"], line["text"]) for line in lines] == list(zip(ids, given, strict=True))
    assert lines[0]["metadata"] == {"n": 1, "名": "é"} and "passage" not in lines[0]
    assert np.allclose(np.load(tmp_path / "folder" / "vectors.npy"), vectors, atol=1e-6)
    with closing(sqlite3.connect(index.path / "index.sqlite")) as connection:
        documents = dict(connection.execute("SELECT key, text FROM documents"))
    for file in (tmp_path / "x.faiss", tmp_path / "folder" / "index.faiss", *index.path.glob("*.faiss")):
        read = faiss.read_index(str(file))
        _, found = read.search(vectors, 1)
        for key, text in zip(found[:20, 0].tolist(), given, strict=False):
            assert sorted(documents[key].split()) == sorted(text.split())
        keys = set(faiss.vector_to_array(read.id_map).tolist())
        assert keys == set(documents) if file.parent != index.path else keys == set(range(25))
    assert [line["key"] for line in lines] == sorted(documents)


def test_passages(tmp_path: Path) -> None:
    model, long = st_reba.build("mini", pooling="mean"), "Cats sleep on roofs. " * 8
    index = Index.build(model, [long, "Ships sail."], tmp_path / "i", passages="12:2", **QUIET)
    count = index.export(tmp_path / "out", **QUIET)
    lines = [json.loads(line) for line in (tmp_path / "out" / "documents.jsonl").read_text().splitlines()]
    assert count == len(lines) == len(np.load(tmp_path / "out" / "vectors.npy")) > 4
    assert all(line["text"] == long and line["passage"] in long[:-1] for line in lines[:-1])
    assert [line["key"] for line in lines] == list(range(count)) and "passage" not in lines[-1]


def test_whole_or_not_at_all(index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("x.parquet", "x.faiss", "x")
    (tmp_path / ".x.faiss.0123456789ab.tmp").write_bytes(b"killed")
    neighbours = {"x.documents.jsonl", ".y.faiss.0123456789ab.tmp", "x.npy"}
    for name in neighbours:
        (tmp_path / name).write_text("mine")

    def state() -> dict[str, bytes]:
        return {str(file): file.read_bytes() for file in tmp_path.rglob("*") if index.path not in file.parents}

    monkeypatch.setattr("pathlib.Path.read_bytes", lambda path: path.open("rb").read() if path.is_file() else b"")
    for name in names:
        index.export(tmp_path / name, **QUIET)
        with pytest.raises(FileExistsError, match="overwrite"):
            index.export(tmp_path / name)
    before = state()
    assert {file.name for file in tmp_path.iterdir()} == {*names, *neighbours, "index"}
    index.add(["moon"])

    def failing(self: Any) -> Any:
        yield np.zeros((1, 16), np.float32)
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(exporting.Vectors, "blocks", failing)
        for name in names:
            with pytest.raises(OSError, match="No space"):
                index.export(tmp_path / name, overwrite=True)
    assert state() == before
    for name in names:
        assert index.export(tmp_path / name, overwrite=True) == 28
    after = state()
    assert {name for name in before if before[name] != after[name]} >= {str(tmp_path / name) for name in names[:2]}
    assert all((tmp_path / name).read_text() == "mine" for name in neighbours)


def test_refused(index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match=r"export writes X\.parquet, X\.faiss, X\.lancedb, or a folder"):
        index.export(tmp_path / "x.csv")
    with pytest.raises(ValueError, match="the name says parquet, and to='faiss'"):
        index.export(tmp_path / "x.parquet", "faiss")
    with pytest.raises(ValueError, match="to='csv'.*choose one of npy, parquet, faiss, lancedb"):
        index.export(tmp_path / "x", "csv")  # type: ignore[arg-type]
    with pytest.raises(FileNotFoundError, match="no such folder"):
        index.export(tmp_path / "no" / "x.faiss")
    (tmp_path / "folder.faiss").mkdir()
    with pytest.raises(FileExistsError, match="folder.faiss: a folder is there"):
        index.export(tmp_path / "folder.faiss", overwrite=True)
    (tmp_path / "folder.faiss").rmdir()
    with pytest.raises(ValueError, match="in the folder of the index; give a path outside of it"):
        index.export(tmp_path / "index" / "x.faiss")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "file").touch()
    with pytest.raises(FileExistsError, match="not an export to npy"):
        index.export(tmp_path / "mine", overwrite=True)
    with monkeypatch.context() as patched:
        patched.setitem(sys.modules, "lancedb", None)
        with pytest.raises(ImportError, match=r"pip install 'st-reba\[lancedb\]'"):
            index.export(tmp_path / "x", "lancedb")
    with monkeypatch.context() as patched:
        patched.setitem(sys.modules, "pyarrow.parquet", None)
        with pytest.raises(ImportError, match=r"pip install 'st-reba\[corpus\]'"):
            index.export(tmp_path / "x.parquet")
    index.delete([one.id or "" for one in index])
    with pytest.raises(ValueError, match="the index is empty"):
        index.export(tmp_path / "x.faiss")
    assert sorted(file.name for file in tmp_path.iterdir()) == ["index", "mine"]


def test_codes_in_place_of_vectors_are_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with Index.build(MODEL, GIVEN, tmp_path / "i", factory="SQ8", **QUIET) as index, caplog.at_level(logging.WARNING):
        index.export(tmp_path / "out", **QUIET)
    assert "approximations" in caplog.text
    away = np.abs(np.load(tmp_path / "out" / "vectors.npy") - unit(MODEL.encode_document(GIVEN))).max()
    assert 1e-6 < away < 0.02
