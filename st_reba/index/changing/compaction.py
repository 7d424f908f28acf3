"""Make one segment of all: what is deleted is gone from the disk, and additions are searched as the factory says."""

from __future__ import annotations

from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from ...corpus.clock import Clock
from ..building.build import AUTO, IndexSettings, write_faiss, write_segment
from ..building.recall import Recall, measure_recall
from ..folder.commit import commit, free_segment_number
from ..folder.segments import OpenSegment, segment_paths, segment_record, write_documents
from ..vectors.factory import auto_factory, set_parameters
from ..vectors.flat import read_faiss
from ..vectors.keeping import keep_rows
from .changes import Change, opened, writing_change
from .merging import FLAT, bar, merged
from .rows import Piece, Rows


def compact(
    folder: str | PathLike[str],
    *,
    factory: str | None = None,
    parameters: str | None = None,
    recall_aim: float = 0.95,
    train_size: int | None = None,
    seed: int = 0,
    show_progress_bar: bool | None = None,
) -> Change:
    """Write an index anew as one segment, without its deleted documents.

    An approximate index keeps its training; the codes of its documents are moved, so they are found as before, and
    additions are added to it. Nothing is encoded.

    Args:
        folder: The index folder.
        factory: Another FAISS factory string; it is trained on the vectors of the index. None: as it is.
        parameters: FAISS search parameters, as "nprobe=32"; None: as they are, or found by measuring where `factory`
            is given.
        recall_aim: The recall@10 that they are to reach.
        train_size: How many vectors a new factory is trained on.
        seed: Of the training sample and of the queries that recall is measured with.
        show_progress_bar: Show bars; None: on a terminal.

    Returns:
        What was done; ``deleted`` says how many deleted documents are gone from the disk.

    Raises:
        FileNotFoundError: There is no such index.
        BlockingIOError: Another process is writing there.
        OSError: The disk is full, or the folder may not be written. The index is as it was.
        ValueError: A file of the index is damaged; a factory does not fit, or the index no longer has the vectors
            themselves that it needs; or an index of this kind cannot lose rows.

    Example:
        >>> import st_reba
        >>> from st_reba.index import Index, delete
        >>> Index.build(st_reba.build("mini"), ["Cats sleep.", "Ships sail.", "Bread rises."], "my_index").close()
        >>> change = delete("my_index", ["1"])
        >>> compact("my_index").deleted
        1
    """
    settings = IndexSettings(factory or FLAT, parameters, recall_aim, train_size, seed)
    with writing_change(folder) as (target, manifest, _), opened(target, manifest) as segments:
        records = manifest.segments
        gone = sum(record.deleted_count for record in records)
        wanted = factory or manifest.factory
        same = len(records) == 1 and records[0].factory == wanted and parameters in (None, records[0].parameters)
        if not gone and (same or not records):
            return Change("compact", manifest.generation, manifest.count)
        pieces = [piece for piece in map(Piece.live, segments) if piece.count]
        if wanted != FLAT:  # else `merged` does it
            for piece in pieces:
                piece.check(target)
        number = free_segment_number(target, manifest)
        changes: dict[str, Any] = {"segments": (), "recall": None}
        if not pieces:
            pass
        elif wanted == FLAT:
            _need_exact(pieces, wanted)
            changes["segments"] = (merged(target, number, pieces, manifest.dim, show_progress_bar),)
        elif records[0].factory == wanted and pieces[0].source is segments[0]:
            changes = _grown(target, number, pieces, manifest.dim, settings, show_progress_bar)
        else:
            _need_exact(pieces, wanted)
            rows = Rows(pieces, manifest.dim)
            if wanted == AUTO:
                wanted, _ = auto_factory(rows.count, rows.dim)
            settings = IndexSettings(wanted, parameters, recall_aim, train_size, seed)
            settings.check(manifest.dim, rows.count)
            clock = Clock("documents", "train", "add", "recall", "write")
            segment_made, recall = write_segment(target, number, rows, settings, clock, show_progress_bar)
            changes = {"segments": (segment_made,), "recall": None if recall is None else recall.to_json()}
        following = manifest.succeeding(**changes, factory=wanted, next_segment=number + 1)
        commit(target, following)
    return Change("compact", following.generation, following.count, deleted=gone)


def _grown(
    folder: Path, number: int, pieces: list[Piece], dim: int, settings: IndexSettings, show: bool | None
) -> dict[str, Any]:
    """The first segment without its deleted rows, and the others added to it."""
    first = pieces[0]
    assert isinstance(first.source, OpenSegment)
    record = first.source.record
    rows = Rows(pieces, dim)
    documents_path, vectors_path = segment_paths(folder, number)
    index = read_faiss(folder / record.vectors.name, mmap=False)
    with bar(rows.count - first.count, "Indexing", show) as update:
        try:
            if not first.keep.all():
                index = keep_rows(index, np.flatnonzero(first.keep).astype(np.int64))
            for block in Rows(pieces[1:], dim).blocks():
                index.add(block)
                update(len(block))
        except RuntimeError as error:
            raise ValueError(
                f"an index of factory {record.factory!r} takes no additions ({error}); compact it with another "
                "(factory='HNSW32', --factory), or build it again from its texts"
            ) from error
    parameters = settings.parameters or record.parameters
    recall: Recall | None = None
    if all(isinstance(piece.source, OpenSegment) and piece.source.is_exact for piece in pieces):
        recall = measure_recall(index, rows, parameters=parameters, aim=settings.recall_aim, seed=settings.seed)
        parameters = recall.parameters
    elif parameters is not None:
        set_parameters(index, parameters)
    write_documents(documents_path, rows.records())
    write_faiss(vectors_path, index)
    return {
        "segments": (segment_record(folder, number, rows.count, record.factory, parameters),),
        "recall": None if recall is None else recall.to_json(),
    }


def _need_exact(pieces: list[Piece], wanted: str) -> None:
    for piece in pieces:
        source = piece.source
        if isinstance(source, OpenSegment) and not source.is_exact:
            raise ValueError(
                f"an index of factory {source.record.factory!r} keeps codes in place of vectors, so {wanted!r} cannot "
                "be made of it; build the index again from its texts (st-reba index --overwrite)"
            )
