"""Documents to encode, what is set aside because it cannot be one, and how a record with names becomes a document."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import date, time, timedelta
from decimal import Decimal
from typing import Any

# Longer than any text that a model reads whole; a record beyond it is a file that went wrong.
MAX_CHARS = 1_000_000
# Names that hold the text or the id where nothing else is said, the most usual first.
TEXT_NAMES = ("text", "content", "body", "document", "sentence", "passage", "contents")
ID_NAMES = ("id", "_id", "doc_id", "docid", "document_id", "pid", "uuid")

_SURROGATE = re.compile("[\ud800-\udfff]")
_SHOWN = 80
_encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False).encode


@dataclass(frozen=True)
class Document:
    """One text to encode or index.

    Args:
        text: The text that is encoded and stored.
        id: A name that is unique in the corpus and in the index; None: the number of the record, from 0.
        metadata: Anything JSON can hold; it comes back with every search result.

    Example:
        >>> Document("Cats sleep a lot.", id="cats", metadata={"lang": "en"}).id
        'cats'
    """

    text: str
    id: str | None = None
    metadata: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Reject:
    """One record that is no document, or whose vector cannot be used.

    Args:
        place: Where it stands: a file and a line, or a number of the input.
        reason: What is wrong with it, as ``"kind: detail; remedy"``.
        id: Its id, where it has one.
        text: The beginning of what is there, for people to find it by.

    Example:
        >>> reject = Reject("corpus.jsonl, line 3", "no text: the key 'text' is missing; give one")
        >>> print(reject)
        corpus.jsonl, line 3: no text: the key 'text' is missing; give one
        >>> reject.kind
        'no text'
    """

    place: str
    reason: str
    id: str | None = None
    text: str | None = None

    def __str__(self) -> str:
        return f"{self.place}: {self.reason}"

    @property
    def kind(self) -> str:
        """The reason in a word or two, to count by."""
        return self.reason.partition(":")[0]


@dataclass(frozen=True)
class Reading:
    """How records are read.

    Args:
        text_column: The column or key that holds the text; None: the first of ``TEXT_NAMES`` that the first record has.
        id_column: The column or key that holds the id; None: the first of ``ID_NAMES``, or none; "": none.
        encoding: Of text files.
        split: Of a folder that holds several datasets.
        max_chars: The longest text, in characters.
        used: Takes the columns that `resolved` has found.

    Example:
        >>> Reading().resolved(["_id", "body", "lang"])
        Reading(text_column='body', id_column='_id', encoding='utf-8-sig', split=None, max_chars=1000000)
    """

    text_column: str | None = None
    id_column: str | None = None
    encoding: str = "utf-8-sig"
    split: str | None = None
    max_chars: int = MAX_CHARS
    used: dict[str, str | None] = field(default_factory=dict, compare=False, repr=False)

    def __post_init__(self) -> None:
        if self.max_chars < 1:
            raise ValueError(f"max_chars={self.max_chars} is not a whole number from 1 on (--max-chars)")

    def resolved(self, names: Iterable[str]) -> Reading:
        """The same with the columns of a table or first record that has these names.

        Raises:
            ValueError: The text's is not among them, or the id's that was named.
        """
        there = list(names)
        text = self.text_column or next((name for name in TEXT_NAMES if name in there), None)
        guessed = next((name for name in ID_NAMES if name in there and name != text), None)
        identity = guessed if self.id_column is None else self.id_column or None
        for role, name in (("text", text), ("id", identity)):
            if name not in there and (role == "text" or name is not None):
                shown = ", ".join(repr(beginning(present)) for present in there[:20]) or "none"
                wanted = f"no column {name!r}" if name else "no column that usually holds the text"
                raise ValueError(f"{wanted}; there: {shown}; name one with {role}_column (--{role}-column)")
        self.used.update(text_column=text, id_column=identity)
        return replace(self, text_column=text, id_column="" if self.id_column == "" else identity)

    def document(self, fields: Mapping[str, Any], place: str) -> Document | Reject:
        """The document of a record with names, once they are `resolved`; all but text and id become the metadata.

        Example:
            >>> Reading("text", "id").document({"text": "a", "id": 7, "lang": "en"}, "line 1")
            Document(text='a', id='7', metadata={'lang': 'en'})
        """
        if self.text_column not in fields:
            shown = ", ".join(repr(beginning(name)) for name in list(fields)[:20])
            reason = f"no text: it has no {self.text_column!r}, only {shown or 'nothing'}; give it one"
            return Reject(place, reason, text=beginning(dict(fields)))
        text: Any = fields[self.text_column or ""]
        id_column = self.id_column or None
        if self.id_column is None and self.text_column != "id":
            id_column = "id"  # records need not all have the same keys: the first id may stand in a later one
        identity: Any = None if id_column is None else fields.get(id_column)
        if isinstance(identity, int) and not isinstance(identity, bool):
            identity = str(identity)
        metadata = {key: value for key, value in fields.items() if key not in (self.text_column, id_column)}
        return checked(Document(text, identity, metadata), place, max_chars=self.max_chars)


def checked(document: Document, place: str, *, max_chars: int = MAX_CHARS) -> Document | Reject:
    """The document, ready to be stored and encoded; or why it cannot be.

    Args:
        document: What was read.
        place: Where it was.
        max_chars: The longest text, in characters.

    Returns:
        The document, lone surrogates replaced, or a reject.

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
        return reject(f"wrong type: the text is {_kind(text)}, not a string; write it as a string")
    if len(text) > max_chars:
        return reject(
            f"too long: the text has {len(text):,} characters, more than {max_chars:,}; split it, or raise max_chars "
            "(--max-chars)"
        )
    if identity is not None and (not isinstance(identity, str) or not identity or _SURROGATE.search(identity)):
        told = "empty" if identity == "" else "no valid Unicode" if isinstance(identity, str) else _kind(identity)
        identity = None
        return reject(f"wrong type: the id is {told}; write it as a string, or leave it out to get a number")
    try:
        metadata = plain(document.metadata) if document.metadata else {}
        if not isinstance(metadata, dict):
            raise ValueError(f"it is {_kind(metadata)}, not a dict")
    except (ValueError, RecursionError) as error:
        return reject(f"wrong type: the metadata cannot be written as JSON ({error}); correct it or leave it out")
    return Document(clean_text(text), identity, metadata)


