"""A searchable folder of document vectors and texts, made by any Sentence Transformers model."""

from __future__ import annotations

from ..corpus.documents import Document
from ..corpus.readers import read_documents
from .changing.changes import Change, add, delete
from .changing.compaction import compact
from .exporting import export
from .folder.generation import SearchResult
from .index import Index

__all__ = ["Change", "Document", "Index", "SearchResult", "add", "compact", "delete", "export", "read_documents"]
