"""Queries of an index, as texts or vectors, and the mode that they are searched by."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypedDict, get_args

import numpy as np
from numpy.typing import NDArray

from .arguments import parse_queries
from .where import Where

Mode = Literal["hybrid", "vectors", "words"]
MODES: tuple[str, ...] = get_args(Mode)
Vectors = NDArray[np.floating[Any]]


class SearchOptions(TypedDict, total=False):
    """The options of ``Index.search``."""

    where: Where | None
    mode: Mode | None
    explain: bool
    vectors: Vectors | None


@dataclass(frozen=True)
class Queries:
    """Queries that a user has given.

    Args:
        texts: None if there are only vectors.
        vectors: [queries, d] if they are ready.
        is_single: The user gave one query, not a list of queries.
    """

    texts: list[str] | None
    vectors: Vectors | None
    is_single: bool


def read_queries(
    queries: str | Sequence[str] | Vectors,
    vectors: Vectors | None,
) -> Queries:
    """Check queries; arguments as for ``Index.search``."""
    if isinstance(queries, np.ndarray) and queries.dtype.kind in "OTU" and queries.ndim == 1:
        queries = queries.tolist()  # texts, as those of a column
    if isinstance(queries, np.ndarray):
        if vectors is not None:
            raise ValueError(
                "vectors=… belong to texts; give the array alone, or the texts of its queries"
            )
        return Queries(None, np.atleast_2d(queries), is_single=queries.ndim == 1)
    texts = parse_queries(queries)
    if vectors is not None:
        vectors = np.atleast_2d(vectors)
        if len(vectors) != len(texts):
            raise ValueError(f"vectors: {len(vectors)} for {len(texts)} texts; give one for each")
    return Queries(texts, vectors, is_single=isinstance(queries, str))


def choose_mode(mode: Mode | None, queries: Queries) -> Mode:
    """The mode that is asked for, or the default; one that the queries do not allow is refused."""
    if mode is None and queries.texts is None:
        return "vectors"
    if mode is None:
        return "hybrid"
    if mode not in MODES:
        raise ValueError(f"mode={mode!r} is not known; choose one of {', '.join(MODES)}")
    if mode != "vectors" and queries.texts is None:
        raise ValueError(f"mode={mode!r} needs texts; search an array by mode='vectors'")
    if mode == "words" and queries.vectors is not None:
        raise ValueError("mode='words' needs no vectors=…; leave them out")
    return mode
