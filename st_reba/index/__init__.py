"""Index of documents: SQLite for documents and metadata, FAISS for vectors, in one folder."""

from ..corpus.records import Document, Reject
from .changes import Change, stopped_progress
from .index import Index
from .model import OtherModelError
from .search import SearchResult

__all__ = [
    "Change",
    "Document",
    "Index",
    "OtherModelError",
    "Reject",
    "SearchResult",
    "stopped_progress",
]
