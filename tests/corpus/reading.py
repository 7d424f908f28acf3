"""Inputs for the tests of reading, and what is read of them."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

from st_reba.corpus import Document, Reject
from st_reba.corpus.records import Reading
from st_reba.corpus.source import open_source

BLANK = "no text: it is empty or blank; leave the record out or give it a text"


def write(path: Path, content: str | bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    raw = content.encode() if isinstance(content, str) else content
    path.write_bytes(gzip.compress(raw) if path.suffix == ".gz" else raw)
    return path


def records(source: Any, ids: Any = None, **options: Any) -> list[Document | Reject]:
    return list(open_source(source, Reading(**options), ids).read())


def texts(source: Any, **options: Any) -> list[str | None]:
    """The texts; None in place of what was set aside."""
    return [one.text if isinstance(one, Document) else None for one in records(source, **options)]
