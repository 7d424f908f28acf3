"""Encode a corpus into a folder, part by part; what was stopped goes on."""

from __future__ import annotations

import errno
import logging
import os
import shutil
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from tqdm.auto import tqdm

from ..batches import check_sizes
from ..files import make_folder, remove_leftovers, whole_file
from ..fingerprint import ModelFingerprint, check, dtype_of, encoding_rate, fingerprint
from ..folders import check_folder
from ..lock import LOCK_FILE, writers_lock
from ..persistence import loaded, place_of
from .folder import (
    DTYPES,
    HEADER_FILE,
    REJECTS_FILE,
    Corpus,
    Progress,
    is_corpus,
    rejects_lines,
    sha256,
    unusable,
)
from .gather import gather
from .part import encode_part
from .passages import cutter, parse_passages
from .pool import encode_in_processes
from .ray import encode_on_ray
from .records import Reading
from .source import Input, open_source

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

logger = logging.getLogger(__name__)

ENGINES = ("local", "ray")
# A part is so many seconds of the work that short texts make, so a minute or a few of real ones.
PART_SECONDS = 20
FEWEST, MOST = 64, 16_384


@dataclass(frozen=True)
class Settings:
    """What decides the vectors of a corpus, and how they are stored.

    Args:
        dtype: Of the stored vectors: "float32", or "float16" for half the disk and about three digits.
        batch_size: Texts a forward pass. Excludes ``batch_tokens``.
        batch_tokens: Positions a forward pass; None: ``st_reba.batches.DEFAULT_BATCH_TOKENS``, unless ``batch_size``
            is given.
        part_size: Records a part; None: about a minute's work.
        passages: Tokens of a passage and of the overlap, as "256:32"; None: no text is cut.

    Example:
        >>> Settings(batch_tokens=8192).dtype
        'float32'
    """

    dtype: Literal["float32", "float16"] = "float32"
    batch_size: int | None = None
    batch_tokens: int | None = None
    part_size: int | None = None
    passages: str | None = None

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            raise ValueError(f"dtype={self.dtype!r} is not known: choose one of {', '.join(DTYPES)} (--store-dtype).")
        check_sizes(self.batch_size, self.batch_tokens)
        if self.part_size is not None and (type(self.part_size) is not int or self.part_size < 1):
            raise ValueError(f"part_size={self.part_size!r} must be a whole number from 1 on (--part-size).")
        parse_passages(self.passages)


@dataclass(frozen=True)
class Engine:
    """Where parts are encoded.

    Args:
        name: "local": this machine; "ray": a Ray cluster.
        workers: How many processes, each with a copy of the model; None or 1 on this machine: this one.
        devices: Where they run, as ["cuda:0", "cuda:1"]; None: where the model is.
    """

    name: str = "local"
    workers: int | None = None
    devices: Sequence[str] | None = None

    def __post_init__(self) -> None:
        if self.name not in ENGINES:
            raise ValueError(f"engine={self.name!r} is not known: choose one of {', '.join(ENGINES)} (--engine).")
        if self.workers is not None and (type(self.workers) is not int or self.workers < 1):
            raise ValueError(f"workers={self.workers!r} must be a whole number from 1 on (--workers).")
        if self.devices is not None and (isinstance(self.devices, str) or not self.devices):
            raise ValueError(f"devices={self.devices!r} must be a list, as ['cuda:0', 'cuda:1'] (--devices).")
        if self.devices and self.workers and self.workers < len(self.devices):
            raise ValueError(
                f"workers={self.workers} are fewer than devices={list(self.devices)}: each device needs one. Give as "
                "many, or more for several on each (--workers, --devices)."
            )

    def encode(self, model: SentenceTransformer, corpus: Corpus, parts: list[int], progress: Progress) -> None:
        """Encode parts that have no vectors."""
        if self.name == "ray":
            encode_on_ray(model, corpus, parts, progress, workers=self.workers, devices=self.devices)
        elif (self.workers or 1) == 1 and len(self.devices or ()) <= 1:
            device = model.device
            try:
                for number in parts:
                    encode_part(model.to(self.devices[0]) if self.devices else model, corpus, number, progress)
            finally:
                model.to(device)
        else:
            encode_in_processes(model, corpus, parts, progress, workers=self.workers, devices=self.devices)


@dataclass
class Run:
    """What one run of `encode_corpus` has done so far; hand one over to look at it meanwhile or afterwards."""

    records: int = 0
    """Records that were read."""
    total: int | None = None
    """Texts of the corpus, once its input is read."""
    kept: int = 0
    """Texts of parts that are finished."""
    texts: int = 0
    """Texts that this run has encoded."""
    positions: int = 0
    """Positions that the model ran for them, all copies, without padding."""
    seconds: float = 0.0
    """What encoding took."""


