"""Encode a corpus into a folder: gathered, encoded shard by shard, finished; what was stopped goes on."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

from ..files import StoredFile, remove_leftovers, whole_file
from ..lock import writers_lock
from .begin import Overwrite, begin, check_target, told
from .documents import MAX_CHARS
from .engines import Engine, make_engine
from .folder import REJECTS_FILE, Corpus, ShardDocuments, ShardVectors
from .gather import gather
from .progress import RunProgress
from .settings import EncodeSettings
from .shard import encode_shard as encode_shard
from .source import Input, Source, open_source

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

logger = logging.getLogger(__name__)

# Records a shard: what a kill can lose is a part of one, and each takes five files.
SHARD_SIZE = 16_384


def encode_corpus(
    model: SentenceTransformer,
    input: Input | Source,
    path: str | PathLike[str],
    *,
    engine: str | Engine = "single",
    workers: int | None = None,
    devices: Sequence[str] | None = None,
    shard_size: int = SHARD_SIZE,
    dtype: Literal["float32", "float16"] = "float32",
    batch_size: int | None = None,
    batch_tokens: int | None = None,
    text_column: str = "text",
    id_column: str = "id",
    encoding: str = "utf-8-sig",
    split: str | None = None,
    ids: Iterable[str] | None = None,
    max_chars: int = MAX_CHARS,
    strict: bool = False,
    overwrite: Overwrite = False,
    model_source: str | PathLike[str] | None = None,
    first_record: int = 0,
    show_progress_bar: bool | None = None,
    progress: RunProgress | None = None,
) -> Corpus:
    """Encode documents into a folder of shards; killed at any moment, the same call goes on where it was.

    What is done stays: an interrupted run's result is that of an undisturbed one, file by file. A record that is no
    document, and a document whose vector is NaN, infinite or zero, is set aside in ``rejects.jsonl`` with its reason.

    Args:
        model: Any SentenceTransformer; the documents are encoded by its ``encode_document``.
        input: See :func:`~st_reba.corpus.source.open_source`: a file, a folder, or an iterable, which a repeated call
            must give again.
        path: The folder. One that holds anything else is refused.
        engine: ``"single"``: in this process; ``"local"``: several processes of this machine; ``"ray"``: a Ray cluster;
            or an engine of your own.
        workers: Of "local" and "ray": how many; None: as many as there are GPUs, or suit the CPU.
        devices: Of "local": where they run, as ``["cuda:0", "cuda:1"]``.
        shard_size: Records a shard. What is lost by a kill is at most one shard's encoding.
        dtype: Of the stored vectors: ``"float16"`` takes half the disk and keeps about three digits.
        batch_size: Texts a forward pass. Excludes ``batch_tokens``.
        batch_tokens: Positions a forward pass; see :func:`~st_reba.encode.encode_stream`.
        text_column: The column or key that holds the text.
        id_column: The column or key that holds the id. A document without one gets its record's number.
        encoding: Of text files.
        split: Of a DatasetDict.
        ids: One id for each text of an iterable.
        max_chars: The longest text, in characters; a longer one is set aside.
        strict: Stop at the first record or vector that would be set aside.
        overwrite: True: replace a complete corpus, or one of another model, settings or input; one that is not complete
            and fits goes on. "misfit": a complete one that fits goes on too.
        model_source: The Hub id or folder of the model, for who opens the corpus alone; a folder is kept relative.
        first_record: The number of the input's first record.
        show_progress_bar: Show bars; None: on a terminal.
        progress: Counts of this run, to be read while it goes and afterwards; in place of ``show_progress_bar``.

    Returns:
        The complete corpus.

    Raises:
        FileExistsError: The folder holds something else.
        BlockingIOError: Another process is writing there.
        OSError: The disk is full, or the folder cannot be written to. What is finished stays.
        ValueError: An option is not known; the corpus there is of another model, settings or input; ``strict``.

    Example:
        >>> import st_reba
        >>> corpus = encode_corpus(st_reba.build("mini"), ["Cats sleep.", "", "Ships sail."], "my_corpus")
        >>> [(reject.place, reject.id) for reject in corpus.rejects()]
        [('record 1', None)]
        >>> [(store.get([1])[0].id, vectors.shape) for store, vectors in corpus.shards()]
        [('2', (2, 192))]
    """
    settings = EncodeSettings(dtype, batch_size, batch_tokens)
    if isinstance(engine, str):
        engine = make_engine(engine, workers, devices)
    elif workers is not None or devices is not None:
        raise ValueError("workers and devices belong to an engine's name; set them on the engine that you give")
    if isinstance(shard_size, bool) or not isinstance(shard_size, int) or shard_size < 1:
        raise ValueError(f"shard_size={shard_size!r} must be a whole number from 1 on (--shard-size).")
    if overwrite not in (False, True, "misfit"):
        raise ValueError(f"overwrite={overwrite!r} is not known: give True, False or 'misfit'")
    source = open_source(
        input,
        text_column=text_column,
        id_column=id_column,
        encoding=encoding,
        split=split,
        ids=ids,
        max_chars=max_chars,
    )
    corpus = Corpus(Path(path))
    check_target(corpus.path)
    progress = RunProgress(show_progress_bar) if progress is None else progress
    with told(corpus):
        corpus.path.mkdir(parents=True, exist_ok=True)
        with writers_lock(corpus.path):
            remove_leftovers(corpus.path)
            remove_leftovers(corpus.path / "shards")
            header = begin(corpus, model, settings, shard_size, model_source, overwrite)
            header = _gather(corpus, source, header, shard_size, first_record, strict, overwrite, progress)
            header = _encode(corpus, model, engine, settings, header, strict, progress)
            _finish(corpus, header)
    return corpus


def _gather(
    corpus: Corpus,
    source: Source,
    header: dict[str, Any],
    shard_size: int,
    first_record: int,
    strict: bool,
    overwrite: Overwrite,
    progress: RunProgress,
) -> dict[str, Any]:
    began = time.perf_counter()
    with progress.gathering(source.total):
        gather(
            source,
            corpus,
            shard_size=shard_size,
            first_record=first_record,
            strict=strict,
            replace=bool(overwrite),
            progress=progress.read,
        )
    if progress.records and header["status"] != "complete":
        # Over all runs that have read the input to its end.
        seconds = header.get("seconds", {}).get("gather", 0.0) + time.perf_counter() - began
        header = {**header, "seconds": {"gather": seconds}, "input": source.name}
        corpus.write_header(header)
    return header


def _encode(
    corpus: Corpus,
    model: SentenceTransformer,
    engine: Engine,
    settings: EncodeSettings,
    header: dict[str, Any],
    strict: bool,
    progress: RunProgress,
) -> dict[str, Any]:
    """Encode every shard that has no vectors."""
    shards = [_documents(corpus, number) for number in range(corpus.shard_count())]
    pending = []
    for number in range(len(shards)):
        record = finished(corpus, number)
        if record is None:
            pending.append(number)
        elif strict:
            _strictly(corpus, number, record)

    def report(number: int, record: ShardVectors) -> None:
        progress.report(shards[number].count, record)
        if strict:
            _strictly(corpus, number, record)

    total = sum(documents.count for documents in shards)
    with progress.encoding(total, total - sum(shards[number].count for number in pending)):
        if pending and header["status"] == "complete":
            # The input has grown.
            header = {**header, "status": "encoding"}
            corpus.write_header(header)
        if pending:
            engine.encode(model, corpus, pending, settings, report, progress)
    return header


def finished(corpus: Corpus, number: int) -> ShardVectors | None:
    """The record of a shard's vectors, if their file is there and of the size that was written."""
    record = corpus.vectors(number)
    try:
        if record is not None:
            record.vectors.check(corpus.path, content=False)
    except (FileNotFoundError, ValueError):
        return None
    return record


