"""Vectors of an index: from the model, checked and scaled, and from the FAISS file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from st_reba.encode import encode_texts
from st_reba.index.documents import Document
from st_reba.index.manifest import MANIFEST_FILE, Manifest
from st_reba.index.store import clean_text

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer


def load_faiss() -> Any:
    """Import FAISS, which has no type stubs, when it is first needed."""
    import faiss  # type: ignore[import-untyped, unused-ignore]

    return faiss


def read_vectors(path: Path, manifest: Manifest) -> Any:
    """Read the FAISS index of an index folder.

    Args:
        path: The FAISS file.
        manifest: What it must hold.

    Returns:
        The FAISS index.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: The file is damaged, or holds other vectors than the manifest says.
    """
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such file; build the index again")
    faiss = load_faiss()
    try:
        vectors = faiss.read_index(str(path))
    except (RuntimeError, MemoryError) as error:
        raise ValueError(f"{path}: not a FAISS index, or damaged ({error}); build the index again") from error
    if not isinstance(vectors, faiss.IndexFlatIP):
        raise ValueError(misfit(path, type(vectors).__name__, "IndexFlatIP"))
    for name, found, expected in (("dim", vectors.d, manifest.dim), ("count", vectors.ntotal, manifest.count)):
        if found != expected:
            raise ValueError(misfit(path, f"{name} {found}", f"{expected}"))
    return vectors


def misfit(path: Path, found: str, expected: str) -> str:
    """Say that a file does not hold what the manifest says."""
    return f"{path}: {found}, but {MANIFEST_FILE} expects {expected}; build the index again"


def encode_documents(
    model: SentenceTransformer,
    chunk: list[Document],
    first_row: int,
    metric: str,
    dim: int,
    *,
    batch_size: int | None,
    batch_tokens: int | None,
    progress: Callable[[int], object],
) -> NDArray[np.float32]:
    """Encode a chunk of documents, [documents, dim]; a vector that cannot be indexed names its document."""
    texts = [clean_text(document.text) for document in chunk]
    vectors = encode_texts(
        model, texts, task="document", batch_size=batch_size, batch_tokens=batch_tokens, progress=progress
    )
    if vectors.shape != (len(chunk), dim):
        raise ValueError(f"the model gave vectors of shape {vectors.shape}, not {(len(chunk), dim)}")
    ready, bad, zero = ready_vectors(vectors, metric)
    for number in np.flatnonzero(bad | zero)[:1].tolist():
        row, document = first_row + number, chunk[number]
        raise ValueError(
            f"the model gives a {'NaN or infinite' if bad[number] else 'zero'} vector for the document at row {row}, "
            f"id {str(row) if document.id is None else document.id!r}, text {document.text[:60]!r}; "
            "leave the document out, or load the model in another dtype"
        )
    return ready


def ready_vectors(
    vectors: NDArray[Any], metric: str
) -> tuple[NDArray[np.float32], NDArray[np.bool_], NDArray[np.bool_]]:
    """Give vectors as FAISS takes them, and which of them are not finite or zero."""
    with np.errstate(over="ignore"):
        single = np.ascontiguousarray(vectors, dtype=np.float32)
    # float64, so that the squares of large and of small values neither overflow nor vanish.
    lengths: NDArray[np.float64] = np.linalg.norm(single.astype(np.float64), axis=1)
    bad = ~np.isfinite(lengths)
    zero = lengths == 0
    if metric == "cosine":
        lengths[bad | zero] = 1
        single = (single / lengths[:, None]).astype(np.float32)
    return single, bad, zero
