"""Segments of an index: documents that were indexed together, opened for searching or written."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...corpus.store import DocumentStore
from ...files import StoredFile, whole_path
from ..vectors.factory import set_parameters
from ..vectors.flat import load_faiss, read_faiss, write_flat
from .manifest import MANIFEST_FILE, Segment

_REMEDY = "build the index again"
# FAISS classes that hold their vectors as they were added.
_KEEPING = ("IndexFlat", "IndexFlatIP", "IndexHNSWFlat", "IndexNSGFlat", "IndexIVFFlat", "IndexRefineFlat")


class OpenSegment:
    """One segment, opened for reading. Searching is safe from several threads.

    Args:
        record: What the manifest says of it.
        store: Its documents.
        index: Its FAISS index.
        deleted: The rows that are deleted, sorted.
    """

    def __init__(self, record: Segment, store: DocumentStore, index: Any, deleted: NDArray[np.int64]) -> None:
        self.record = record
        self.store = store
        self.index = index
        self._deleted = deleted
        self._lock = threading.Lock()
        self._mapped = False
        self.is_exact: bool = type(index).__name__ in _KEEPING
        self._searches_all = isinstance(index, load_faiss().IndexFlat)

    @classmethod
    def open(cls, folder: Path, record: Segment, dim: int, *, verify: bool = True, mmap: bool = True) -> OpenSegment:
        """Open a segment and hold its files against the manifest.

        Args:
            folder: The index folder.
            record: What the manifest says of the segment.
            dim: The dimension of the index.
            verify: Read the files whole and compare their SHA-256; else their sizes alone.
            mmap: Map the vectors; else read them into memory.

        Returns:
            The segment.

        Raises:
            FileNotFoundError: A file is missing.
            ValueError: A file is damaged, or does not fit the others.
        """
        paths = []
        for file in record.files:
            try:
                paths.append(file.check(folder, content=verify))
            except FileNotFoundError as error:
                raise FileNotFoundError(f"{error}; {_REMEDY}") from None
            except ValueError as error:
                raise ValueError(f"{error}; {_REMEDY}") from None
        deleted = np.zeros(0, np.int64) if record.deleted is None else _read_deleted(paths[2], record)
        faiss = load_faiss()
        index = read_faiss(paths[0], mmap=mmap)
        for name, found, expected in (
            ("dim", index.d, dim),
            ("count", index.ntotal, record.count),
            ("metric", index.metric_type, faiss.METRIC_INNER_PRODUCT),
        ):
            if found != expected:
                raise ValueError(_misfit(paths[0], f"{name} {found}", f"{expected}"))
        if record.parameters is not None:
            set_parameters(index, record.parameters)
        store = DocumentStore.open(paths[1])
        if len(store) != record.count:
            store.close()
            raise ValueError(_misfit(paths[1], f"{len(store)} documents", f"{record.count}"))
        return cls(record, store, index, deleted)

    def search(self, queries: NDArray[np.float32], k: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """The nearest rows that are not deleted, best first; rows with equal scores in their order.

        Args:
            queries: Vectors [q, dim], scaled as those of the index are.
            k: How many rows a query.

        Returns:
            Scores and rows, each [q, min(k, live rows)]. An approximate index may find fewer: there the row is -1 and
            the score -inf.
        """
        k = min(k, self.record.live)
        best = np.full((len(queries), k), -np.inf, np.float32)
        found = np.full((len(queries), k), -1, np.int64)
        pending = np.arange(len(queries)) if k else np.zeros(0, np.int64)
        fetch = min(k + self._searches_all + min(k, self.record.deleted_count), self.record.count)
        while len(pending):
            scores, rows = self.index.search(np.ascontiguousarray(queries[pending]), fetch)
            live = self.is_live(rows)
            order = np.lexsort((rows, -scores, ~live))[:, :k]
            top, live_top = np.take_along_axis(scores, order, axis=1), np.take_along_axis(live, order, axis=1)
            best[pending] = np.where(live_top, top, -np.inf)
            found[pending] = np.where(live_top, np.take_along_axis(rows, order, axis=1), -1)
            if fetch == self.record.count:
                break
            finished = live_top[:, -1]
            # Among equal scores FAISS keeps any rows: look on until the cut does not fall between equals.
            finished = finished & (scores[:, -1] < top[:, -1]) if self._searches_all else finished | (rows[:, -1] < 0)
            pending = pending[~finished]
            fetch = min(2 * fetch, self.record.count)
        return best, found

    def vectors(self, start: int, stop: int) -> NDArray[np.float32]:
        """Vectors of rows as the FAISS index gives them back: those that were added only where `is_exact`.

        Args:
            start: The first row.
            stop: The row after the last.

        Returns:
            Vectors [stop - start, dim].

        Raises:
            ValueError: FAISS cannot give back vectors of such an index.
        """
        faiss = load_faiss()
        try:
            inverted = _inverted(self.index)
            if inverted is None:
                return np.asarray(self.index.reconstruct_n(start, stop - start), np.float32)
            with self._lock:  # where each row is: FAISS makes this table once, and not for several threads
                if not self._mapped:
                    inverted.set_direct_map_type(faiss.DirectMap.Array)
                    self._mapped = True
            return np.asarray(self.index.reconstruct_batch(np.arange(start, stop)), np.float32)
        except (RuntimeError, ValueError) as error:
            raise ValueError(
                f"an index of factory {self.record.factory!r} does not give its vectors back ({error}); {_REMEDY}"
            ) from error

    def is_live(self, rows: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Which of some rows are there and not deleted."""
        there: NDArray[np.bool_] = rows >= 0
        if len(self._deleted):
            places = np.minimum(np.searchsorted(self._deleted, rows), len(self._deleted) - 1)
            there &= self._deleted[places] != rows
        return there

    def live_rows(self) -> NDArray[np.int64]:
        """The rows that are not deleted, in order."""
        return np.setdiff1d(np.arange(self.record.count), self._deleted, assume_unique=True)

    @property
    def deleted_rows(self) -> NDArray[np.int64]:
        """The rows that are deleted, in order."""
        return self._deleted

    def close(self) -> None:
        """Close the documents; the mapped vectors are let go with the segment."""
        self.store.close()


