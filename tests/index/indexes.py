"""Shared by the tests of the index: a model, documents, vectors that are given, and brute force."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from operations import documents, texts
from tiny import tiny_model

from st_reba.index import Index

__all__ = ["MODEL", "QUIET", "brute", "build", "documents", "encoded", "found", "texts"]
MODEL = tiny_model()
# Words that it does not know have no vector.
MODEL[0].embedding.weight.data[0] = 0
QUIET: dict[str, Any] = {"show_progress_bar": False}


def build(path: Path, input: Any = None, **options: Any) -> Index:
    """An index of 40 documents, or of others."""
    return Index.build(MODEL, documents(40) if input is None else input, path, **QUIET, **options)


def encoded(items: list[str], method: str = "encode_document") -> NDArray[np.float64]:
    """Vectors of length one, in float64."""
    found = np.asarray(getattr(MODEL, method)(items, show_progress_bar=False), np.float64)
    return found / np.linalg.norm(found, axis=1, keepdims=True)


def brute(index: Index, query: str, k: int) -> list[tuple[float, str]]:
    """Score and id of the k best documents, by brute force over their texts."""
    there = list(index)
    scores = encoded([one.text for one in there]) @ encoded([query], "encode_query")[0]
    order = np.lexsort((np.arange(len(scores)), -scores.astype(np.float32)))[:k]
    return [(round(float(scores[row]), 5), there[row].id or "") for row in order]


def found(index: Index, query: str, k: int, **options: Any) -> list[tuple[float, str]]:
    """As `brute`, by the index."""
    return [(round(one.score, 5), one.id) for one in index.search(query, k, mode="vectors", **options)]
