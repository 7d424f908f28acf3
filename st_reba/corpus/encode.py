"""Encode a corpus into a folder, part by part; what was stopped goes on."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from tqdm.auto import tqdm

from ..encode import encode_batch, in_order, planned_batches
from ..files import LOCK_FILE, disk_errors, make_folder, remove_leftovers, whole_file, writers_lock
from ..probe import Probe, check, encoding_rate, load, probe, remembered
from .folder import DTYPES, HEADER_FILE, REJECTS_FILE, Corpus, Part, Row, is_corpus, sha256, unusable
from .passages import cutter, parse_passages
from .records import MAX_CHARS, Document, Reject, to_json
from .source import Input, Source, open_source, unique

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

# A part takes so many seconds with short texts, so a minute or a few with real ones.
PART_SECONDS = 20
FEWEST, MOST = 64, 16_384
# A part is in memory at once: fewer long records.
PART_CHARS = 2**22
_PART_SETTINGS = ("dtype", "batch_size", "batch_tokens", "part_size", "passages")


@dataclass(frozen=True)
class Settings:
    """Settings of `encode_corpus` that are rarely needed.

    Args:
        dtype: Of the stored vectors: "float32", or "float16" for half the disk and about three digits.
        batch_tokens: Positions a forward pass; None: ``st_reba.encode.DEFAULT_BATCH_TOKENS``.
        batch_size: Texts a forward pass, instead of ``batch_tokens``.
        part_size: Records a part, which is what a kill costs at most; None: about a minute's work.
        encoding: Of text files.
        split: Of a folder of several datasets.
        max_chars: Longest text, in characters; a longer one is set aside.
        strict: Stop at the first record that would be set aside.

    Example:
        >>> Settings(batch_tokens=8192).dtype
        'float32'
    """

    dtype: Literal["float32", "float16"] = "float32"
    batch_tokens: int | None = None
    batch_size: int | None = None
    part_size: int | None = None
    encoding: str = "utf-8-sig"
    split: str | None = None
    max_chars: int = MAX_CHARS
    strict: bool = False

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            raise ValueError(f"dtype={self.dtype!r} is not known; choose one of {', '.join(DTYPES)}")
        for name in ("batch_tokens", "batch_size", "part_size", "max_chars"):
            value = getattr(self, name)
            if value is not None and (type(value) is not int or value < 1):
                raise ValueError(f"{name}={value!r} must be a whole number from 1 on")
        if self.batch_size is not None and self.batch_tokens is not None:
            raise ValueError(f"batch_size={self.batch_size} and batch_tokens={self.batch_tokens}: give one of both")

    @property
    def reading(self) -> dict[str, Any]:
        """The options of `open_source`."""
        return {name: getattr(self, name) for name in ("encoding", "split", "max_chars")}


def encode_corpus(
    model: SentenceTransformer | str | PathLike[str],
    input: Input,
    path: str | PathLike[str],
    *,
    text_column: str | None = None,
    id_column: str | None = None,
    passages: str | None = None,
    workers: int | None = None,
    overwrite: bool = False,
    settings: Settings | None = None,
    show_progress_bar: bool | None = None,
) -> Corpus:
    """Encode documents into a folder; killed at any moment, the same call goes on where it was.

    Args:
        model: Any SentenceTransformer, or its folder or Hub id; documents are encoded by its ``encode_document``.
        input: See :func:`~st_reba.corpus.source.open_source`: a file, a folder, a table, or an iterable, which a
            repeated call must give again.
        path: The folder. One that holds anything else is refused.
        text_column: Column or key of the text; None: "text", or another usual name.
        id_column: Column or key of the id; None: "id", another usual name, or the number of the record; "": the number.
        passages: Cut long texts into passages of so many tokens, which overlap by so many, as ``"256:32"``; each
            passage gets a vector.
        workers: Encode with so many workers of Ray Data, one a GPU if there are any: on the cluster of RAY_ADDRESS, or
            on this machine; None: in this process.
        overwrite: Replace a corpus of another model, settings or input; parts that are the same stay.
        settings: What else there is.
        show_progress_bar: Show bars; None: on a terminal.

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
    settings = settings or Settings()
    parse_passages(passages)
    if workers is not None and (type(workers) is not int or workers < 1):
        raise ValueError(f"workers={workers!r} must be a whole number from 1 on")
    source = open_source(input, text_column=text_column, id_column=id_column, **settings.reading)
    _check_target(Path(path))
    options: dict[str, Any] = {"workers": workers, "overwrite": overwrite, "show": show_progress_bar}
    return encode_source(load(model), unique(source), Path(path), settings, passages, source_of=model, **options)