def encode_corpus(
    model: SentenceTransformer | str | PathLike[str],
    input: Input,
    path: str | PathLike[str],
    *,
    engine: str = "local",
    workers: int | None = None,
    devices: Sequence[str] | None = None,
    part_size: int | None = None,
    dtype: Literal["float32", "float16"] = "float32",
    batch_size: int | None = None,
    batch_tokens: int | None = None,
    passages: str | None = None,
    text_column: str | None = None,
    id_column: str | None = None,
    encoding: str = "utf-8-sig",
    split: str | None = None,
    max_chars: int = 1_000_000,
    ids: Iterable[str] | None = None,
    strict: bool = False,
    overwrite: bool = False,
    model_source: str | PathLike[str] | None = None,
    show_progress_bar: bool | None = None,
    run: Run | None = None,
) -> Corpus:
    """Encode documents into a folder; killed at any moment, the same call goes on where it was.

    Args:
        model: Any SentenceTransformer, or its folder or Hub id; documents are encoded by its ``encode_document``.
        input: See :func:`~st_reba.corpus.source.open_source`: a file, a folder, a table, or an iterable, which a
            repeated call must give again.
        path: The folder. One that holds anything else is refused.
        engine: ``"local"``: this machine; ``"ray"``: a Ray cluster.
        workers: Processes, each with a copy of the model; None: this one alone, or one for each of ``devices``, or on
            Ray one a GPU or node.
        devices: Where they run, as ``["cuda:0", "cuda:1"]``.
        part_size: Records a part, which is what a kill costs at most; None: about a minute's work.
        dtype: Of the stored vectors: ``"float16"`` takes half the disk and keeps about three digits.
        batch_size: Texts a forward pass. Excludes ``batch_tokens``.
        batch_tokens: Positions a forward pass; see :func:`~st_reba.encode.encode_stream`.
        passages: Cut long texts into passages of so many tokens, which overlap by so many, as ``"256:32"``; each
            passage gets a vector.
        text_column: The column or key that holds the text; None: "text", or another usual name.
        id_column: The column or key that holds the id; None: "id", another usual name, or the record's number.
        encoding: Of text files.
        split: Of a folder of several datasets.
        max_chars: The longest text, in characters; a longer one is set aside.
        ids: One id for each text of an iterable.
        strict: Stop at the first record that is no document; else it is set aside in ``rejects.jsonl``.
        overwrite: Replace a corpus of another model, settings or input.
        model_source: The Hub id or folder of the model, for who opens the corpus alone; a folder is kept relative.
        show_progress_bar: Show bars; None: on a terminal.
        run: Takes the counts of this run.

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
        >>> [(reject.place, reject.kind) for reject in corpus.rejects()]
        [('record 1', 'no text')]
    """
    settings = Settings(dtype, batch_size, batch_tokens, part_size, passages)
    chosen = Engine(engine, workers, devices)
    source = open_source(input, Reading(text_column, id_column, encoding, split, max_chars), ids).begun()
    corpus, run = Corpus(path), run or Run()
    _check_target(corpus.path)
    model, model_source = loaded(model, model_source)
    with told(corpus.path):
        made = make_folder(corpus.path)
        for folder in (corpus.path / "documents", corpus.path / "vectors"):
            make_folder(folder)
        with writers_lock(corpus.path):
            try:
                for folder in (corpus.path, corpus.path / "documents", corpus.path / "vectors"):
                    remove_leftovers(folder)
                header = _begin(corpus, model, settings, model_source, overwrite)
                cut = cutter(model, passages)
                options: dict[str, Any] = {"strict": strict, "overwrite": overwrite, "show": show_progress_bar}
                gather(source, corpus, header, cut, seen=partial(setattr, run, "records"), **options).check(source.name)
                encode_pending(corpus, model, chosen, show_progress_bar, run)
                finish(corpus, header)
            except BaseException:
                if made and not corpus.parts():
                    shutil.rmtree(corpus.path, ignore_errors=True)
                raise
    return corpus


def _check_target(folder: Path) -> None:
    """Refuse to write where something else is than a corpus, or what a run leaves that was killed at its start."""
    for name in (LOCK_FILE, "documents", "vectors"):
        if (folder / name).is_symlink():
            raise FileExistsError(f"{folder / name}: a link, through which nothing is written; give another path")
    if folder.is_dir():
        names = {file.name for file in folder.iterdir() if not file.name.startswith(f".{HEADER_FILE}.")}
        empty = not any(file for name in ("documents", "vectors") for file in (folder / name).glob("*"))
        if names <= {LOCK_FILE, "documents", "vectors"} and empty:
            return
    check_folder(folder, overwrite=True, kind="an encoded corpus", is_kind=is_corpus)


def _begin(
    corpus: Corpus,
    model: SentenceTransformer,
    settings: Settings,
    model_source: str | PathLike[str] | None,
    overwrite: bool,
) -> dict[str, Any]:
    """The header: the one that is there, if model and settings are the same, or a new one."""
    if is_corpus(corpus.path):
        try:
            _check_same(corpus, model, settings)
            corpus.remove_altered()
            return corpus.header()
        except (ValueError, KeyError, TypeError):
            # A header alone, of a run that stored nothing, binds to nothing.
            if not overwrite and (corpus.parts() or not corpus.header()):
                raise
            clear(corpus)
    header = {**new_header(model, settings), "model_source": place_of(model_source, corpus.path)}
    corpus.write_header(header)
    return header


