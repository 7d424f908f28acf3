"""State of an index besides its documents."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from sqlite3 import Connection
from typing import Any

from ..corpus.records import INDEX_FORMAT, json_line
from .schema import has_tables
from .terms import TOKENIZERS

REMEDY = "restore a copy of the folder, or remove it and build the index again"
# A view or trigger in a file from a stranger could take the place of our tables and run forever.
_FOREIGN_OBJECTS = "SELECT name FROM sqlite_master WHERE type IN ('view', 'trigger') LIMIT 1"


@dataclass
class IndexState:
    """Facts about an index, kept as one row of the table `meta`.

    A document has an id, and each of its vectors a key, which is never used again. So if the first
    document has three passages, their keys are 0 to 2, and ``next_key`` is 3. A document without an
    id gets ``next_number`` as its id.
    """

    model: dict[str, Any]  # probe of the model, as JSON
    metric: str
    dimension: int  # of the model's vectors
    columns: dict[str, str | None]  # of the text and the id, for additions
    passages: str | None
    max_seq_length: int | None  # of the model when it encoded documents
    factory: str = "Flat"
    parameters: str | None = None
    changes: int = 0
    change_id: str = ""  # random, of the last change: no two states are alike
    documents: int = 0
    next_key: int = 0
    next_number: int = 0  # the id of the next document that has none
    vector_file: str | None = None  # the FAISS file's name; None: no vectors are left
    vector_file_size: int = 0
    vector_file_sha256: str = ""
    indexed_count: int = 0  # vectors in the FAISS file
    first_pending_key: int = 0  # after the keys in the FAISS file
    pending: int = 0
    deleted: int = 0
    truncated: int = 0  # documents that are longer than the model reads
    words: str = ""  # language of the documents' words; "": they are written when the build ends
    whitening: str | None = None  # as `Whitening.description`; None: the vectors are raw
    whitening_sha256: str = ""  # of the content of the table
    token_dimension: int = 0  # of the part of a vector that its text's tokens have

    @property
    def vector_dimension(self) -> int:
        """Dimension of the vectors that are searched."""
        return self.dimension + self.token_dimension


def damaged(path: Path, reason: object) -> ValueError:
    """The error about a file that is not what was written."""
    return ValueError(f"{path}: damaged, or not of an index ({reason}); {REMEDY}")


def absent_index(folder: Path) -> str:
    """Message about a folder without an index."""
    return f"{folder}: no index is there; st-reba index makes one"


def read_state(connection: Connection, path: Path) -> IndexState:
    """Read the state of an index file.

    Raises:
        FileNotFoundError: Nothing was committed yet.
        ValueError: It is damaged, or of another version of st_reba.
    """
    foreign_object = connection.execute(_FOREIGN_OBJECTS).fetchone()
    if foreign_object is not None:
        reason = f"{foreign_object[0]!r:.80} is a view or a trigger, and an index has none"
        raise damaged(path, reason)
    row = None
    if has_tables(connection):
        row = connection.execute("SELECT state, sha256 FROM meta").fetchone()
    if row is None:
        raise FileNotFoundError(absent_index(path.parent))
    try:
        return _parse_state(*row)
    except _OtherFormatError as error:
        raise ValueError(f"{path}: {error}; remove the folder and build the index again") from None
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise damaged(path, error) from None


class _OtherFormatError(Exception):
    pass


@lru_cache(4)  # every search reads the state, and must not change it
def _parse_state(text: str, digest: str) -> IndexState:
    if hashlib.sha256(text.encode()).hexdigest() != digest:
        raise ValueError("its state is not what was written")
    values = json.loads(text)
    index_format = values.pop("format")
    if index_format != INDEX_FORMAT:
        raise _OtherFormatError(
            f"the index was built by another version (format {index_format}, not {INDEX_FORMAT})"
        )
    state = IndexState(**values)
    if state.vector_file is not None and Path(state.vector_file).name != state.vector_file:
        raise ValueError("its FAISS file is not in the folder")
    if state.words not in TOKENIZERS:
        raise ValueError(f"words={state.words!r:.80} is not a language")
    return state


def write_state(connection: Connection, state: IndexState) -> None:
    text = json_line({"format": INDEX_FORMAT, **asdict(state)})
    digest = hashlib.sha256(text.encode()).hexdigest()
    connection.execute("DELETE FROM meta")
    connection.execute("INSERT INTO meta VALUES (?, ?)", (text, digest))
