"""The documents of a shard: written whole, found again, taken away."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import BinaryIO

from ..files import StoredFile, whole_file, whole_path
from .documents import Reject
from .folder import GATHERED_FILE, Corpus, ShardDocuments
from .store import DocumentStore


class ShardWriter:
    """A shard that is being written; `shard_writer` makes one."""

    def __init__(self, corpus: Corpus, number: int, store: DocumentStore, stack: ExitStack) -> None:
        self._corpus = corpus
        self._number = number
        self._store = store
        self._stack = stack
        self._rejects: BinaryIO | None = None
        self._rejected = 0
        self.totals: dict[str, int] | None = None
        self.digest = ""

    def add(self, rows: Sequence[tuple[str, str, str]], rejects: Sequence[Reject]) -> None:
        """Write documents (ids, texts, metadata as JSON) and what was set aside between them."""
        self._store.add_records(rows)
        if rejects and self._rejects is None:
            self._rejects = self._stack.enter_context(whole_file(_rejects_path(self._corpus, self._number)))
        for reject in rejects:
            assert self._rejects is not None
            self._rejects.write(reject.to_line())
        self._rejected += len(rejects)

    def finish(self, start: int, stop: int, digest: str) -> None:
        """Say that all is written: the files may appear, in place of older ones."""
        _drop(self._corpus, self._number)
        self.totals = {"start": start, "stop": stop, "count": len(self._store), "rejected": self._rejected}
        self.digest = digest


@contextmanager
def shard_writer(corpus: Corpus, number: int) -> Iterator[ShardWriter]:
    """Write a shard's files. They appear and are recorded at the end if `finish` was called, else nothing changes."""
    path = corpus.documents_path(number)
    try:
        with whole_path(path) as temporary, DocumentStore.create(temporary) as store, ExitStack() as stack:
            writer = ShardWriter(corpus, number, store, stack)
            yield writer
            if writer.totals is None:
                raise _Dropped
        rejects = StoredFile.of(_rejects_path(corpus, number), corpus.path) if writer.totals["rejected"] else None
        documents = StoredFile.of(path, corpus.path)
        record = ShardDocuments(**writer.totals, digest=writer.digest, documents=documents, rejects=rejects)
        corpus.write_documents(number, record)
    except _Dropped:
        pass
    except OSError as error:
        if error.filename is None and error.errno is not None:  # a stream does not say which file it writes
            error.filename = str(path)
        raise


class _Dropped(Exception):
    pass


def stored_shard(corpus: Corpus, number: int) -> ShardDocuments | None:
    """The record of a shard whose documents are there, in files of the right size."""
    record = corpus.documents(number)
    if record is None:
        return None
    try:
        for file in (record.documents, record.rejects):
            if file is not None:
                file.check(corpus.path, content=False)
    except (FileNotFoundError, ValueError):
        return None
    return record


def remove_shards(corpus: Corpus, number: int) -> None:
    """Take a shard and all that follow away, the last one first."""
    there = {int(path.name.partition(".")[0]) for path in (corpus.path / "shards").glob("[0-9]*.*")}
    for later in sorted((found for found in there if found >= number), reverse=True):
        _drop(corpus, later)


def _drop(corpus: Corpus, number: int) -> None:
    # What says that something is finished goes first.
    (corpus.path / GATHERED_FILE).unlink(missing_ok=True)
    documents = corpus.documents_path(number)
    for suffix in (".vectors.json", ".json", ".npy", ".rejects.jsonl", ".sqlite"):
        documents.with_suffix(suffix).unlink(missing_ok=True)


def _rejects_path(corpus: Corpus, number: int) -> Path:
    return corpus.documents_path(number).with_suffix(".rejects.jsonl")
