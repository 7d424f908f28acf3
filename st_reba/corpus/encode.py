"""Encode a corpus into a folder, part by part; a run that was stopped goes on."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import asdict
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from tqdm.auto import tqdm

from ..encode import encode_texts, measure_lengths
from ..files import LOCK_FILE, make_folder, parse_path, remove_leftovers, sole_writer, whole_file
from ..probe import Probe, encoding_rate, resolve_model, take_probe
from ..processor import bfloat16_hint
from .folder import DTYPES, HEADER_FILE, REJECTS_FILE, Corpus, Part, Row, is_corpus, sha256
from .passages import Cut, cutter
from .records import Document, beginning, to_json
from .source import Input, Source, open_source

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

logger = logging.getLogger(__name__)

# A part takes so many seconds with short texts, so a minute or a few with real ones.
PART_SECONDS = 20
FEWEST, MOST = 64, 16_384
# A part is in memory at once: fewer long records.
PART_CHARS = 2**22
# Texts whose mean length stands for that of all.
SAMPLED_TEXTS = 64


def encode_corpus(
    model: SentenceTransformer | str | PathLike[str],
    input: Input,
    path: str | PathLike[str],
    *,
    passages: str | None = None,
    dtype: Literal["float32", "float16"] = "float32",
    batch_tokens: int | None = None,
    part_size: int | None = None,
    workers: int | None = None,
    overwrite: bool = False,
    show_progress_bar: bool | None = None,
) -> Corpus:
    """Encode documents into a folder; killed at any moment, the same call goes on where it was.

    Args:
        model: Any SentenceTransformer, or its folder or Hub id; documents are encoded by its ``encode_document``.
        input: A file, a folder, a table, or an iterable, which a repeated call must give again; or, where columns or an
            encoding must be named, a :class:`~st_reba.corpus.Source`.
        path: The folder. One that holds anything else is refused.
        passages: Cut long texts into passages of so many tokens, which overlap by so many, as ``"256:32"``; each
            passage gets a vector.
        dtype: Of the stored vectors: "float32", or "float16" for half the disk and about three digits.
        batch_tokens: Positions a forward pass; None: ``st_reba.encode.DEFAULT_BATCH_TOKENS``.
        part_size: Records a part, which is what a kill costs at most; None: about a minute's work.
        workers: Encode with so many workers of Ray Data, one a GPU if there are any: on the cluster of RAY_ADDRESS, or
            on this machine; None: in this process.
        overwrite: Replace a corpus of another model, settings or input; parts that are the same stay.
        show_progress_bar: Show bars; None: on a terminal.

    Returns:
        The complete corpus.

    Raises:
        FileExistsError: The folder holds something else.
        BlockingIOError: Another process is writing there.
        OSError: The disk is full, or the folder cannot be written to. What is finished stays.
        ValueError: An option is not known; the corpus there is of another model, settings or input.

    Example:
        >>> import st_reba
        >>> corpus = encode_corpus(st_reba.build("mini"), ["Cats sleep.", "", "Ships sail."], "my_corpus")
        >>> [(reject.place, reject.kind) for reject in corpus.rejects()]
        [('record 1', 'no text')]
    """
    source = input if isinstance(input, Source) else open_source(input).unique()
    corpus, model = _target(parse_path(path, "path")), resolve_model(model)
    with sole_writer(corpus.path, "vectors/*.npy"):
        options: dict[str, Any] = {"batch_tokens": batch_tokens, "part_size": part_size, "workers": workers}
        options |= {"passages": passages, "overwrite": overwrite, "show_progress_bar": show_progress_bar}
        encode_parts(model, source, corpus, dtype=dtype, **options)
        _finish(corpus)
    return corpus


def encode_parts(
    model: SentenceTransformer,
    source: Source,
    corpus: Corpus,
    *,
    passages: str | None,
    batch_tokens: int | None,
    part_size: int | None,
    workers: int | None,
    overwrite: bool,
    show_progress_bar: bool | None,
    dtype: str = "float32",
) -> None:
    """Encode a corpus but for its totals and digests; for the one writer, with arguments as for ``encode_corpus``."""
    if dtype not in DTYPES:
        raise ValueError(f"dtype={dtype!r} is not known; choose one of {', '.join(DTYPES)}")
    for name, value in (("batch_tokens", batch_tokens), ("part_size", part_size), ("workers", workers)):
        if value is not None and (type(value) is not int or not 1 <= value < 2**31):
            raise ValueError(f"{name}={beginning(value)} must be a whole number from 1 on, below 2³¹")
    cut, disable = cutter(model, passages), None if show_progress_bar is None else not show_progress_bar
    asked = {"dtype": dtype, "batch_tokens": batch_tokens, "passages": passages, "part_size": part_size}
    for folder in (corpus.path, corpus.path / "documents", corpus.path / "vectors"):
        make_folder(folder)
        remove_leftovers(folder)
    size = _begin(corpus, model, asked, overwrite)
    _gather(_parts(source, size, disable), cut, source.name, corpus, overwrite)
    if pending := corpus.pending():
        corpus.reopen()
        _encode(model, corpus, pending, workers, disable)


def _target(path: str | PathLike[str]) -> Corpus:
    corpus = Corpus(path)
    if corpus.path.exists() and not is_corpus(path):
        names = {one.name for one in corpus.path.glob("*") if not one.name.startswith(f".{HEADER_FILE}.")}
        if corpus.path.is_file() or names - {LOCK_FILE, "documents", "vectors"} or any(corpus.path.glob("*/*")):
            raise FileExistsError(f"{path}: not an encoded corpus, so it is not replaced; give another path")
    return corpus


def _begin(corpus: Corpus, model: SentenceTransformer, asked: dict[str, Any], overwrite: bool) -> int:
    """Records a part: of the corpus that is there, if model and settings are the same, or of one that is begun."""
    mark = take_probe(model)
    settings = {**asked, "dtype of the model": mark.dtype, "max_seq_length": longest_input(model)}
    if is_corpus(corpus.path):
        try:
            return _resume(corpus, mark, settings)
        except ValueError:
            if not overwrite and corpus.parts():
                raise
            for file in reversed(corpus.part_files()):
                file.unlink()
    settings["part_size"] = asked["part_size"] or (
        1 << int(np.log2(min(max(PART_SECONDS * encoding_rate(model), FEWEST), MOST)))
    )
    about = {"model": mark.seen_from(corpus.path, model).to_json(), "similarity": model.similarity_fn_name}
    corpus.write_header({**about, "settings": settings})
    return int(settings["part_size"])


def longest_input(model: SentenceTransformer) -> int | None:
    """Tokens of the longest text that a model reads whole; None: there is no limit."""
    length = model.max_seq_length
    return length if isinstance(length, int) else None


def _resume(corpus: Corpus, mark: Probe, settings: dict[str, Any]) -> int:
    """Records a part of the corpus that is there; a ValueError: it has another model or other settings."""
    header = corpus.header()
    Probe.from_json(header["model"]).check_same(mark, f"the corpus {corpus.path}")
    before = header["settings"]
    for name, value in settings.items():
        if before.get(name) != value and not (name == "part_size" and value is None):
            raise ValueError(
                f"{corpus.path}: {name}={value!r}, but it was begun with {before.get(name)!r}; give that to go on, "
                "another path, or overwrite=True to begin anew"
            )
    corpus.remove_damaged_vectors()
    return int(before["part_size"])


def _parts(source: Source, size: int, disable: bool | None) -> Iterator[Part]:
    part, chars = Part(0, 0), 0
    for record in tqdm(source.read(), "Reading", unit=" texts", disable=disable):
        if isinstance(record, Document):
            metadata = to_json(record.metadata)
            part.add(Row(part.stop, record.id, record.text, metadata))
            chars += len(record.text) + len(metadata)
        else:
            part.rejects.append(record)
            chars += len(record.reason)
        part.stop += 1
        if part.stop - part.start == size or chars >= PART_CHARS:
            yield part
            part, chars = Part(part.stop, part.stop), 0
    if part.stop > part.start:
        yield part


def _gather(parts: Iterator[Part], cut: Cut, name: str, corpus: Corpus, overwrite: bool) -> None:
    """Write the documents of an input; parts whose records are the same already stay, with their vectors."""
    there = 1 + max((int(file.stem) for file in corpus.part_files()), default=-1)
    number, remedy = 0, "give the same input to go on, or overwrite=True to encode this one in its place"
    for part in parts:
        part.columns[-1] = cut([row.text for row in part.rows])
        try:
            old = corpus.part(number).digest
        except ValueError:  # there is none yet, or it is damaged
            old = None
        if part.digest != old:
            if old is not None and not overwrite:
                where = f"from record {part.start:,} on"
                raise ValueError(f"{name}: {where} it is not what {corpus.path} was made of; {remedy}")
            corpus.reopen()
            corpus.write_part(number, part)
        number += 1
    if number < there and not overwrite:
        raise ValueError(f"{name}: it ends before part {number} of {corpus.path}; {remedy}")
    for left in reversed(range(number, there)):
        corpus.reopen()
        corpus.remove_vectors(left)
        corpus.documents_path(left).unlink(missing_ok=True)


def _encode(
    model: SentenceTransformer, corpus: Corpus, parts: list[int], workers: int | None, disable: bool | None
) -> None:
    remaining = sum(corpus.about(number)["vectors"] for number in parts)
    total = sum(corpus.about(number)["vectors"] for number in range(corpus.parts()))
    # What is begun goes on in its number type.
    if workers is None and remaining == total:
        bfloat16_hint.give(model, _estimate_positions(model, corpus, parts[0], total))
    options: dict[str, Any] = {"desc": "Encoding", "unit": " texts", "disable": disable}
    with tqdm(total=total, initial=total - remaining, **options) as bar:
        if workers is None:
            for number in parts:
                encode_part(model, corpus, number, bar.update)
        else:
            from .ray import encode_on_ray

            encode_on_ray(model, corpus, parts, bar.update, workers)


def _estimate_positions(
    model: SentenceTransformer,
    corpus: Corpus,
    part_number: int,
    text_count: int,
) -> int:
    """Positions that texts of a corpus take, by the mean of the first ones of a part."""
    sample: list[str] = []
    for row in corpus.part(part_number).rows:
        sample += row.passages
        if len(sample) >= SAMPLED_TEXTS:
            break
    if not sample:
        return 0
    sample_positions = sum(measure_lengths(model, sample, "document", is_batched=True).positions)
    return sample_positions * text_count // len(sample)


def encode_part(
    model: SentenceTransformer, corpus: Corpus, number: int, progress: Callable[[int], object] | None = None
) -> int:
    """Encode a part's texts in this process and write their vectors; returns the number of texts."""
    header = corpus.header()
    part = corpus.part(number)
    texts = [text for row in part.rows for text in row.passages]
    vectors, budget = np.zeros((0, header["model"]["dimension"]), np.float32), header["settings"]["batch_tokens"]
    truncated_texts: list[int] = []
    if texts:
        options: dict[str, Any] = {"batch_tokens": budget, "progress": progress, "on_truncated": truncated_texts.extend}
        vectors = encode_texts(model, texts, task="document", **options)
    row_of_text = np.repeat(np.arange(len(part.counts)), part.counts)
    truncated_rows = np.unique(row_of_text[truncated_texts]).tolist()
    corpus.write_vectors(number, vectors, header["settings"]["dtype"], truncated_rows)
    return len(texts)


