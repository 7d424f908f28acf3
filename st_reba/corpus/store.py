"""Documents of a shard or of an index: ids, texts and metadata in a SQLite file that never changes once finished."""

from __future__ import annotations

import errno
import json
import sqlite3
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from os import PathLike
from pathlib import Path
from types import TracebackType
from typing import Any

from .documents import Document, clean_text

_SCHEMA = (
    "CREATE TABLE documents (row INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, text TEXT NOT NULL, "
    "metadata TEXT NOT NULL)"
)
_ROWS_A_QUERY = 500
_CACHE_KIB = 2**15  # ids in any order fall everywhere in their index


class DocumentStore:
    """Documents by row number. Make one with `create` or `open`; reading is safe from several threads.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder, DocumentStore.create(f"{folder}/d.sqlite") as store:
        ...     store.add_many([Document("one"), Document("two", id="b")])
        ...     [document.id for document in store.get([1, 0])]
        2
        ['b', '0']
    """

    def __init__(self, connection: sqlite3.Connection, path: Path, count: int) -> None:
        self._connection = connection
        self._path = path
        self._count = count
        self._lock = threading.RLock()

    @classmethod
    def create(cls, path: str | PathLike[str]) -> DocumentStore:
        """Make an empty store.

        Args:
            path: The file to make.

        Returns:
            The store, open for writing.

        Raises:
            FileExistsError: The file is already there.
        """
        path = Path(path)
        if path.exists():
            raise FileExistsError(f"{path}: already there; choose another path")
        with disk_errors(path), sqlite3.connect(path, check_same_thread=False) as connection:
            # The file counts only once it is finished, synced and renamed: a journal would guard nothing.
            connection.execute("PRAGMA journal_mode = OFF")
            connection.execute("PRAGMA synchronous = OFF")
            connection.execute(f"PRAGMA cache_size = -{_CACHE_KIB}")
            connection.execute(_SCHEMA)
        return cls(connection, path, 0)

    @classmethod
    def open(cls, path: str | PathLike[str]) -> DocumentStore:
        """Open a finished store for reading.

        Args:
            path: The file that `create` made.

        Returns:
            The store.

        Raises:
            FileNotFoundError: There is no such file.
            ValueError: The file is not a store, or is damaged.
        """
        path = Path(path)
        if not path.is_file():
            raise FileNotFoundError(f"{path}: no such file; build the index again")
        # A finished store never changes, so SQLite needs no lock files and the folder may be read-only. The open
        # file stays the same one even if another index is moved to this path later.
        connection = sqlite3.connect(
            path.absolute().as_uri() + "?mode=ro&immutable=1", uri=True, check_same_thread=False
        )
        try:
            # Rows go from 0 on without a gap; to count them would read the whole file.
            (last,) = connection.execute("SELECT MAX(row) FROM documents").fetchone()
            connection.execute("SELECT row, id, text, metadata FROM documents LIMIT 1").fetchone()
        except sqlite3.DatabaseError as error:
            connection.close()
            raise ValueError(f"{path}: not a document store, or damaged ({error}); build the index again") from error
        return cls(connection, path, 0 if last is None else last + 1)

    def add_many(self, documents: Iterable[Document]) -> int:
        """Add documents after the last row, all of them or none.

        Args:
            documents: The documents; one without an id gets its row number as id.

        Returns:
            How many documents the store now has.

        Raises:
            ValueError: An id is already used, or metadata cannot be written as JSON.
        """
        records = (_record(row, document) for row, document in enumerate(documents, self._count))
        return self.add_records(records)

    def add_records(self, records: Iterable[tuple[str, str, str]]) -> int:
        """Add what `records` of another store gave: ids, texts and metadata as JSON; otherwise as `add_many`."""
        row, record = self._count, ("", "", "")

        def rows() -> Iterator[tuple[int, str, str, str]]:
            nonlocal row, record
            for record in records:
                yield row, *record
                row += 1

        with self._lock, disk_errors(self._path):
            try:
                self._connection.executemany("INSERT INTO documents VALUES (?, ?, ?, ?)", rows())
            except BaseException as error:
                found = self.find([record[0]]).get(record[0]) if isinstance(error, sqlite3.IntegrityError) else None
                if not isinstance(error, sqlite3.OperationalError):  # after which the file is of no more use
                    # Without a journal nothing can be rolled back, so what was added is taken out again.
                    self._connection.execute("DELETE FROM documents WHERE row >= ?", (self._count,))
                    self._connection.commit()
                if found is None:
                    raise
                raise ValueError(
                    f"the id {record[0]!r} is used twice, at rows {found} and {row}; give every document its own "
                    "id (a document without one gets its record's number)"
                ) from None
            self._connection.commit()
            self._count = row
            return row

    def find(self, ids: Iterable[str]) -> dict[str, int]:
        """The rows of those ids that are there.

        Args:
            ids: Any ids.

        Returns:
            The row of each id that the store has.
        """
        wanted = list(dict.fromkeys(ids))
        found: dict[str, int] = {}
        for start in range(0, len(wanted), _ROWS_A_QUERY):
            part = wanted[start : start + _ROWS_A_QUERY]
            marks = ",".join("?" * len(part))
            with self._reading():
                found.update(
                    self._connection.execute(f"SELECT id, row FROM documents WHERE id IN ({marks})", part).fetchall()
                )
        return found

    def records(self, start: int = 0, stop: int | None = None) -> Iterator[tuple[str, str, str]]:
        """Read rows in order, a few hundred at a time.

        Args:
            start: The first row.
            stop: The row after the last; None: all.

        Yields:
            Id, text, and metadata as JSON.
        """
        stop = self._count if stop is None else min(stop, self._count)
        for first in range(start, stop, _ROWS_A_QUERY):
            with self._reading():
                rows = self._connection.execute(
                    "SELECT id, text, metadata FROM documents WHERE row >= ? AND row < ? ORDER BY row",
                    (first, min(first + _ROWS_A_QUERY, stop)),
                ).fetchall()
            yield from rows

    def free_number(self) -> int:
        """The first number above every id that is a number, as those of documents without ids of their own are.

        Ids of more than 15 digits are no record's number and do not count.
        """
        with self._reading():
            (highest,) = self._connection.execute(
                "SELECT MAX(CAST(id AS INTEGER)) FROM documents WHERE id >= '0' AND id < ':' AND length(id) <= 15 "
                "AND id NOT GLOB '*[^0-9]*'"
            ).fetchone()
        return 0 if highest is None else int(highest) + 1

    @contextmanager
    def _reading(self) -> Iterator[None]:
        try:
            with self._lock:
                yield
        except sqlite3.ProgrammingError:  # a closed store is a mistake of the caller, not damage
            raise
        except sqlite3.DatabaseError as error:
            raise ValueError(f"{self._path}: cannot read documents ({error}); it is damaged") from error

    def get(self, rows: Sequence[int]) -> list[Document]:
        """Read documents by row number.

        Args:
            rows: Row numbers, from 0; a row may be asked for more than once.

        Returns:
            The documents in the order of `rows`.

        Raises:
            IndexError: There is no such row.
            ValueError: The file is damaged.
        """
        wanted = sorted({int(row) for row in rows})
        found: dict[int, Document] = {}
        for start in range(0, len(wanted), _ROWS_A_QUERY):
            part = wanted[start : start + _ROWS_A_QUERY]
            marks = ",".join("?" * len(part))
            with self._reading():
                records = self._connection.execute(
                    f"SELECT row, id, text, metadata FROM documents WHERE row IN ({marks})", part
                ).fetchall()
            for row, identity, text, metadata in records:
                found[row] = Document(text, id=identity, metadata=self._metadata(metadata))
        missing = [row for row in wanted if row not in found]
        if missing:
            raise IndexError(f"{self._path}: no row {missing[0]}; rows go from 0 to {self._count - 1}")
        return [found[int(row)] for row in rows]

    def __len__(self) -> int:
        return self._count

    def close(self) -> None:
        """Close the file. The store cannot be used afterwards."""
        with self._lock:
            self._connection.close()

    def __enter__(self) -> DocumentStore:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _metadata(self, text: str) -> dict[str, Any]:
        try:
            value = json.loads(text)
        except ValueError as error:
            raise ValueError(f"{self._path}: cannot read documents ({error}); it is damaged") from error
        if not isinstance(value, dict):
            raise ValueError(f"{self._path}: metadata is not a JSON object: {text[:40]!r}; it is damaged")
        return value


def _record(row: int, document: Document) -> tuple[str, str, str]:
    identity = clean_text(str(row) if document.id is None else document.id)
    try:
        metadata = json.dumps(document.metadata, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(
            f"document {identity!r} at row {row}: the metadata cannot be written as JSON ({error}); "
            "use strings, numbers, booleans, None, lists and dicts"
        ) from None
    return identity, clean_text(document.text), clean_text(metadata)


@contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    """SQLite's words for a full or failing disk, as the system's error."""
    try:
        yield
    except sqlite3.OperationalError as error:
        full = "full" in str(error)
        raise OSError(errno.ENOSPC if full else errno.EIO, f"cannot write documents ({error})", str(path)) from error
