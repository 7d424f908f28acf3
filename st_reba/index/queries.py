"""What is asked of an index: queries as texts or vectors, and the mode that they are searched by."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from .arguments import parse_queries
from .store import Matrix
from .words import QueryTerms

Mode = Literal["hybrid", "vectors", "words"]
MODES: tuple[str, ...] = get_args(Mode)
Vectors = NDArray[np.floating[Any]]


@dataclass(frozen=True)
class Queries:
    """Queries that a user has given.

    Args:
        texts: None if there are vectors alone.
        vectors: [queries, d] if they are ready.
        is_single: The user gave one query, not a list of queries.
    """

    texts: list[str] | None
    vectors: Vectors | None
    is_single: bool


@dataclass(frozen=True)
class Question:
    """Queries that are asked together, as the sides of a search need them.

    Args:
        vectors: [queries, d] if vectors are searched.
        terms: The words of each query if words are searched.
    """

    vectors: Matrix | None
    terms: list[QueryTerms] | None


def read_queries(queries: str | Sequence[str] | Vectors, vectors: Vectors | None) -> Queries:
    """Check queries; arguments as for ``Index.search``."""
    if isinstance(queries, np.ndarray) and queries.dtype.kind in "OTU" and queries.ndim == 1:
        queries = queries.tolist()  # texts, as those of a column
    if isinstance(queries, np.ndarray):
        if vectors is not None:
            raise ValueError("vectors=… belong to texts; give the array alone, or the texts of its queries")
        return Queries(None, np.atleast_2d(queries), queries.ndim == 1)
    texts = parse_queries(queries)
    if vectors is not None:
        vectors = np.atleast_2d(vectors)
        if len(vectors) != len(texts):
            raise ValueError(f"vectors: {len(vectors)} for {len(texts)} texts; give one for each")
    return Queries(texts, vectors, isinstance(queries, str))


def check_mode(mode: Mode | None, queries: Queries) -> None:
    """Refuse a mode that is not known, or that the queries do not allow."""
    if mode is not None and mode not in MODES:
        raise ValueError(f"mode={mode!r} is not known; choose one of {', '.join(MODES)}")
    if mode in ("hybrid", "words") and queries.texts is None:
        raise ValueError(f"mode={mode!r} needs texts; an array alone is searched by mode='vectors'")
    if mode == "words" and queries.vectors is not None:
        raise ValueError("mode='words' needs no vectors=…; leave them out")


def choose_mode(mode: Mode | None, queries: Queries, *, has_words: bool, folder: Path) -> Mode:
    """The mode that is asked for, or the default; a ValueError where the index has no words for it."""
    if mode in ("hybrid", "words") and not has_words:
        raise ValueError(
            f"mode={mode!r}: {folder} has no words yet; Index.compact (st-reba prune {folder} --compact) adds them"
        )
    if mode is not None:
        return mode
    return "hybrid" if has_words and queries.texts is not None else "vectors"
