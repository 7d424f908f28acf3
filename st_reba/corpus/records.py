"""Documents, how they are stored, and records that are rejected."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import date, time, timedelta
from decimal import Decimal
from typing import Any, cast
from uuid import UUID

import numpy as np

# Increased when the stored form changes, such as `DocumentColumns`: older folders are then refused.
CORPUS_FORMAT = 4
INDEX_FORMAT = 12

# Longer than any text that a model reads whole: such a record comes from a broken file.
MAX_CHARACTERS = 1_000_000
# Python writes no integer of more than 4,300 digits in decimal.
MAX_INTEGER_BITS = 14_284

_SURROGATE = re.compile("[\ud800-\udfff]")
_NOT_IN_IDS = re.compile("[\0\ud800-\udfff]")  # SQLite's functions end a text at NUL
_PREVIEW_LENGTH = 80
_REJECTS_IN_MESSAGE = 3
_FINE_TIME_UNITS = ("ns", "ps", "fs", "as")
_MISSING_TYPES = ("NoneType", "NAType", "NaTType")

json_line = json.JSONEncoder(ensure_ascii=False, allow_nan=False).encode
"""JSON on one line, letters of every script as they are."""
_to_sorted_json = json.JSONEncoder(ensure_ascii=False, allow_nan=False, sort_keys=True).encode


@dataclass(frozen=True)
class Document:
    """One text to encode or index.

    Args:
        text: The text that is encoded and stored.
        id: A name that is unique in the corpus and in the index; None: the number of the record,
            from 0.
        metadata: JSON values; they come back with every search result.
        position_keys: Keys of the metadata that change when lines move in the text's file. Without
            an id, a document is recognized by its text and its other metadata.

    Example:
        >>> Document("Cats sleep a lot.", id="cats", metadata={"lang": "en"}).id
        'cats'
    """

    text: str
    id: str | None = None
    metadata: dict[str, Any] = field(default_factory=dict)
    position_keys: Sequence[str] = field(default=(), compare=False, repr=False, kw_only=True)

    def to_json(self) -> dict[str, Any]:
        """Its fields as JSON values."""
        return {"id": self.id, "text": self.text, "metadata": self.metadata}

    def stored_fields(self) -> dict[str, Any]:
        """Its fields as those of `DocumentColumns`."""
        return {**self.to_json(), "metadata": json_line(self.metadata)}

    @property
    def content_hash(self) -> str:
        """A digest by which it is recognized: keys may come in any order, but 1 is not 1.0."""
        ignored_keys = self.position_keys if self.id is None else ()
        metadata = {key: value for key, value in self.metadata.items() if key not in ignored_keys}
        content = _to_sorted_json({**self.to_json(), "metadata": metadata})
        return hashlib.blake2b(content.encode(), digest_size=16).hexdigest()


@dataclass(frozen=True, kw_only=True)
class DocumentColumns:
    """A document as stored: what the user gave, in one column of strings for each field.

    The rows of an encoded corpus and of an index have these columns, and others of their own.
    """

    id: str | None
    text: str
    metadata: str  # as JSON

    def document(self) -> Document:
        return Document(self.text, self.id, json.loads(self.metadata))

    def document_fields(self) -> dict[str, Any]:
        """The fields of every document, without those that a subclass adds."""
        return dict(zip(DOCUMENT_COLUMNS, self.cells(DOCUMENT_COLUMNS), strict=True))

    def cells(self, names: Iterable[str]) -> list[Any]:
        """The values of some columns."""
        return [getattr(self, name) for name in names]


DOCUMENT_COLUMNS = tuple(column.name for column in fields(DocumentColumns))


@dataclass(frozen=True)
class Reject:
    """One record that is rejected: it is not a document, or its vector cannot be used."""

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


def is_missing(value: object) -> bool:
    """True for None and for what pandas puts into an empty cell: NaN, NaT and NA."""
    if type(value).__name__ in _MISSING_TYPES:
        return True
    return isinstance(value, float) and math.isnan(value)


def validate(document: Document, place: str) -> Document | Reject:
    """The document, ready to be stored and encoded, lone surrogates replaced; or why it cannot be.

    Example:
        >>> validate(Document(" "), "line 1").reason
        'no text: it is empty or blank; leave the record out or give it a text'
    """
    reason = _text_fault(document.text) or _id_fault(document.id)
    metadata = {}
    if reason is None:
        try:
            metadata = to_json_value(dict(document.metadata or {}))
        except (ValueError, TypeError, RecursionError) as error:
            reason = f"wrong type: the metadata cannot be written as JSON ({error}); correct it or leave it out"
    if reason is None:
        return replace(document, text=clean_text(document.text), metadata=metadata)
    shown_id = document.id if _is_valid_string(document.id) else None
    return Reject(place, reason, shown_id, preview(document.text))


def _is_valid_string(value: object) -> bool:
    if not isinstance(value, str) or not value:
        return False
    return _NOT_IN_IDS.search(value) is None


def _id_fault(document_id: object) -> str | None:
    if document_id is None or _is_valid_string(document_id):
        return None
    shown_id = preview(document_id)
    return f"wrong type: the id {shown_id!r} is not a valid string; correct it, or leave it out"


def _text_fault(text: object) -> str | None:
    if text is None:
        text = ""
    if not isinstance(text, str):
        return f"wrong type: the text is a {type(text).__name__}; write it as a string"
    if not text.strip():
        return "no text: it is empty or blank; leave the record out or give it a text"
    length = len(text)
    if length > MAX_CHARACTERS:
        return (
            f"too long: the text has {length:,} characters, more than {MAX_CHARACTERS:,}; split it"
        )
    return None


def to_json_value(value: Any) -> Any:
    """Convert a value to JSON's types.

    Numbers that are not finite become null, dates ISO strings, and decimals strings.

    Example:
        >>> price = {"price": Decimal("9.90"), "seen": date(2024, 5, 1)}
        >>> to_json_value({**price, "rate": float("nan"), "tags": ("a", "b")})
        {'price': '9.90', 'seen': '2024-05-01', 'rate': None, 'tags': ['a', 'b']}
    """
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return _clean_json_string(value)
    if isinstance(value, int):
        if value.bit_length() > MAX_INTEGER_BITS:
            raise ValueError("an integer has more than 4,300 digits")
        return value
    if isinstance(value, float):
        if math.isfinite(value):
            return float(value)
        return None
    if isinstance(value, Mapping):
        return _to_json_object(value)
    if isinstance(value, (list, tuple)):
        return [to_json_value(item) for item in value]
    if isinstance(value, (date, time)):
        return value.isoformat()
    if isinstance(value, (Decimal, timedelta, UUID)):
        return str(value)
    if isinstance(value, (np.ndarray, np.generic)):
        return to_json_value(_without_nanoseconds(value).tolist())
    raise ValueError(f"{preview(value)} is a {type(value).__name__}")


def _without_nanoseconds(value: np.ndarray[Any, Any] | np.generic) -> Any:
    """NumPy's times to microseconds: Python has none that are finer, and NumPy would give integers."""
    kind = value.dtype.kind
    if kind not in "mM":
        return value
    unit, _ = np.datetime_data(cast(Any, value.dtype))
    return value.astype(f"{kind}8[us]") if unit in _FINE_TIME_UNITS else value


