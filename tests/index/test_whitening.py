"""An index that is whitened: what it finds, what changes, and what is refused."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import pandas as pd
import pytest
from indexes import QUIET, ids_of, run_sql, scores_of, texts_of
from numpy.typing import NDArray
from operations import make_documents, make_texts
from oracle import unit_rows
from pyarrow import parquet  # type: ignore[import-untyped, unused-ignore]
from sentence_transformers import SentenceTransformer
from tiny import WORDS, tiny_model

import st_reba
from st_reba.corpus import encode_corpus
from st_reba.index import Document, Index, OtherModelError, samples
from st_reba.index import index as index_module
from st_reba.index.changes import IndexWriter, changing
from st_reba.index.store import Store
from st_reba.index.whitening import _distances_to_sphere, _have_variance
from st_reba.sentences import sample_sentences

Array = NDArray[np.float64]
# Queries lie elsewhere than documents.
MODEL = tiny_model(prompts={"query": "moon moon king ", "document": ""})
QUERIES = ["cat ship", "gold", "moon rain king"]


def whitened(path: Path, input: Any = None, **options: Any) -> Index:
    """An index of 300 documents, or of others."""
    given_input = make_documents(300) if input is None else input
    return Index.build(MODEL, given_input, path, whiten=True, **QUIET, **options)


def raw_vectors_of(document_texts: list[str], model: SentenceTransformer = MODEL) -> Array:
    return unit_rows(model.encode_document(document_texts, show_progress_bar=False))


class WhiteningInFloat64:
    """Whitening in float64 by its formula: (½ variance + ½ mean variance) to the power −¼."""

    def __init__(
        self,
        fitted_texts: list[str],
        model: SentenceTransformer = MODEL,
    ) -> None:
        self.model = model
        distinct_texts = list(dict.fromkeys(fitted_texts))
        raw_vectors = raw_vectors_of(distinct_texts, model)
        sentences = sample_sentences(distinct_texts, 200)
        self.mean = raw_vectors.mean(axis=0)
        self.query_mean = unit_rows(model.encode_query(sentences, show_progress_bar=False)).mean(
            axis=0
        )
        variances, directions = np.linalg.eigh(np.cov(raw_vectors.T, bias=True))
        drawn_variances = (variances + variances.mean()) / 2
        self.weight = drawn_variances**-0.25 * directions

    def documents(self, document_texts: list[str]) -> Array:
        raw_vectors = raw_vectors_of(document_texts, self.model)
        return unit_rows((raw_vectors - self.mean) @ self.weight)

    def queries(self, query_texts: list[str]) -> Array:
        raw_vectors = unit_rows(self.model.encode_query(query_texts, show_progress_bar=False))
        return unit_rows((raw_vectors - self.query_mean) @ self.weight)


def check_searches(index: Index, reference: WhiteningInFloat64) -> None:
    """All scores of all documents are those of the reference."""
    document_vectors = reference.documents(texts_of(index))
    scores_by_query = reference.queries(QUERIES) @ document_vectors.T
    results_by_query = index.search(QUERIES, 400, mode="vectors")
    for scores, results in zip(scores_by_query, results_by_query, strict=True):
        expected_scores = dict(zip(ids_of(index), scores.tolist(), strict=True))
        result_scores = dict(zip(ids_of(results), scores_of(results), strict=True))
        assert result_scores == pytest.approx(expected_scores, abs=1e-6)


def export_vectors(index: Index) -> Array:
    """All vectors of an index, in the order of its documents."""
    export_path = index.path.with_name("vectors.parquet")
    index.export(export_path, overwrite=True)
    return np.stack(pd.read_parquet(export_path)["vector"]).astype(np.float64)


def test_vectors_are_those_of_a_float64_reference(index_path: Path) -> None:
    reference = WhiteningInFloat64(texts_of(make_documents(300)))
    index = whitened(index_path)
    check_searches(index, reference)
    assert str(index.info()["whitening"]).startswith("whiten:power=0.25,texts=")


def test_what_is_added_is_whitened_alike(index_path: Path) -> None:
    reference = WhiteningInFloat64(texts_of(make_documents(300)))
    index = whitened(index_path)
    index.add(make_texts(30, 7), **QUIET)
    index.upsert([Document("gold gold king", "d7")], **QUIET)
    index.delete(["d3"])
    check_searches(index, reference)
    index.compact()
    check_searches(index, reference)


def test_ready_vectors_are_those_of_the_model(index_path: Path) -> None:
    index = whitened(index_path)
    vectors = np.asarray(MODEL.encode_query(QUERIES, show_progress_bar=False))
    assert index.search(vectors) == index.search(QUERIES, mode="vectors")
    assert index.search(QUERIES, vectors=vectors) == index.search(QUERIES)
    assert index.search(vectors[0]) == index.search(QUERIES[0], mode="vectors")


@pytest.fixture(scope="module")
def mini() -> SentenceTransformer:
    return st_reba.build("mini", "echo", pooling="mean")


def test_an_index_ranks_as_the_model_with_the_filter(
    tmp_path: Path,
    mini: SentenceTransformer,
) -> None:
    random = np.random.default_rng(0)
    sentences = []
    for _ in range(110):
        sentences.append(" ".join(random.choice(WORDS[:12], size=6)) + ".")
    index = Index.build(mini, sentences, tmp_path / "index", tokens=False, **QUIET)
    filtered_model = st_reba.fit_filter(mini, sentences, "whiten", power=0.25, queries=True)
    raw_index = Index.build(filtered_model, sentences, tmp_path / "raw", **QUIET)
    # A decoder is whitened unless it has a filter.
    assert index.info()["whitening"] is not None
    assert raw_index.info()["whitening"] is None
    for query in QUERIES:
        results = index.search(query, 110, mode="vectors")
        expected_results = raw_index.search(query, 110, mode="vectors")
        assert ids_of(results)[:3] == ids_of(expected_results)[:3]
        scores = dict(zip(ids_of(results), scores_of(results), strict=True))
        expected_scores = dict(
            zip(ids_of(expected_results), scores_of(expected_results), strict=True)
        )
        assert scores == pytest.approx(expected_scores, abs=1e-5)


@pytest.mark.parametrize(
    ("count", "extent"),
    [(19, None), (20, "center:texts=20"), (99, "center:texts=99"), (100, "whiten:power=0.25")],
)
def test_few_texts_allow_less(
    index_path: Path,
    caplog: pytest.LogCaptureFixture,
    count: int,
    extent: str | None,
) -> None:
    caplog.set_level(logging.INFO)
    distinct_texts = list(dict.fromkeys(make_texts(400)))[:count]
    index = whitened(index_path, distinct_texts)
    assert str(index.info()["whitening"]).startswith(str(extent))
    warnings = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert len(warnings) == (count < 100)  # it was asked for
    assert all("too few different texts" in record.getMessage() for record in warnings)
    assert ("vectors are whitened" in caplog.text) == (count >= 100)
    assert len(index.search("cat ship", mode="vectors")) == 10
    index.verify()


def test_equal_vectors_are_left_raw(index_path: Path) -> None:
    index = whitened(index_path, [f"cat unknown{number}" for number in range(30)])
    assert index.info()["whitening"] is None
    assert len(index.search("cat", mode="vectors")) == 10


def test_only_a_whitening_that_was_asked_for_is_missed(
    index_path: Path, mini: SentenceTransformer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    index = Index.build(mini, ["A cat.", "A ship."], index_path, **QUIET)
    index.compact(whiten=True)
    levels = []
    for record in caplog.records:
        if "too few different texts" in record.getMessage():
            levels.append(record.levelname)
    assert levels == ["INFO", "WARNING"]


@pytest.mark.parametrize(("deviation", "is_varied"), [(1e-2, True), (1e-4, False)])
def test_variance_that_is_mostly_rounding_is_none(deviation: float, is_varied: bool) -> None:
    vectors = np.array([[1, deviation], [1, -deviation]], np.float32)
    assert _have_variance(vectors) == is_varied


@pytest.mark.parametrize(
    ("mean_length", "distances"), [(0.6, [0.4, 1.6, 0.8, 0]), (1 + 1e-9, [0, 2, 0, 0])]
)
def test_directions_reach_vectors_of_length_one(mean_length: float, distances: list[float]) -> None:
    """Also from a mean whose length is rounded to more than one, and where there is no direction."""
    mean = np.array([mean_length, 0])
    directions = np.array([[1, 0], [-1, 0], [0, 1], [0, 0]], np.float64)
    with np.errstate(all="raise"):
        factors = _distances_to_sphere(mean, directions)
    assert factors == pytest.approx(distances, abs=1e-6)


@pytest.fixture(params=[("Flat", None, 2e-6), ("IVF2,SQ8", "nprobe=1", 0.03)], ids=["Flat", "SQ8"])
def changed_index(
    request: pytest.FixtureRequest,
    index_path: Path,
) -> tuple[Index, float]:
    """An index without most of the documents that it was fitted on, and its tolerance."""
    factory, parameters, tolerance = request.param
    index = whitened(index_path, factory=factory, parameters=parameters)
    index.add(make_texts(30, 7), **QUIET)
    index.delete([f"d{number}" for number in range(100)])
    return index, tolerance


def test_compact_fits_anew(changed_index: tuple[Index, float]) -> None:
    index, tolerance = changed_index
    facts_before = index.info()
    index.compact(whiten=True)
    for name in ("factory", "parameters"):
        assert index.info()[name] == facts_before[name]
    remaining_texts = texts_of(index)
    reference_vectors = WhiteningInFloat64(remaining_texts).documents(remaining_texts)
    whitened_vectors = export_vectors(index)
    # The signs of directions are chosen otherwise.
    products = whitened_vectors @ whitened_vectors.T
    reference_products = reference_vectors @ reference_vectors.T
    assert np.abs(products - reference_products).max() < tolerance
    index.verify()


def test_compact_gives_the_raw_vectors_back(changed_index: tuple[Index, float]) -> None:
    index, tolerance = changed_index
    index.compact(whiten=True)
    index.compact(whiten=False)
    raw_vectors = raw_vectors_of(texts_of(index))
    assert np.abs(export_vectors(index) - raw_vectors).max() < tolerance
    facts = index.info()
    assert (facts["whitening"], facts["whitening_sha256"]) == (None, "")
    index.verify()


def test_a_search_uses_the_whitening_that_is_there_now(tmp_path: Path) -> None:
    index = whitened(tmp_path / "index")
    index.search("cat", mode="vectors")
    index.compact(whiten=False)
    raw_index = Index.build(MODEL, make_documents(300), tmp_path / "raw", whiten=False, **QUIET)
    scores = scores_of(index.search("cat", mode="vectors"))
    expected_scores = scores_of(raw_index.search("cat", mode="vectors"))
    assert scores == pytest.approx(expected_scores, abs=1e-5)


def test_inner_products_are_whitened(index_path: Path) -> None:
    model = tiny_model()
    model.similarity_fn_name = "dot"
    index = Index.build(model, make_documents(300), index_path, whiten=True, **QUIET)
    index.compact(whiten=False)
    raw_vectors = model.encode_document(texts_of(index), show_progress_bar=False)
    assert np.abs(export_vectors(index) - raw_vectors).max() < 1e-5


def test_hybrid_and_conditions_use_whitened_vectors(index_path: Path) -> None:
    reference = WhiteningInFloat64(texts_of(make_documents(300)))
    index = whitened(index_path)
    results = index.search("cat ship", 30, where={"n": {"<": 40}}, explain=True)
    (query_vector,) = reference.queries(["cat ship"])
    expected_scores = reference.documents(texts_of(results)) @ query_vector
    vector_scores = [result.vector_score for result in results]
    assert vector_scores == pytest.approx(expected_scores, abs=1e-6)
    assert max(result.metadata["n"] for result in results) < 40
    assert index.search("cat ship", 5, mode="words") != []


@pytest.mark.slow
def test_passages_are_whitened(
    tmp_path: Path,
    mini: SentenceTransformer,
) -> None:
    long_texts = [" ".join(make_texts(6, seed)) + "." for seed in range(60)]
    index = Index.build(mini, long_texts, tmp_path / "index", passages="12:2", **QUIET)
    vectors = export_vectors(index)
    table = pd.read_parquet(tmp_path / "vectors.parquet")
    passages = table["passage"].fillna(table["text"]).tolist()
    assert len(passages) > 100
    expected_vectors = WhiteningInFloat64(passages, mini).documents(passages)
    expected_products = expected_vectors @ expected_vectors.T
    assert np.abs(vectors @ vectors.T - expected_products).max() < 1e-5
    old_results = index.search("cat ship", 5, mode="vectors")
    index.compact(whiten=True)
    new_results = index.search("cat ship", 5, mode="vectors")
    old_passages = [result.passage for result in old_results]
    assert [result.passage for result in new_results] == old_passages


def test_a_corpus_is_whitened(tmp_path: Path) -> None:
    encode_corpus(MODEL, make_documents(300), tmp_path / "corpus", part_size=70, **QUIET)
    index = whitened(tmp_path / "index", tmp_path / "corpus")
    check_searches(index, WhiteningInFloat64(texts_of(make_documents(300))))


def test_exports_say_what_was_done(tmp_path: Path) -> None:
    index = whitened(tmp_path / "index")
    for name in ("all.parquet", "all.faiss"):
        index.export(tmp_path / name)
        fitted_filter = st_reba.Filter.load(tmp_path / f"{name}.whitening.safetensors")
    metadata = parquet.read_schema(tmp_path / "all.parquet").metadata[b"st_reba"]
    assert str(index.info()["whitening"]).encode() in metadata
    query_vectors = unit_rows(MODEL.encode_query(QUERIES, show_progress_bar=False))
    whitened_queries = unit_rows(fitted_filter.apply(query_vectors, "query")).astype(np.float32)
    scores, _ = faiss.read_index(str(tmp_path / "all.faiss")).search(whitened_queries, 5)
    expected_scores = [scores_of(row) for row in index.search(QUERIES, 5, mode="vectors")]
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
def built_index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("built") / "index"
    whitened(path).close()
    return path


@pytest.mark.parametrize("use", USES.values(), ids=USES)
@pytest.mark.parametrize(
    "damage", ["UPDATE whitening SET content = zeroblob(9)", "DELETE FROM whitening"]
)
def test_a_damaged_whitening_is_not_used(
    built_index: Path,
    index_path: Path,
    use: Callable[[Index], object],
    damage: str,
) -> None:
    index_copy = Path(shutil.copytree(built_index, index_path))
    run_sql(index_copy, damage)
    with pytest.raises(
        ValueError, match="whitening is (missing|not what was written).*restore a copy"
    ):
        use(Index.open(index_copy, MODEL))
    assert Index.open(index_copy).search("cat", mode="words") != []


def test_an_index_without_a_whitening_gets_one(index_path: Path) -> None:
    index = Index.build(MODEL, make_documents(300), index_path, **QUIET)
    assert index.info()["whitening"] is None
    index.compact(whiten=True)
    check_searches(index, WhiteningInFloat64(texts_of(make_documents(300))))
    index.verify()


def test_a_replaced_index_has_no_whitening_of_the_one_before(index_path: Path) -> None:
    whitened(index_path).close()
    index = Index.build(
        MODEL, make_documents(300), index_path, whiten=False, overwrite=True, **QUIET
    )
    assert index.info()["whitening"] is None
    index.verify()


def test_whiten_is_true_or_false(index_path: Path) -> None:
    wrong: Any = "half"
    with pytest.raises(TypeError, match="whiten='half' must be True, False or None"):
        Index.build(MODEL, ["cat"], index_path, whiten=wrong, **QUIET)
    with pytest.raises(TypeError, match="whiten='half'"):
        whitened(index_path, ["cat"]).compact(whiten=wrong)


def test_the_sample_of_many_vectors_is_the_same_each_time(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(samples, "_SAMPLE_SIZE", 150)
    first = whitened(tmp_path / "first", part_size=64)
    second = whitened(tmp_path / "second", part_size=300)
    assert first.info()["whitening_sha256"] == second.info()["whitening_sha256"]
    assert "texts=1" in str(first.info()["whitening"])


def test_another_models_index_is_not_whitened_by_this_model(
    index_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also not one that takes its place while the call waits for its turn."""
    index = Index.build(MODEL, make_documents(120), index_path, **QUIET)

    def replace_and_change(store: Store) -> AbstractContextManager[IndexWriter]:
        Index.build(tiny_model(1), make_documents(110), index_path, overwrite=True, **QUIET)
        return changing(store)

    with monkeypatch.context() as patch, pytest.raises(OtherModelError):
        patch.setattr(index_module, "changing", replace_and_change)
        index.compact(whiten=True)
    assert index.info()["whitening"] is None and len(index) == 110
    with pytest.raises(OtherModelError):
        index.compact(whiten=True)


def test_a_part_without_a_usable_document_is_whitened_too(
    mini: SentenceTransformer, tmp_path: Path
) -> None:
    numbered_texts = [f"cat ship {number}." for number in range(120)]
    index = Index.build(mini, numbered_texts, tmp_path / "index", **QUIET)
    # The first text gets the number that the second one has as its id.
    new_documents = [Document("gold"), Document("king", "120")]
    change = index.add(new_documents, part_size=1, strict=False, **QUIET)
    assert change.added == 1
    assert change.rejected == {"id used twice": 1}
    index.verify()
