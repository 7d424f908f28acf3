"""Documents, and records that are set aside."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import date, time, timedelta
from decimal import Decimal
from typing import Any

MAX_CHARS = 1_000_000  # longer than any text that a model reads whole; a record beyond it is a file that went wrong
# Python writes no longer integers, of 4,300 digits, in decimal.
MAX_INTEGER_BITS = 14_284

_SURROGATE = re.compile("[\ud800-\udfff]")
_NOT_IN_IDS = re.compile("[\0\ud800-\udfff]")  # SQLite's functions end a text at NUL
_SHOWN = 80
_LISTED = 3  # rejects in a message
to_json = json.JSONEncoder(ensure_ascii=False, allow_nan=False).encode
"""JSON on one line, letters of every script as they are."""


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


def is_missing(value: Any) -> bool:
    """True for None and for what pandas puts into an empty cell: NaN, NaT and NA."""
    return type(value).__name__ in ("NoneType", "NAType", "NaTType") or (isinstance(value, float) and value != value)


def checked(document: Document, place: str) -> Document | Reject:
    """The document, ready to be stored and encoded, lone surrogates replaced; or why it cannot be.

    Example:
        >>> checked(Document(" "), "line 1").reason
        'no text: it is empty or blank; leave the record out or give it a text'
    """
    text, identity = document.text, document.id
    valid = isinstance(identity, str) and identity and not _NOT_IN_IDS.search(identity)
    reason, metadata = None, {}
    if text is None or (isinstance(text, str) and not text.strip()):
        reason = "no text: it is empty or blank; leave the record out or give it a text"
    elif not isinstance(text, str):
        reason = f"wrong type: the text is a {type(text).__name__}; write it as a string"
    elif len(text) > MAX_CHARS:
        reason = f"too long: the text has {len(text):,} characters, more than {MAX_CHARS:,}; split it"
    elif not (identity is None or valid):
        reason = f"wrong type: the id {beginning(identity)!r} is no valid string; correct it, or leave it out"
    else:
        try:
            metadata = plain(dict(document.metadata or {}))
        except (ValueError, TypeError, RecursionError) as error:
            reason = f"wrong type: the metadata cannot be written as JSON ({error}); correct it or leave it out"
    if reason is not None:
        return Reject(place, reason, identity if valid else None, beginning(text))
    return Document(clean_text(text), identity, metadata)


def plain(value: Any) -> Any:
    """A value as JSON holds it: numbers that are not finite become null, dates ISO strings, decimals strings.

    Example:
        >>> plain({"price": Decimal("9.90"), "seen": date(2024, 5, 1), "rate": float("nan"), "tags": ("a", "b")})
        {'price': '9.90', 'seen': '2024-05-01', 'rate': None, 'tags': ['a', 'b']}
    """
    if isinstance(value, str):
        return clean_text(value)
    if isinstance(value, int) and value.bit_length() > MAX_INTEGER_BITS:
        raise ValueError("an integer has more than 4,300 digits")
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
    if hasattr(value, "tolist"):  # of NumPy
        return plain(value.tolist())
    raise ValueError(f"{beginning(value)} is a {type(value).__name__}")


def clean_text(text: str) -> str:
    """Replace lone surrogates, which no UTF-8 file and no tokenizer can hold, by U+FFFD."""
    return text if text.isascii() else _SURROGATE.sub("\ufffd", text)


def beginning(value: object) -> str | None:
    """The first characters of something, on one line; None of None."""
    if value is None:
        return None
    text = value if isinstance(value, str) else _written(value)
    text = clean_text(" ".join(text[: 4 * _SHOWN].split()))
    return text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…"


def _written(value: object) -> str:
    try:
        return repr(value)
    except ValueError:  # an integer of too many digits, alone or within it
        return f"{type(value).__name__} of more than 4,300 digits"


def describe_rejects(rejects: Iterable[Reject]) -> str:
    """Why there are no documents: how many records are set aside, and the first of them with their places.

    Example:
        >>> describe_rejects([Reject("a.csv, line 2", "no text: it is blank; give it a text")])
        'no documents: 1 record is set aside: a.csv, line 2: no text: it is blank; give it a text'
    """
    rejects = list(rejects)
    if not rejects:
        return "no documents: there are no records"
    subject = "1 record is" if len(rejects) == 1 else f"all {len(rejects):,} records are"
    first = " | ".join(str(reject) for reject in rejects[:_LISTED])
    more = " | …" if len(rejects) > _LISTED else ""
    return f"no documents: {subject} set aside: {first}{more}"
