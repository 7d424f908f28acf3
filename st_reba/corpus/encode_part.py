"""Encode one part of a corpus, in this process or in a Ray worker."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from ..encode import encode_texts
from .folder import Corpus

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer


def encode_part(
    model: SentenceTransformer,
    corpus: Corpus,
    part_number: int,
    progress: Callable[[int], object] | None = None,
) -> int:
    """Encode a part's texts and write their vectors.

    Args:
        model: The model.
        corpus: The corpus.
        part_number: The number of the part.
        progress: Called with the number of texts that were encoded since it was called last.

    Returns:
        The number of texts.
    """
    header = corpus.header()
    settings = header["settings"]
    corpus_part = corpus.part(part_number)
    texts = corpus_part.passages
    truncated_texts: list[int] = []
    vectors = np.zeros((0, header["model"]["dimension"]), np.float32)
    if texts:
        vectors = encode_texts(
            model,
            texts,
            task="document",
            batch_tokens=settings["batch_tokens"],
            progress=progress,
            on_truncated=truncated_texts.extend,
        )
    vector_counts = corpus_part.vector_counts
    row_of_text = np.repeat(np.arange(len(vector_counts)), vector_counts)
    truncated_rows = np.unique(row_of_text[truncated_texts]).tolist()
    corpus.write_vectors(part_number, vectors, settings["dtype"], truncated_rows)
    return len(texts)
