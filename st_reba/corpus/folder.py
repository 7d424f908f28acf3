"""Folder of an encoded corpus.

    corpus.json                probe of the model and settings; at the end also totals and the SHA-256 of every file
    documents/00000.parquet    documents of a part: record, id, text, metadata (JSON), spans; and what was set aside
    vectors/00000.npy          their vectors [vectors, d], as the model gives them
    vectors/00000.json         the SHA-256 of that file, and the rows whose texts are longer than the model reads
    rejects.jsonl              all that was set aside, at the end

A part is encoded when all its files are there: each appears whole, by a rename, in this order.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, astuple, dataclass, field
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow  # type: ignore[import-untyped, unused-ignore]
from numpy.typing import NDArray
from pyarrow import parquet

from ..files import parse_path, sync, whole_file, whole_path, write_npy
from .records import Document, Reject, to_json

HEADER_FILE = "corpus.json"
REJECTS_FILE = "rejects.jsonl"
DTYPES = ("float32", "float16")

_TYPES = (pyarrow.int64(), pyarrow.string(), pyarrow.string(), pyarrow.string(), pyarrow.list_(pyarrow.int32()))


class Row(NamedTuple):
    """A document of a part."""

    record: int  # the number of its record in the input, from 0
    id: str | None  # None: it has none of its own
    text: str
    metadata: str = "{}"  # as JSON
    spans: tuple[int, ...] = ()  # bounds of its passages in characters: start, stop, start, stop, …; empty: not cut

    @property
    def vectors(self) -> int:
        return len(self.spans) // 2 or 1

    @property
    def passages(self) -> list[str]:
        """The texts that are encoded."""
        bounds = self.spans or (0, len(self.text))
        return [self.text[start:stop] for start, stop in zip(bounds[::2], bounds[1::2], strict=True)]

    def document(self) -> Document:
        """The document, its record's number in place of a missing id."""
        return Document(self.text, str(self.record) if self.id is None else self.id, json.loads(self.metadata))


