"""The documents of an index: texts, ids and metadata in a SQLite file."""

from __future__ import annotations

import json
import re
import sqlite3
import threading
from collections.abc import Iterable, Sequence
from os import PathLike
from pathlib import Path
from types import TracebackType
from typing import Any

from st_reba.index.documents import Document

_SCHEMA = (
    "CREATE TABLE documents (row INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, text TEXT NOT NULL, "
    "metadata TEXT NOT NULL)"
)
_SURROGATE = re.compile("[\ud800-\udfff]")
_ROWS_A_QUERY = 500


def clean_text(text: str) -> str:
    """Replace every lone surrogate, which no UTF-8 file and no tokenizer can hold, by U+FFFD.

    Args:
        text: Any string.

    Returns:
        The string, ready to be stored and encoded.

    Example:
        >>> clean_text("a\\ud800b") == "a\\ufffdb"
        True
    """
    return _SURROGATE.sub("\ufffd", text)


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
        self._lock = threading.Lock()

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
        connection = sqlite3.connect(path, check_same_thread=False)
        with connection:
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
            count, last = connection.execute("SELECT COUNT(*), MAX(row) FROM documents").fetchone()
            connection.execute("SELECT row, id, text, metadata FROM documents LIMIT 1").fetchone()
        except sqlite3.DatabaseError as error:
            connection.close()
            raise ValueError(f"{path}: not a document store, or damaged ({error}); build the index again") from error
        if count and last != count - 1:
            connection.close()
            raise ValueError(f"{path}: {count} documents, but the last row is {last}; build the index again")
        return cls(connection, path, count)

    def add_many(self, documents: Iterable[Document]) -> int:
        """Add documents after the last row, all of them or none.

        Args:
            documents: The documents; one without an id gets its row number as id.

        Returns:
            How many documents the store now has.

        Raises:
            ValueError: An id is already used, or metadata cannot be written as JSON.
        """
        with self._lock:
            row = self._count
            with self._connection:
                for document in documents:
                    self._insert(row, document)
                    row += 1
            self._count = row
            return row

    def _insert(self, row: int, document: Document) -> None:
        identity = clean_text(str(row) if document.id is None else document.id)
        try:
            metadata = json.dumps(document.metadata, ensure_ascii=False)
        except (TypeError, ValueError, RecursionError) as error:
            raise ValueError(
                f"document {identity!r} at row {row}: the metadata cannot be written as JSON ({error}); "
                "use strings, numbers, booleans, None, lists and dicts"
            ) from None
        try:
            self._connection.execute(
                "INSERT INTO documents VALUES (?, ?, ?, ?)",
                (row, identity, clean_text(document.text), clean_text(metadata)),
            )
        except sqlite3.IntegrityError:
            found = self._connection.execute("SELECT row FROM documents WHERE id = ?", (identity,)).fetchone()
            if found is None:
                raise
            raise ValueError(
                f"the id {identity!r} is used twice, at rows {found[0]} and {row}; give every document its own id "
                "(a document without one gets its row number)"
            ) from None

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
        try:
            for start in range(0, len(wanted), _ROWS_A_QUERY):
                part = wanted[start : start + _ROWS_A_QUERY]
                marks = ",".join("?" * len(part))
                with self._lock:
                    records = self._connection.execute(
                        f"SELECT row, id, text, metadata FROM documents WHERE row IN ({marks})", part
                    ).fetchall()
                for row, identity, text, metadata in records:
                    found[row] = Document(text, id=identity, metadata=_metadata(metadata))
        except (sqlite3.DatabaseError, ValueError) as error:
            # A closed store is a mistake of the caller, not damage.
            if isinstance(error, sqlite3.ProgrammingError):
                raise
            raise ValueError(f"{self._path}: cannot read documents ({error}); build the index again") from error
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


def _metadata(text: str) -> dict[str, Any]:
    value = json.loads(text)
    if not isinstance(value, dict):
        raise ValueError(f"metadata is not a JSON object: {text[:40]!r}")
    return value
