"""The words of documents, in SQLite's FTS5: how a text becomes terms, and the tables that hold them.

European words are read by FTS5's tokenizer ``unicode61``, and stemmed by ``porter`` where the texts are
English. Scripts that write no spaces become overlapping pairs of characters, and single characters, before
FTS5 sees them.

The table ``words`` is contentless: its rows have the keys of ``documents``, which holds the texts, so a row is removed
by giving FTS5 the text again. Everything happens in the transaction that changes ``documents``.
"""

from __future__ import annotations

import re
import sqlite3
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

from .store import ENGLISH, OTHER, damaged

# Marks are parts of words: the vowels of Hindi, for instance.
_LETTERS = "unicode61 remove_diacritics 2 categories 'L* M* N* Co'"
_TOKENIZERS = {ENGLISH: f"porter {_LETTERS}", OTHER: _LETTERS}
_TABLES = ("frequencies", "occurrences", "words")
_SCHEMA = (
    "CREATE VIRTUAL TABLE words USING fts5(text, content = '', tokenize = \"{tokenizer}\")",
    # They store nothing: one shows each occurrence of a term, the other each term's number of documents.
    "CREATE VIRTUAL TABLE occurrences USING fts5vocab(words, 'instance')",
    "CREATE VIRTUAL TABLE frequencies USING fts5vocab(words, 'row')",
)
_INSERT = "INSERT INTO words (rowid, text) VALUES (?, ?)"
_REMOVE = "INSERT INTO words (words, rowid, text) VALUES ('delete', ?, ?)"
_POSTINGS = "SELECT group_concat(doc), group_concat(offset) FROM occurrences WHERE term = ?"
# What a search reads beside the occurrences of terms, and what FTS5 itself goes by.
_OTHER_CONTENT = (
    "SELECT term, doc, cnt FROM frequencies",
    "SELECT id, sz FROM words_docsize ORDER BY id",
    "SELECT k, v FROM words_config ORDER BY k",
    "SELECT block FROM words_data WHERE id = 1",
)

# Kana, Bopomofo, Han, Hangul; Thai, Lao, Burmese and Khmer.
_UNSPACED_RUN = re.compile(
    "[\u3005\u3007\u3041-\u30fa\u30fc-\u312f\u31a0-\u31bf\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af"
    "\uf900-\ufaff\U00020000-\U000323af\u0e01-\u0e4e\u0e81-\u0ece\u1000-\u103f\u1780-\u17d3]+"
)
# Words that are frequent in English alone.
_ENGLISH_WORDS = frozenset(["the", "of", "and", "to", "with", "from", "that", "this", "are", "which", "by", "or"])
_LATIN_WORD = re.compile(r"[a-z\u00df-\u024f]+")
_ENGLISH_SHARE = 0.03
# From fewer words nothing can be told: English, for it is the commonest.
_FEWEST_WORDS = 50
_SAMPLE = "SELECT substr(text, 1, 2000) FROM documents ORDER BY crc, key LIMIT 500"
MAX_QUERY_TERMS = 256


@dataclass
class QueryTerms:
    """The terms of a query, each with its number of occurrences there.

    Args:
        decisive: Words and pairs of characters; a document is found if it has one of them.
        supporting: Single characters out of longer runs. They add to the score of a document that is found.
    """

    decisive: Counter[str] = field(default_factory=Counter)
    supporting: Counter[str] = field(default_factory=Counter)


def write_words(tx: sqlite3.Connection) -> str:
    """Write the words of all documents anew; returns their language."""
    drop_words(tx)
    language = language_of(text for (text,) in tx.execute(_SAMPLE))
    create_words(tx, language)
    documents = tx.execute("SELECT key, text FROM documents ORDER BY key")
    tx.executemany(_INSERT, ((key, separated(text)) for key, text in documents))
    tx.execute("INSERT INTO words (words) VALUES ('optimize')")
    return language


def drop_words(tx: sqlite3.Connection) -> None:
    """Remove the words from an index, if it has them."""
    for table in _TABLES:
        tx.execute(f"DROP TABLE IF EXISTS {table}")


def insert_words(tx: sqlite3.Connection, key: int, text: str) -> None:
    """Insert the words of a new document."""
    tx.execute(_INSERT, (key, separated(text)))


def remove_words(tx: sqlite3.Connection, key: int, text: str) -> None:
    """Remove the words of a document, whose text must be the one that was inserted."""
    tx.execute(_REMOVE, (key, separated(text)))


