"""Documents, the records that are set aside, and how a row of a table becomes a document."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import date, time, timedelta
from decimal import Decimal
from numbers import Integral
from typing import Any

# Longer than any text that a model reads whole; a record beyond it is a file that went wrong.
MAX_CHARS = 1_000_000
# Usual names of the text and of the id, the most usual first.
TEXT_NAMES = ("text", "content", "body", "document", "sentence", "passage", "contents")
ID_NAMES = ("id", "_id", "doc_id", "docid", "document_id", "pid", "uuid")

_SURROGATE = re.compile("[\ud800-\udfff]")
# SQLite's functions end a text at NUL.
_NOT_IN_IDS = re.compile("[\0\ud800-\udfff]")
_SHOWN = 80
_encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False).encode


@dataclass(frozen=True)
class Document:
    """One text to encode or index.

    Args:
        text: The text that is encoded and stored.
        id: A name that is unique in the corpus and in the index; None: the number of the record, from 0.
        metadata: JSON values; they come back with every search result.

    Example:
        >>> Document("Cats sleep a lot.", id="cats", metadata={"lang": "en"}).id
        'cats'
    """

    text: str
    id: str | None = None
    metadata: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Reject:
    """One record that was set aside: it is no document, or its vector cannot be used."""

    place: str  # file and line, or number of the record
    reason: str  # "kind: detail; remedy"
    id: str | None = None
    text: str | None = None  # the beginning

    def __str__(self) -> str:
        return f"{self.place}: {self.reason}"

    @property
    def kind(self) -> str:
        """The first words of the reason, to count by."""
        return self.reason.partition(":")[0]


@dataclass(frozen=True)
class Columns:
    """Columns of a table that hold the text and the id; what else it has is metadata.

    Example:
        >>> Columns().resolved(["_id", "body", "lang"])
        Columns(text='body', id='_id')
    """

    text: str | None = None  # None: the first of TEXT_NAMES that the table has
    id: str | None = None  # None: the first of ID_NAMES, if there is one; "": none

    def resolved(self, names: Iterable[str]) -> Columns:
        """The columns of a table, or of a first record, with these names."""
        there = list(names)
        text = self.text or next((name for name in TEXT_NAMES if name in there), None)
        guessed = next((name for name in ID_NAMES if name in there and name != text), None)
        for option, name in (("text_column", text), ("id_column", self.id or None)):
            if name not in there and (name is not None or option == "text_column"):
                shown = ", ".join(repr(beginning(one)) for one in there[:20]) or "none"
                wanted = f"no column {name!r}" if name else "no column that usually holds the text"
                raise ValueError(f"{wanted}; there: {shown}; name one with {option}")
        # Records need not all have the same keys: the first id may stand in a later one.
        late = None if text == "id" else "id"
        return replace(self, text=text, id=guessed or late if self.id is None else self.id)

    def document(self, row: Mapping[str, Any], place: str, max_chars: int = MAX_CHARS) -> Document | Reject:
        """The document of a row, once the columns are `resolved`; empty cells are left out of the metadata.

        Example:
            >>> Columns("text", "id").document({"text": "a", "id": 7, "lang": "en", "year": None}, "line 1")
            Document(text='a', id='7', metadata={'lang': 'en'})
        """
        if self.text not in row:
            shown = ", ".join(repr(beginning(name)) for name in list(row)[:20])
            return Reject(place, f"no text: there is no {self.text!r}, only {shown or 'nothing'}; give it one")
        identity = row.get(self.id) if self.id else None
        if isinstance(identity, float) and identity.is_integer():  # pandas, of whole numbers where some are missing
            identity = int(identity)
        if isinstance(identity, Integral) and not isinstance(identity, bool):
            identity = str(int(identity))
        identity = None if is_missing(identity) or identity == "" else identity
        metadata = {key: value for key, value in row.items() if key not in (self.text, self.id or self.text)}
        metadata = {key: value for key, value in metadata.items() if not is_missing(value)}
        text: Any = row[self.text or ""]
        text = None if is_missing(text) else text
        return checked(Document(text, identity, metadata), place, max_chars)


def is_missing(value: Any) -> bool:
    """True for None and for what pandas puts into an empty cell: NaN, NaT and NA."""
    return (
        value is None or type(value).__name__ in ("NAType", "NaTType") or (isinstance(value, float) and value != value)
    )


def checked(document: Document, place: str, max_chars: int = MAX_CHARS) -> Document | Reject:
    """The document, ready to be stored and encoded, lone surrogates replaced; or why it cannot be.

    Example:
        >>> checked(Document(" "), "line 1").reason
        'no text: it is empty or blank; leave the record out or give it a text'
    """

    def reject(reason: str) -> Reject:
        return Reject(place, reason, identity if isinstance(identity, str) else None, beginning(document.text))

    text, identity = document.text, document.id
    if text is None or (isinstance(text, str) and not text.strip()):
        return reject("no text: it is empty or blank; leave the record out or give it a text")
    if not isinstance(text, str):
        return reject(f"wrong type: the text is a {type(text).__name__}; write it as a string")
    if len(text) > max_chars:
        return reject(f"too long: the text has {len(text):,} characters, more than max_chars={max_chars:,}; split it")
    if identity is not None and (not isinstance(identity, str) or not identity or _NOT_IN_IDS.search(identity)):
        found = "empty or no valid text" if isinstance(identity, str) else f"a {type(identity).__name__}"
        identity = None
        return reject(f"wrong type: the id is {found}; write it as a string, or leave it out to get a number")
    try:
        metadata = plain(document.metadata) if document.metadata else {}
        if not isinstance(metadata, dict):
            raise ValueError(f"it is a {type(metadata).__name__}, not a dict")
    except (ValueError, RecursionError) as error:
        return reject(f"wrong type: the metadata cannot be written as JSON ({error}); correct it or leave it out")
    return Document(clean_text(text), identity, metadata)


def plain(value: Any) -> Any:
    """A value as JSON holds it: numbers that are not finite become null, dates ISO strings, decimals strings.

    Example:
        >>> plain({"price": Decimal("9.90"), "seen": date(2024, 5, 1), "rate": float("nan"), "tags": ("a", "b")})
        {'price': '9.90', 'seen': '2024-05-01', 'rate': None, 'tags': ['a', 'b']}
    """
    if isinstance(value, str):
        return clean_text(value)
    if value is None or isinstance(value, (bool, int)):
        return value
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, Mapping):
        if wrong := [key for key in value if not isinstance(key, str)]:
            raise ValueError(f"the key {wrong[0]!r} is a {type(wrong[0]).__name__}, not a string")
        return {clean_text(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, (date, time)):
        return value.isoformat()
    if isinstance(value, (Decimal, timedelta)):
        return str(value)
    if hasattr(value, "tolist") and hasattr(value, "dtype"):  # of NumPy
        return plain(value.tolist())
    raise ValueError(f"{beginning(value)} is a {type(value).__name__}")


def clean_text(text: str) -> str:
    """Replace lone surrogates, which no UTF-8 file and no tokenizer can hold, by U+FFFD."""
    return text if text.isascii() else _SURROGATE.sub("\ufffd", text)


def to_json(value: Any) -> str:
    """JSON on one line, letters of every script as they are."""
    return _encode(value)


def beginning(value: object) -> str | None:
    """The first characters of something, on one line; None of None."""
    if value is None:
        return None
    text = clean_text(" ".join((value if isinstance(value, str) else repr(value))[: 4 * _SHOWN].split()))
    return text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…"
