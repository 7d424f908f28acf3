"""An input read, checked and cut into parts, which are written; parts that are there already stay."""

from __future__ import annotations

import errno
import hashlib
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tqdm.auto import tqdm

from .folder import Corpus, Part, Row
from .records import Document, Reject, beginning, to_json
from .source import Source

# A part is in memory at once: so many records, or fewer long ones.
PART_CHARS = 2**22


@dataclass
class Gathered:
    """What was read of an input, however it is cut into parts."""

    documents: int = 0
    rejected: int = 0
    first: Reject | None = None
    digest: Any = field(default_factory=hashlib.sha256)

    def count(self, part: Part) -> str:
        """Count a part, and give the SHA-256 of its records."""
        rejects = ([one.place, one.reason, one.id] for one in part.rejects)
        # Without the brackets, so that parts one after the other are as one.
        content = (to_json([*part.rows, *rejects])[1:-1] + ", ").encode()
        self.digest.update(content)
        self.documents += len(part.rows)
        self.rejected += len(part.rejects)
        self.first = self.first or next(iter(part.rejects), None)
        return hashlib.sha256(f"{part.start} {part.stop} ".encode() + content).hexdigest()

    def check(self, name: str) -> None:
        """Raise a ValueError where there was no document."""
        if not self.documents:
            why = (
                f"{self.rejected:,} records were set aside, first this: {self.first}"
                if self.rejected
                else "it is empty"
            )
            raise ValueError(f"{name}: no documents: {why}")


def gather(
    source: Source,
    corpus: Corpus,
    header: dict[str, Any],
    cut: Callable[[list[str]], list[tuple[int, ...]]],
    *,
    strict: bool = False,
    overwrite: bool = False,
    first: int = 0,
    show: bool | None = None,
    seen: Callable[[int], object] = lambda records: None,
) -> Gathered:
    """Write an input's documents into parts; parts whose records are the same already stay, with their vectors.

    Args:
        source: The input.
        corpus: The folder.
        header: Its header.
        cut: What `cutter` gave.
        strict: Stop at the first record that is no document.
        overwrite: Where the input is not the one that parts were made of, make them anew, in place of an error.
        first: What is added to the number of a record to make its id, where it has none.
        show: Show a bar; None: on a terminal.
        seen: Called after each part with the number of records so far.

    Returns:
        What was read.

    Raises:
        ValueError: A record is no document (``strict``), or the input has changed.
    """
    found, number = Gathered(), 0
    there = 1 + max((int(file.stem) for file in corpus.part_files()), default=-1)
    with (
        _used_ids(corpus.path) as used,
        tqdm(total=source.total, desc="Reading", unit=" texts", disable=None if show is None else not show) as bar,
    ):
        for part in _cut_parts(source, header["settings"]["part_size"], used, strict, first):
            for index, spans in enumerate(cut([row.text for row in part.rows]) if part.rows else ()):
                if spans:
                    part.rows[index] = part.rows[index]._replace(spans=spans)
            digest = found.count(part)
            old = corpus.digest(number)
            if digest != old:
                fits = overwrite or old is None
                if not (fits or (number == there - 1 and _grown(corpus.part(number), part))):
                    raise ValueError(
                        f"{source.name}: from record {part.start:,} on (counted from 0) it is not what part {number} "
                        f"of {corpus.path} was made of. Give the same input and reading options to go on, or "
                        "overwrite=True (--overwrite) to encode this input in its place."
                    )
                corpus.write_part(number, part, digest)
            number += 1
            seen(part.stop)
            bar.update(part.stop - part.start)
    if number < there:
        if not overwrite:
            raise ValueError(
                f"{source.name}: it ends before part {number} of {corpus.path}. Give the same input to go on, or "
                "overwrite=True (--overwrite) to encode this input in its place."
            )
        for left in reversed(range(number, there)):
            corpus.vectors_path(left).unlink(missing_ok=True)
            corpus.documents_path(left).unlink(missing_ok=True)
    return found


def _cut_parts(source: Source, size: int, used: sqlite3.Connection, strict: bool, first: int) -> Iterator[Part]:
    """The input in parts, ids that occur twice set aside."""
    part, chars = Part(0, 0), 0
    for record in source.read():
        number = part.stop
        if isinstance(record, Document):
            identity = str(first + number) if record.id is None else record.id
            if used.execute("INSERT OR IGNORE INTO used VALUES (?, ?)", (identity, number)).rowcount:
                metadata = to_json(record.metadata) if record.metadata else "{}"
                part.rows.append(Row(number, record.id, record.text, metadata))
                chars += len(record.text) + len(metadata)
            else:
                (owner,) = used.execute("SELECT record FROM used WHERE id = ?", (identity,)).fetchone()
                reason = (
                    f"id used twice: {identity!r} is that of record {owner} too (counted from 0); give every document "
                    "its own id"
                )
                record = Reject(f"record {number}", reason, identity, beginning(record.text))
        if isinstance(record, Reject):
            if strict:
                raise ValueError(str(record))
            part.rejects.append(record)
            chars += len(record.reason)
        part.stop += 1
        if part.stop - part.start == size or chars >= PART_CHARS:
            yield part
            part, chars = Part(part.stop, part.stop), 0
    if part.stop > part.start:
        yield part


@contextmanager
def _used_ids(folder: Path) -> Iterator[sqlite3.Connection]:
    """A table of the ids so far, on disk, so that their number is bounded by nothing else."""
    path = folder / ".ids.sqlite.tmp"
    path.unlink(missing_ok=True)
    connection = sqlite3.connect(path, isolation_level=None)
    try:
        # It is made anew whenever the input is read again: a journal would guard nothing.
        for setting in ("journal_mode = OFF", "synchronous = OFF", "locking_mode = EXCLUSIVE", "cache_size = -65536"):
            connection.execute(f"PRAGMA {setting}")
        connection.execute("CREATE TABLE used (id TEXT PRIMARY KEY, record INTEGER NOT NULL) WITHOUT ROWID")
        connection.execute("BEGIN")
        yield connection
    except sqlite3.OperationalError as error:
        full = "full" in str(error)
        raise OSError(errno.ENOSPC if full else errno.EIO, f"cannot write ids ({error})", str(path)) from error
    finally:
        connection.close()
        path.unlink(missing_ok=True)


def _grown(old: Part, new: Part) -> bool:
    """Whether a part begins with all of another."""
    return new.rows[: len(old.rows)] == old.rows and new.rejects[: len(old.rejects)] == old.rejects
