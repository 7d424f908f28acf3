"""What the tests of a corpus look at: its vectors, its documents, its files."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from st_reba.corpus import Corpus, Document
from st_reba.lock import LOCK_FILE


def vectors_of(corpus: Corpus) -> NDArray[Any]:
    """All vectors, one after the other."""
    return np.concatenate([np.array(corpus.vectors(number)) for number in range(corpus.parts())])


def documents_of(corpus: Corpus) -> list[Document]:
    """All documents, one after the other."""
    return [row.document() for number in range(corpus.parts()) for row in corpus.part(number).rows]


def files_of(path: Path) -> dict[str, str]:
    """The SHA-256 of every file; there is no time in any."""
    files = [file for file in sorted(path.rglob("*")) if file.is_file() and file.name != LOCK_FILE]
    return {file.relative_to(path).as_posix(): hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


def times_of(path: Path) -> dict[str, int]:
    """When each part's files were written."""
    return {file.name: file.stat().st_mtime_ns for file in Corpus(path).part_files()}
