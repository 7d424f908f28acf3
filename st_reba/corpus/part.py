"""One part of a corpus encoded, by whichever process."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ..encode import encode_batch, in_order, planned_batches
from .folder import Corpus, Progress

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer


def encode_part(
    model: SentenceTransformer, corpus: Corpus, number: int, progress: Progress | None = None
) -> tuple[int, int]:
    """Encode a part's texts in this process and write their vectors.

    The batches depend on the part alone, so the file is the same bit for bit whoever writes it and however often it
    was tried, on the same hardware with as many threads.

    Args:
        model: The model.
        corpus: The folder.
        number: The part.
        progress: Called after each batch.

    Returns:
        How many texts were encoded, and how many positions the model ran for them (0: not counted).
    """
    header, texts = corpus.header(), corpus.texts(number)
    settings, positions = header["settings"], 0
    vectors = np.zeros((0, header["model"]["dimension"]), np.float32)
    if texts:
        sizes = {"batch_size": settings["batch_size"], "batch_tokens": settings["batch_tokens"]}
        batches, counts = planned_batches(model, texts, task="document", **sizes)
        rows = []
        for batch in batches:
            rows.append(encode_batch(model, [texts[index] for index in batch], task="document"))
            if progress is not None:
                progress(len(batch), sum(counts[index] for index in batch) if counts else 0)
        vectors, positions = in_order(rows, batches), sum(counts or ())
    corpus.write_vectors(number, vectors, settings["dtype"])
    return len(texts), positions
