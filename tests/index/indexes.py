"""What tests of the index share: a model, documents, vectors that are given, and brute force."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from operations import make_documents, make_texts
from tiny import tiny_model

from st_reba.index import Index, Reject, SearchResult

__all__ = [
    "MODEL",
    "QUIET",
    "WordSpans",
    "build",
    "encoded",
    "ids_of",
    "kinds_of",
    "make_documents",
    "make_texts",
    "rank_by_brute_force",
    "rank_by_index",
    "run_sql",
    "scores_of",
    "texts_of",
]
MODEL = tiny_model()
# Words that it does not know have no vector.
MODEL[0].embedding.weight.data[0] = 0
QUIET: dict[str, Any] = {"show_progress_bar": False}


def build(index_folder: Path, input: Any = None, **build_options: Any) -> Index:
    """An index of 40 documents, or of others."""
    if input is None:
        input = make_documents(40)
    return Index.build(MODEL, input, index_folder, **QUIET, **build_options)


def run_sql(index_folder: Path, statement: str, *values: object) -> list[tuple[Any, ...]]:
    """Run a statement on the file of an index, as nothing in the package would."""
    with closing(sqlite3.connect(index_folder / "index.sqlite")) as connection, connection:
        return connection.execute(statement, values).fetchall()


def encoded(
    given_texts: list[str],
    method_name: str = "encode_document",
) -> NDArray[np.float64]:
    """Vectors of length one, in float64."""
    encode = getattr(MODEL, method_name)
    vectors = np.asarray(encode(given_texts, show_progress_bar=False), np.float64)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def ids_of(items: Iterable[Any]) -> list[str]:
    """Ids of documents, results or rejects, in their order."""
    return [item.id for item in items]


def texts_of(items: Iterable[Any]) -> list[str]:
    return [item.text for item in items]


def scores_of(results: Iterable[SearchResult]) -> list[float]:
    return [result.score for result in results]


def kinds_of(rejects: Iterable[Reject]) -> list[str]:
    return [reject.kind for reject in rejects]


def rank_by_brute_force(
    index: Index,
    query_text: str,
    k: int,
) -> list[tuple[float, str | None]]:
    """Score and id of the k best documents, computed from their texts."""
    stored_documents = list(index)
    stored_texts = texts_of(stored_documents)
    scores = encoded(stored_texts) @ encoded([query_text], "encode_query")[0]
    order = np.lexsort((np.arange(len(scores)), -scores.astype(np.float32)))
    ranking = []
    for row in order[:k].tolist():
        ranking.append((round(float(scores[row]), 5), stored_documents[row].id))
    return ranking


def rank_by_index(
    index: Index,
    query_text: str,
    k: int,
    **search_options: Any,
) -> list[tuple[float, str | None]]:
    """As `rank_by_brute_force`, but by the index."""
    results = index.search(query_text, k, mode="vectors", **search_options)
    return [(round(result.score, 5), result.id) for result in results]


class WordSpans:
    """A tokenizer whose tokens are words."""

    is_fast = True

    def __init__(self, tokenizer: object) -> None:
        self._tokenizer = tokenizer

    def __getattr__(self, name: str) -> object:
        return getattr(self._tokenizer, name)

    def __call__(self, items: list[str], **options: object) -> dict[str, object]:
        offsets = []
        for text in items:
            word_matches = re.finditer(r"\w+", text)
            offsets.append([word_match.span() for word_match in word_matches])
        return {"offset_mapping": offsets}
