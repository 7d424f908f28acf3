"""Encode a corpus into a folder, part by part; a stopped run can be resumed."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import asdict
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..encode import describe_truncation, measure_lengths
from ..files import LOCK_FILE, make_folder, parse_path, remove_leftovers, sole_writer, whole_file
from ..probe import Probe, encoding_rate, resolve_model, take_probe
from ..processor import hint_at_bfloat16
from ..progress import progress_bar
from .encode_part import encode_part
from .folder import HEADER_FILE, REJECTS_FILE, Corpus, Part, Row, is_corpus
from .options import Dtype, EncodeOptions
from .passages import Cutter, make_cutter
from .records import Document, json_line
from .source import Input, Source, open_source

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

logger = logging.getLogger(__name__)

# Target duration of a part with short texts; with real ones it takes a minute or a few.
PART_SECONDS = 20
MIN_PART_SIZE = 64
MAX_PART_SIZE = 16_384
# A whole part is held in memory, so long records end it earlier.
MAX_PART_CHARACTERS = 2**22
_INPUT_REMEDY = "give the same input to resume, or overwrite=True to encode this one in its place"
# The mean length of this many texts is taken as that of all.
SAMPLE_SIZE = 64


def encode_corpus(
    model: SentenceTransformer | str | PathLike[str],
    input: Input,
    path: str | PathLike[str],
    *,
    passages: str | None = None,
    dtype: Dtype = "float32",
    batch_tokens: int | None = None,
    part_size: int | None = None,
    workers: int | None = None,
    overwrite: bool = False,
    show_progress_bar: bool | None = None,
) -> Corpus:
    """Encode documents into a folder. If it is killed, the same call resumes the work.

    Args:
        model: Any SentenceTransformer, or its folder or Hub id; documents are encoded by its
            ``encode_document``.
        input: A file, a folder, a table, or an iterable, which must be the same when a call is
            repeated; or, if columns or an encoding need names, a :class:`~st_reba.corpus.Source`.
        path: The folder. One that holds anything else is refused.
        passages: Cut long texts into passages, each with a vector of its own. ``"256:32"``: of 256
            tokens, of which 32 are shared with the passage before.
        dtype: Type of the stored vectors: "float32", or "float16" for half the disk and about three
            digits.
        batch_tokens: Positions of a forward pass; None: ``st_reba.encode.DEFAULT_BATCH_TOKENS``.
        part_size: Records of a part, which is the most that a kill costs; None: about a minute's
            work.
        workers: Number of Ray Data workers, one per GPU if there are any, on the cluster of
            RAY_ADDRESS or on this machine; None: encode in this process.
        overwrite: Replace a corpus of another model, settings or input; identical parts are kept.
        show_progress_bar: Show bars; None: on a terminal.

    Returns:
        The complete corpus.

    Raises:
        FileExistsError: The folder holds something else.
        BlockingIOError: Another process is writing there.
        OSError: The disk is full, or the folder cannot be written to. Finished parts stay.
        ValueError: An option is not known; the corpus there is of another model, settings or input.

    Example:
        >>> import st_reba
        >>> model = st_reba.build("mini")
        >>> corpus = encode_corpus(model, ["Cats sleep.", "", "Ships sail."], "my_corpus")
        >>> [(reject.place, reject.kind) for reject in corpus.rejects()]
        [('record 1', 'no text')]
    """
    options = EncodeOptions(
        passages=passages,
        dtype=dtype,
        batch_tokens=batch_tokens,
        part_size=part_size,
        workers=workers,
        overwrite=overwrite,
        show_progress_bar=show_progress_bar,
    )
    source = input if isinstance(input, Source) else open_source(input).reject_repeated_ids()
    corpus = _open_target(parse_path(path, "path"))
    loaded_model = resolve_model(model)
    with sole_writer(corpus.path, "vectors/*.npy"):
        encode_documents(loaded_model, source, corpus, options)
        _finish(corpus)
    return corpus


def encode_documents(
    model: SentenceTransformer,
    source: Source,
    corpus: Corpus,
    options: EncodeOptions,
) -> None:
    """Encode a corpus, except for its totals and digest; only the sole writer may call this."""
    cutter = make_cutter(model, options.passages)
    for folder in (corpus.path, corpus.path / "documents", corpus.path / "vectors"):
        make_folder(folder)
        remove_leftovers(folder)
    part_size = _begin_corpus(corpus, model, options)
    corpus_parts = _read_parts(source, part_size, options.show_progress_bar)
    _write_parts(corpus, corpus_parts, cutter, source.name, options.overwrite)
    pending_parts = corpus.parts_to_encode()
    if pending_parts:
        corpus.reopen()
        _encode_pending(model, corpus, pending_parts, options)


def _open_target(path: Path) -> Corpus:
    """The corpus in a folder, or a new one; a FileExistsError if the folder holds anything else."""
    corpus = Corpus(path)
    if is_corpus(path) or not path.exists():
        return corpus
    is_foreign = path.is_file() or any(path.glob("*/*"))
    for file in path.glob("*"):
        is_leftover = file.name.startswith(f".{HEADER_FILE}.")
        if not is_leftover and file.name not in (LOCK_FILE, "documents", "vectors"):
            is_foreign = True
    if is_foreign:
        raise FileExistsError(
            f"{path}: not an encoded corpus, so it is not replaced; give another path"
        )
    return corpus


def _begin_corpus(corpus: Corpus, model: SentenceTransformer, options: EncodeOptions) -> int:
    """Resume the corpus that is there, or begin one.

    Returns:
        The number of records in a part.
    """
    model_probe = take_probe(model)
    settings = {
        "dtype": options.dtype,
        "batch_tokens": options.batch_tokens,
        "passages": options.passages,
        "part_size": options.part_size,
        "dtype of the model": model_probe.dtype,
        "max_seq_length": longest_input(model),
    }
    if is_corpus(corpus.path):
        try:
            return _resume(corpus, model_probe, settings)
        except ValueError:
            if not options.overwrite and corpus.part_count():
                raise
            for file in reversed(corpus.part_files()):
                file.unlink()
    part_size = options.part_size or _estimate_part_size(model)
    settings["part_size"] = part_size
    corpus.write_header(
        {
            "model": model_probe.seen_from(corpus.path, model).to_json(),
            "similarity": model.similarity_fn_name,
            "settings": settings,
        }
    )
    return part_size


def _estimate_part_size(model: SentenceTransformer) -> int:
    """The power of two below the number of texts that take `PART_SECONDS`."""
    text_count = PART_SECONDS * encoding_rate(model)
    bounded_count = min(max(text_count, MIN_PART_SIZE), MAX_PART_SIZE)
    return 1 << int(np.log2(bounded_count))


def longest_input(model: SentenceTransformer) -> int | None:
    """Tokens of the longest text that a model reads whole; None: there is no limit."""
    length = model.max_seq_length
    if isinstance(length, int):
        return length
    return None


def _resume(corpus: Corpus, model_probe: Probe, settings: dict[str, Any]) -> int:
    """Prepare to resume a corpus; a ValueError if model or settings differ.

    Returns:
        The number of records in a part.
    """
    header = corpus.header()
    Probe.from_json(header["model"]).check_same(model_probe, f"the corpus {corpus.path}")
    stored_settings = header["settings"]
    for name, value in settings.items():
        stored_value = stored_settings.get(name)
        if name == "part_size" and value is None:
            continue
        if stored_value != value:
            beginning = "without it" if stored_value is None else f"with {stored_value!r}"
            raise ValueError(
                f"{corpus.path}: {name}={value!r}, but it was begun {beginning}; resume it that way, "
                "give another path, or overwrite=True to start over"
            )
    corpus.remove_damaged_vectors()
    return int(stored_settings["part_size"])


def _read_parts(source: Source, part_size: int, shows_bar: bool | None) -> Iterator[Part]:
    corpus_part = Part(0, 0)
    character_count = 0
    with progress_bar("Reading", "texts", is_shown=shows_bar) as bar:
        for record in source.read():
            if isinstance(record, Document):
                row = Row.from_document(corpus_part.end, record)
                corpus_part.rows.append(row)
                character_count += row.character_count
            else:
                corpus_part.rejects.append(record)
                character_count += len(record.reason)
            corpus_part.end += 1
            bar.update(1)
            is_full = corpus_part.end - corpus_part.start == part_size
            if is_full or character_count >= MAX_PART_CHARACTERS:
                yield corpus_part
                corpus_part = Part(corpus_part.end, corpus_part.end)
                character_count = 0
    if corpus_part.end > corpus_part.start:
        yield corpus_part


def _write_parts(
    corpus: Corpus,
    corpus_parts: Iterator[Part],
    cutter: Cutter,
    source_name: str,
    overwrite: bool,
) -> None:
    """Write the documents of an input, part by part.

    Existing parts with the same records are kept, with their vectors.
    """
    part_count = 0
    for corpus_part in corpus_parts:
        corpus_part.cut_passages(cutter)
        old_digest = _read_digest(corpus, part_count)
        if old_digest != corpus_part.info.digest:
            if old_digest is not None and not overwrite:
                raise ValueError(
                    f"{source_name}: from record {corpus_part.start:,} on it is not what "
                    f"{corpus.path} was made of; {_INPUT_REMEDY}"
                )
            corpus.write_part(part_count, corpus_part)
        part_count += 1
    old_numbers = [int(file.stem) for file in corpus.part_files()]
    later_numbers = range(part_count, 1 + max(old_numbers, default=-1))
    if later_numbers and not overwrite:
        raise ValueError(
            f"{source_name}: it ends before part {part_count} of {corpus.path}; {_INPUT_REMEDY}"
        )
    for part_number in reversed(later_numbers):
        corpus.remove_part(part_number)


def _read_digest(corpus: Corpus, part_number: int) -> str | None:
    try:
        return corpus.part(part_number).info.digest
    except ValueError:  # there is none yet, or it is damaged
        return None


def _encode_pending(
    model: SentenceTransformer,
    corpus: Corpus,
    pending_parts: list[int],
    options: EncodeOptions,
) -> None:
    vector_counts = [part_info.vector_count for part_info in corpus.part_infos()]
    total_count = sum(vector_counts)
    remaining_count = sum(vector_counts[part_number] for part_number in pending_parts)
    # A corpus that was begun must be continued in its number type.
    if options.workers is None and remaining_count == total_count:
        position_count = _estimate_positions(model, corpus, pending_parts[0], total_count)
        hint_at_bfloat16(model, position_count)
    with progress_bar(
        "Encoding",
        "texts",
        total_count,
        is_shown=options.show_progress_bar,
        initial=total_count - remaining_count,
    ) as bar:
        if options.workers is None:
            for part_number in pending_parts:
                encode_part(model, corpus, part_number, bar.update)
        else:
            from .ray import encode_on_ray

            encode_on_ray(model, corpus, pending_parts, bar.update, options.workers)


def _estimate_positions(
    model: SentenceTransformer,
    corpus: Corpus,
    part_number: int,
    text_count: int,
) -> int:
    """Estimate the positions that a corpus's texts take, from the first texts of one part."""
    sample: list[str] = []
    for row in corpus.part(part_number).rows:
        sample += row.passages
        if len(sample) >= SAMPLE_SIZE:
            break
    if not sample:
        return 0
    lengths = measure_lengths(model, sample, "document", is_batched=True)
    sample_positions = sum(lengths.positions)
    return sample_positions * text_count // len(sample)


