"""One generation of an index, opened: what a manifest names, searched as one."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...corpus.documents import Document
from .manifest import Manifest
from .segments import OpenSegment


@dataclass(frozen=True)
class SearchResult:
    """One document that was found.

    Args:
        rank: 1 for the best document of a query.
        score: The cosine or the inner product with the query; higher is better.
        id: The id of the document.
        text: Its text.
        metadata: What was stored with it.
    """

    rank: int
    score: float
    id: str
    text: str
    metadata: dict[str, Any]


class Generation:
    """The segments of one manifest. It stays what it is, whatever writers do to the folder.

    Args:
        manifest: The manifest.
        segments: Its segments, in order.
    """

    def __init__(self, manifest: Manifest, segments: list[OpenSegment]) -> None:
        self.manifest = manifest
        self.segments = segments
        self._lock = threading.Lock()
        self._users = 0
        self._retired = False

    @classmethod
    def open(cls, folder: Path, *, verify: bool = True, mmap: bool = True) -> Generation:
        """Open the present generation of an index folder; arguments as for :meth:`OpenSegment.open`."""
        manifest = Manifest.read(folder)
        while True:
            try:
                return cls(manifest, _open_segments(folder, manifest, verify=verify, mmap=mmap))
            except (OSError, ValueError):
                # A writer may have gone on since the manifest was read, and removed what it named.
                newer = Manifest.read(folder)
                if newer == manifest:
                    raise
                manifest = newer

    def begin_use(self) -> bool:
        """Keep the files open until `end_use`, even if another thread retires the generation; False: it is retired."""
        with self._lock:
            self._users += not self._retired
            return not self._retired

    def end_use(self) -> None:
        """Say that what `begin_use` began has ended."""
        with self._lock:
            self._users -= 1
            close = self._retired and not self._users
        if close:
            self._close()

    def retire(self) -> None:
        """Close the files as soon as nobody uses them."""
        with self._lock:
            close = not self._retired and not self._users
            self._retired = True
        if close:
            self._close()

    def search(self, queries: NDArray[np.float32], k: int) -> list[list[SearchResult]]:
        """The nearest documents of each query, best first; equals by segment, then by row.

        Args:
            queries: Vectors [q, dim], scaled as those of the index are.
            k: How many a query.

        Returns:
            A list a query, of at most k.
        """
        if not self.segments or not len(queries):
            return [[] for _ in range(len(queries))]
        found = [segment.search(queries, k) for segment in self.segments]
        scores = np.concatenate([part for part, _ in found], axis=1)
        rows = np.concatenate([part for _, part in found], axis=1)
        owners = np.repeat(np.arange(len(found)), [part.shape[1] for _, part in found])
        order = np.lexsort((-scores, rows < 0))[:, :k]
        chosen = np.take_along_axis(rows, order, axis=1)
        from_segment = owners[order]
        documents: dict[tuple[int, int], Document] = {}
        for number, segment in enumerate(self.segments):
            wanted = np.unique(chosen[(from_segment == number) & (chosen >= 0)]).tolist()
            documents.update(((number, row), one) for row, one in zip(wanted, segment.store.get(wanted), strict=True))
        results: list[list[SearchResult]] = []
        for line, numbers, places in zip(
            np.take_along_axis(scores, order, axis=1).tolist(), from_segment.tolist(), chosen.tolist(), strict=True
        ):
            hits = [hit for hit in zip(line, numbers, places, strict=True) if hit[2] >= 0]
            results.append([])
            for rank, (score, number, row) in enumerate(hits, 1):
                document = documents[number, row]
                # Every stored document has an id.
                results[-1].append(SearchResult(rank, score, document.id or "", document.text, document.metadata))
        return results

    def _close(self) -> None:
        for segment in self.segments:
            segment.close()


def _open_segments(folder: Path, manifest: Manifest, *, verify: bool, mmap: bool) -> list[OpenSegment]:
    opened: list[OpenSegment] = []
    try:
        for record in manifest.segments:
            opened.append(OpenSegment.open(folder, record, manifest.dim, verify=verify, mmap=mmap))
    except BaseException:
        for segment in opened:
            segment.close()
        raise
    return opened
