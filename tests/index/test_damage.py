"""What is damaged is neither rewritten nor passed on: digests are compared first."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from indexes import MODEL, QUIET, build, documents, texts

from st_reba.corpus import Corpus, Document, encode_corpus
from st_reba.index import Index, changes

REWRITES: dict[str, Callable[[Index], object]] = {
    "compact": lambda index: index.compact(),
    "another factory": lambda index: index.compact(factory="Flat"),
    "a folding add": lambda index: index.add(texts(9, 3), **QUIET),
    "a folding upsert": lambda index: index.upsert([Document("gold", "d3")], **QUIET),
    "parquet": lambda index: index.export(index.path.with_name("out.parquet")),
    "faiss": lambda index: index.export(index.path.with_name("out.faiss")),
}


@pytest.fixture(scope="module", params=["Flat", "IVF2,SQ8"])
def built(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("built") / "index"
    index = build(path, documents(40), factory=request.param)
    index.delete(["d1"])
    index.close()
    return path


def flip(path: Path, offset: int) -> None:
    content = bytearray(path.read_bytes())
    content[offset] ^= 0x40
    path.write_bytes(bytes(content))


@pytest.mark.parametrize("rewrite", REWRITES.values(), ids=REWRITES)
def test_a_damaged_vector_file_is_not_rewritten(
    built: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rewrite: Callable[[Index], object]
) -> None:
    monkeypatch.setattr(changes, "MIN_PENDING", 0)
    monkeypatch.setattr(changes, "PENDING_SHARE", 0.0)
    copy = Path(shutil.copytree(built, tmp_path / "index"))
    vectors = copy / "vectors-1.faiss"
    flip(vectors, -200)  # within the vectors
    damaged = vectors.read_bytes()
    index = Index.open(copy, MODEL)
    with pytest.raises(ValueError, match="SHA-256"):
        rewrite(index)
    assert vectors.read_bytes() == damaged and len(list(copy.glob("*.faiss"))) == 1
    assert not list(tmp_path.glob("out.*"))


def test_a_damaged_document_is_not_passed_on(built: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(built, tmp_path / "index"))
    with closing(sqlite3.connect(copy / "index.sqlite")) as connection, connection:
        connection.execute("UPDATE documents SET metadata = '{\"n\": 8' WHERE id = 'd3'")
    index = Index.open(copy, MODEL)
    passing_on: list[Callable[[], object]] = [
        lambda: index.get("d3"), lambda: list(index), lambda: index.search("cat", 40),
        lambda: index.export(tmp_path / "out.parquet"), index.verify,
    ]  # fmt: skip
    for pass_on in passing_on:
        with pytest.raises(ValueError, match="'d3' is not what was written.*restore a copy"):
            pass_on()


def test_dead_keys_that_were_altered_delete_nothing_else(built: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(built, tmp_path / "index"))
    with closing(sqlite3.connect(copy / "index.sqlite")) as connection, connection:
        connection.execute("UPDATE tombstones SET key = 7")
    with pytest.raises(ValueError, match="belong together"):
        Index.open(copy).compact()


def test_a_lost_vector_file_names_a_remedy(built: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(built, tmp_path / "index"))
    next(copy.glob("*.faiss")).unlink()
    with pytest.raises(FileNotFoundError, match="missing; restore a copy"):
        Index.open(copy)


@pytest.mark.parametrize("name", ["documents/00001.parquet", "vectors/00001.npy", "vectors/00001.json"])
def test_a_stopped_build_does_not_go_on_with_a_damaged_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    options: dict[str, Any] = {"part_size": 8}
    expected = np.stack([result.score for result in build(tmp_path / "whole", **options).search("cat", 40)])
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(changes.IndexWriter, "rewrite_vectors", stop)
        build(tmp_path / "index", **options)
    path = tmp_path / "index" / ".building" / name
    flip(path, len(path.read_bytes()) // 2)
    scores = [result.score for result in build(tmp_path / "index", **options).search("cat", 40)]
    assert np.array_equal(scores, expected)


def stop(*_: Any) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("name", ["documents/00001.parquet", "vectors/00001.npy"])
def test_a_damaged_corpus_is_not_read_as_whole(tmp_path: Path, name: str) -> None:
    corpus = encode_corpus(MODEL, texts(20), tmp_path / "corpus", part_size=6, **QUIET)
    path = corpus.path / name
    content, original = path.read_bytes(), read_part(corpus)
    refused = 0
    for offset in np.linspace(0, len(content) - 1, 30).astype(int):
        flip(path, int(offset))
        try:
            assert read_part(corpus) == original  # such as the name of the writer in a Parquet file
        except ValueError as error:
            assert path.stem in str(error) and "encode" in str(error)
            refused += 1
        path.write_bytes(content)
    assert refused > 5


def read_part(corpus: Corpus) -> list[tuple[Any, bytes]]:
    return [(row, vectors.tobytes()) for row, vectors in Corpus(corpus.path).read(1)]
