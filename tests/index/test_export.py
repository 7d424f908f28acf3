"""Exports hold all documents with their vectors."""

from __future__ import annotations

import json
from pathlib import Path

import faiss
import numpy as np
import pandas as pd
import pytest
from indexes import QUIET, build, documents, encoded, texts


@pytest.mark.parametrize("factory", ["Flat", "IVF2,Flat", "HNSW8"])
def test_export(tmp_path: Path, factory: str) -> None:
    index = build(tmp_path / "index", documents(60), factory=factory)
    index.add(texts(5, 1), **QUIET)
    index.delete(["d4", "62"])
    assert index.export(tmp_path / "a.parquet", **QUIET) == index.export(tmp_path / "a.faiss", **QUIET) == 63
    table = pd.read_parquet(tmp_path / "a.parquet")
    assert list(table["id"]) == [one.id for one in index] and list(table["text"]) == [one.text for one in index]
    assert [json.loads(one) for one in table["metadata"]] == [one.metadata for one in index]
    vectors = np.stack(table["vector"])
    assert np.abs(vectors - encoded(list(table["text"]))).max() < 1e-6
    whole = faiss.read_index(str(tmp_path / "a.faiss"))
    scores, keys = whole.search(vectors[:3], 3)
    best = np.argsort(-(vectors[:3] @ vectors.T), axis=1, kind="stable")[:, :1]
    assert keys[:, :1].tolist() == table["key"].to_numpy()[best].tolist()


def test_refused(tmp_path: Path) -> None:
    index = build(tmp_path / "index", ["cat"])
    (tmp_path / "mine.parquet").write_text("mine", encoding="utf-8")
    (tmp_path / "folder.faiss").mkdir()
    for name, error in (
        ("mine.parquet", FileExistsError), ("folder.faiss", FileExistsError), ("a.csv", ValueError),
        ("missing/a.parquet", FileNotFoundError), ("index/a.parquet", ValueError),
    ):  # fmt: skip
        with pytest.raises(error):
            index.export(tmp_path / name)
    assert (tmp_path / "mine.parquet").read_text(encoding="utf-8") == "mine"
    assert index.export(tmp_path / "mine.parquet", overwrite=True) == 1
    index.delete(["0"])
    with pytest.raises(ValueError, match="empty"):
        index.export(tmp_path / "b.parquet")