def encode_source(
    model: SentenceTransformer,
    source: Source,
    path: Path,
    settings: Settings,
    passages: str | None,
    *,
    source_of: Any = None,
    workers: int | None = None,
    overwrite: bool = False,
    may_be_empty: bool = False,
    show: bool | None = None,
) -> Corpus:
    """Encode a source whose ids are unique into a folder; `encode_corpus` behind its checks.

    Args:
        model, source, path, settings, passages, workers, overwrite, show: As for `encode_corpus`.
        source_of: The model as the caller named it.
        may_be_empty: A source without documents is no error.
    """
    corpus = Corpus(path)
    folders = (path, path / "documents", path / "vectors")
    with disk_errors(path):
        made = [make_folder(folder) for folder in folders][0]
        with writers_lock(path):
            try:
                for folder in folders:
                    remove_leftovers(folder)
                given = {**asdict(settings), "passages": passages}
                header = _begin(corpus, model, source_of or model, given, overwrite)
                documents, reject = gather(source, corpus, header, cutter(model, passages), settings, overwrite, show)
                if not (documents or may_be_empty):
                    why = "it is empty" if reject is None else f"all was set aside, first this: {reject}"
                    raise ValueError(f"{source.name}: no documents: {why}")
                _encode_pending(corpus, model, workers, show)
                _finish(corpus)
            except BaseException:
                if made and not any((path / "vectors").glob("*.npy")):
                    shutil.rmtree(path, ignore_errors=True)
                raise
    return corpus


def _check_target(folder: Path) -> None:
    """Refuse to write where something else is than a corpus, or what a run leaves that was killed at its start."""
    for name in (LOCK_FILE, "documents", "vectors"):
        if (folder / name).is_symlink():
            raise FileExistsError(f"{folder / name}: a link, through which nothing is written; give another path")
    if folder.exists() and not folder.is_dir():
        raise FileExistsError(f"{folder}: a file is there; name a folder")
    if folder.is_dir() and not is_corpus(folder):
        names = {file.name for file in folder.iterdir() if not file.name.startswith(f".{HEADER_FILE}.")}
        empty = not any(file for name in ("documents", "vectors") for file in (folder / name).glob("*"))
        if not (names <= {LOCK_FILE, "documents", "vectors"} and empty):
            raise FileExistsError(f"{folder}: not an encoded corpus, so it is not replaced; give another path")


def _begin(
    corpus: Corpus, model: SentenceTransformer, source_of: Any, settings: dict[str, Any], overwrite: bool
) -> dict[str, Any]:
    """The header: the one that is there, if model and settings are the same, or a new one."""
    mark = probe(model)
    given = {name: settings[name] for name in _PART_SETTINGS}
    if is_corpus(corpus.path):
        try:
            header = corpus.header()
            stored = Probe.from_json(header["model"])
            check(stored, mark, f"the corpus {corpus.path}")
            before = {**header["settings"], "dtype of the model": stored.dtype}
            now = {**given, "part_size": given["part_size"] or before["part_size"], "dtype of the model": mark.dtype}
            if other := [name for name in now if now[name] != before[name]]:
                raise ValueError(
                    f"{corpus.path}: {other[0]}={now[other[0]]!r}, but it was begun with {before[other[0]]!r}; give "
                    "that to go on, another path, or overwrite=True to begin anew"
                )
            written = corpus.files() if "files" in header else {}
            for name in [name for name, digest in written.items() if header["files"].get(name) != digest]:
                (corpus.path / name).unlink()  # altered since: it is made again
            return header
        except (ValueError, KeyError, TypeError):
            if not overwrite and corpus.parts():
                raise
            for file in reversed(corpus.part_files()):
                file.unlink()
    if given["part_size"] is None:
        given["part_size"] = 1 << int(np.log2(min(max(PART_SECONDS * encoding_rate(model), FEWEST), MOST)))
    about = remembered(source_of, mark, corpus.path)
    header = {"model": about, "similarity": model.similarity_fn_name, "settings": given}
    corpus.write_header(header)
    return header


