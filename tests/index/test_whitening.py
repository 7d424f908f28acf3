"""An index that is whitened: what it finds, what changes, and what is refused."""

from __future__ import annotations

import logging
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import pandas as pd
import pytest
from indexes import QUIET
from numpy.typing import NDArray
from operations import documents, texts
from pyarrow import parquet  # type: ignore[import-untyped, unused-ignore]
from sentence_transformers import SentenceTransformer
from tiny import WORDS, tiny_model

import st_reba
from st_reba.corpus import encode_corpus
from st_reba.index import Document, Index, OtherModelError, samples, whitening
from st_reba.sentences import sample_sentences

Array = NDArray[np.float64]
# Queries lie elsewhere than documents.
MODEL = tiny_model(prompts={"query": "moon moon king ", "document": ""})
QUERIES = ["cat ship", "gold", "moon rain king"]


def whitened(path: Path, input: Any = None, **options: Any) -> Index:
    """An index of 300 documents, or of others."""
    given_input = documents(300) if input is None else input
    return Index.build(MODEL, given_input, path, whiten=True, **QUIET, **options)


def unit(vectors: Any) -> Array:
    values = np.asarray(vectors, np.float64)
    lengths = np.linalg.norm(values, axis=-1, keepdims=True)
    return np.asarray(values / lengths)


class Reference:
    """Whitening in float64, as its formula says: (1 − ½) variance + ½ mean variance, to the power −¼."""

    def __init__(self, fitted_texts: list[str], model: SentenceTransformer = MODEL) -> None:
        self.model = model
        distinct_texts = list(dict.fromkeys(fitted_texts))
        raw_vectors = unit(model.encode_document(distinct_texts, show_progress_bar=False))
        sentences = sample_sentences(distinct_texts, 200)
        self.mean = raw_vectors.mean(axis=0)
        self.query_mean = unit(model.encode_query(sentences, show_progress_bar=False)).mean(axis=0)
        variances, directions = np.linalg.eigh(np.cov(raw_vectors.T, bias=True))
        drawn_variances = (variances + variances.mean()) / 2
        self.weight = drawn_variances**-0.25 * directions

    def documents(self, document_texts: list[str]) -> Array:
        raw_vectors = unit(self.model.encode_document(document_texts, show_progress_bar=False))
        return unit((raw_vectors - self.mean) @ self.weight)

    def queries(self, query_texts: list[str]) -> Array:
        raw_vectors = unit(self.model.encode_query(query_texts, show_progress_bar=False))
        return unit((raw_vectors - self.query_mean) @ self.weight)


def check_searches(index: Index, reference: Reference, **options: Any) -> None:
    """All scores of all documents are those of the reference."""
    indexed_documents = list(index)
    expected_scores = (
        reference.queries(QUERIES) @ reference.documents([one.text for one in indexed_documents]).T
    )
    for expected, results in zip(
        expected_scores, index.search(QUERIES, 400, mode="vectors", **options), strict=True
    ):
        by_id = {
            document.id: score
            for document, score in zip(indexed_documents, expected.tolist(), strict=True)
        }
        assert len(results) == len(indexed_documents)
        assert max(abs(result.score - by_id[result.id]) for result in results) < 1e-6


def test_vectors_are_those_of_a_float64_reference(tmp_path: Path) -> None:
    reference = Reference([document.text for document in documents(300)])
    index = whitened(tmp_path / "index")
    check_searches(index, reference)
    assert str(index.info()["whitening"]).startswith("whiten:power=0.25,texts=")


def test_what_is_added_is_whitened_alike(tmp_path: Path) -> None:
    reference = Reference([document.text for document in documents(300)])
    index = whitened(tmp_path / "index")
    index.add(texts(30, 7), **QUIET)
    index.upsert([Document("gold gold king", "d7")], **QUIET)
    index.delete(["d3"])
    check_searches(index, reference)
    index.compact()
    check_searches(index, reference)


def test_ready_vectors_are_those_of_the_model(tmp_path: Path) -> None:
    index = whitened(tmp_path / "index")
    vectors = np.asarray(MODEL.encode_query(QUERIES, show_progress_bar=False))
    assert index.search(vectors) == index.search(QUERIES, mode="vectors")
    assert index.search(QUERIES, vectors=vectors) == index.search(QUERIES)
    assert index.search(vectors[0]) == index.search(QUERIES[0], mode="vectors")


def test_an_index_ranks_as_the_model_with_the_filter(
    tmp_path: Path, mini: SentenceTransformer
) -> None:
    random = np.random.default_rng(0)
    sentences = [" ".join(random.choice(WORDS[:12], size=6)) + "." for _ in range(110)]
    index = Index.build(mini, sentences, tmp_path / "index", **QUIET)
    search_model = st_reba.fit_filter(mini, sentences, "whiten", power=0.25, queries=True)
    by_model = Index.build(search_model, sentences, tmp_path / "by_model", **QUIET)
    # A decoder is whitened unless it has a filter.
    assert (index.info()["whitening"] is None, by_model.info()["whitening"] is None) == (
        False,
        True,
    )
    for query in QUERIES:
        results = index.search(query, 110, mode="vectors")
        scores = {result.id: result.score for result in by_model.search(query, 110, mode="vectors")}
        assert max(abs(result.score - scores[result.id]) for result in results) < 1e-5
        expected_ids = sorted(scores, key=lambda identity: -scores[identity])[:3]
        assert [result.id for result in results[:3]] == expected_ids