def _to_json_object(mapping: Mapping[object, object]) -> dict[str, Any]:
    converted = {}
    for key, value in mapping.items():
        if not isinstance(key, str):
            raise ValueError(f"the key {key!r} is a {type(key).__name__}, not a string")
        converted[_clean_json_string(key)] = to_json_value(value)
    return converted


def _clean_json_string(text: str) -> str:
    if "\0" in text:
        raise ValueError(f"{preview(text)!r} holds the character NUL, where SQLite ends a text")
    return clean_text(text)


def clean_text(text: str) -> str:
    """Replace lone surrogates, which no UTF-8 file and no tokenizer can hold, by U+FFFD."""
    if text.isascii():
        return text
    return _SURROGATE.sub("\ufffd", text)


def preview(value: object) -> str | None:
    """The first characters of a value, on one line; None of None."""
    if value is None:
        return None
    text = value if isinstance(value, str) else _repr_of(value)
    first_words = text[: 4 * _PREVIEW_LENGTH].split()
    line = clean_text(" ".join(first_words))
    if len(line) <= _PREVIEW_LENGTH:
        return line
    return line[: _PREVIEW_LENGTH - 1] + "…"


def _repr_of(value: object) -> str:
    try:
        return repr(value)
    except ValueError:  # an integer of too many digits, alone or within it
        return f"{type(value).__name__} of more than 4,300 digits"


def describe_rejects(rejects: Sequence[Reject]) -> str:
    """Why there are no documents: the number of rejects, and the first of them with their places.

    Example:
        >>> describe_rejects([Reject("a.csv, line 2", "no text: it is blank; give it a text")])
        'no documents: 1 record is set aside: a.csv, line 2: no text: it is blank; give it a text'
    """
    if not rejects:
        return "no documents: there are no records"
    reject_count = len(rejects)
    subject = "1 record is"
    if reject_count > 1:
        subject = f"all {reject_count:,} records are"
    examples = [str(reject) for reject in rejects[:_REJECTS_IN_MESSAGE]]
    if reject_count > _REJECTS_IN_MESSAGE:
        examples.append("…")
    return f"no documents: {subject} set aside: {' | '.join(examples)}"
