"""The folder of an encoded corpus: its header, its shards, and what says that a step is done.

    corpus.json            what is encoded, with which model and settings; rewritten at the end with totals and digests
    shards/00000.sqlite    documents of a shard (ids, texts, metadata)
    shards/00000.json      … finished: numbers of the input's records, counts, digests
    shards/00000.npy       their vectors [documents, d], as the model gives them; NaN where one cannot be used
    shards/00000.vectors.json  … finished: digest, positions run, documents set aside
    shards/00000.rejects.jsonl records of that part of the input that are no documents
    gathered.json          the input is read to its end
    rejects.jsonl          all that was set aside, at the end

A file counts only if the JSON that names it is there, and that is written last. Nothing is ever changed in place, so
any process may write any shard, on any machine that shares the folder.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..files import StoredFile, whole_file
from .arrays import npy_writer
from .documents import Reject
from .store import DocumentStore

HEADER_FILE = "corpus.json"
GATHERED_FILE = "gathered.json"
REJECTS_FILE = "rejects.jsonl"
FORMAT_VERSION = 1


@dataclass(frozen=True)
class ShardDocuments:
    """A shard whose documents are written.

    Args:
        start: Number of its first record in the input.
        stop: Number of the record after its last; documents and rejects together are stop − start.
        count: Documents.
        rejected: Records set aside.
        digest: SHA-256 over all records of the input up to ``stop``: whether a repeated input is the same.
        documents: The SQLite file.
        rejects: The file of rejects, if there is one.
    """

    start: int
    stop: int
    count: int
    rejected: int
    digest: str
    documents: StoredFile
    rejects: StoredFile | None = None


@dataclass(frozen=True)
class ShardVectors:
    """A shard whose vectors are written.

    Args:
        vectors: The ``.npy`` file.
        positions: Positions that the model ran, all copies, without padding; None: not counted.
        seconds: What each stage took: ``read``, ``tokenize``, ``encode``, ``write``.
        unusable: Rows whose vector is NaN, infinite or zero, and why. The array holds NaN there.
    """

    vectors: StoredFile
    positions: int | None
    seconds: dict[str, float] = field(default_factory=dict)
    unusable: dict[int, str] = field(default_factory=dict)


class Corpus:
    """An encoded corpus, or one that is being encoded. Reading and writing one shard at a time.

    Args:
        path: The folder.

    Example:
        >>> import st_reba
        >>> from st_reba.corpus import encode_corpus
        >>> corpus = encode_corpus(st_reba.build("mini"), ["Cats sleep.", "Ships sail."], "my_corpus")
        >>> [(count, vectors.shape) for count, vectors in ((len(store), v) for store, v in corpus.shards())]
        [(2, (2, 192))]
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    # The header

    def header(self) -> dict[str, Any]:
        """What `write_header` wrote.

        Raises:
            FileNotFoundError: The folder is no corpus.
            ValueError: It is damaged, or of a later version.
        """
        path = self.path / HEADER_FILE
        try:
            value = json.loads(path.read_bytes())
        except (FileNotFoundError, NotADirectoryError):
            raise FileNotFoundError(
                f"{path}: no such file, so {self.path} is not an encoded corpus; st-reba encode-corpus writes one"
            ) from None
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{path}: not JSON ({error}); encode the corpus again") from None
        version = value.get("format_version") if isinstance(value, dict) else None
        if not isinstance(version, int) or version < 1:
            raise ValueError(f"{path}: no format_version; encode the corpus again")
        if version > FORMAT_VERSION:
            raise ValueError(
                f"{path}: format_version is {version}, this version reads up to {FORMAT_VERSION}; install a later "
                "st_reba"
            )
        return dict(value)

    def write_header(self, value: Mapping[str, Any]) -> None:
        """Write or replace the header; its format version is added."""
        self._write_json(HEADER_FILE, {"format_version": FORMAT_VERSION, **value})

    # Shards: documents

    def documents_path(self, number: int) -> Path:
        """Where a shard's documents are."""
        return self.path / "shards" / f"{number:05d}.sqlite"

    def vectors_path(self, number: int) -> Path:
        """Where a shard's vectors are."""
        return self.path / "shards" / f"{number:05d}.npy"

    def documents(self, number: int) -> ShardDocuments | None:
        """The record of a shard's documents, if they are finished."""
        value = self._read_json(f"shards/{number:05d}.json")
        if value is None:
            return None
        rejects = value.pop("rejects")
        return ShardDocuments(
            **{**value, "documents": StoredFile.from_json(value["documents"])},
            rejects=None if rejects is None else StoredFile.from_json(rejects),
        )

    def write_documents(self, number: int, record: ShardDocuments) -> None:
        """Say that a shard's documents are finished, after its files are."""
        self._write_json(f"shards/{number:05d}.json", asdict(record))

    def open_documents(self, number: int) -> DocumentStore:
        """The documents of a shard."""
        return DocumentStore.open(self.documents_path(number))

    # Shards: vectors

    def vectors(self, number: int) -> ShardVectors | None:
        """The record of a shard's vectors, if they are finished."""
        value = self._read_json(f"shards/{number:05d}.vectors.json")
        if value is None:
            return None
        unusable = {int(row): str(reason) for row, reason in value["unusable"].items()}
        return ShardVectors(StoredFile.from_json(value["vectors"]), value["positions"], value["seconds"], unusable)

    def vectors_writer(
        self, number: int, count: int, dtype: str
    ) -> AbstractContextManager[Callable[[NDArray[Any]], None]]:
        """Write a shard's vectors a few rows at a time; the file appears at the end, whole.

        Args:
            number: The shard.
            count: How many rows there will be.
            dtype: Of the file.

        Returns:
            A context manager that gives the function to call with rows [some, d], in order.
        """
        return npy_writer(self.vectors_path(number), count, dtype)

    def finish_vectors(self, number: int, record: ShardVectors) -> None:
        """Say that a shard's vectors are finished, after `vectors_writer` wrote them."""
        self._write_json(f"shards/{number:05d}.vectors.json", asdict(record))

    def write_vectors(
        self,
        number: int,
        vectors: NDArray[Any],
        positions: int | None,
        seconds: Mapping[str, float],
        unusable: Mapping[int, str],
    ) -> ShardVectors:
        """Write a shard's vectors that are in memory, then the record that says so."""
        with self.vectors_writer(number, len(vectors), vectors.dtype.name) as write:
            write(vectors)
        file = StoredFile.of(self.vectors_path(number), self.path)
        record = ShardVectors(file, positions, dict(seconds), dict(unusable))
        self.finish_vectors(number, record)
        return record

    def open_vectors(self, number: int) -> NDArray[Any]:
        """The vectors of a shard [documents, d], mapped from the file."""
        array: NDArray[Any] = np.load(self.vectors_path(number), mmap_mode="r")
        return array

    # The whole

    def gathered(self) -> dict[str, Any] | None:
        """Totals of the input (``shards``, ``documents``, ``rejected``, ``records``), once it is read to its end."""
        return self._read_json(GATHERED_FILE)

    def write_gathered(self, value: Mapping[str, Any]) -> None:
        """Say that the input is read to its end."""
        self._write_json(GATHERED_FILE, value)

    def shards(self) -> Iterator[tuple[DocumentStore, NDArray[Any]]]:
        """Documents and vectors of each finished shard, in order; the documents are closed behind you."""
        for number in range(self.shard_count()):
            with self.open_documents(number) as store:
                yield store, self.open_vectors(number)

    def shard_count(self) -> int:
        """How many shards the gathered input has.

        Raises:
            ValueError: It is not yet read to its end.
        """
        totals = self.gathered()
        if totals is None:
            raise ValueError(f"{self.path}: the input was not read to its end; run the same command again to go on")
        return int(totals["shards"])

    def is_complete(self) -> bool:
        """Whether every shard has its vectors."""
        totals = self.gathered()
        return totals is not None and all(
            (self.path / f"shards/{number:05d}.vectors.json").is_file() for number in range(totals["shards"])
        )

    def check(self, *, content: bool = True) -> None:
        """Hold every file of a complete corpus against its record.

        Args:
            content: Compare digests too, not only sizes.

        Raises:
            FileNotFoundError: A file is missing.
            ValueError: The corpus is not complete, or a file is truncated or altered.
        """
        for number in range(self.shard_count()):
            documents, vectors = self.documents(number), self.vectors(number)
            if documents is None or vectors is None:
                raise ValueError(f"{self.path}: shard {number} is not encoded; run the same command again to go on")
            documents.documents.check(self.path, content=content)
            vectors.vectors.check(self.path, content=content)

    def rejects(self) -> Iterator[Reject]:
        """All that was set aside: records that are no documents, then vectors that cannot be used, shard by shard."""
        for number in range(self.shard_count()):
            documents, vectors = self.documents(number), self.vectors(number)
            if documents is not None and documents.rejects is not None:
                with (self.path / documents.rejects.name).open(encoding="utf-8") as lines:
                    for line in lines:
                        yield Reject(**json.loads(line))
            if vectors is not None and vectors.unusable:
                rows = sorted(vectors.unusable)
                with self.open_documents(number) as store:
                    for row, document in zip(rows, store.get(rows), strict=True):
                        yield Reject(
                            f"shard {number}, row {row}", vectors.unusable[row], document.id, document.text[:80]
                        )

    def _read_json(self, name: str) -> dict[str, Any] | None:
        path = self.path / name
        try:
            value = json.loads(path.read_bytes())
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (ValueError, RecursionError) as error:
            raise ValueError(
                f"{path}: not JSON ({error}); it is damaged: remove it, then its shard is made again"
            ) from None
        if not isinstance(value, dict):
            raise ValueError(f"{path}: not a JSON object; it is damaged: remove it, then its shard is made again")
        return value

    def _write_json(self, name: str, value: Mapping[str, Any]) -> None:
        path = self.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with whole_file(path) as stream:
            stream.write((json.dumps(value, ensure_ascii=False, indent=2) + "\n").encode())


def is_corpus(folder: str | Path) -> bool:
    """Whether a folder was written by `encode_corpus`."""
    return (Path(folder) / HEADER_FILE).is_file()