@pytest.fixture(scope="module")
def mini() -> Any:
    return st_reba.build("mini", "echo", pooling="mean")


@pytest.mark.parametrize(
    ("count", "extent"), [(19, None), (50, "center:texts=50"), (110, "whiten:power=0.25")]
)
def test_few_texts_allow_less(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    count: int,
    extent: str | None,
) -> None:
    caplog.set_level(logging.INFO)
    distinct_texts = list(dict.fromkeys(texts(400)))[:count]
    index = whitened(tmp_path / "index", distinct_texts)
    assert str(index.info()["whitening"]).startswith(str(extent))
    assert ("too few different texts" in caplog.text) == (count < 100)
    assert len(index.search("cat ship", mode="vectors")) == 10
    index.verify()


def test_equal_vectors_are_left_raw(tmp_path: Path) -> None:
    index = whitened(tmp_path / "index", [f"cat unknown{number}" for number in range(30)])
    model_vectors = [result.score for result in index.search("cat", mode="vectors")]
    assert index.info()["whitening"] is None and len(model_vectors) == 10


@pytest.mark.parametrize(("factory", "tolerance"), [("Flat", 2e-6), ("IVF2,SQ8", 0.03)])
def test_compact_fits_anew_or_takes_the_whitening_away(
    tmp_path: Path, factory: str, tolerance: float
) -> None:
    index = whitened(
        tmp_path / "index", factory=factory, parameters="nprobe=2" if factory != "Flat" else None
    )
    index.add(texts(30, 7), **QUIET)
    index.delete([f"d{number}" for number in range(100)])
    index.compact(whiten=True)
    assert index.info()["factory"] == factory
    remaining_texts = [document.text for document in index]
    reference = Reference(remaining_texts)
    index.export(tmp_path / "whitened.parquet")
    whitened_vectors = exported_vectors(tmp_path / "whitened.parquet")
    # The signs of directions are chosen otherwise.
    products = whitened_vectors @ whitened_vectors.T
    reference_vectors = reference.documents(remaining_texts)
    assert np.abs(products - reference_vectors @ reference_vectors.T).max() < tolerance
    index.compact(whiten=False)
    index.export(tmp_path / "raw.parquet")
    raw_vectors = unit(MODEL.encode_document(remaining_texts, show_progress_bar=False))
    assert np.abs(exported_vectors(tmp_path / "raw.parquet") - raw_vectors).max() < tolerance
    assert index.info()["whitening"] is None
    index.verify()


def exported_vectors(path: Path) -> Array:
    return np.stack(pd.read_parquet(path)["vector"]).astype(np.float64)


def test_inner_products_are_whitened(tmp_path: Path) -> None:
    model = tiny_model()
    model.similarity_fn_name = "dot"
    index = Index.build(model, documents(300), tmp_path / "index", whiten=True, **QUIET)
    index.compact(whiten=False)
    index.export(tmp_path / "raw.parquet")
    raw_vectors = np.asarray(
        model.encode_document([document.text for document in index], show_progress_bar=False)
    )
    assert np.abs(exported_vectors(tmp_path / "raw.parquet") - raw_vectors).max() < 1e-5


def test_hybrid_and_conditions_use_whitened_vectors(tmp_path: Path) -> None:
    reference = Reference([document.text for document in documents(300)])
    index = whitened(tmp_path / "index")
    results = index.search("cat ship", 30, where={"n": {"<": 40}}, explain=True)
    document_texts = [result.text for result in results]
    expected_scores = reference.documents(document_texts) @ reference.queries(["cat ship"])[0]
    assert all(result.metadata["n"] < 40 for result in results)
    assert np.abs([result.vector_score for result in results] - expected_scores).max() < 1e-6
    assert index.search("cat ship", 5, mode="words") != []


@pytest.mark.slow
def test_passages_are_whitened(tmp_path: Path, mini: SentenceTransformer) -> None:
    long_texts = [" ".join(texts(6, seed)) + "." for seed in range(60)]
    index = Index.build(mini, long_texts, tmp_path / "index", passages="12:2", **QUIET)
    index.export(tmp_path / "all.parquet")
    table = pd.read_parquet(tmp_path / "all.parquet")
    passages = table["passage"].fillna(table["text"]).tolist()
    assert len(passages) > 100
    expected_vectors = Reference(passages, mini).documents(passages)
    vectors = exported_vectors(tmp_path / "all.parquet")
    assert np.abs(vectors @ vectors.T - expected_vectors @ expected_vectors.T).max() < 1e-5
    before = index.search("cat ship", 5, mode="vectors")
    index.compact(whiten=True)
    after = index.search("cat ship", 5, mode="vectors")
    assert [result.passage for result in before] == [result.passage for result in after]


