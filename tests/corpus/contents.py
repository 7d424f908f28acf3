"""What the tests of a corpus look at: its vectors, its documents, its files."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tiny import WORDS, tiny_model

from st_reba.corpus import Corpus, Document, encode_corpus
from st_reba.lock import LOCK_FILE

TEXTS = [f"Text {'very ' * (number * 7 % 9)}number {number}, 第{number}句。" for number in range(26)]
LONG = "  Émile saw 😀😀 and a naïve cat. 春天来了，河边的柳树发了新芽，孩子们在草地上放风筝。\n\nThe end  "

MODEL = tiny_model()
SIZE = 10
MIXED: list[Any] = [
    {"text": f"{WORDS[number % 12]} {number}"} if number % 3 else {"text": "given", "id": f"x{number}", "n": number}
    for number in range(34)
]
MIXED[7] = {"text": " "}
MIXED[12] = {"text": "twice", "id": "x3"}
MIXED[25] = {"text": "once more", "id": "x3"}
MIXED[13] = 5


def run(path: Path, records: Any, **options: Any) -> Corpus:
    return encode_corpus(MODEL, records, path, **{"part_size": SIZE, "show_progress_bar": False, **options})


def broken(stop: int) -> Iterator[Any]:
    yield from MIXED[:stop]
    raise KeyboardInterrupt


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
