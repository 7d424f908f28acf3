"""Gather: records of an input become shards of documents, checked and with ids that occur once."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import Any

from ..files import remove_leftovers
from .documents import Document, Reject, beginning
from .folder import Corpus, ShardDocuments
from .ids import UsedIds
from .shards import remove_shards, shard_writer, stored_shard
from .source import Source

IDS_FILE = "ids.sqlite"
# A chunk is what is in memory at once: so many records, or fewer long ones.
_CHUNK_RECORDS = 512
_CHUNK_CHARS = 2**22

_encode = json.JSONEncoder(ensure_ascii=False).encode


def gather(
    source: Source,
    corpus: Corpus,
    *,
    shard_size: int,
    first_record: int = 0,
    strict: bool = False,
    replace: bool = False,
    progress: Callable[[int], object] | None = None,
) -> dict[str, Any]:
    """Write an input's documents into shards, or go on where that was stopped.

    An input of files that have not changed since they were read to their end is not read again. Otherwise all is read,
    and shards whose records are still the same stay, with their vectors; so an input that has grown at its end goes on.

    Args:
        source: The input.
        corpus: The folder; the caller has its lock.
        shard_size: Records a shard, those set aside included.
        first_record: The number that is the first record's id, if it has none of its own.
        strict: Stop at the first record that is no document.
        replace: Where the input is not the one that shards were made of, make them anew, in place of an error.
        progress: Called with the number of records that have just been read.

    Returns:
        What `Corpus.gathered` gives from now on: ``shards``, ``documents``, ``rejected``, ``records``, ``source``, …

    Raises:
        ValueError: The input has changed, it has no document, a record is none (`strict`), or shard_size is below 1.
        OSError: Something cannot be read or written.
    """
    if shard_size < 1:
        raise ValueError(f"shard_size={shard_size} is not a whole number from 1 on (--shard-size)")
    made = {"shard_size": shard_size, "first_record": first_record, "source": source.identity}
    done = corpus.gathered()
    if done is not None and source.identity is not None and made.items() <= done.items() and _is_there(corpus, done):
        if strict and done["rejected"]:
            raise ValueError(str(_first_reject(corpus, done["shards"])))
        return done
    shards = corpus.path / "shards"
    shards.mkdir(parents=True, exist_ok=True)
    for folder in (corpus.path, shards):
        remove_leftovers(folder)
    with UsedIds(corpus.path / IDS_FILE, first_record) as used:
        totals = _Gathering(source, corpus, shard_size, first_record, strict, replace, progress, used).run()
    result = {**totals, **made}
    if result != corpus.gathered():
        corpus.write_gathered(result)
    return result


@dataclass
class _Gathering:
    source: Source
    corpus: Corpus
    shard_size: int
    first_record: int
    strict: bool
    replace: bool
    progress: Callable[[int], object] | None
    used: UsedIds
    position: int = 0  # number of the next record
    digest: Any = field(default_factory=hashlib.sha256)  # of all records before it
    documents: int = 0
    rejected: int = 0
    first_reject: Reject | None = None

    def run(self) -> dict[str, Any]:
        records = iter(self.source.records())
        number = 0
        for head in records:  # whether there is another shard
            self._shard(number, chain([head], islice(records, self.shard_size - 1)))
            number += 1
        if self.corpus.documents(number) is not None:
            if not self.replace:
                raise self._changed(number, self.position)
            remove_shards(self.corpus, number)
        if not self.documents:
            why = "it is empty"
            if self.first_reject is not None:
                why = f"{self.rejected:,} records were set aside, first this: {self.first_reject}"
            raise ValueError(f"{self.source.name}: no documents: {why}")
        return {
            "shards": number,
            "documents": self.documents,
            "rejected": self.rejected,
            "records": self.position,
            "digest": self.digest.hexdigest(),
        }

    def _shard(self, number: int, records: Iterator[Document | Reject]) -> None:
        """Write a shard, or find that it is there already."""
        stored = stored_shard(self.corpus, number)
        start = self.position
        if stored is not None and not self.replace and stored.stop - stored.start == self.shard_size:
            for _ in self._chunks(records):
                pass
            if not self._is(stored):
                raise self._changed(number, start)
            return
        with shard_writer(self.corpus, number) as writer:
            grown = False
            for chunk in self._chunks(records, None if stored is None else stored.stop):
                writer.add(chunk.rows, chunk.rejects)
                grown = grown or (stored is not None and chunk.marked == stored.digest)
            if stored is not None:
                if self._is(stored):
                    return  # what was written is dropped, and what is there stays
                # A short shard may have grown, but only the last one can be short.
                if not (grown and self.corpus.documents(number + 1) is None):
                    if not self.replace:
                        raise self._changed(number, start)
                    remove_shards(self.corpus, number)
            writer.finish(start, self.position, self.digest.hexdigest())

    def _is(self, stored: ShardDocuments) -> bool:
        # The digest is that of all records from the first on, so it tells their number too.
        return stored.stop == self.position and stored.digest == self.digest.hexdigest()

    def _chunks(self, records: Iterator[Document | Reject], mark: int | None = None) -> Iterator[_Chunk]:
        """The next records, checked against the ids so far."""
        while part := _take(records):
            start, stop = self.position, self.position + len(part)
            claims = [(n, record.id) for n, record in enumerate(part, start) if isinstance(record, Document)]
            taken = self.used.claim(claims)
            rows: list[tuple[str, str, str]] = []
            rejects: list[Reject] = []
            content: list[str] = []
            for number, record in enumerate(part, start):
                if isinstance(record, Document):
                    identity = str(self.first_record + number) if record.id is None else record.id
                    row = (identity, record.text, _encode(record.metadata) if record.metadata else "{}")
                    content.append(f"{len(row[0])} {len(row[1])} {len(row[2])} {row[0]}{row[1]}{row[2]}")
                    if number not in taken:
                        rows.append(row)
                        continue
                    record = _used_twice(record, identity, number, taken[number])
                else:
                    content.append(_encode([record.reason, record.id, record.text]))
                if self.strict:
                    raise ValueError(str(record))
                rejects.append(record)
            self.first_reject = self.first_reject or (rejects[0] if rejects else None)
            marked = None
            if mark is not None and start < mark <= stop:
                self._hash(content[: mark - start])
                marked = self.digest.hexdigest()
                content = content[mark - start :]
            self._hash(content)
            self.position = stop
            self.documents += len(rows)
            self.rejected += len(rejects)
            yield _Chunk(rows, rejects, marked)
            if self.progress is not None:
                self.progress(len(part))

    def _hash(self, content: list[str]) -> None:
        self.digest.update("".join(content).encode())

    def _changed(self, number: int, start: int) -> ValueError:
        return ValueError(
            f"{self.source.name}: from record {start:,} on (counted from 0) it is not what shard {number} of "
            f"{self.corpus.path} was made of. Give the same input, reading options, shard_size and first_record as "
            "before to go on; or overwrite=True (--overwrite) to encode this input in its place"
        )


@dataclass(frozen=True)
class _Chunk:
    rows: list[tuple[str, str, str]]
    rejects: list[Reject]
    marked: str | None  # digest at the record that was asked for, if it is in the chunk


def _take(records: Iterator[Document | Reject]) -> list[Document | Reject]:
    """A few records; their number depends on nothing but them, so that the files are the same in every run."""
    taken: list[Document | Reject] = []
    chars = 0
    for record in records:
        taken.append(record)
        chars += len(record.text or "")
        if len(taken) == _CHUNK_RECORDS or chars >= _CHUNK_CHARS:
            break
    return taken


def _used_twice(document: Document, identity: str, number: int, first: int) -> Reject:
    if document.id is None:
        reason = f"it has no id, and its number, {identity}, is the id of record {first}; give it an id of its own"
    else:
        reason = (
            f"the id {identity!r} is used twice, by records {first} and {number} (counted from 0); give every document "
            "its own id"
        )
    return Reject(f"record {number}", reason, identity, beginning(document.text))


def _is_there(corpus: Corpus, totals: Mapping[str, Any]) -> bool:
    return all(stored_shard(corpus, number) is not None for number in range(totals["shards"]))


def _first_reject(corpus: Corpus, shards: int) -> Reject:
    for number in range(shards):
        record = corpus.documents(number)
        if record is not None and record.rejects is not None:
            with (corpus.path / record.rejects.name).open(encoding="utf-8") as lines:
                return Reject(**json.loads(next(lines)))
    raise ValueError(f"{corpus.path}: its rejects are gone; encode the corpus again")