def test_a_corpus_is_whitened(tmp_path: Path) -> None:
    encode_corpus(MODEL, documents(300), tmp_path / "corpus", part_size=70, **QUIET)
    index = whitened(tmp_path / "index", tmp_path / "corpus")
    check_searches(index, Reference([document.text for document in documents(300)]))


def test_exports_say_what_was_done(tmp_path: Path) -> None:
    index = whitened(tmp_path / "index")
    for name in ("all.parquet", "all.faiss"):
        index.export(tmp_path / name)
        fitted_filter = st_reba.Filter.load(tmp_path / f"{name}.whitening.safetensors")
    metadata = parquet.read_schema(tmp_path / "all.parquet").metadata[b"st_reba"]
    assert str(index.info()["whitening"]).encode() in metadata
    query_vectors = unit(MODEL.encode_query(QUERIES, show_progress_bar=False))
    whitened_queries = unit(fitted_filter.apply(query_vectors, "query")).astype(np.float32)
    scores, _ = faiss.read_index(str(tmp_path / "all.faiss")).search(whitened_queries, 5)
    expected_scores = [
        [result.score for result in row] for row in index.search(QUERIES, 5, mode="vectors")
    ]
    assert np.abs(scores - expected_scores).max() < 1e-6
    index.compact(whiten=False)
    index.export(tmp_path / "all.faiss", overwrite=True)
    assert not (tmp_path / "all.faiss.whitening.safetensors").exists()


USES: dict[str, Callable[[Index], object]] = {
    "verify": lambda index: index.verify(),
    "search": lambda index: index.search("cat"),
    "add": lambda index: index.add(["king cat"], **QUIET),
    "refit": lambda index: index.compact(whiten=True),
    "export": lambda index: index.export(index.path.with_name("out.faiss")),
}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("built") / "index"
    whitened(path).close()
    return path


@pytest.mark.parametrize("use", USES.values(), ids=USES)
@pytest.mark.parametrize(
    "damage", ["UPDATE whitening SET content = zeroblob(9)", "DELETE FROM whitening"]
)
def test_a_damaged_whitening_is_not_used(
    built: Path,
    tmp_path: Path,
    use: Callable[[Index], object],
    damage: str,
) -> None:
    copy = Path(shutil.copytree(built, tmp_path / "index"))
    with closing(sqlite3.connect(copy / "index.sqlite")) as connection, connection:
        connection.execute(damage)
    with pytest.raises(
        ValueError, match="whitening is (missing|not what was written).*restore a copy"
    ):
        use(Index.open(copy, MODEL))
    assert Index.open(copy).search("cat", mode="words") != []


def test_an_index_without_a_whitening_gets_one(tmp_path: Path) -> None:
    index = Index.build(MODEL, documents(300), tmp_path / "index", **QUIET)
    assert index.info()["whitening"] is None
    index.compact(whiten=True)
    check_searches(index, Reference([document.text for document in documents(300)]))
    index.verify()


def test_a_replaced_index_has_no_whitening_of_the_one_before(tmp_path: Path) -> None:
    whitened(tmp_path / "index").close()
    index = Index.build(
        MODEL, documents(300), tmp_path / "index", whiten=False, overwrite=True, **QUIET
    )
    assert index.info()["whitening"] is None
    index.verify()


def test_whiten_is_true_or_false(tmp_path: Path) -> None:
    wrong: Any = "half"
    with pytest.raises(TypeError, match="whiten='half' must be True, False or None"):
        Index.build(MODEL, ["cat"], tmp_path / "index", whiten=wrong, **QUIET)
    with pytest.raises(TypeError, match="whiten='half'"):
        whitened(tmp_path / "index", ["cat"]).compact(whiten=wrong)


def test_the_sample_of_many_vectors_is_the_same_each_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(samples, "_SAMPLE_SIZE", 150)
    first = whitened(tmp_path / "first", part_size=64)
    second = whitened(tmp_path / "second", part_size=300)
    assert first.info()["whitening_sha256"] == second.info()["whitening_sha256"]
    assert "texts=1" in str(first.info()["whitening"])


def test_another_models_index_is_not_whitened_by_this_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = Index.build(MODEL, documents(120), tmp_path / "index", **QUIET)
    fit = whitening.Whitening.fit

    def fit_while_the_index_is_replaced(*arguments: Any) -> Any:
        Index.build(tiny_model(1), documents(9), tmp_path / "index", overwrite=True, **QUIET)
        return fit(*arguments)

    monkeypatch.setattr(whitening.Whitening, "fit", fit_while_the_index_is_replaced)
    with pytest.raises(OtherModelError, match="another model's index has taken its place"):
        index.compact(whiten=True)
    assert index.info()["whitening"] is None and len(index) == 9
