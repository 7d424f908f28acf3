"""Encode a file of texts into a NumPy array on disk."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from sentence_transformers import SentenceTransformer
from tqdm.auto import tqdm

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
    chunks = [vectors for _, vectors in encode_stream(model, texts, **kwargs)]
    if not chunks:
        raise ValueError("There are no texts to encode: the input is empty.")
    vectors = np.concatenate(chunks)
    handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    try:
        with os.fdopen(handle, "wb") as stream:
            np.save(stream, vectors)
            stream.flush()
            os.fsync(stream.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, target)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    return vectors.shape[0], vectors.shape[1]
