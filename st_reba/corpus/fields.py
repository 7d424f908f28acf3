"""How records are read: what holds the text and the id, and a document of what has names for its parts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from .documents import MAX_CHARS, Document, Reject, beginning, checked

_JSON_TYPES: dict[type, str] = {dict: "object", list: "array", str: "string", bool: "boolean", type(None): "null"}


@dataclass(frozen=True)
class Reading:
    """How records are read.

    Args:
        text_column: The column or key that holds the text.
        id_column: The column or key that holds the id. The default may be missing; any other must be there.
        encoding: Of text files.
        max_chars: The longest text, in characters.

    Example:
        >>> Reading(text_column="body").id_column
        'id'
    """

    text_column: str = "text"
    id_column: str = "id"
    encoding: str = "utf-8-sig"
    max_chars: int = MAX_CHARS


def from_fields(
    fields: Mapping[str, Any], place: str, reading: Reading, kind: Literal["key", "column"] = "key"
) -> Document | Reject:
    """The document of a record with names; all but its text and its id becomes the metadata.

    Args:
        fields: The record.
        place: Where it is.
        reading: Which names are the text's and the id's.
        kind: What a name is called.

    Example:
        >>> from_fields({"text": "a", "id": 7, "lang": "en"}, "line 1", Reading())
        Document(text='a', id='7', metadata={'lang': 'en'})
    """
    text_name, id_name = reading.text_column, reading.id_column
    if text_name not in fields or (id_name not in fields and id_name != "id"):
        shown = beginning(dict(fields))
        return Reject(place, missing(fields, reading, kind) or "", text=shown)
    text, identity = fields[text_name], fields.get(id_name)
    if isinstance(identity, int) and not isinstance(identity, bool):
        identity = str(identity)
    if not isinstance(text, str):
        reason = f"{text_name!r} is {_type(text, kind)}, not a string; put the text there"
        return Reject(place, reason, identity if isinstance(identity, str) else None, beginning(text))
    if identity is not None and not isinstance(identity, str):
        reason = f"{id_name!r} is {_type(identity, kind)}, not a string or a whole number; write it as a string"
        return Reject(place, reason, None, beginning(text))
    # One column can be both the text and the id.
    metadata = {key: value for key, value in fields.items() if key != text_name and key != id_name}
    return checked(Document(text, identity, metadata), place, max_chars=reading.max_chars)


def missing(names: Iterable[str], reading: Reading, kind: str) -> str | None:
    """What is wrong where the text's or the id's name is not among the names."""
    there = list(names)
    for role, name in (("text", reading.text_column), ("id", reading.id_column)):
        if name not in there and (role == "text" or name != "id"):
            shown = ", ".join(repr(beginning(present)) for present in there[:20]) or "none"
            return f"no {kind} {name!r}; there: {shown}; name another with {role}_column (--{role}-column)"
    return None


def json_type(value: object) -> str:
    """What JSON calls a value's type."""
    return _JSON_TYPES.get(type(value), "number")


def _type(value: object, kind: str) -> str:
    return f"a JSON {json_type(value)}" if kind == "key" else "null" if value is None else f"a {type(value).__name__}"
