"""Encode a file of texts into a NumPy array on disk."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from sentence_transformers import SentenceTransformer
from tqdm.auto import tqdm

from .files import whole_file

Task = Literal["query", "document"]


def encode_stream(
    model: SentenceTransformer,
    texts: Iterable[str],
    *,
    task: Task | None = None,
    batch_size: int = 32,
    chunk_size: int = 1024,
    show_progress_bar: bool | None = None,
    **kwargs: Any,
) -> Iterator[tuple[list[str], NDArray[np.float32]]]:
    """Encode texts a chunk at a time, in order.

    Args:
        model: Any SentenceTransformer.
        texts: The texts; a generator is read once.
        task: ``"query"`` or ``"document"``: encode_query or encode_document; None: encode.
        batch_size: Texts a forward pass.
        chunk_size: Texts that are sorted by length and encoded together.
        show_progress_bar: Show one; None: on a terminal.
        **kwargs: Passed on to the model's method, as ``prompt``.

    Yields:
        The texts of a chunk and their vectors, [texts, d] float32.
    """
    if isinstance(texts, str):
        raise TypeError("texts is one str; give a list or another iterable of them")
    if task not in (None, "query", "document"):
        raise ValueError(f"task={task!r} is not known: choose 'query' or 'document', or None.")
    for name, number in (("batch_size", batch_size), ("chunk_size", chunk_size)):
        if number < 1:
            raise ValueError(f"{name}={number!r} must be a whole number from 1 on.")
    encode: Any = {"query": model.encode_query, "document": model.encode_document}.get(task or "", model.encode)
    stream = iter(texts)
    total = len(texts) if isinstance(texts, list) else None
    disable = None if show_progress_bar is None else not show_progress_bar
    with tqdm(total=total, desc="Encoding", unit=" texts", disable=disable) as bar:
        while chunk := list(islice(stream, chunk_size)):
            vectors: Any = encode(chunk, batch_size=batch_size, show_progress_bar=False, **kwargs)
            bar.update(len(chunk))
            yield chunk, np.asarray(vectors, dtype=np.float32)


def encode_file(
    model: SentenceTransformer, texts: Iterable[str], out: str | os.PathLike[str], **kwargs: Any
) -> tuple[int, int]:
    """Encode texts and write their vectors as ``.npy``, whole or not at all.

    Args:
        model: Any SentenceTransformer.
        texts: The texts.
        out: The file to write or replace.
        **kwargs: As for :func:`encode_stream`.

    Returns:
        Number of texts and dimension.

    Raises:
        ValueError: There is no text.
    """
    target = Path(out)
    if not target.parent.is_dir():
        raise ValueError(f"--out {str(out)!r}: the folder {str(target.parent)!r} does not exist. Make it first.")
    if target.is_dir():
        raise ValueError(f"--out {str(out)!r} is a folder: name the file to write.")
    chunks = [vectors for _, vectors in encode_stream(model, texts, **kwargs)]
    if not chunks:
        raise ValueError("There are no texts to encode: the input is empty.")
    vectors = np.concatenate(chunks)
    with whole_file(target) as stream:
        np.save(stream, vectors)
    return vectors.shape[0], vectors.shape[1]
