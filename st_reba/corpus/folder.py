"""Folder of an encoded corpus.

    corpus.json                probe of the model and settings; at the end also totals and a digest
                               of all digests in vectors/*.json
    documents/00000.parquet    documents of a part, in the columns of `Row`; and rejected records
    vectors/00000.npy          their vectors [vectors, d], as the model gives them
    vectors/00000.json         the SHA-256 of that file, the digest of the documents that its vectors
                               are of, and the rows of truncated texts
    rejects.jsonl              all rejects, at the end

A part is encoded when all its files are there: each appears whole, by a rename, in this order.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, astuple, dataclass, field, replace
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
import pyarrow  # type: ignore[import-untyped, unused-ignore]
from numpy.typing import NDArray
from pyarrow import parquet

from ..files import parse_path, sha256, sync, whole_file, whole_path, write_npy
from .options import DTYPES
from .passages import Cutter, Spans, cut_text
from .records import (
    CORPUS_FORMAT,
    DOCUMENT_COLUMNS,
    Document,
    DocumentColumns,
    Reject,
    json_line,
    preview,
)

HEADER_FILE = "corpus.json"
REJECTS_FILE = "rejects.jsonl"

# Columns of a part's file, and their types.
_PART_COLUMNS = {
    "record": pyarrow.int64(),
    **dict.fromkeys(DOCUMENT_COLUMNS, pyarrow.string()),
    "content_hash": pyarrow.string(),
    "spans": pyarrow.list_(pyarrow.int32()),
}

Vectors = NDArray[np.float32] | NDArray[np.float16]
JsonObject = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Row(DocumentColumns):
    """A document of a part; its fields are the columns of the part's file."""

    record: int  # the number of its record in the input, from 0
    content_hash: str  # of the document, as it was given
    spans: Spans

    @classmethod
    def from_document(cls, record: int, document: Document) -> Row:
        """The row of a document that is not cut into passages yet."""
        return cls(
            record=record,
            content_hash=document.content_hash,
            spans=(),
            **document.stored_fields(),
        )

    @property
    def character_count(self) -> int:
        """Number of characters that the user gave for it, which limits the size of a part."""
        return sum(len(value or "") for value in self.document_fields().values())

    @property
    def vector_count(self) -> int:
        return len(self.spans) // 2 or 1

    @property
    def passages(self) -> list[str]:
        """The texts that are encoded."""
        return cut_text(self.text, self.spans)

    def document(self) -> Document:
        """The document, its record's number in place of a missing id."""
        document = super().document()
        if document.id is None:
            return replace(document, id=str(self.record))
        return document


@dataclass(frozen=True)
class PartInfo:
    """Facts about a part that can be read without its documents."""

    start: int  # number of its first record
    end: int  # number of the record after its last
    document_count: int
    vector_count: int
    digest: str
    rejects: list[Reject]

    @classmethod
    def from_json(cls, text: bytes) -> Self:
        values = json.loads(text)
        rejects = [Reject(**reject) for reject in values.pop("rejects")]
        return cls(rejects=rejects, **values)


