"""Damaged files are neither rewritten nor passed on: digests are compared first."""

from __future__ import annotations

import hashlib
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from indexes import MODEL, QUIET, WordSpans, build, make_documents, make_texts, run_sql, scores_of
from tiny import tiny_model

from st_reba.corpus import Corpus, Document, encode_corpus
from st_reba.corpus.records import CORPUS_FORMAT
from st_reba.index import Index, changes
from st_reba.index.vector_file import VectorFile

REWRITES: dict[str, Callable[[Index], object]] = {
    "compact": lambda index: index.compact(),
    "another factory": lambda index: index.compact(factory="Flat"),
    "a rewriting add": lambda index: index.add(make_texts(9, 3), **QUIET),
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
ALTERATIONS = [
    f"UPDATE tombstones SET key = {2**62}",
    "UPDATE tombstones SET key = 40",  # the next key
    f"UPDATE documents SET key = {2**31} WHERE id = 'd3'",
    f"UPDATE documents SET vector_count = {2**62} WHERE id = 'd3'",
    "UPDATE documents SET vector_count = 'x' WHERE id = 'd3'",
    "UPDATE words_docsize SET sz = x'0505' WHERE id = 3",
]


@pytest.fixture(scope="module", params=["Flat", "IVF2,SQ8"])
def built_index(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
) -> Path:
    path = tmp_path_factory.mktemp("built") / "index"
    index = build(path, make_documents(40), factory=request.param)
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


@pytest.mark.parametrize("rewrite", REWRITES.values(), ids=REWRITES)
def test_a_damaged_vector_file_is_not_rewritten(
    index_copy: Path,
    monkeypatch: pytest.MonkeyPatch,
    rewrite: Callable[[Index], object],
) -> None:
    monkeypatch.setattr(changes, "MIN_PENDING", 0)
    monkeypatch.setattr(changes, "PENDING_SHARE", 0.0)
    vector_file = index_copy / "vectors-1.faiss"
    flip(vector_file, -400)  # within the vectors
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
    run_sql(index_copy, "UPDATE documents SET metadata = '{\"n\": 8' WHERE id = 'd3'")
    index = Index.open(index_copy, MODEL)
    with pytest.raises(ValueError, match="'d3' is not what was written.*restore a copy"):
        read(index)


@pytest.mark.parametrize(
    ("key", "wrong_key"),
    [(5, -5), (5, 40), (5, 2**40), (0, -5), (39, 40)],  # 40 is the next key
)
def test_a_search_refuses_keys_of_no_document(
    index_copy: Path,
    key: int,
    wrong_key: int,
) -> None:
    """A search compares no digests, but refuses keys that no document has."""
    vector_file = index_copy / "vectors-1.faiss"
    before, _, after = vector_file.read_bytes().rpartition(encode_key(key))
    vector_file.write_bytes(before + encode_key(wrong_key) + after)
    with pytest.raises(ValueError, match=r"vectors-1\.faiss: damaged.*keys.*restore a copy"):
        Index.open(index_copy, MODEL).search(make_documents(40)[key].text, 40)


def encode_key(key: int) -> bytes:
    """A key as FAISS writes it."""
    return key.to_bytes(8, "little", signed=True)


def test_a_search_refuses_vectors_of_no_passage(index_path: Path) -> None:
    model = tiny_model()
    model[0].tokenizer = WordSpans(model[0].tokenizer)
    texts = ["cat cat dog dog", "gold gold gold gold"]
    Index.build(model, texts, index_path, passages="2:0", factory="IVF1,Flat", **QUIET)
    run_sql(index_path, "UPDATE documents SET vector_count = 1")
    with pytest.raises(ValueError, match="documents of its vectors are missing.*restore a copy"):
        Index.open(index_path, model).search("gold", mode="vectors")


def test_altered_tombstones_delete_nothing_else(index_copy: Path) -> None:
    run_sql(index_copy, "UPDATE tombstones SET key = 7")
    with pytest.raises(ValueError, match="belong together"):
        Index.open(index_copy).compact()


@pytest.mark.parametrize("statement", ALTERATIONS)
def test_verify_refuses_an_altered_number(index_copy: Path, statement: str) -> None:
    run_sql(index_copy, statement)
    with pytest.raises(ValueError, match="damaged"):
        Index.open(index_copy).verify()


def test_verify_searches(index_copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A FAISS file may be what was written, and fail all the same."""
    index = Index.open(index_copy)
    index.verify()
    monkeypatch.setattr(VectorFile, "search", Mock(side_effect=RuntimeError("no such list")))
    with pytest.raises(RuntimeError, match="no such list"):
        index.verify()


def test_vectors_that_faiss_does_not_take_are_not_lost(
    index_copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = Index.open(index_copy, MODEL)
    document_count = len(index)
    with monkeypatch.context() as patch, pytest.raises(ValueError, match="holds 0 of"):
        patch.setattr(changes, "add_vectors", lambda *arguments: None)
        index.compact(factory="Flat")
    assert len(index) == document_count == index.verify()["documents"]


def search_some(index: Index) -> None:
    index.search("cat", where={"n": {">=": 0}})


def fit_whitening(index: Index) -> None:
    index.compact(whiten=True)


# All but verify, which refuses every altered number.
USES = (
    *(use for name, use in READS.items() if name != "verify"),
    search_some,
    fit_whitening,
    Index.compact,
)


@pytest.mark.parametrize("statement", ALTERATIONS)
def test_a_use_that_meets_an_altered_number_names_the_remedy(
    index_copy: Path, statement: str
) -> None:
    run_sql(index_copy, statement)
    refusals: list[str] = []
    for use in USES:
        try:
            use(Index.open(index_copy, MODEL))
        except ValueError as error:
            refusals.append(str(error))
    assert refusals
    for refusal in refusals:
        assert str(index_copy) in refusal
        assert re.search("restore a copy|Index.compact", refusal)


@pytest.mark.parametrize("is_signed", [False, True])
def test_a_state_without_end_is_damage(index_copy: Path, is_signed: bool) -> None:
    """Brackets that nobody closes, with a digest of something else, and with their own."""
    text = "[" * 100_000
    digest = hashlib.sha256(text.encode()).hexdigest() if is_signed else "0" * 64
    run_sql(index_copy, "UPDATE meta SET state = ?, sha256 = ?", text, digest)
    with pytest.raises(ValueError, match="damaged, or not of an index"):
        Index.open(index_copy)


def test_the_error_of_a_lost_vector_file_has_a_remedy(index_copy: Path) -> None:
    opened_index = Index.open(index_copy)
    next(index_copy.glob("*.faiss")).unlink()
    for use in (opened_index.verify, lambda: Index.open(index_copy)):
        with pytest.raises(FileNotFoundError, match="missing; restore a copy"):
            use()


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
        patch.setattr(changes.IndexWriter, "write_vectors", stop)
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
    corpus = encode_corpus(MODEL, make_texts(20), tmp_path / "corpus", part_size=6, **QUIET)
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
    corpus = encode_corpus(MODEL, make_texts(9), tmp_path / "corpus", **QUIET)
    header_path = corpus.path / "corpus.json"
    header = header_path.read_text(encoding="utf-8")
    older_format = CORPUS_FORMAT - 1
    older_header = header.replace(f'"format": {CORPUS_FORMAT}', f'"format": {older_format}')
    header_path.write_text(older_header, encoding="utf-8")
    message = rf"format {older_format}, not {CORPUS_FORMAT}\); encode the corpus again"
    for use in (lambda: build(tmp_path / "index", corpus.path), lambda: encode(corpus.path)):
        with pytest.raises(ValueError, match=message):
            use()
    encode(corpus.path, overwrite=True).verify()


def encode(path: Path, **options: Any) -> Corpus:
    return encode_corpus(MODEL, make_texts(9), path, **options, **QUIET)
