"""The words of documents, in tables of SQLite's FTS5.

The table ``words`` is contentless: its rows have the keys of ``documents``, which holds the texts.
A row is removed by giving FTS5 the text again. Everything happens in the transaction that changes
``documents``.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing
from pathlib import Path
from sqlite3 import Connection

from .terms import TOKENIZERS, language_of, separated

_CREATE_WORDS = """
CREATE VIRTUAL TABLE words USING fts5(text, content = '', tokenize = "{tokenizer}")
"""
# They store nothing: one has each occurrence of a term, the other each term's number of documents.
_CREATE_OCCURRENCES = "CREATE VIRTUAL TABLE occurrences USING fts5vocab(words, 'instance')"
_CREATE_FREQUENCIES = "CREATE VIRTUAL TABLE frequencies USING fts5vocab(words, 'row')"
_TABLES = ("frequencies", "occurrences", "words")

_INSERT = "INSERT INTO words (rowid, text) VALUES (?, ?)"
_REMOVE = "INSERT INTO words (words, rowid, text) VALUES ('delete', ?, ?)"
_OPTIMIZE = "INSERT INTO words (words) VALUES ('optimize')"
# Sampled in order of the documents' checksums: as good as random, and always the same.
_SAMPLE = "SELECT substr(text, 1, 2000) FROM documents ORDER BY checksum, key LIMIT 500"

_TERMS = "SELECT term FROM frequencies"
_OCCURRENCES_OF = """
SELECT group_concat(doc), group_concat(offset) FROM occurrences WHERE term = ?
"""
# What a search reads besides the occurrences of terms, and what FTS5 itself relies on.
_OTHER_CONTENT = (
    "SELECT term, doc, cnt FROM frequencies",
    "SELECT id, sz FROM words_docsize ORDER BY id",
    "SELECT k, v FROM words_config ORDER BY k",
    # Sums over all documents; without any, nothing is written, or zeros after a deletion.
    "SELECT block FROM words_data WHERE id = 1 AND block NOT IN (x'', x'0000')",
)


def create_words(connection: Connection, language: str) -> None:
    """Create the tables of words."""
    connection.execute(_CREATE_WORDS.format(tokenizer=TOKENIZERS[language]))
    connection.execute(_CREATE_OCCURRENCES)
    connection.execute(_CREATE_FREQUENCIES)


def drop_words(connection: Connection) -> None:
    """Remove the tables of words, where they are."""
    for table_name in _TABLES:
        connection.execute(f"DROP TABLE IF EXISTS {table_name}")


def write_words(connection: Connection) -> str:
    """Write the words of all documents anew.

    Returns:
        Their language.
    """
    drop_words(connection)
    sample_rows = connection.execute(_SAMPLE)
    language = language_of(text for (text,) in sample_rows)
    create_words(connection, language)
    insert_separated(connection, _separated_documents(connection))
    connection.execute(_OPTIMIZE)
    return language


def insert_separated(connection: Connection, rows: Iterable[tuple[int, str]]) -> None:
    """Insert keys with texts that are separated already."""
    connection.executemany(_INSERT, rows)


def insert_words(connection: Connection, key: int, text: str) -> None:
    """Insert the words of a document."""
    insert_separated(connection, [(key, separated(text))])


def remove_words(connection: Connection, key: int, text: str) -> None:
    """Remove the words of a document, whose text must be the one that was inserted."""
    connection.execute(_REMOVE, (key, separated(text)))


def damaged_words(database_path: Path) -> ValueError:
    """The error about words that do not fit the documents."""
    return ValueError(
        f"{database_path}: damaged (its words are not those of its documents); Index.compact "
        f"(st-reba prune {database_path.parent} --compact) writes them anew"
    )


def verify_words(connection: Connection, language: str, database_path: Path) -> None:
    """Compare all that a search reads with the documents' words; a ValueError if it differs."""
    # A database without a name is a temporary file.
    with closing(sqlite3.connect("", isolation_level=None)) as expected:
        expected.execute("BEGIN")
        create_words(expected, language)
        insert_separated(expected, _separated_documents(connection))
        expected.execute("COMMIT")
        if not _have_equal_words(connection, expected):
            raise damaged_words(database_path)


def _separated_documents(source: Connection) -> Iterator[tuple[int, str]]:
    document_rows = source.execute("SELECT key, text FROM documents ORDER BY key")
    for key, text in document_rows:
        yield key, separated(text)


def _have_equal_words(stored: Connection, expected: Connection) -> bool:
    for content_query in _OTHER_CONTENT:
        stored_rows = stored.execute(content_query).fetchall()
        expected_rows = expected.execute(content_query).fetchall()
        if stored_rows != expected_rows:
            return False
    # Term by term, as a search looks them up.
    term_rows = expected.execute(_TERMS).fetchall()
    for term_row in term_rows:
        stored_occurrences = stored.execute(_OCCURRENCES_OF, term_row).fetchone()
        expected_occurrences = expected.execute(_OCCURRENCES_OF, term_row).fetchone()
        if stored_occurrences != expected_occurrences:
            return False
    return True
