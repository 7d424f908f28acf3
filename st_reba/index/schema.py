"""The tables of an index.

An index folder holds ``index.sqlite`` and a FAISS file ``vectors-N.faiss``, whose ids are keys of
documents. Vectors that were added since it was written are pending; keys that were deleted since
are tombstones. Both disappear when a new FAISS file is written.
"""

from __future__ import annotations

import json
import sqlite3
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from sqlite3 import Connection
from typing import Any

from ..corpus.folder import Row
from ..corpus.passages import cut_text
from ..corpus.records import DOCUMENT_COLUMNS, DocumentColumns, json_line


class DamagedError(sqlite3.DatabaseError):
    """The stored data is not what was written; the store adds its path and a remedy."""


# Columns of the table `documents`, but for the checksum. Long texts come after what is looked up.
_TABLE_COLUMNS = {
    "key": "INTEGER PRIMARY KEY",
    "vector_count": "INTEGER NOT NULL",
    "spans": "TEXT",
    "is_truncated": "INTEGER NOT NULL",
    "content_hash": "TEXT NOT NULL",
    **dict.fromkeys(reversed(DOCUMENT_COLUMNS), "TEXT"),
    "id": "TEXT NOT NULL UNIQUE",
}


@dataclass(frozen=True, kw_only=True)
class StoredDocument(DocumentColumns):
    """A row of the table `documents`; its fields are the columns, but for the checksum."""

    id: str
    key: int  # of the first vector
    vector_count: int
    spans: str | None  # bounds of its passages in characters, as JSON; None: it is not cut
    is_truncated: int  # 1: it is longer than the model reads; 0: it is not
    content_hash: str  # of the document, as it was given

    @classmethod
    def from_row(
        cls, key: int, document_id: str, row: Row, *, is_truncated: bool
    ) -> StoredDocument:
        """The stored form of a row of an encoded corpus."""
        spans = None
        if row.spans:
            spans = json_line(row.spans)
        return cls(
            **{**row.document_fields(), "id": document_id},
            key=key,
            vector_count=row.vector_count,
            spans=spans,
            is_truncated=int(is_truncated),
            content_hash=row.content_hash,
        )

    @property
    def keys(self) -> range:
        """Keys of its vectors."""
        return range(self.key, self.key + self.vector_count)

    @property
    def passages(self) -> list[str]:
        """The texts of its vectors."""
        return cut_text(self.text, json.loads(self.spans or "[]"))


def _checksum(cells: list[Any]) -> int:
    content = "\0".join(map(str, cells))
    return zlib.crc32(content.encode())


_COLUMN_DECLARATIONS = ", ".join(f"{name} {sql_type}" for name, sql_type in _TABLE_COLUMNS.items())
_SELECT = f"SELECT {', '.join(_TABLE_COLUMNS)}, checksum FROM documents"
_INSERT = f"INSERT OR IGNORE INTO documents VALUES ({'?, ' * len(_TABLE_COLUMNS)}?)"

# All are emptied when another index replaces the existing one.
TABLES = {
    "documents": f"{_COLUMN_DECLARATIONS}, checksum INTEGER NOT NULL",
    "pending": "key INTEGER PRIMARY KEY, checksum INTEGER NOT NULL, vector BLOB NOT NULL",
    "tombstones": "key INTEGER PRIMARY KEY",
    "whitening": "content BLOB NOT NULL",
    "rejects": "place TEXT NOT NULL, reason TEXT NOT NULL, id TEXT, text TEXT",
    "meta": "state TEXT NOT NULL, sha256 TEXT NOT NULL",
}
# A condition on a column, whose parameter is an array.
IN_JSON_ARRAY = "IN (SELECT value FROM json_each(?))"
# The document that a vector's key belongs to.
_OWNERS = """
SELECT value, documents.key FROM json_each(?)
JOIN documents ON documents.key = (SELECT MAX(key) FROM documents WHERE key <= value)
WHERE value < documents.key + vector_count
"""
_CREATE_CONTENT_INDEX = "CREATE INDEX documents_content_hash ON documents (content_hash)"


def create_tables(connection: Connection) -> None:
    """Create all tables but those of words."""
    for name, columns in TABLES.items():
        connection.execute(f"CREATE TABLE {name} ({columns})")
    connection.execute(_CREATE_CONTENT_INDEX)


def has_tables(connection: Connection) -> bool:
    """False for a file that was just made."""
    return connection.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchone() is not None


def insert_document(connection: Connection, document: StoredDocument) -> bool:
    """Insert a document; False: its id is there already."""
    cells = document.cells(_TABLE_COLUMNS)
    cursor = connection.execute(_INSERT, (*cells, _checksum(cells)))
    return cursor.rowcount > 0


def read_documents(
    connection: Connection,
    where: str = "1",
    *parameters: object,
) -> Iterator[StoredDocument]:
    """Documents that meet a condition in SQL, in the order of addition; checksums are compared."""
    rows = connection.execute(f"{_SELECT} WHERE {where} ORDER BY key", parameters)
    for *cells, checksum in rows:
        document = StoredDocument(**dict(zip(_TABLE_COLUMNS, cells, strict=True)))
        if _checksum(cells) != checksum:
            raise DamagedError(f"document {document.id!r:.80} is not what was written")
        yield document


def documents_with(
    connection: Connection,
    column: str,
    values: Iterable[str] | Iterable[int],
) -> Iterator[StoredDocument]:
    """Documents with one of some values in a column."""
    # Escaped to ASCII, so that an id with a lone surrogate is not found, rather than an error.
    json_values = json.dumps(list(values))
    return read_documents(connection, f"{column} {IN_JSON_ARRAY}", json_values)


def read_owners(connection: Connection, vector_keys: list[int]) -> dict[int, int]:
    """Keys of documents by the keys of vectors that are theirs."""
    return dict(connection.execute(_OWNERS, (json.dumps(vector_keys),)).fetchall())