def verify_words(tx: sqlite3.Connection, language: str, path: Path) -> None:
    """Compare all that searches read with the words that the documents have, or raise a ValueError."""
    # A database without a name is a temporary file.
    with closing(sqlite3.connect("", isolation_level=None)) as expected:
        create_words(expected, language)
        expected.execute("BEGIN")
        documents = tx.execute("SELECT key, text FROM documents ORDER BY key")
        expected.executemany(_INSERT, ((key, separated(text)) for key, text in documents))
        expected.execute("COMMIT")
        if not _have_equal_words(tx, expected):
            raise ValueError(damaged(path, "its words are not those of its documents; compact writes them anew"))


def _have_equal_words(first: sqlite3.Connection, second: sqlite3.Connection) -> bool:
    for query in _OTHER_CONTENT:
        if first.execute(query).fetchall() != second.execute(query).fetchall():
            return False
    # Term by term, as a search looks them up.
    for term in second.execute("SELECT term FROM frequencies").fetchall():
        if first.execute(_POSTINGS, term).fetchone() != second.execute(_POSTINGS, term).fetchone():
            return False
    return True


def language_of(texts: Iterable[str]) -> str:
    """ENGLISH if English words are frequent among the words in Latin letters, or these are few; else OTHER.

    Example:
        >>> language_of(["The cat sleeps on the sofa."]), language_of(["Die Katze schläft auf dem Sofa."] * 9)
        ('English', 'other')
    """
    word_count = 0
    english_count = 0
    for text in texts:
        words = _LATIN_WORD.findall(text.lower())
        word_count += len(words)
        english_count += sum(word in _ENGLISH_WORDS for word in words)
    is_english = word_count < _FEWEST_WORDS or english_count >= _ENGLISH_SHARE * word_count
    return ENGLISH if is_english else OTHER


def separated(text: str) -> str:
    """A text as FTS5 gets it: runs of scripts without spaces as pairs and as single characters.

    Example:
        >>> separated("猫在睡觉 in Köln")
        ' 猫在 在睡 睡觉 猫 在 睡 觉  in Köln'
    """
    if text.isascii():
        return text.replace("\0", " ")
    return _UNSPACED_RUN.sub(lambda run: f" {_pairs(run[0])} {_characters(run[0])} ", _normalized(text))


def query_terms(language: str, queries: Sequence[str]) -> list[QueryTerms]:
    """The terms of queries, read as those of documents are; of one query at most 256 different ones of each kind.

    Nothing in a query is an operator: it never gets to FTS5's MATCH.

    Example:
        >>> [(dict(terms.decisive), dict(terms.supporting)) for terms in query_terms(ENGLISH, ['"cats" OR dog*', "猫"])]
        [({'cat': 1, 'or': 1, 'dog': 1}, {}), ({'猫': 1}, {})]
    """
    decisive = [_UNSPACED_RUN.sub(lambda run: f" {_pairs(run[0])} ", _normalized(query)) for query in queries]
    supporting = [" ".join(map(_characters, _UNSPACED_RUN.findall(_normalized(query)))) for query in queries]
    terms = [QueryTerms() for _ in queries]
    for row, term in _terms_of(language, decisive):
        _count(terms[row].decisive, term)
    for row, term in _terms_of(language, supporting):
        _count(terms[row].supporting, term)
    return terms


def _count(counts: Counter[str], term: str) -> None:
    if term in counts or len(counts) < MAX_QUERY_TERMS:
        counts[term] += 1


def _terms_of(language: str, texts: Sequence[str]) -> Iterator[tuple[int, str]]:
    """Row of a text and a term of it, for each term, in the order of the texts."""
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as memory:
        create_words(memory, language)
        memory.executemany(_INSERT, enumerate(texts))
        yield from memory.execute("SELECT doc, term FROM occurrences ORDER BY doc, offset")


def create_words(connection: sqlite3.Connection, language: str) -> None:
    """Create the tables of words."""
    for statement in _SCHEMA:
        connection.execute(statement.format(tokenizer=_TOKENIZERS[language]))


def _normalized(text: str) -> str:
    """One way of writing for each character, whatever its width; FTS5 would end at NUL."""
    return unicodedata.normalize("NFKC", text).replace("\0", " ")


def _pairs(run: str) -> str:
    """Overlapping pairs; of a single character itself."""
    return " ".join(run[start : start + 2] for start in range(max(1, len(run) - 1)))


def _characters(run: str) -> str:
    """Single characters of a run; none of one that is a single character."""
    return " ".join(run) if len(run) > 1 else ""
