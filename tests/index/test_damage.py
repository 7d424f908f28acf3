"""Damaged files are neither rewritten nor passed on: digests are compared first."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from indexes import MODEL, QUIET, build, documents, scores_of, texts

from st_reba.corpus import Corpus, Document, encode_corpus
from st_reba.index import Index, changes

REWRITES: dict[str, Callable[[Index], object]] = {
    "compact": lambda index: index.compact(),
    "another factory": lambda index: index.compact(factory="Flat"),
    "a rewriting add": lambda index: index.add(texts(9, 3), **QUIET),
    "a rewriting upsert": lambda index: index.upsert([Document("gold", "d3")], **QUIET),
    "parquet": lambda index: index.export(index.path.with_name("out.parquet")),
    "faiss": lambda index: index.export(index.path.with_name("out.faiss")),
}
READS: dict[str, Callable[[Index], object]] = {
    "get": lambda index: index.get("d3"),
    "iterate": list,
    "search": lambda index: index.search("cat", 40),
    "export": lambda index: index.export(index.path.with_name("out.parquet")),
    "verify": lambda index: index.verify(),
}


@pytest.fixture(scope="module", params=["Flat", "IVF2,SQ8"])
def built_index(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
) -> Path:
    path = tmp_path_factory.mktemp("built") / "index"
    index = build(path, documents(40), factory=request.param)
    index.delete(["d1"])
    index.close()
    return path


@pytest.fixture
def index_copy(
    built_index: Path,
    index_path: Path,
) -> Path:
    return Path(shutil.copytree(built_index, index_path))


def flip(
    path: Path,
    offset: int,
) -> None:
    file_content = bytearray(path.read_bytes())
    file_content[offset] ^= 0x40
    path.write_bytes(bytes(file_content))


def alter(
    index_folder: Path,
    statement: str,
) -> None:
    with closing(sqlite3.connect(index_folder / "index.sqlite")) as connection, connection:
        connection.execute(statement)


@pytest.mark.parametrize("rewrite", REWRITES.values(), ids=REWRITES)
def test_a_damaged_vector_file_is_not_rewritten(
    index_copy: Path,
    monkeypatch: pytest.MonkeyPatch,
    rewrite: Callable[[Index], object],
) -> None:
    monkeypatch.setattr(changes, "MIN_PENDING", 0)
    monkeypatch.setattr(changes, "PENDING_SHARE", 0.0)
    vector_file = index_copy / "vectors-1.faiss"
    flip(vector_file, -200)  # within the vectors
    damaged_content = vector_file.read_bytes()
    index = Index.open(index_copy, MODEL)
    with pytest.raises(ValueError, match="SHA-256"):
        rewrite(index)
    assert vector_file.read_bytes() == damaged_content
    assert len(list(index_copy.glob("*.faiss"))) == 1
    assert not list(index_copy.parent.glob("out.*"))


@pytest.mark.parametrize("read", READS.values(), ids=READS)
def test_a_damaged_document_is_not_passed_on(
    index_copy: Path,
    read: Callable[[Index], object],
) -> None:
    alter(index_copy, "UPDATE documents SET metadata = '{\"n\": 8' WHERE id = 'd3'")
    index = Index.open(index_copy, MODEL)
    with pytest.raises(ValueError, match="'d3' is not what was written.*restore a copy"):
        read(index)


def test_altered_tombstones_delete_nothing_else(index_copy: Path) -> None:
    alter(index_copy, "UPDATE tombstones SET key = 7")
    with pytest.raises(ValueError, match="belong together"):
        Index.open(index_copy).compact()


def test_the_error_of_a_lost_vector_file_has_a_remedy(index_copy: Path) -> None:
    next(index_copy.glob("*.faiss")).unlink()
    with pytest.raises(FileNotFoundError, match="missing; restore a copy"):
        Index.open(index_copy)


@pytest.mark.parametrize(
    "name", ["documents/00001.parquet", "vectors/00001.npy", "vectors/00001.json"]
)
def test_a_stopped_build_encodes_a_damaged_part_again(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
) -> None:
    whole_index = build(tmp_path / "whole", part_size=8)
    expected_scores = scores_of(whole_index.search("cat", 40))
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(changes.IndexWriter, "rewrite_vectors", stop)
        build(tmp_path / "index", part_size=8)
    path = tmp_path / "index" / ".building" / name
    flip(path, len(path.read_bytes()) // 2)
    index = build(tmp_path / "index", part_size=8)
    assert scores_of(index.search("cat", 40)) == expected_scores


def stop(*_: Any) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("name", ["documents/00001.parquet", "vectors/00001.npy"])
def test_a_damaged_corpus_is_not_read_as_whole(
    tmp_path: Path,
    name: str,
) -> None:
    corpus = encode_corpus(MODEL, texts(20), tmp_path / "corpus", part_size=6, **QUIET)
    path = corpus.path / name
    file_content = path.read_bytes()
    original_rows = read_part(corpus)
    refused_count = 0
    for offset in np.linspace(0, len(file_content) - 1, 30).astype(int).tolist():
        flip(path, offset)
        try:
            # Harmless, such as the name of the writer in a Parquet file.
            assert read_part(corpus) == original_rows
        except ValueError as error:
            assert path.stem in str(error)
            assert "encode" in str(error)
            refused_count += 1
        path.write_bytes(file_content)
    assert refused_count > 5


def read_part(corpus: Corpus) -> list[tuple[Any, bytes]]:
    rows = Corpus(corpus.path).read(1)
    return [(row, vectors.tobytes()) for row, vectors in rows]


def test_a_corpus_of_another_format_is_to_be_encoded_again(tmp_path: Path) -> None:
    corpus = encode_corpus(MODEL, texts(9), tmp_path / "corpus", **QUIET)
    header_path = corpus.path / "corpus.json"
    header = header_path.read_text(encoding="utf-8")
    header_path.write_text(header.replace('"format": 2', '"format": 1'), encoding="utf-8")
    for use in (lambda: build(tmp_path / "index", corpus.path), lambda: encode(corpus.path)):
        with pytest.raises(ValueError, match=r"format 1, not 2\); encode the corpus again"):
            use()
    encode(corpus.path, overwrite=True).verify()


def encode(path: Path, **options: Any) -> Corpus:
    return encode_corpus(MODEL, texts(9), path, **options, **QUIET)
