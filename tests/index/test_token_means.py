"""The part of an index's vectors that the tokens of a text have."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from indexes import MODEL, QUIET, ids_of, run_sql, scores_of
from numpy.typing import NDArray
from pyarrow import parquet  # type: ignore[import-untyped, unused-ignore]
from sentence_transformers import SentenceTransformer
from tiny import WORDS

import st_reba
from st_reba import token_means
from st_reba.corpus import Document
from st_reba.index import Index, ingest
from st_reba.index.whitening import possible_token_dimension
from st_reba.sentences import QUERY_SAMPLE, sample_sentences

Array = NDArray[np.float64]
SHARE = 0.4
DIMENSIONS = 192  # those of its embeddings, 256 at most
QUERIES = ["gold ship", "a moon and a king", "cat"]


def sentences(count: int, seed: int = 0) -> list[str]:
    generator = np.random.default_rng(seed)
    rows = generator.choice(WORDS[:14], size=(count, 7))
    return [" ".join(row) + f" {number}." for number, row in enumerate(rows)]


TEXTS = sentences(130)


@pytest.fixture(scope="module")
def mini() -> SentenceTransformer:
    return st_reba.build("mini", "echo", pooling="mean")


@pytest.fixture(scope="module")
def indexes_with_and_without_tokens(
    mini: SentenceTransformer, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Index, Index]:
    """An index with tokens, and one without."""
    folder = tmp_path_factory.mktemp("indexes")
    index = Index.build(mini, TEXTS, folder / "tokens", **QUIET)
    return index, Index.build(mini, TEXTS, folder / "plain", tokens=False, **QUIET)


def copy_index(index: Index, folder: Path, model: SentenceTransformer) -> Index:
    """A copy that a test may change."""
    shutil.copytree(index.path, folder)
    return Index.open(folder, model)


class TokenCosinesInFloat64:
    """Vectors of tokens in float64 loops, by their formula."""

    def __init__(self, model: Any, fitted_texts: list[str]) -> None:
        self.tokenizer = model.tokenizer
        table = model[0].model.get_input_embeddings().weight.detach().numpy().astype(np.float64)
        self.unit_embeddings = table / np.linalg.norm(table, axis=1, keepdims=True)
        self.text_count = len(fitted_texts)
        self.document_counts: Counter[int] = Counter()
        for text in fitted_texts:
            self.document_counts.update(set(self.tokens(text)))
        document_means = np.array([self.mean_embedding(text) for text in fitted_texts])
        query_sentences = sample_sentences(fitted_texts, QUERY_SAMPLE)
        query_means = np.array([self.mean_embedding(text) for text in query_sentences])
        self.mean = document_means.mean(axis=0)
        self.query_mean = query_means.mean(axis=0)
        centered = document_means - self.mean
        variances, directions = np.linalg.eigh(centered.T @ centered / self.text_count)
        variances = 0.5 * variances + 0.5 * variances.mean()
        scaled_directions = directions * variances**-0.25
        self.weight = scaled_directions[:, -DIMENSIONS:]

    def tokens(self, text: str) -> list[int]:
        token_ids: list[int] = self.tokenizer(text, add_special_tokens=False)["input_ids"]
        return token_ids

    def mean_embedding(self, text: str) -> Array:
        weighted_sum = np.zeros(self.unit_embeddings.shape[1])
        for token in self.tokens(text):
            frequency = (self.document_counts[token] + 0.5) / (self.text_count + 1)
            weighted_sum += -np.log(frequency) * self.unit_embeddings[token]
        return weighted_sum / np.linalg.norm(weighted_sum)

    def cosine(self, query: str, document: str) -> float:
        query_vector = (self.mean_embedding(query) - self.query_mean) @ self.weight
        document_vector = (self.mean_embedding(document) - self.mean) @ self.weight
        lengths = np.linalg.norm(query_vector) * np.linalg.norm(document_vector)
        return float(query_vector @ document_vector / lengths)


def test_scores_are_means_of_both_cosines(
    mini: SentenceTransformer, indexes_with_and_without_tokens: tuple[Index, Index]
) -> None:
    index, plain_index = indexes_with_and_without_tokens
    reference = TokenCosinesInFloat64(mini, TEXTS)
    for query in QUERIES:
        model_cosines = {
            result.text: result.score for result in plain_index.search(query, 130, mode="vectors")
        }
        results = index.search(query, 130, mode="vectors")
        assert len(results) == 130
        for result in results:
            token_cosine = reference.cosine(query, result.text)
            expected_score = (model_cosines[result.text] + SHARE * token_cosine) / (1 + SHARE)
            assert result.score == pytest.approx(expected_score, abs=2e-5)


def test_hybrid_searches_and_ready_vectors_leave_tokens_out(
    mini: SentenceTransformer, indexes_with_and_without_tokens: tuple[Index, Index]
) -> None:
    index, plain_index = indexes_with_and_without_tokens
    assert plain_index.info()["token_dimension"] == 0
    query_vectors = np.asarray(mini.encode_query(QUERIES, show_progress_bar=False))
    for queries, mode in ((QUERIES, "hybrid"), (QUERIES, "words"), (query_vectors, "vectors")):
        results_by_query = index.search(queries, 20, mode=mode, explain=True)
        expected_by_query = plain_index.search(queries, 20, mode=mode, explain=True)
        for results, expected in zip(results_by_query, expected_by_query, strict=True):
            assert ids_of(results) == ids_of(expected)
            assert scores_of(results) == pytest.approx(scores_of(expected), abs=1e-5)


def test_texts_with_ready_vectors_are_searched_as_texts(
    mini: SentenceTransformer, indexes_with_and_without_tokens: tuple[Index, Index]
) -> None:
    index, _ = indexes_with_and_without_tokens
    query_vectors = np.asarray(mini.encode_query(QUERIES, show_progress_bar=False))
    with_vectors = index.search(QUERIES, vectors=query_vectors, mode="vectors")
    assert with_vectors == index.search(QUERIES, mode="vectors")


def test_what_is_added_and_folded_has_its_tokens_too(
    mini: SentenceTransformer,
    indexes_with_and_without_tokens: tuple[Index, Index],
    tmp_path: Path,
) -> None:
    index, plain_index = (
        copy_index(built_index, tmp_path / built_index.path.name, mini)
        for built_index in indexes_with_and_without_tokens
    )
    index.add(sentences(20, 1), **QUIET)
    index.upsert([Document("gold gold king", "7")], **QUIET)
    index.delete(["3"])
    before = index.search(QUERIES, 150, mode="vectors")
    assert len(before[0]) == 149
    index.compact()
    after = index.search(QUERIES, 150, mode="vectors")
    reference = TokenCosinesInFloat64(mini, TEXTS)
    plain_index.add(sentences(20, 1), **QUIET)
    plain_index.upsert([Document("gold gold king", "7")], **QUIET)
    plain_index.delete(["3"])
    for query, results, folded in zip(QUERIES, before, after, strict=True):
        assert ids_of(results) == ids_of(folded)
        cosines = {
            result.id: result.score for result in plain_index.search(query, 150, mode="vectors")
        }
        for result in results:
            token_cosine = reference.cosine(query, result.text)
            expected_score = (cosines[result.id] + SHARE * token_cosine) / (1 + SHARE)
            assert result.score == pytest.approx(expected_score, abs=2e-5)


@pytest.mark.slow
def test_compact_gives_tokens_and_takes_them_away(
    mini: SentenceTransformer,
    indexes_with_and_without_tokens: tuple[Index, Index],
    tmp_path: Path,
) -> None:
    fresh_index, _ = indexes_with_and_without_tokens
    index = Index.build(mini, TEXTS, tmp_path / "index", whiten=False, **QUIET)
    raw_results = index.search(QUERIES, mode="vectors")
    index.compact(whiten=True)
    assert index.info()["token_dimension"] == DIMENSIONS
    for results, expected in zip(
        index.search(QUERIES, 30, mode="vectors"),
        fresh_index.search(QUERIES, 30, mode="vectors"),
        strict=True,
    ):
        assert scores_of(results) == pytest.approx(scores_of(expected), abs=1e-4)
    index.compact(whiten=True, tokens=False)
    assert index.info()["token_dimension"] == 0
    index.compact(whiten=False)
    for results, expected in zip(index.search(QUERIES, mode="vectors"), raw_results, strict=True):
        assert ids_of(results) == ids_of(expected)
        assert scores_of(results) == pytest.approx(scores_of(expected), abs=1e-5)


def test_exports_hold_the_models_part(
    mini: SentenceTransformer,
    indexes_with_and_without_tokens: tuple[Index, Index],
    tmp_path: Path,
) -> None:
    index, _ = indexes_with_and_without_tokens
    index.export(tmp_path / "all.parquet")
    vectors = np.array(parquet.read_table(tmp_path / "all.parquet")["vector"].to_pylist())
    assert vectors.shape == (130, mini.get_embedding_dimension())
    linear_filter = st_reba.Filter.load(tmp_path / "all.parquet.whitening.safetensors")
    raw_vectors = np.asarray(mini.encode_document(TEXTS, show_progress_bar=False))
    expected_vectors = linear_filter.apply(raw_vectors)
    expected_vectors /= np.linalg.norm(expected_vectors, axis=1, keepdims=True)
    np.testing.assert_allclose(vectors, expected_vectors, atol=1e-5)


@pytest.mark.parametrize(
    ("model_name", "options"),
    [
        ("mini", {"whiten": False}),
        ("static", {"whiten": True}),
        ("few texts", {}),
    ],
)
def test_tokens_are_left_out_where_they_are_not_wanted_or_cannot_be_fitted(
    mini: SentenceTransformer, tmp_path: Path, model_name: str, options: dict[str, bool]
) -> None:
    model = MODEL if model_name == "static" else mini
    texts = TEXTS[:99] if model_name == "few texts" else TEXTS
    index = Index.build(model, texts, tmp_path / "index", **options, **QUIET)
    assert index.info()["token_dimension"] == 0
    assert len(index.search(QUERIES, 5, mode="vectors")[0]) == 5


def test_verify_notices_altered_token_weights(
    mini: SentenceTransformer,
    indexes_with_and_without_tokens: tuple[Index, Index],
    tmp_path: Path,
) -> None:
    index = copy_index(indexes_with_and_without_tokens[0], tmp_path / "index", mini)
    index.verify()
    index.close()
    ((row_id, content),) = run_sql(index.path, "SELECT MAX(rowid), content FROM whitening")
    altered_content = content[:-1] + bytes([content[-1] ^ 1])
    run_sql(index.path, "UPDATE whitening SET content = ? WHERE rowid = ?", altered_content, row_id)
    with pytest.raises(ValueError, match="its whitening is not what was written"):
        Index.open(tmp_path / "index").verify()


@pytest.mark.parametrize(
    ("metric", "whiten", "tokens", "dimension"),
    [
        ("cosine", True, True, DIMENSIONS),
        ("cosine", None, True, DIMENSIONS),
        ("cosine", False, True, 0),
        ("cosine", True, False, 0),
        ("dot", True, True, 0),
    ],
)
def test_factories_are_tried_with_the_dimensions_that_tokens_may_add(
    mini: SentenceTransformer, metric: str, whiten: bool | None, tokens: bool, dimension: int
) -> None:
    assert possible_token_dimension(mini, metric, whiten, tokens) == dimension


def test_a_factory_that_tokens_do_not_fit_is_refused_before_encoding(
    mini: SentenceTransformer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(token_means, "TOKEN_DIMENSIONS", 100)
    monkeypatch.setattr(ingest, "_encode", lambda *arguments: pytest.fail("it encodes"))
    with pytest.raises(ValueError, match="not with the 100 of tokens; .*--no-tokens"):
        Index.build(mini, TEXTS, tmp_path / "index", factory="IVF2,PQ64np", **QUIET)
    assert not (tmp_path / "index" / "index.sqlite").exists()


@pytest.mark.slow
def test_tokens_that_the_factory_does_not_fit_change_nothing(
    mini: SentenceTransformer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options: dict[str, Any] = {"factory": "IVF2,PQ64x4np", "whiten": False}
    index = Index.build(mini, TEXTS, tmp_path / "index", **options, **QUIET)
    monkeypatch.setattr(token_means, "TOKEN_DIMENSIONS", 100)
    with pytest.raises(ValueError, match="not with the 100 of tokens; .*--no-tokens"):
        index.compact(whiten=True)
    assert index.verify()["whitening"] is None
    index.compact(whiten=True, tokens=False)
    assert index.verify()["factory"] == options["factory"]


def test_wrong_values_of_tokens_are_refused(mini: SentenceTransformer, tmp_path: Path) -> None:
    wrong: Any = "no"
    with pytest.raises(TypeError, match="tokens='no' must be True or False"):
        Index.build(mini, TEXTS, tmp_path / "index", tokens=wrong, **QUIET)
    index = Index.build(mini, TEXTS[:20], tmp_path / "index", **QUIET)
    with pytest.raises(ValueError, match="tokens=False: give whiten=True too"):
        index.compact(tokens=False)


@pytest.mark.slow
def test_a_model_with_the_tokens_gives_what_the_index_compares(mini: SentenceTransformer) -> None:
    options: Any = {"kind": "whiten", "power": 0.25, "queries": True}
    filtered_model = st_reba.fit_filter(mini, TEXTS, **options)
    joined_model = st_reba.fit_filter(mini, TEXTS, **options, tokens=True)
    assert joined_model[0].recipe == {
        **filtered_model[0].recipe,  # type: ignore[dict-item, unused-ignore]
        "filter": "whiten:power=0.25,texts=130,queries=130,tokens=192",
    }
    reference = TokenCosinesInFloat64(mini, TEXTS)
    model_cosines = filtered_model.encode_query(QUERIES) @ filtered_model.encode_document(TEXTS).T
    cosines = joined_model.encode_query(QUERIES) @ joined_model.encode_document(TEXTS).T
    for query, query_model_cosines, query_cosines in zip(
        QUERIES, model_cosines, cosines, strict=True
    ):
        token_cosines = np.array([reference.cosine(query, text) for text in TEXTS])
        expected_cosines = (query_model_cosines + SHARE * token_cosines) / (1 + SHARE)
        assert np.abs(query_cosines - expected_cosines).max() < 2e-5
