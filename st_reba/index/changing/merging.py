"""Which segments a change writes anew, so that an index has few of them and little in them is deleted."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...files import StoredFile, whole_file
from ..building.shards import Shards
from ..folder.commit import free_segment_number
from ..folder.manifest import Manifest, Segment
from ..folder.segments import OpenSegment, write_flat_segment
from .rows import Piece, Rows

FLAT = "Flat"


@dataclass(frozen=True)
class Part:
    """A segment, or an addition, as the plan sees it.

    Args:
        live: Documents that will be there.
        rows: Rows that are there, deleted ones included.
        flat: Whether it can be merged: of another factory, only `compact` makes a segment anew.
        new: Whether it is yet to be written.
    """

    live: int
    rows: int
    flat: bool
    new: bool = False


def plan(parts: Sequence[Part]) -> list[list[int]]:
    """Which parts become one segment each.

    A flat segment is merged with what follows it unless it is at least twice as large, so there are at most about
    log2(n) of them and a document is copied about as often. One that is more than half deleted is written anew.

    Args:
        parts: In order, the addition last.

    Returns:
        Groups of consecutive parts; a part of which nothing is left is in none.

    Example:
        >>> plan([Part(10, 10, True), Part(3, 4, True), Part(1, 1, True), Part(1, 1, True, new=True)])
        [[0], [1, 2, 3]]
    """
    groups: list[list[int]] = []
    total = 0
    for place in reversed([place for place, part in enumerate(parts) if part.live]):
        part = parts[place]
        if groups and part.flat and parts[groups[-1][0]].flat and part.live < 2 * total:
            groups[-1].insert(0, place)
            total += part.live
        else:
            groups.append([place])
            total = part.live
    return groups[::-1]


def rearranged(
    folder: Path,
    manifest: Manifest,
    segments: Sequence[OpenSegment],
    gone: Mapping[int, NDArray[np.int64]],
    incoming: Piece | None = None,
    *,
    show_progress_bar: bool | None = None,
) -> dict[str, Any]:
    """Write the files of the next generation; nothing counts before its manifest does.

    Args:
        folder: The index folder, whose lock the caller has.
        manifest: The present manifest.
        segments: Its segments.
        gone: Rows to be deleted now, by the segment's place.
        incoming: Rows to be added.
        show_progress_bar: Show a bar where segments are merged; None: on a terminal.

    Returns:
        What of the manifest changes.

    Raises:
        OSError: The disk is full, or the folder may not be written.
        ValueError: A segment that is to be copied is damaged.
    """
    pieces = [Piece.live(segment, gone.get(place)) for place, segment in enumerate(segments)]
    parts = [
        Part(piece.count, len(piece.keep), segment.record.factory == FLAT)
        for piece, segment in zip(pieces, segments, strict=True)
    ]
    if incoming is not None:
        pieces.append(incoming)
        parts.append(Part(incoming.count, len(incoming.keep), True, new=True))
    number = free_segment_number(folder, manifest)
    records: list[Segment] = []
    for group in plan(parts):
        first = parts[group[0]]
        if len(group) == 1 and not first.new and not (first.flat and 2 * first.live < first.rows):
            records.append(_with_deleted(folder, manifest, segments[group[0]], pieces[group[0]]))
            continue
        records.append(merged(folder, number, [pieces[place] for place in group], manifest.dim, show_progress_bar))
        number += 1
    changes: dict[str, Any] = {"segments": tuple(records), "next_segment": number}
    if manifest.segments and (not records or records[0].number != manifest.segments[0].number):
        changes["recall"] = None
    return changes


def merged(folder: Path, number: int, pieces: Sequence[Piece], dim: int, show: bool | None) -> Segment:
    """Check pieces, and write them as one flat segment."""
    rows = Rows(pieces, dim)
    copied = sum(piece.count for piece in pieces if not isinstance(piece.source, Shards))
    for piece in pieces:
        piece.check(folder)
    with bar(rows.count, "Merging", show if copied else False) as update:

        def blocks() -> Iterator[NDArray[np.float32]]:
            for block in rows.blocks():
                yield block
                update(len(block))

        return write_flat_segment(folder, number, rows.records(), blocks(), dim)


@contextmanager
def bar(total: int, what: str, show: bool | None) -> Iterator[Any]:
    """A progress bar over vectors; yields what to call with their number. None: on a terminal only."""
    from tqdm.auto import tqdm

    disable = None if show is None else not show
    with tqdm(total=total, desc=what, unit=" vectors", unit_scale=True, disable=disable) as shown:
        yield shown.update


def _with_deleted(folder: Path, manifest: Manifest, segment: OpenSegment, piece: Piece) -> Segment:
    rows = np.flatnonzero(~piece.keep).astype(np.int64)
    record = segment.record
    if len(rows) == record.deleted_count:
        return record
    path = folder / f"deleted-{record.number}-{manifest.generation + 1}.npy"
    with whole_file(path) as stream:
        np.save(stream, rows)
    return replace(record, deleted=StoredFile.of(path, folder), deleted_count=len(rows))
