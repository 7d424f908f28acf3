"""A searchable folder of documents and their vectors, made by any Sentence Transformers model."""

from __future__ import annotations

from ..corpus.readers import read_documents
from ..corpus.records import Document
from .changes import Change
from .index import Index, SearchResult

__all__ = ["Change", "Document", "Index", "SearchResult", "read_documents"]
