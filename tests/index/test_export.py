"""Exports hold all documents with their vectors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import pandas as pd
import pytest
from indexes import QUIET, build, documents, encoded, texts

from st_reba.index import Index
from st_reba.index.store import Store


@pytest.mark.parametrize("factory", ["Flat", "IVF2,Flat"])
def test_export(tmp_path: Path, factory: str) -> None:
    index = build(tmp_path / "index", documents(60), factory=factory)
    index.add(texts(5, 1), **QUIET)
    index.delete(["d4", "62"])
    assert index.export(tmp_path / "a.parquet") == index.export(tmp_path / "a.faiss") == 63
    table = pd.read_parquet(tmp_path / "a.parquet")
    assert list(table["id"]) == [one.id for one in index] and list(table["text"]) == [
        one.text for one in index
    ]
    assert [json.loads(one) for one in table["metadata"]] == [one.metadata for one in index]
    vectors = np.stack(table["vector"])
    assert np.abs(vectors - encoded(list(table["text"]))).max() < 1e-6
    keys = faiss.read_index(str(tmp_path / "a.faiss")).search(vectors, 1)[1]
    assert np.abs(vectors - vectors[np.searchsorted(table["key"], keys[:, 0])]).max() < 1e-6


@pytest.mark.parametrize("before", [True, False])
def test_a_compaction_at_the_same_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: bool
) -> None:
    """Before or after the file is read that it replaces, of the state that a transaction has seen."""
    monkeypatch.setattr(Store, "clear_log", lambda store: True)  # it would wait for the transaction
    index = build(tmp_path / "index", documents(20))
    index.delete(["d4"])
    present = index._snapshots.read

    def meanwhile(tx: Any, **options: Any) -> Any:
        tx.execute("SELECT * FROM meta").fetchone()
        found = None if before else present(tx, **options)
        assert Index.open(index.path).compact().deleted == 1
        found = found or present(tx, **options)
        assert tx.in_transaction
        return found

    monkeypatch.setattr(index._snapshots, "read", meanwhile)
    assert index.export(tmp_path / "a.parquet") == 19


def test_refused(tmp_path: Path) -> None:
    index = build(tmp_path / "index", ["cat"])
    mine = tmp_path / "mine.parquet"
    mine.write_text("mine", encoding="utf-8")
    left = tmp_path / ".mine.parquet.0123456789ab.tmp"  # of one that was killed
    left.touch()
    for name, why in (
        ("mine.parquet", "already there"), ("a.csv", "give it such a name"), ("no/a.faiss", "no such folder"),
        ("index/a.parquet", "in the folder of the index"),
    ):  # fmt: skip
        with pytest.raises((ValueError, OSError), match=why):
            index.export(tmp_path / name)
    assert mine.read_text(encoding="utf-8") == "mine" and index.export(mine, overwrite=True) == 1
    assert not left.exists()
    index.delete(["0"])
    with pytest.raises(ValueError, match="empty"):
        index.export(tmp_path / "b.parquet")