def gather(
    source: Source,
    corpus: Corpus,
    header: dict[str, Any],
    cut: Callable[[list[str]], list[tuple[int, ...]]],
    settings: Settings,
    overwrite: bool,
    show: bool | None,
) -> tuple[int, Reject | None]:
    """Write the documents of a source into parts; parts whose records are the same already stay, with their vectors.

    Returns:
        Number of documents, and the first record that was set aside.
    """
    there = 1 + max((int(file.stem) for file in corpus.part_files()), default=-1)
    number, documents, rejected = 0, 0, None
    remedy = "give the same input to go on, or overwrite=True to encode this one in its place"
    with tqdm(total=source.total, desc="Reading", unit=" texts", disable=None if show is None else not show) as bar:
        for part in _parts(source.read(), header["settings"]["part_size"], settings.strict):
            for index, spans in enumerate(cut([row.text for row in part.rows]) if part.rows else ()):
                part.rows[index] = part.rows[index]._replace(spans=spans)
            documents += len(part.rows)
            rejected = rejected or next(iter(part.rejects), None)
            if part.digest != (old := corpus.digest(number)):
                if old is not None and not overwrite:
                    where = f"from record {part.start:,} on"
                    raise ValueError(f"{source.name}: {where} it is not what {corpus.path} was made of; {remedy}")
                _reopen(corpus)
                corpus.write_part(number, part)
            number += 1
            bar.update(part.stop - part.start)
    if number < there:
        if not overwrite:
            raise ValueError(f"{source.name}: it ends before part {number} of {corpus.path}; {remedy}")
        _reopen(corpus)
        for left in reversed(range(number, there)):
            corpus.vectors_path(left).unlink(missing_ok=True)
            corpus.documents_path(left).unlink(missing_ok=True)
    return documents, rejected


def _reopen(corpus: Corpus) -> None:
    """Take the totals out of the header of a complete corpus, before a part of it changes."""
    header = corpus.header()
    if "totals" in header:
        corpus.write_header({name: value for name, value in header.items() if name not in ("totals", "files")})


def _parts(records: Iterator[Document | Reject], size: int, strict: bool) -> Iterator[Part]:
    part, chars = Part(0, 0), 0
    for record in records:
        if isinstance(record, Document):
            metadata = to_json(record.metadata) if record.metadata else "{}"
            part.rows.append(Row(part.stop, record.id, record.text, metadata))
            chars += len(record.text) + len(metadata)
        elif strict:
            raise ValueError(str(record))
        else:
            part.rejects.append(record)
            chars += len(record.reason)
        part.stop += 1
        if part.stop - part.start == size or chars >= PART_CHARS:
            yield part
            part, chars = Part(part.stop, part.stop), 0
    if part.stop > part.start:
        yield part


def encode_part(
    model: SentenceTransformer, corpus: Corpus, number: int, progress: Callable[[int], object] | None = None
) -> int:
    """Encode a part's texts in this process and write their vectors; returns the number of texts.

    The batches depend on the part alone, so the file is the same bit for bit however often it was tried, on the same
    hardware with as many threads.
    """
    header = corpus.header()
    texts = [text for row in corpus.part(number).rows for text in row.passages]
    settings = header["settings"]
    vectors = np.zeros((0, header["model"]["dimension"]), np.float32)
    if texts:
        sizes = {"batch_size": settings["batch_size"], "batch_tokens": settings["batch_tokens"]}
        batches, _ = planned_batches(model, texts, task="document", **sizes)
        rows = []
        for batch in batches:
            rows.append(encode_batch(model, [texts[index] for index in batch], task="document"))
            if progress is not None:
                progress(len(batch))
        vectors = in_order(rows, batches)
    corpus.write_vectors(number, vectors, settings["dtype"])
    return len(texts)


def _encode_pending(corpus: Corpus, model: SentenceTransformer, workers: int | None, show: bool | None) -> None:
    pending, counts = corpus.pending(), [corpus.counts(number)[1] for number in range(corpus.parts())]
    kept = sum(counts) - sum(counts[number] for number in pending)
    if pending:
        _reopen(corpus)
    disable = None if show is None else not show
    with tqdm(total=sum(counts), initial=kept, desc="Encoding", unit=" texts", disable=disable) as bar:
        if workers is not None and pending:
            from .ray import encode_on_ray

            encode_on_ray(model, corpus, pending, bar.update, workers)
        else:
            for number in pending:
                encode_part(model, corpus, number, bar.update)


def _finish(corpus: Corpus) -> None:
    """Write ``rejects.jsonl``, then the header with totals and digests, unless they are there already."""
    header, files = corpus.header(), corpus.files()
    if header.get("files") == files:
        return
    totals = dict.fromkeys(("parts", "records", "documents", "vectors", "rejected", "unusable"), 0)
    with whole_file(corpus.path / REJECTS_FILE) as stream:
        for number in range(corpus.parts()):
            part = corpus.part(number)
            bad = list(unusable(part, corpus.vectors(number)).values())
            stream.writelines(f"{to_json(asdict(one))}\n".encode() for one in [*part.rejects, *bad])
            counts = (1, part.stop - part.start, len(part.rows), part.vectors, len(part.rejects), len(bad))
            totals = {name: totals[name] + count for name, count in zip(totals, counts, strict=True)}
    files[REJECTS_FILE] = sha256(corpus.path / REJECTS_FILE)
    corpus.write_header({**header, "totals": totals, "files": files})