def warn_of_truncation(path: Path, truncated: int, documents: int, max_seq_length: int | None) -> None:
    """Tell at the end how many documents are longer than the model reads."""
    if truncated:
        logger.warning(
            "%s: %s of %s documents are longer than the model reads (max_seq_length %s): their ends are in no vector; "
            "cut them into passages",
            path,
            f"{truncated:,}",
            f"{documents:,}",
            max_seq_length,
        )


def _finish(corpus: Corpus) -> None:
    header, files = corpus.header(), corpus.files()
    if header.get("files") == files:
        return
    rejected = 0
    with whole_file(corpus.path / REJECTS_FILE) as stream:
        for reject in corpus.rejects():
            stream.write(f"{to_json(asdict(reject))}\n".encode())
            rejected += 1
    files[REJECTS_FILE] = sha256(corpus.path / REJECTS_FILE)
    parts = [corpus.about(number) for number in range(corpus.parts())]
    totals = {name: sum(part[name] for part in parts) for name in ("documents", "vectors")}
    totals["truncated"] = sum(len(corpus.truncated(number)) for number in range(len(parts)))
    limit = header["settings"]["max_seq_length"]
    warn_of_truncation(corpus.path, totals["truncated"], totals["documents"], limit)
    corpus.write_header({**header, "totals": {"parts": len(parts), **totals, "rejected": rejected}, "files": files})
