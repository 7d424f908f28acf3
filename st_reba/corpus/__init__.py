"""A corpus of any size: read, checked and cut into parts, encoded part by part."""

from .encode import encode_corpus
from .folder import Corpus
from .records import Document, Reject
from .source import Source, open_source

__all__ = ["Corpus", "Document", "Reject", "Source", "encode_corpus", "open_source"]
