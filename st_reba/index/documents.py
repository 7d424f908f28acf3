"""Documents, and readers that stream them from text, JSON lines, CSV and TSV files."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterable, Iterator, Sized
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any, TextIO

from ..tables import csv_rows

SUFFIXES = (".txt", ".jsonl", ".csv", ".tsv")

# The csv module stops at 131,072 characters a field, fewer than a long document has. A bound stays,
# so that a quote that is never closed does not pull the rest of a large file into memory.
MAX_CSV_FIELD = 2**24

_UNDECODED = re.compile("[\udc80-\udcff]")


@dataclass(frozen=True)
class Document:
    """One text to index.

    Args:
        text: The text that is encoded and stored.
        id: A name that is unique in the index; None takes the row number.
        metadata: Anything JSON can hold; it comes back with every search result.

    Example:
        >>> Document("Cats sleep a lot.", id="cats", metadata={"lang": "en"}).id
        'cats'
    """

    text: str
    id: str | None = None
    metadata: dict[str, Any] = field(default_factory=dict)


def as_documents(texts: Iterable[str | Document], ids: Iterable[str] | None) -> Iterator[Document]:
    """Make a document of each text.

    Args:
        texts: Texts or documents, read one by one.
        ids: One id for each text; None leaves the ids of the documents.

    Returns:
        An iterator of documents. Lengths are compared at once when both are known, else at the end.

    Raises:
        ValueError: There are more texts than ids or the other way round, or a document has an id already.
        TypeError: Something is not a text or a document, or an id is not a string.

    Example:
        >>> [document.id for document in as_documents(["one", "two"], ["a", "b"])]
        ['a', 'b']
    """
    if isinstance(texts, (str, Document)):
        raise TypeError(f"texts is one {type(texts).__name__}; give a list or another iterable of them")
    if isinstance(ids, str):
        raise TypeError("ids is one string; give a list with one id for each text")
    if isinstance(texts, Sized) and isinstance(ids, Sized) and len(texts) != len(ids):
        raise ValueError(f"there are {len(texts)} texts, but {len(ids)} ids; give one id for each text")
    return _pairs(texts, ids)


def _pairs(texts: Iterable[str | Document], ids: Iterable[str] | None) -> Iterator[Document]:
    names = None if ids is None else iter(ids)
    row = 0
    for row, text in enumerate(texts, 1):
        document = Document(text) if isinstance(text, str) else text
        if not isinstance(document, Document) or not isinstance(document.text, str):
            raise TypeError(f"the text at row {row - 1} is a {type(text).__name__}; give strings or Documents")
        if names is not None:
            if document.id is not None:
                raise ValueError(f"the document at row {row - 1} has the id {document.id!r}, and ids gives another")
            try:
                document = Document(document.text, next(names), document.metadata)
            except StopIteration:
                raise ValueError(f"there are more texts than the {row - 1} ids; give one id for each text") from None
        if document.id is not None and not isinstance(document.id, str):
            raise TypeError(f"the id at row {row - 1} is a {type(document.id).__name__}; give a string or None")
        yield document
    if names is not None and next(names, None) is not None:
        raise ValueError(f"there are more ids than the {row} texts; give one id for each text")


def read_documents(
    path: str | PathLike[str],
    *,
    text_column: str = "text",
    id_column: str = "id",
    encoding: str = "utf-8-sig",
) -> Iterator[Document]:
    """Read the documents of a file one by one, without loading it whole.

    The suffix says what the file holds: .txt one text a line (blank lines are skipped), .jsonl one JSON
    object or one bare JSON string a line, .csv and .tsv a header and then one row for each document.
    Columns and keys other than the text and the id become the metadata.

    Args:
        path: The file to read.
        text_column: The column or key that holds the text.
        id_column: The column or key that holds the id. The default may be missing, then ids are None;
            a name given here must be there.
        encoding: The encoding of the file.

    Returns:
        An iterator of documents in the order of the file.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: The suffix is not supported, or a line cannot be read; the message has the line number.

    Example:
        >>> with open("corpus.txt", "w", encoding="utf-8") as file:
        ...     _ = file.write("The first text\\nThe second text\\n")
        >>> [document.text for document in read_documents("corpus.txt")]
        ['The first text', 'The second text']
    """
    if str(path) == "-":
        raise ValueError('"-" (standard input) is not supported here: save the texts in a file and give its path')
    path = Path(path)
    suffix = path.suffix.lower()
    if suffix not in SUFFIXES:
        raise ValueError(
            f"{path}: the suffix {path.suffix!r} is not supported; use one of {', '.join(SUFFIXES)} "
            "(.txt holds one text a line)"
        )
    if not path.is_file():
        raise FileNotFoundError(f"{path}: {'not a file' if path.exists() else 'no such file'}")
    try:
        "".encode(encoding)
    except LookupError:
        raise ValueError(f"{path}: unknown encoding {encoding!r}; use for example 'utf-8' or 'gb18030'") from None
    if suffix == ".txt":
        return _read_txt(path, encoding)
    if suffix == ".jsonl":
        return _read_jsonl(path, encoding, text_column, id_column)
    return _read_csv(path, encoding, text_column, id_column, "," if suffix == ".csv" else "\t")


def _lines(file: TextIO, path: Path, encoding: str) -> Iterator[str]:
    """Yield the lines of a file opened with errors="surrogateescape", naming the line that does not decode."""
    number = 0
    try:
        for number, line in enumerate(file, 1):
            bad = _UNDECODED.search(line)
            if bad:
                byte = f"byte 0x{ord(bad.group()) - 0xDC00:02x}"
                raise ValueError(_not_decoded(path, f"line {number}", byte, encoding))
            yield line
    except UnicodeError as error:
        # Encodings of more than one byte a character cannot always carry a bad byte along; they stop somewhere
        # in the block that was being read.
        raise ValueError(_not_decoded(path, f"after line {number}", str(error), encoding)) from None


def _not_decoded(path: Path, where: str, found: str, encoding: str) -> str:
    name = "UTF-8" if encoding.lower().replace("_", "-") in ("utf-8", "utf8", "utf-8-sig") else encoding
    return f"{path}, {where}: not {name} ({found}); save the file as UTF-8 or give its encoding, such as 'gb18030'"


def _read_txt(path: Path, encoding: str) -> Iterator[Document]:
    with path.open(encoding=encoding, errors="surrogateescape") as file:
        for line in _lines(file, path, encoding):
            text = line.rstrip("\n")
            if text.strip():
                yield Document(text)


def _read_jsonl(path: Path, encoding: str, text_column: str, id_column: str) -> Iterator[Document]:
    with path.open(encoding=encoding, errors="surrogateescape") as file:
        for number, line in enumerate(_lines(file, path, encoding), 1):
            if not line.strip():
                continue
            where = f"{path}, line {number}"
            try:
                value = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise ValueError(
                    f"{where}: not JSON ({error}): {_shorten(line.strip())}; "
                    "write one JSON object or one JSON string on each line"
                ) from None
            if isinstance(value, str):
                yield Document(value)
                continue
            if not isinstance(value, dict):
                raise ValueError(
                    f"{where}: a JSON {_json_type(value)}: {_shorten(line.strip())}; "
                    f"write an object with the key {text_column!r}, or a string"
                )
            yield _from_fields(value, where, "key", text_column, id_column)


def _read_csv(path: Path, encoding: str, text_column: str, id_column: str, delimiter: str) -> Iterator[Document]:
    csv.field_size_limit(max(csv.field_size_limit(), MAX_CSV_FIELD))
    with path.open(encoding=encoding, errors="surrogateescape", newline="") as file:
        header: list[str] | None = None
        for first, header, row in csv_rows(_lines(file, path, encoding), path, delimiter):
            where = f"{path}, line {first}"
            if row is header:
                _check_fields(header, where, "column", text_column, id_column)
                continue
            if len(row) != len(header):
                raise ValueError(
                    f"{where}: {len(row)} fields, but the header has {len(header)} columns; "
                    "put a field that holds the separator in quotes"
                )
            yield _from_fields(dict(zip(header, row, strict=True)), where, "column", text_column, id_column)
        if header is None:
            raise ValueError(f"{path}, line 1: the file is empty; the first line must name the columns")


def _check_fields(names: list[str], where: str, kind: str, text_column: str, id_column: str) -> None:
    wanted = [("text", text_column)] if id_column == "id" else [("text", text_column), ("id", id_column)]
    for role, name in wanted:
        if name not in names:
            there = ", ".join(repr(_shorten(present)) for present in names[:20]) or "none"
            raise ValueError(
                f"{where}: no {kind} {name!r}; there: {there}; name another with {role}_column (--{role}-column)"
            )


def _from_fields(fields: dict[str, Any], where: str, kind: str, text_column: str, id_column: str) -> Document:
    _check_fields(list(fields), where, kind, text_column, id_column)
    text = fields[text_column]
    if not isinstance(text, str):
        raise ValueError(f"{where}: {text_column!r} is a JSON {_json_type(text)}, not a string; put the text there")
    # One column can be both the text and the id.
    identity = fields.get(id_column)
    if isinstance(identity, int) and not isinstance(identity, bool):
        identity = str(identity)
    if identity is not None and not isinstance(identity, str):
        raise ValueError(
            f"{where}: {id_column!r} is a JSON {_json_type(identity)}, not a string or a whole number; "
            "write it as a string"
        )
    metadata = {key: value for key, value in fields.items() if key not in (text_column, id_column)}
    return Document(text, id=identity or None, metadata=metadata)


def _json_type(value: object) -> str:
    names = {dict: "object", list: "array", str: "string", bool: "boolean", type(None): "null"}
    return names.get(type(value), "number")


def _shorten(text: str, length: int = 60) -> str:
    return text if len(text) <= length else text[: length - 1] + "…"
