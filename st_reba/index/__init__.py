"""A searchable folder of document vectors and texts, made by any Sentence Transformers model."""

from __future__ import annotations

from st_reba.index.documents import Document, read_documents
from st_reba.index.index import Index, SearchResult

__all__ = ["Document", "Index", "SearchResult", "read_documents"]