@dataclass
class Part:
    """Documents of a part, of the records from start to stop (excluded), and those that were set aside."""

    start: int
    stop: int
    rejects: list[Reject] = field(default_factory=list)
    # By column: Python's garbage collector walks over every tuple of strings that is kept, again and again.
    columns: list[list[Any]] = field(default_factory=lambda: [[] for _ in Row._fields])

    def add(self, row: Row) -> None:
        for column, value in zip(self.columns, row, strict=True):
            column.append(value)

    @property
    def rows(self) -> Iterator[Row]:
        return map(Row, *self.columns)

    @property
    def counts(self) -> list[int]:
        """Vectors of each document."""
        return [row.vectors for row in self.rows]

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the records, once they are complete."""
        content = [self.start, self.stop, self.columns, [astuple(one) for one in self.rejects]]
        return hashlib.sha256(to_json(content).encode()).hexdigest()


class Progress(NamedTuple):
    """How far a corpus is encoded."""

    encoded: int  # documents whose vectors are there
    documents: int

    def __str__(self) -> str:
        return f"{self.encoded:,} of {self.documents:,} documents are encoded"


class Corpus:
    """An encoded corpus, or one that is being encoded; read and written a part at a time.

    Args:
        path: The folder.

    Example:
        >>> import st_reba
        >>> from st_reba.corpus import encode_corpus
        >>> corpus = encode_corpus(st_reba.build("mini"), ["Cats sleep.", "Ships sail."], "my_corpus")
        >>> [(row.text, vectors.shape) for part in range(corpus.parts()) for row, vectors in corpus.read(part)]
        [('Cats sleep.', (1, 192)), ('Ships sail.', (1, 192))]
    """

    def __init__(self, path: str | PathLike[str]) -> None:
        self.path = parse_path(path, "path")
        self._intact: set[int] = set()  # parts whose vectors were compared with their digest

    def header(self) -> dict[str, Any]:
        """The content of corpus.json."""
        path = self.path / HEADER_FILE
        try:
            value: dict[str, Any] = json.loads(path.read_bytes())
            value["model"]["vectors"], value["settings"]["part_size"]
            return value
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise ValueError(f"{path}: no header of a corpus, or damaged ({error}); encode the corpus again") from None

    def write_header(self, value: dict[str, Any]) -> None:
        with whole_file(self.path / HEADER_FILE) as stream:
            stream.write((json.dumps(value, ensure_ascii=False, indent=2) + "\n").encode())

    def reopen(self) -> None:
        """Take totals and digests out of the header of a complete corpus, before a part of it changes."""
        header = self.header()
        if "totals" in header:
            self.write_header({name: header[name] for name in header if name not in ("totals", "files")})

    def documents_path(self, number: int) -> Path:
        return self.path / "documents" / f"{number:05d}.parquet"

    def vectors_path(self, number: int) -> Path:
        return self.path / "vectors" / f"{number:05d}.npy"

    def summary_path(self, number: int) -> Path:
        return self.vectors_path(number).with_suffix(".json")

    def parts(self) -> int:
        """Number of parts that have documents."""
        number = 0
        while self.documents_path(number).is_file():
            number += 1
        return number

    def pending(self) -> list[int]:
        """The parts without vectors."""
        return [number for number in range(self.parts()) if not self.is_encoded(number)]

    def is_encoded(self, number: int) -> bool:
        """True if the vectors of a part are there."""
        return self.vectors_path(number).is_file() and self.summary_path(number).is_file()

    def progress(self) -> Progress:
        """How much of the corpus is encoded."""
        documents = [(number, self.about(number)["documents"]) for number in range(self.parts())]
        encoded = sum(count for number, count in documents if self.is_encoded(number))
        return Progress(encoded, sum(count for _, count in documents))

    def about(self, number: int) -> dict[str, Any]:
        """What is known of a part without reading it: start, stop, documents, vectors, digest and rejects."""
        path = self.documents_path(number)
        try:
            return dict(json.loads(parquet.read_schema(path).metadata[b"st_reba"]))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{path}: not the documents of a part, or damaged ({error}); encode again") from None

    def part(self, number: int) -> Part:
        """The documents of a part, compared with their digest."""
        about = self.about(number)
        path = self.documents_path(number)
        try:
            with parquet.ParquetFile(path, pre_buffer=False) as file:
                *columns, spans = file.read(list(Row._fields), use_threads=False).to_pydict().values()
            rejects = [Reject(**reject) for reject in about["rejects"]]
            part = Part(about["start"], about["stop"], rejects, [*columns, [*map(tuple, spans)]])
            is_intact = part.digest == about["digest"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{path}: damaged ({error}); encode again") from None
        if not is_intact:
            raise ValueError(f"{path}: damaged: its records are not what was written; encode again")
        return part

    def write_part(self, number: int, part: Part) -> None:
        """Write the documents of a part; vectors of another that were there are removed."""
        about: dict[str, Any] = {"start": part.start, "stop": part.stop, "digest": part.digest}
        about |= {"documents": len(part.counts), "vectors": sum(part.counts)}
        about["rejects"] = [asdict(reject) for reject in part.rejects]
        schema = pyarrow.schema(zip(Row._fields, _TYPES, strict=True), {"st_reba": json.dumps(about)})
        self.remove_vectors(number)
        sync(self.path / "vectors")  # no loss of power may leave them beside the new documents
        with whole_path(self.documents_path(number)) as temporary:
            parquet.write_table(pyarrow.table(part.columns, schema), temporary, compression="zstd")

    def vectors(self, number: int) -> NDArray[Any]:
        """The vectors of a part [vectors, d], mapped from the file, which is compared with its digest."""
        path = self.vectors_path(number)
        try:
            self._compare_digest(number)
            array: NDArray[Any] = np.load(path, mmap_mode="r")
            if array.ndim != 2 or array.dtype.name not in DTYPES:
                raise ValueError(f"{array.dtype} {array.shape}")
            return array
        except (ValueError, EOFError) as error:
            raise ValueError(f"{path}: not vectors, or damaged ({error}); remove it and encode again") from None

    def _compare_digest(self, number: int) -> None:
        if number in self._intact:
            return
        if sha256(self.vectors_path(number)) != self._summary(number)["sha256"]:
            raise ValueError("its SHA-256 is not that of what was written")
        self._intact.add(number)

    def _summary(self, number: int) -> dict[str, Any]:
        path = self.summary_path(number)
        try:
            summary: dict[str, Any] = json.loads(path.read_bytes())
            summary["sha256"], summary["truncated"]
            return summary
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{path}: missing or damaged ({error})") from None

    def truncated(self, number: int) -> list[int]:
        """Rows of a part whose texts are longer than the model reads, so that their ends are in no vector."""
        return list(self._summary(number)["truncated"])

    def write_vectors(
        self, number: int, vectors: NDArray[np.float32], dtype: str, truncated: Sequence[int] = ()
    ) -> None:
        """Write the vectors of a part; ``truncated`` are the rows whose texts are longer than the model reads."""
        self._intact.discard(number)
        with np.errstate(over="ignore", under="ignore"):
            write_npy(self.vectors_path(number), vectors.astype(dtype))
        summary = {"sha256": sha256(self.vectors_path(number)), "truncated": list(truncated)}
        with whole_file(self.summary_path(number)) as stream:
            stream.write(f"{to_json(summary)}\n".encode())

    def remove_vectors(self, number: int) -> None:
        """Remove the vectors of a part, so that it counts as not encoded."""
        self._intact.discard(number)
        self.summary_path(number).unlink(missing_ok=True)
        self.vectors_path(number).unlink(missing_ok=True)

    def remove_damaged_vectors(self) -> None:
        """Remove the vectors of parts that are not what was written, so that they are encoded again."""
        for number in range(self.parts()):
            if not self.is_encoded(number):
                continue
            try:
                self.vectors(number)
            except ValueError:
                self.reopen()
                self.remove_vectors(number)

    def read(self, number: int) -> Iterator[tuple[Row, NDArray[Any]]]:
        """Each document of a part with its vectors [passages, d]."""
        vectors, start = self.vectors(number), 0
        for row in self.part(number).rows:
            yield row, vectors[start : start + row.vectors]
            start += row.vectors

    def rejects(self) -> Iterator[Reject]:
        """All that was set aside, part by part: records that are no documents, then vectors that cannot be used."""
        for number in range(self.parts()):
            yield from (Reject(**reject) for reject in self.about(number)["rejects"])
            if self.is_encoded(number):
                yield from self.unusable(number).values()

    def unusable(self, number: int) -> dict[int, Reject]:
        """Documents of a part with a vector that is NaN, infinite or zero: by row, the reject."""
        vectors, found = self.vectors(number), dict[int, Reject]()
        usable = np.isfinite(vectors).all() and vectors.any(axis=1).all()
        for place, (row, mine) in enumerate(() if usable else self.read(number)):
            finite = np.isfinite(mine).all()
            if not finite or not mine.any(axis=1).all():
                what = "zero" if finite else f"NaN or infinite in {mine.dtype}"
                reason = f"no vector: it is {what}; leave the text out, or use another dtype"
                found[place] = Reject(f"record {row.record}", reason, row.document().id, row.text[:80])
        return found

    def files(self) -> dict[str, str]:
        """SHA-256 of every file but the header, by its name within the folder."""
        paths = [*self.part_files(), self.path / REJECTS_FILE]
        return {path.relative_to(self.path).as_posix(): sha256(path) for path in paths if path.is_file()}

    def part_files(self) -> list[Path]:
        found = [file for folder in ("documents", "vectors") for file in (self.path / folder).glob("*")]
        return sorted(file for file in found if file.stem.isdecimal())

    def verify(self) -> None:
        """Compare every file with the digest in the header; a ValueError: not complete, or a file was altered."""
        wanted, found = self.header().get("files"), self.files()
        if wanted is None:
            raise ValueError(f"{self.path}: not encoded to its end; encode it again to go on")
        for name in {**wanted, **found}:
            if wanted.get(name) != found.get(name):
                raise ValueError(f"{self.path / name}: missing, or not what was written; encode the corpus again")


def read_progress(folder: str | PathLike[str]) -> Progress | None:
    """How much of a corpus an encoding that was stopped has done; None if there is nothing to go on with."""
    if not is_corpus(folder):
        return None
    try:
        progress = Corpus(folder).progress()
    except ValueError:  # damaged: it is encoded anew
        return None
    return progress if progress.encoded else None


def is_corpus(folder: str | PathLike[str]) -> bool:
    """True if a folder was written by ``encode_corpus``."""
    return (Path(folder) / HEADER_FILE).is_file() and (Path(folder) / "documents").is_dir()


def sha256(path: Path) -> str:
    """Of a file's content, in hexadecimal digits."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