def new_header(model: SentenceTransformer, settings: Settings) -> dict[str, Any]:
    """The header of a corpus that is begun."""
    mark = fingerprint(model)
    size = settings.part_size
    if size is None:
        size = 1 << int(np.log2(min(max(PART_SECONDS * encoding_rate(model), FEWEST), MOST)))
    return {
        "model": mark.to_json(),
        "settings": {**asdict(settings), "part_size": size},
        "model_dtype": dtype_of(model),
        "similarity": model.similarity_fn_name,
        "model_source": None,
    }


def _check_same(corpus: Corpus, model: SentenceTransformer, settings: Settings) -> None:
    header = corpus.header()
    check(ModelFingerprint.from_json(header["model"]), model, f"the corpus {corpus.path}")
    given = {**asdict(settings), "model_dtype": dtype_of(model)}
    there = {**header["settings"], "model_dtype": header["model_dtype"]}
    given["part_size"] = settings.part_size or there["part_size"]
    for name, value in given.items():
        if there[name] != value:
            flag = {"dtype": "store-dtype", "model_dtype": "dtype"}.get(name, name.replace("_", "-"))
            raise ValueError(
                f"{corpus.path}: {name}={value!r}, but it was begun with {there[name]!r} (--{flag}). Give that to go "
                "on, another path, or overwrite=True (--overwrite) to begin anew."
            )


def clear(corpus: Corpus) -> None:
    """Remove the parts of a corpus, the header last."""
    for file in reversed(corpus.part_files()):
        file.unlink()
    for name in (REJECTS_FILE, HEADER_FILE):
        (corpus.path / name).unlink(missing_ok=True)


def encode_pending(corpus: Corpus, model: SentenceTransformer, engine: Engine, show: bool | None, run: Run) -> None:
    """Encode every part that has no vectors."""
    pending, header = corpus.pending(), corpus.header()
    if pending and "totals" in header:
        corpus.write_header({name: value for name, value in header.items() if name not in ("totals", "files")})
    counts = [corpus.counts(number)[1] for number in range(corpus.parts())]
    run.total = sum(counts)
    run.kept = run.total - sum(counts[number] for number in pending)
    began = time.perf_counter()
    with tqdm(
        total=run.total, initial=run.kept, desc="Encoding", unit=" texts", disable=None if show is None else not show
    ) as bar:

        def progress(texts: int, positions: int) -> None:
            run.texts += texts
            run.positions += positions
            run.seconds = time.perf_counter() - began
            if run.positions:
                bar.set_postfix_str(f"{run.positions / max(run.seconds, 1e-9):,.0f} tokens/s", refresh=False)
            bar.update(texts)

        try:
            if pending:
                engine.encode(model, corpus, pending, progress)
        finally:
            run.kept = run.total - sum(counts[number] for number in pending if not corpus.vectors_path(number).exists())
            run.seconds = time.perf_counter() - began


def finish(corpus: Corpus, header: dict[str, Any]) -> None:
    """Write ``rejects.jsonl``, then the header with totals and digests, unless they are there already."""
    files = corpus.files()
    if corpus.header().get("files") == files:
        logger.info("%s: all of it is encoded already, so there is nothing to do", corpus.path)
        return
    totals = dict.fromkeys(("parts", "records", "documents", "vectors", "rejected", "unusable"), 0)
    with whole_file(corpus.path / REJECTS_FILE) as stream:
        for number in range(corpus.parts()):
            part = corpus.part(number)
            bad = [reject for _, reject in unusable(part, corpus.vectors(number))]
            stream.writelines(rejects_lines([*part.rejects, *bad]))
            counts = (1, part.stop - part.start, len(part.rows), part.vectors, len(part.rejects), len(bad))
            totals = {name: totals[name] + count for name, count in zip(totals, counts, strict=True)}
    files[REJECTS_FILE] = sha256(corpus.path / REJECTS_FILE)
    corpus.write_header({**header, "totals": totals, "files": files})


_REMEDIES = {
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT), "free space"),
    errno.EFBIG: "allow larger files (ulimit -f, or another file system)",
    errno.EIO: "look after the disk",
    **dict.fromkeys((errno.EROFS, errno.EACCES, errno.EPERM), "make it readable and writable, or give another path"),
}


@contextmanager
def told(folder: Path) -> Iterator[None]:
    """Errors of the disk with the file and the remedy."""
    try:
        yield
    except OSError as error:
        if error.errno not in _REMEDIES or "; what is finished" in str(error):
            raise
        said = f"{error.strerror}: {_REMEDIES[error.errno]}, then run the same again; what is finished stays"
        raise type(error)(error.errno, said, os.fspath(error.filename or folder)) from error