@dataclass
class Part:
    """A part: the documents and the rejects of the records from start to end (excluded)."""

    start: int
    end: int
    rows: list[Row] = field(default_factory=list)
    rejects: list[Reject] = field(default_factory=list)

    @property
    def vector_counts(self) -> list[int]:
        """Vectors of each document."""
        return [row.vector_count for row in self.rows]

    @property
    def passages(self) -> list[str]:
        """The texts that are encoded, of all documents."""
        passages: list[str] = []
        for row in self.rows:
            passages += row.passages
        return passages

    def cut_passages(self, cutter: Cutter) -> None:
        """Cut all texts into passages."""
        all_spans = cutter([row.text for row in self.rows])
        for row_number, spans in enumerate(all_spans):
            self.rows[row_number] = replace(self.rows[row_number], spans=spans)

    @cached_property
    def info(self) -> PartInfo:
        """What is known of the part, once its records are complete."""
        rejects = [astuple(reject) for reject in self.rejects]
        cells_by_row = [row.cells(_PART_COLUMNS) for row in self.rows]
        content = json_line([self.start, self.end, cells_by_row, rejects])
        return PartInfo(
            start=self.start,
            end=self.end,
            document_count=len(self.rows),
            vector_count=sum(self.vector_counts),
            digest=hashlib.sha256(content.encode()).hexdigest(),
            rejects=self.rejects,
        )


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
        >>> texts = ["Cats sleep.", "Ships sail."]
        >>> corpus = encode_corpus(st_reba.build("mini"), texts, "my_corpus")
        >>> for part in range(corpus.part_count()):
        ...     for row, vectors in corpus.read(part):
        ...         print(row.text, vectors.shape)
        Cats sleep. (1, 192)
        Ships sail. (1, 192)
    """

    def __init__(self, path: str | PathLike[str]) -> None:
        self.path = parse_path(path, "path")
        self._part_infos: dict[int, PartInfo] = {}
        self._intact_parts: set[int] = set()  # whose vectors were compared with their digest

    def header(self) -> JsonObject:
        """The content of corpus.json."""
        path = self.path / HEADER_FILE
        try:
            header: JsonObject = json.loads(path.read_bytes())
            # A KeyError if something is missing.
            _ = header["model"]["vectors"]
            _ = header["settings"]["part_size"]
            corpus_format = header.get("format")
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise ValueError(
                f"{path}: not the header of a corpus, or damaged ({error}); encode the corpus again"
            ) from None
        if corpus_format != CORPUS_FORMAT:
            raise ValueError(
                f"{path}: written by another version (format {corpus_format}, not {CORPUS_FORMAT}); "
                "encode the corpus again, with overwrite=True"
            )
        return header

    def write_header(self, header: JsonObject) -> None:
        content = json.dumps({"format": CORPUS_FORMAT, **header}, ensure_ascii=False, indent=2)
        with whole_file(self.path / HEADER_FILE) as stream:
            stream.write(f"{content}\n".encode())

    def reopen(self) -> None:
        """Remove totals and digest from a complete corpus's header, before a part changes."""
        header = self.header()
        if "totals" in header:
            del header["totals"], header["digest"]
            self.write_header(header)

    def documents_path(self, part_number: int) -> Path:
        return self.path / "documents" / f"{part_number:05d}.parquet"

    def vectors_path(self, part_number: int) -> Path:
        return self.path / "vectors" / f"{part_number:05d}.npy"

    def summary_path(self, part_number: int) -> Path:
        return self.vectors_path(part_number).with_suffix(".json")

    def part_count(self) -> int:
        """Number of parts that have documents."""
        part_count = 0
        while self.documents_path(part_count).is_file():
            part_count += 1
        return part_count

    def part_infos(self) -> list[PartInfo]:
        return [self.part_info(part_number) for part_number in range(self.part_count())]

    def parts_to_encode(self) -> list[int]:
        """The parts without vectors."""
        return [
            part_number
            for part_number in range(self.part_count())
            if not self.is_encoded(part_number)
        ]

    def is_encoded(self, part_number: int) -> bool:
        """True if the vectors of a part are there."""
        return self.vectors_path(part_number).is_file() and self.summary_path(part_number).is_file()

    def progress(self) -> Progress:
        """How much of the corpus is encoded."""
        encoded_count = 0
        document_count = 0
        for part_number, part_info in enumerate(self.part_infos()):
            document_count += part_info.document_count
            if self.is_encoded(part_number):
                encoded_count += part_info.document_count
        return Progress(encoded_count, document_count)

    def part_info(self, part_number: int) -> PartInfo:
        """What is known of a part, read from its file once."""
        path = self.documents_path(part_number)
        if part_number not in self._part_infos:
            try:
                content = parquet.read_schema(path).metadata[b"st_reba"]
                self._part_infos[part_number] = PartInfo.from_json(content)
            except (OSError, ValueError, KeyError, TypeError) as error:
                raise ValueError(
                    f"{path}: not the documents of a part, or damaged ({error}); encode again"
                ) from None
        return self._part_infos[part_number]

    def part(self, part_number: int) -> Part:
        """The documents of a part, compared with their digest."""
        part_info = self.part_info(part_number)
        path = self.documents_path(part_number)
        try:
            with parquet.ParquetFile(path, pre_buffer=False) as file:
                table = file.read(list(_PART_COLUMNS), use_threads=False)
            rows = [Row(**cells) for cells in table.to_pylist()]
            corpus_part = Part(part_info.start, part_info.end, rows, part_info.rejects)
            if corpus_part.info != part_info:
                raise ValueError("its records are not what was written")
            return corpus_part
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{path}: damaged ({error}); encode again") from None

    def write_part(self, part_number: int, corpus_part: Part) -> None:
        """Write the documents of a part; this replaces the old ones and removes their vectors."""
        info = corpus_part.info
        schema = pyarrow.schema(_PART_COLUMNS, {"st_reba": json.dumps(asdict(info))})
        rows = [vars(row) for row in corpus_part.rows]
        self.remove_vectors(part_number)
        sync(self.path / "vectors")  # a power cut must not leave them beside new documents
        with whole_path(self.documents_path(part_number)) as temporary:
            table = pyarrow.Table.from_pylist(rows, schema)
            parquet.write_table(table, temporary, compression="zstd")
        self._part_infos[part_number] = info

    def remove_part(self, part_number: int) -> None:
        """Remove the documents and the vectors of a part."""
        self.remove_vectors(part_number)
        self._part_infos.pop(part_number, None)
        self.documents_path(part_number).unlink(missing_ok=True)

    def vectors(self, part_number: int) -> Vectors:
        """A part's vectors [vectors, d], mapped from its file, whose digest is compared."""
        path = self.vectors_path(part_number)
        try:
            self._compare_digest(part_number)
            vectors: Vectors = np.load(path, mmap_mode="r")
            if vectors.ndim != 2 or vectors.dtype.name not in DTYPES:
                raise ValueError(f"{vectors.dtype} {vectors.shape}")
            return vectors
        except (FileNotFoundError, ValueError, EOFError) as error:
            raise ValueError(f"{path}: missing or damaged ({error}); encode again") from None

    def _compare_digest(self, part_number: int) -> None:
        if part_number in self._intact_parts:
            return
        summary = self._summary(part_number)
        if sha256(self.vectors_path(part_number)) != summary["sha256"]:
            raise ValueError("its SHA-256 is not that of the file that was written")
        if summary["documents"] != self.part_info(part_number).digest:
            raise ValueError("its vectors are of other documents")
        self._intact_parts.add(part_number)

    def _summary(self, part_number: int) -> JsonObject:
        path = self.summary_path(part_number)
        try:
            summary: JsonObject = json.loads(path.read_bytes())
            # A KeyError if something is missing.
            _ = summary["sha256"]
            _ = summary["documents"]
            if not all(type(row) is int for row in summary["truncated"]):
                raise ValueError("its rows are not numbers")
            return summary
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            raise ValueError(f"{path}: missing or damaged ({error}); encode again") from None

    def truncated(self, part_number: int) -> list[int]:
        """Rows of a part whose texts are longer than the model reads."""
        return list(self._summary(part_number)["truncated"])

    def write_vectors(
        self,
        part_number: int,
        vectors: NDArray[np.float32],
        dtype: str,
        truncated: Sequence[int] = (),
    ) -> None:
        """Write the vectors of a part, and the rows of its truncated texts."""
        path = self.vectors_path(part_number)
        self._intact_parts.discard(part_number)
        with np.errstate(over="ignore", under="ignore"):
            stored_vectors = vectors.astype(dtype)
        write_npy(path, stored_vectors)
        summary = {
            "sha256": sha256(path),
            "documents": self.part_info(part_number).digest,
            "truncated": list(truncated),
        }
        with whole_file(self.summary_path(part_number)) as stream:
            stream.write(f"{json_line(summary)}\n".encode())

    def remove_vectors(self, part_number: int) -> None:
        """Remove the vectors of a part, so that it and the corpus count as not encoded."""
        self.reopen()
        self._intact_parts.discard(part_number)
        self.summary_path(part_number).unlink(missing_ok=True)
        self.vectors_path(part_number).unlink(missing_ok=True)

    def remove_damaged_vectors(self) -> None:
        """Remove vectors that are not what was written, so that they are encoded again."""
        for part_number in range(self.part_count()):
            if not self.is_encoded(part_number):
                continue
            try:
                self.vectors(part_number)
            except ValueError:
                self.remove_vectors(part_number)

    def read(self, part_number: int) -> Iterator[tuple[Row, Vectors]]:
        """Each document of a part with its vectors [passages, d]."""
        vectors = self.vectors(part_number)
        start = 0
        for row in self.part(part_number).rows:
            end = start + row.vector_count
            yield row, vectors[start:end]
            start = end

    def rejects(self) -> Iterator[Reject]:
        """All rejects, part by part: records that are not documents, then unusable vectors."""
        for part_number, part_info in enumerate(self.part_infos()):
            yield from part_info.rejects
            if self.is_encoded(part_number):
                yield from self.unusable(part_number).values()

    def unusable(self, part_number: int) -> dict[int, Reject]:
        """Rejects, by row, for documents of a part whose vector is NaN, infinite or zero."""
        vectors = self.vectors(part_number)
        rejects: dict[int, Reject] = {}
        if _vector_fault(vectors) is None:
            return rejects
        for row_number, (row, row_vectors) in enumerate(self.read(part_number)):
            fault = _vector_fault(row_vectors)
            if fault is not None:
                reason = f"no vector: it is {fault}; leave the text out, or use another dtype"
                document = row.document()
                record_place = f"record {row.record}"
                rejects[row_number] = Reject(record_place, reason, document.id, preview(row.text))
        return rejects

    def digest(self) -> str:
        """Digest of the summaries of all parts, which hold those of their documents and vectors."""
        summaries = [self._summary(part_number) for part_number in range(self.part_count())]
        return hashlib.sha256(json_line(summaries).encode()).hexdigest()

    def part_files(self) -> list[Path]:
        paths = [*self.path.glob("documents/*"), *self.path.glob("vectors/*")]
        return sorted(path for path in paths if path.stem.isdecimal())

    def check_complete(self) -> None:
        """Compare the digests of all parts with the digest in the header.

        The parts themselves are compared with their digests when they are read, or by `verify`.

        Raises:
            ValueError: The corpus is not complete, or has other parts.
        """
        header = self.header()
        if "totals" not in header:
            raise ValueError(f"{self.path}: not encoded to its end; encode it again to finish")
        if self.digest() != header["digest"]:
            raise ValueError(
                f"{self.path}: a part is missing, or not what was written; remove it and encode again"
            )

    def verify(self) -> None:
        """Compare every part with its digests, and these with the digest in the header.

        Raises:
            ValueError: The corpus is not complete, or a file of a part was altered.
        """
        self.check_complete()
        self._intact_parts.clear()
        for part_number in range(self.part_count()):
            self.part(part_number)
            self.vectors(part_number)


def _vector_fault(vectors: Vectors) -> str | None:
    """What is wrong with any of the vectors [n, d]; None: nothing."""
    if not np.isfinite(vectors).all():
        return f"NaN or infinite in {vectors.dtype}"
    if not vectors.any(axis=1).all():
        return "zero"
    return None


def read_progress(folder: str | PathLike[str]) -> Progress | None:
    """How much of a corpus a stopped run has encoded; None if there is nothing to resume."""
    if not is_corpus(folder):
        return None
    try:
        progress = Corpus(folder).progress()
    except ValueError:  # damaged: it is encoded anew
        return None
    if progress.encoded == 0:
        return None
    return progress


def is_corpus(folder: str | PathLike[str]) -> bool:
    """True if a folder was written by ``encode_corpus``."""
    path = Path(folder)
    return (path / HEADER_FILE).is_file() and (path / "documents").is_dir()