def plain(value: Any) -> Any:
    """A value as JSON holds it: numbers that are not finite become null, dates ISO strings, decimals strings.

    Raises:
        ValueError: JSON cannot hold it, or the key of a dict is no string.

    Example:
        >>> plain({"price": Decimal("9.90"), "seen": date(2024, 5, 1), "rate": float("nan"), "tags": ("a", "b")})
        {'price': '9.90', 'seen': '2024-05-01', 'rate': None, 'tags': ['a', 'b']}
    """
    if isinstance(value, str):
        return clean_text(value)
    if value is None or isinstance(value, (bool, int)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        if wrong := [key for key in value if not isinstance(key, str)]:
            raise ValueError(f"the key {wrong[0]!r} is {_kind(wrong[0])}, not a string")
        return {clean_text(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, (date, time)):
        return value.isoformat()
    if isinstance(value, (Decimal, timedelta)):
        return str(value)
    if hasattr(value, "tolist") and hasattr(value, "dtype"):  # of NumPy
        return plain(value.tolist())
    raise ValueError(f"{beginning(value)} is {_kind(value)}")


def strictly(records: Iterable[Document | Reject]) -> Iterator[Document]:
    """The documents, up to the first record that is none.

    Raises:
        ValueError: There is one; the message has its place, the reason and the remedy.
    """
    for record in records:
        if isinstance(record, Reject):
            raise ValueError(str(record))
        yield record


def clean_text(text: str) -> str:
    """Replace every lone surrogate, which no UTF-8 file and no tokenizer can hold, by U+FFFD.

    Example:
        >>> clean_text("a\\ud800b") == "a\\ufffdb"
        True
    """
    return text if text.isascii() else _SURROGATE.sub("\ufffd", text)


def to_json(value: Any) -> str:
    """JSON on one line, letters of every script as they are."""
    return _encode(value)


def beginning(value: object) -> str | None:
    """The first characters of something, on one line; None of nothing."""
    if value is None:
        return None
    text = clean_text(" ".join((value if isinstance(value, str) else repr(value))[: 4 * _SHOWN].split()))
    return text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…"


def _kind(value: object) -> str:
    return "null" if value is None else f"of type {type(value).__name__}"
