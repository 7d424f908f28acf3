"""A corpus of any size: read, checked and cut into parts, encoded part by part, and never begun again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .folder import Corpus
from .readers import read_documents
from .records import Document, Reject

if TYPE_CHECKING:
    from .encode import encode_corpus

__all__ = ["Corpus", "Document", "Reject", "encode_corpus", "read_documents"]


def __getattr__(name: str) -> Any:
    if name == "encode_corpus":  # it imports the libraries that run models; reading needs none of them
        from .encode import encode_corpus

        return encode_corpus
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
