"""Vectors of texts, each text run once, none of them unusable."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..encode import Task, encode_batch, in_order, planned_batches

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

# Called with the number of texts that have just been encoded, and of their positions, where these are counted.
Progress = Callable[..., object]


class UnusableVectors(ValueError):
    """Vectors that are zero or not finite, of which no score can be made."""


@dataclass(frozen=True)
class Prompts:
    """What stands before texts.

    Args:
        query: Before queries, and before texts that are neither; None: what the model has saved.
        document: Before documents.

    Example:
        >>> Prompts("Say it: ").of("document") is None
        True
    """

    query: str | None = None
    document: str | None = None

    def of(self, role: Task | None) -> str | None:
        """Before texts of a role; None: neither query nor document."""
        return self.document if role == "document" else self.query


def encoded(
    model: SentenceTransformer,
    texts: Sequence[str],
    role: Task | None = None,
    *,
    progress: Progress | None = None,
    prompts: Prompts | None = None,
    **sizes: Any,
) -> NDArray[np.float32]:
    """Vectors of texts, all of which are finite and none of which is zero."""
    prompt = None if prompts is None else prompts.of(role)
    given: dict[str, Any] = {} if prompt is None else {"prompt": prompt}
    batches, counts = planned_batches(model, texts, task=role, **sizes, **given)
    rows = []
    for batch in batches:
        rows.append(encode_batch(model, [texts[place] for place in batch], task=role, **given))
        if progress is not None:
            progress(len(batch), None if counts is None else sum(counts[place] for place in batch))
    vectors = in_order(rows, batches)
    check_usable(vectors, texts)
    return vectors


def check_usable(vectors: NDArray[np.float32], texts: Sequence[str]) -> None:
    """Refuse vectors that are zero or not finite.

    Raises:
        UnusableVectors: The message has how many, and the first one's text.
    """
    bad = np.flatnonzero(~np.isfinite(vectors).all(axis=1) | ~vectors.any(axis=1))
    if len(bad):
        raise UnusableVectors(
            f"{len(bad)} of {len(vectors)} vectors are zero or not finite; the first is that of {texts[bad[0]]!r:.80}"
        )


def check_memory(rows: int, dimension: int) -> None:
    """Refuse vectors that do not fit into the machine's memory, where that is known.

    Raises:
        ValueError: The message has both sizes.
    """
    try:
        memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return
    needed = rows * dimension * 4
    if needed > memory > 0:
        raise ValueError(
            f"the vectors of {rows:,} words of {dimension} dimensions take {needed / 2**30:.1f} GiB, but the machine "
            f"has {memory / 2**30:.1f} GiB of memory. Use a sample: limit=… (--limit)."
        )