def _strictly(corpus: Corpus, number: int, record: ShardVectors) -> None:
    for row in sorted(record.unusable)[:1]:
        with corpus.open_documents(number) as store:
            document = store.get([row])[0]
        raise ValueError(f"document {document.id!r} (shard {number}, row {row}): {record.unusable[row]}")


def _finish(corpus: Corpus, header: dict[str, Any]) -> None:
    """Write rejects.jsonl, then the header with totals and digests, unless they are there already."""
    totals = cast(dict[str, Any], corpus.gathered())
    positions: int | None = 0
    unusable = 0
    seconds = {"gather": header.get("seconds", {}).get("gather", 0.0)}
    files: list[StoredFile] = []
    for number in range(totals["shards"]):
        documents, vectors = _documents(corpus, number), corpus.vectors(number)
        if vectors is None:
            raise RuntimeError(f"{corpus.path}: the engine left shard {number} without vectors")
        positions = None if positions is None or vectors.positions is None else positions + vectors.positions
        unusable += len(vectors.unusable)
        for stage, count in vectors.seconds.items():
            seconds[stage] = seconds.get(stage, 0.0) + count
        files += [file for file in (documents.documents, documents.rejects, vectors.vectors) if file is not None]
    counts = {key: totals[key] for key in ("shards", "documents", "rejected", "records")}
    complete = {
        **header,
        "status": "complete",
        "totals": {**counts, "unusable": unusable, "positions": positions},
        "seconds": seconds,
        "files": [asdict(file) for file in files],
    }
    if complete == header and (corpus.path / REJECTS_FILE).is_file():
        # The same command once more.
        logger.info("%s: all of it is encoded already, so there is nothing to do", corpus.path)
        return
    with whole_file(corpus.path / REJECTS_FILE) as stream:
        for reject in corpus.rejects():
            stream.write(reject.to_line())
    corpus.write_header(complete)


def _documents(corpus: Corpus, number: int) -> ShardDocuments:
    record = corpus.documents(number)
    if record is None:
        raise ValueError(f"{corpus.path}: the documents of shard {number} are gone; run the same command again")
    return record