def warn_of_truncation(
    path: Path,
    truncated_count: int,
    document_count: int,
    max_seq_length: int | None,
) -> None:
    """Warn at the end about documents that are longer than the model reads."""
    if truncated_count:
        problem = describe_truncation(truncated_count, document_count, "documents")
        logger.warning("%s: %s (max_seq_length %s)", path, problem, max_seq_length)


def _finish(corpus: Corpus) -> None:
    """Write the rejects, and totals and digest into the header."""
    header = corpus.header()
    digest = corpus.digest()
    if header.get("digest") == digest:
        return
    rejected_count = 0
    with whole_file(corpus.path / REJECTS_FILE) as stream:
        for reject in corpus.rejects():
            stream.write(f"{json_line(asdict(reject))}\n".encode())
            rejected_count += 1
    part_infos = corpus.part_infos()
    document_count = sum(part_info.document_count for part_info in part_infos)
    truncated_count = sum(len(corpus.truncated(number)) for number in range(len(part_infos)))
    max_seq_length = header["settings"]["max_seq_length"]
    warn_of_truncation(corpus.path, truncated_count, document_count, max_seq_length)
    header["totals"] = {
        "parts": len(part_infos),
        "documents": document_count,
        "vectors": sum(part_info.vector_count for part_info in part_infos),
        "truncated": truncated_count,
        "rejected": rejected_count,
    }
    header["digest"] = digest
    corpus.write_header(header)
