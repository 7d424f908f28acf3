"""Indexes of version 1: opened, searched, changed; and what is missing or damaged in them."""

from __future__ import annotations

import json
import os
import sqlite3
import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from tiny import tiny_model

from st_reba.fingerprint import fingerprint
from st_reba.index import Index, add
from st_reba.index.folder.manifest import FORMAT_VERSION, Manifest
from st_reba.index.vectors.flat import load_faiss

MODEL = tiny_model()
TEXTS = ["cat", "dog ship", "moon", "gold"]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A folder as version 1 wrote it: one flat FAISS file, one store, a manifest without digests."""
    path = tmp_path / "index"
    path.mkdir()
    vectors = MODEL.encode_document(TEXTS, show_progress_bar=False).astype(np.float32)
    index = load_faiss().IndexFlatIP(vectors.shape[1])
    index.add(vectors / np.linalg.norm(vectors, axis=1)[:, None])
    load_faiss().write_index(index, str(path / "vectors.faiss"))
    connection = sqlite3.connect(path / "documents.sqlite")
    with connection:
        connection.execute(
            "CREATE TABLE documents (row INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, text TEXT NOT NULL, "
            "metadata TEXT NOT NULL)"
        )
        for row, (identity, text) in enumerate(zip(["0", "b", "9", "c"], TEXTS, strict=True)):
            connection.execute("INSERT INTO documents VALUES (?, ?, ?, ?)", (row, identity, text, '{"k": 1}'))
    connection.close()
    manifest = {
        **{"format_version": 1, "created": "2025-01-01T00:00:00+00:00", "st_reba": "0.1.0", "metric": "cosine"},
        **{"dim": vectors.shape[1], "count": len(TEXTS), "factory": "Flat", "model_source": None},
        "model": fingerprint(MODEL).to_json(),
    }
    (path / "manifest.json").write_text(json.dumps(manifest))
    return path


def edit(path: Path, **changes: object) -> None:
    value = json.loads((path / "manifest.json").read_text())
    (path / "manifest.json").write_text(json.dumps({**value, **changes}))


def test_it_opens_and_is_not_touched(path: Path) -> None:
    before = {file: (path / file).read_bytes() for file in os.listdir(path)}
    with Index.open(path, MODEL) as index:
        found = index.search(["moon", "dog ship"], k=1)
        assert [one[0].id for one in found] == ["9", "b"] and found[0][0].metadata == {"k": 1}
        assert (index.manifest.format_version, index.manifest.count, index.manifest.generation) == (
            FORMAT_VERSION,
            4,
            1,
        )
        assert not index.refresh()
    assert {file: (path / file).read_bytes() for file in os.listdir(path)} == before


def test_the_first_change_writes_the_present_version(path: Path) -> None:
    with Index.open(path, MODEL) as index:
        # Above every number that is an id.
        assert index.add(["rain"]).added == 1 and index.search("rain", k=1)[0].id == "10"
        index.delete(["b"])
        value = json.loads((path / "manifest.json").read_text())
        assert value["format_version"] == FORMAT_VERSION and value["created"].startswith("2025")
        assert value["segments"][0]["vectors"]["name"] == "vectors.faiss"
        index.compact()
    assert sorted(os.listdir(path)) == [".lock", "documents-4.sqlite", "manifest.json", "vectors-4.faiss"] or sorted(
        os.listdir(path)
    ) == [".lock", "documents-3.sqlite", "manifest.json", "vectors-3.faiss"]
    with Index.open(path, MODEL) as index:
        assert sorted(one.id for one in index.search("cat", k=9)) == ["0", "10", "9", "c"]


@pytest.mark.parametrize("name", ["vectors.faiss", "documents.sqlite"])
def test_a_missing_file(path: Path, name: str) -> None:
    (path / name).unlink()
    with pytest.raises(FileNotFoundError, match=f"{name}: no such file; build the index again"):
        Index.open(path)
    with pytest.raises(FileNotFoundError, match=name):
        add(path, MODEL, ["rain"])


@pytest.mark.parametrize("name", ["vectors.faiss", "documents.sqlite"])
def test_a_damaged_file(path: Path, name: str) -> None:
    content = (path / name).read_bytes()
    (path / name).write_bytes(content[: len(content) // 3])
    with pytest.raises(ValueError, match=name):
        Index.open(path)
    (path / name).write_bytes(b"")
    with pytest.raises(ValueError, match=name):
        Index.open(path)


def test_a_damaged_manifest(path: Path) -> None:
    for count in (None, "4", 0, True):
        edit(path, count=count)
        with pytest.raises(ValueError, match="count: expected a whole number from 1 on"):
            Manifest.read(path)
    edit(path, count=3)
    with pytest.raises(ValueError, match="expects 3"):
        Index.open(path)
    edit(path, count=4, factory=None)
    with pytest.raises(ValueError, match="factory"):
        Index.open(path)
    edit(path, format_version=FORMAT_VERSION + 1)
    with pytest.raises(ValueError, match="install a later st_reba"):
        Index.open(path)