def write_flat_segment(
    folder: Path,
    number: int,
    records: Iterable[tuple[str, str, str]],
    vectors: Iterable[NDArray[np.float32]],
    dim: int,
) -> Segment:
    """Write the two files of a segment of exact search, each whole or not at all.

    Args:
        folder: The index folder.
        number: The number of the segment.
        records: Id, text, and metadata as JSON, of each document.
        vectors: Their vectors in order, in parts [any number, dim], scaled for the index.
        dim: Their dimension.

    Returns:
        The record of the segment, for a manifest.

    Raises:
        OSError: The disk is full, or the folder may not be written.
        ValueError: There is nothing to write, an id is used twice, or there are more vectors than documents or fewer.
    """
    documents_path, vectors_path = segment_paths(folder, number)
    stored = write_documents(documents_path, records)
    count = write_flat(vectors_path, vectors, dim)
    if stored != count or not count:
        raise ValueError(f"segment {number}: {stored} documents and {count} vectors; there must be as many, and some")
    return segment_record(folder, number, count, "Flat")


def segment_paths(folder: Path, number: int) -> tuple[Path, Path]:
    """Where the documents and the vectors of a segment are."""
    return folder / f"documents-{number}.sqlite", folder / f"vectors-{number}.faiss"


def write_documents(path: Path, records: Iterable[tuple[str, str, str]]) -> int:
    """Write a document store, whole or not at all, and tell how many documents it has."""
    with whole_path(path) as temporary, DocumentStore.create(temporary) as store:
        return store.add_records(records)


def segment_record(folder: Path, number: int, count: int, factory: str, parameters: str | None = None) -> Segment:
    """The record of a segment whose files are written."""
    documents, vectors = segment_paths(folder, number)
    return Segment(number, count, factory, StoredFile.of(vectors, folder), StoredFile.of(documents, folder), parameters)


def _inverted(index: Any) -> Any:
    """The inverted lists that an index gives its vectors back from, if it does."""
    faiss = load_faiss()
    if isinstance(index, faiss.IndexRefine):  # it keeps the vectors again, in order
        return None
    inverted = faiss.try_extract_index_ivf(index)
    if inverted is None:
        return None
    inverted = faiss.downcast_index(inverted)
    if isinstance(inverted, faiss.IndexIVFFastScan):  # reading a row of these ends the process
        raise ValueError("inverted lists with fast scan do not give their vectors back")
    return inverted


def _read_deleted(path: Path, record: Segment) -> NDArray[np.int64]:
    try:
        rows = np.load(path)
    except (ValueError, EOFError) as error:
        raise ValueError(f"{path}: not a NumPy array ({error}); {_REMEDY}") from None
    if rows.dtype != np.int64 or rows.shape != (record.deleted_count,):
        raise ValueError(_misfit(path, f"{rows.dtype} {rows.shape}", f"{record.deleted_count} rows"))
    if (np.diff(rows) <= 0).any() or (len(rows) and not 0 <= rows[0] <= rows[-1] < record.count):
        raise ValueError(_misfit(path, "rows that do not ascend within it", f"{record.count} rows"))
    return np.asarray(rows, np.int64)


def _misfit(path: Path, found: str, expected: str) -> str:
    return f"{path}: {found}, but {MANIFEST_FILE} expects {expected}; {_REMEDY}"
