"""Folder of an encoded corpus.

    corpus.json                probe of the model and settings; at the end also totals and the SHA-256 of every file
    documents/00000.parquet    documents of a part: record, id, text, metadata (JSON), spans; and what was set aside
    vectors/00000.npy          their vectors [vectors, d], as the model gives them
    rejects.jsonl              all that was set aside, at the end

A part is encoded when both its files are there: each appears whole, by a rename.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow  # type: ignore[import-untyped, unused-ignore]
from numpy.typing import NDArray

from ..files import whole_file, whole_path
from .records import Document, Reject, to_json

HEADER_FILE = "corpus.json"
REJECTS_FILE = "rejects.jsonl"
DTYPES = ("float32", "float16")

_NOT_FINITE = "no vector: it is NaN or infinite; load the model in another dtype, or leave the text out"
_ZERO = "no vector: it is zero, so nothing is nearer to it than anything else; leave the text out"
_BEYOND = "no vector: it has values that float16 cannot hold; store float32"
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
        """Number of vectors."""
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
    rows: list[Row] = field(default_factory=list)
    rejects: list[Reject] = field(default_factory=list)

    @property
    def vectors(self) -> int:
        """Number of vectors."""
        return sum(row.vectors for row in self.rows)

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the records, once they are complete."""
        rejects = [[one.place, one.reason, one.id] for one in self.rejects]
        return hashlib.sha256(to_json([self.start, self.stop, self.rows, rejects]).encode()).hexdigest()


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
        self.path = Path(path)

    def header(self) -> dict[str, Any]:
        """The content of corpus.json."""
        path = self.path / HEADER_FILE
        try:
            value = json.loads(path.read_bytes())
        except (FileNotFoundError, NotADirectoryError):
            raise FileNotFoundError(f"{path}: no such file, so {self.path} is not an encoded corpus") from None
        except (ValueError, RecursionError, IsADirectoryError) as error:
            raise ValueError(f"{path}: not JSON ({error}); encode the corpus again") from None
        if not isinstance(value, dict) or not {"model", "settings"} <= set(value):
            raise ValueError(f"{path}: no header of a corpus; encode the corpus again")
        return value

    def write_header(self, value: dict[str, Any]) -> None:
        """Write or replace corpus.json."""
        with whole_file(self.path / HEADER_FILE) as stream:
            stream.write((json.dumps(value, ensure_ascii=False, indent=2) + "\n").encode())

    def documents_path(self, number: int) -> Path:
        """File of a part's documents."""
        return self.path / "documents" / f"{number:05d}.parquet"

    def vectors_path(self, number: int) -> Path:
        """File of a part's vectors."""
        return self.path / "vectors" / f"{number:05d}.npy"

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
        """True if a part has its vectors."""
        try:
            return bool(self.vectors(number).shape[0] == self.counts(number)[1])
        except (OSError, ValueError):
            return False

    def counts(self, number: int) -> tuple[int, int]:
        """Numbers of documents and of vectors of a part; its texts are not read."""
        with self._opened(number) as (_, about):
            return int(about["documents"]), int(about["vectors"])

    def digest(self, number: int) -> str | None:
        """`Part.digest` of a part that was written; None: there is none, or it is damaged."""
        try:
            with self._opened(number) as (_, about):
                return str(about["digest"])
        except (FileNotFoundError, ValueError):
            return None

    def part(self, number: int) -> Part:
        """The documents of a part."""
        with self._opened(number) as (file, about):
            columns = file.read(use_threads=False).to_pydict()
            columns["spans"] = [tuple(spans or ()) for spans in columns["spans"]]
            rows = [Row(*values) for values in zip(*columns.values(), strict=True)]
            return Part(about["start"], about["stop"], rows, [Reject(**reject) for reject in about["rejects"]])

    def write_part(self, number: int, part: Part) -> None:
        """Write the documents of a part; vectors of another that were there are removed."""
        from pyarrow import parquet  # type: ignore[import-untyped, unused-ignore]

        about: dict[str, Any] = {
            "start": part.start,
            "stop": part.stop,
            "documents": len(part.rows),
            "vectors": part.vectors,
        }
        about |= {"digest": part.digest, "rejects": [asdict(reject) for reject in part.rejects]}
        columns = list(zip(*(row[:4] + (row.spans or None,) for row in part.rows), strict=True)) or [()] * 5
        arrays = [pyarrow.array(column, kind) for column, kind in zip(columns, _TYPES, strict=True)]
        schema = pyarrow.schema(list(zip(Row._fields, _TYPES, strict=True)), {"st_reba": json.dumps(about)})
        self.vectors_path(number).unlink(missing_ok=True)
        with whole_path(self.documents_path(number)) as temporary:
            parquet.write_table(pyarrow.Table.from_arrays(arrays, schema=schema), temporary, compression="zstd")

    @contextmanager
    def _opened(self, number: int) -> Iterator[tuple[Any, dict[str, Any]]]:
        from pyarrow import parquet  # type: ignore[import-untyped, unused-ignore]

        path = self.documents_path(number)
        try:
            with parquet.ParquetFile(path, pre_buffer=False) as file:
                yield file, dict(json.loads(file.schema_arrow.metadata[b"st_reba"]))
        except FileNotFoundError:
            raise FileNotFoundError(f"{path}: no such file; encode the corpus again") from None
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{path}: not the documents of a part, or damaged ({error}); encode again") from None

    def vectors(self, number: int) -> NDArray[Any]:
        """The vectors of a part [vectors, d], mapped from the file."""
        path = self.vectors_path(number)
        try:
            array: NDArray[Any] = np.load(path, mmap_mode="r")
        except (ValueError, EOFError) as error:
            raise ValueError(f"{path}: not a NumPy array, or damaged ({error}); remove it and encode again") from None
        if array.ndim != 2 or array.dtype.name not in DTYPES:
            raise ValueError(f"{path}: {array.dtype} {array.shape}, not vectors; remove it and encode again")
        return array

    def write_vectors(self, number: int, vectors: NDArray[np.float32], dtype: str) -> None:
        """Write the vectors of a part."""
        with np.errstate(over="ignore", under="ignore"):
            rows = vectors.astype(dtype)
        with whole_file(self.vectors_path(number)) as stream:
            # np.save would not tell of a full disk.
            header = {"descr": np.lib.format.dtype_to_descr(rows.dtype), "fortran_order": False, "shape": rows.shape}
            np.lib.format.write_array_header_1_0(stream, header)
            stream.write(np.ascontiguousarray(rows).data)

    def read(self, number: int) -> Iterator[tuple[Row, NDArray[Any]]]:
        """Each document of a part with its vectors [passages, d]."""
        vectors, start = self.vectors(number), 0
        for row in self.part(number).rows:
            yield row, vectors[start : start + row.vectors]
            start += row.vectors

    def rejects(self) -> Iterator[Reject]:
        """All that was set aside, part by part: records that are no documents, then vectors that cannot be used."""
        for number in range(self.parts()):
            part = self.part(number)
            yield from part.rejects
            if self.vectors_path(number).is_file():
                yield from unusable(part, self.vectors(number)).values()

    def files(self) -> dict[str, str]:
        """SHA-256 of every file but the header, by its name within the folder."""
        paths = [*self.part_files(), self.path / REJECTS_FILE]
        return {path.relative_to(self.path).as_posix(): sha256(path) for path in paths if path.is_file()}

    def part_files(self) -> list[Path]:
        """Files of all parts."""
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


def is_corpus(folder: str | PathLike[str]) -> bool:
    """True if a folder was written by ``encode_corpus``."""
    return (Path(folder) / HEADER_FILE).is_file() and (Path(folder) / "documents").is_dir()


def unusable(part: Part, vectors: NDArray[Any]) -> dict[int, Reject]:
    """Documents of a part with a vector that is NaN, infinite or zero: by row, the reject."""
    finite: NDArray[np.bool_] = np.isfinite(vectors).all(axis=1)
    bad = np.flatnonzero(~finite | ~vectors.any(axis=1))
    starts = np.cumsum([0, *(row.vectors for row in part.rows)]) if len(bad) else bad
    found: dict[int, Reject] = {}
    for vector in bad.tolist():
        row = int(np.searchsorted(starts, vector, side="right")) - 1
        beyond = vectors.dtype == np.float16 and not np.isnan(vectors[vector]).any()
        reason = _ZERO if finite[vector] else _BEYOND if beyond else _NOT_FINITE
        one = part.rows[row]
        identity = str(one.record) if one.id is None else one.id
        found.setdefault(row, Reject(f"record {one.record}", reason, identity, one.text[:80]))
    return found


def sha256(path: Path) -> str:
    """Of a file's content, in hexadecimal digits."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
