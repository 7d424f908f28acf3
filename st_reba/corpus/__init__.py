"""A corpus of any size: read, checked and cut into parts, encoded part by part."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .folder import Corpus
from .records import Document, Reject

if TYPE_CHECKING:
    from .encode import Settings, encode_corpus

__all__ = ["Corpus", "Document", "Reject", "Settings", "encode_corpus"]


def __getattr__(name: str) -> Any:
    if name in ("encode_corpus", "Settings"):  # their file imports the libraries that run models
        from . import encode

        return getattr(encode, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
