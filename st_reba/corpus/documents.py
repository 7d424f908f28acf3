"""Documents to encode, and what is set aside because it cannot be one."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

# Longer than any text that a model reads whole; a record beyond it is a file that went wrong.
MAX_CHARS = 1_000_000

_SURROGATE = re.compile("[\ud800-\udfff]")
_SHOWN = 80


@dataclass(frozen=True)
class Document:
    """One text to encode or index.

    Args:
        text: The text that is encoded and stored.
        id: A name that is unique in the corpus and in the index; None takes the number of the record, from 0.
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
    """One record that is no document, or whose vector is none.

    Args:
        place: Where it stands: a file and a line, or a number of the input.
        reason: What is wrong with it and what to do about it.
        id: Its id, where it has one.
        text: The beginning of what is there, for people to find it by.

    Example:
        >>> print(Reject("corpus.jsonl, line 3", "no text: the key 'text' is missing; give one"))
        corpus.jsonl, line 3: no text: the key 'text' is missing; give one
    """

    place: str
    reason: str
    id: str | None = None
    text: str | None = None

    def __str__(self) -> str:
        return f"{self.place}: {self.reason}"

    def to_json(self) -> dict[str, Any]:
        """What a line of ``rejects.jsonl`` holds."""
        return {"place": self.place, "reason": self.reason, "id": self.id, "text": self.text}

    def to_line(self) -> bytes:
        """The line of ``rejects.jsonl``, with its end."""
        return (json.dumps(self.to_json(), ensure_ascii=False) + "\n").encode()


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
        identity = document.id if isinstance(document.id, str) else None
        return Reject(place, reason, identity, beginning(document.text))

    if not isinstance(document.text, str):
        kind = type(document.text).__name__
        return reject(f"the text is a {kind}, not a string; write it as a string")
    if not document.text.strip():
        return reject("no text: it is empty or blank; leave the record out or give it a text")
    if len(document.text) > max_chars:
        return reject(
            f"the text has {len(document.text):,} characters, more than {max_chars:,}; split it, or raise max_chars "
            "(--max-chars)"
        )
    if document.id is not None and not isinstance(document.id, str):
        return reject(f"the id is a {type(document.id).__name__}, not a string; write it as a string")
    if document.id == "":
        return reject("the id is empty; leave it out, then the record's number is its id, or give one")
    identity = None if document.id is None else clean_text(document.id)
    if document.metadata == {}:
        return Document(clean_text(document.text), identity, {})
    try:
        metadata = json.loads(clean_text(json.dumps(document.metadata, ensure_ascii=False)))
    except (TypeError, ValueError, RecursionError) as error:
        return reject(
            f"the metadata cannot be written as JSON ({error}); use strings, numbers, booleans, None, lists and dicts"
        )
    if not isinstance(metadata, dict):
        return reject(f"the metadata is a {type(metadata).__name__}; give a dict")
    return Document(clean_text(document.text), identity, metadata)


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

    Args:
        text: Any string.

    Returns:
        The string, ready to be stored and encoded.

    Example:
        >>> clean_text("a\\ud800b") == "a\\ufffdb"
        True
    """
    return text if text.isascii() else _SURROGATE.sub("\ufffd", text)


def beginning(value: object) -> str | None:
    """The first characters of something, on one line; None of nothing."""
    if value is None:
        return None
    text = clean_text(" ".join((value if isinstance(value, str) else repr(value))[: 4 * _SHOWN].split()))
    return text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…"
