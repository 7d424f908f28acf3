"""Search by words and by both: scores are those of plain loops."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from indexes import (
    MODEL,
    QUIET,
    WordSpans,
    build,
    encoded,
    ids_of,
    make_documents,
    make_texts,
    texts_of,
)
from ranking import all_documents, expected_hybrid_scores, expected_word_scores
from tiny import tiny_model

from st_reba.index import Document, Index


def test_word_scores_are_bm25(index_path: Path) -> None:
    index = build(index_path, make_documents(40))
    stored_documents = all_documents(index)
    stored_texts = texts_of(stored_documents.values())
    for query in ("gold ship", "moon moon cat", "king"):
        scores = expected_word_scores(stored_texts, query)
        scores_by_id = dict(zip(stored_documents, scores.tolist(), strict=True))
        results = index.search(query, 99, mode="words", explain=True)
        assert len(results) == np.count_nonzero(scores)
        for result in results:
            assert result.score == pytest.approx(scores_by_id[result.id])
            assert result.word_score == result.score
            assert result.vector_score is None


@pytest.mark.parametrize("is_limited", [False, True])
@pytest.mark.parametrize("query", ["gold ship", "rain king dog"])
def test_hybrid_agrees_with_brute_force(
    index_path: Path,
    query: str,
    is_limited: bool,
) -> None:
    index = build(index_path, make_documents(40))
    for row, text in enumerate(make_texts(9, 1)):
        index.add([Document(text, f"e{row}", {"n": row})], **QUIET)
    index.delete(["d3", "d7", "e2"])
    allowed_ids = set(all_documents(index))
    where = None
    if is_limited:
        where = {"n": {">": 30}}
        allowed_ids = {f"d{number}" for number in range(31, 40)}
    expected_scores = expected_hybrid_scores(index, query, allowed_ids)
    results = index.search(query, 99, where=where)
    assert set(ids_of(results)) == allowed_ids
    previous_score = 1.0
    for result in results:
        assert result.score == pytest.approx(expected_scores[result.id])
        assert result.score <= previous_score
        previous_score = result.score
    assert index.search(query, 3, where=where) == results[:3]


def test_scores_of_both_sides_are_true_whichever_list_a_document_is_on(
    index_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    index = build(index_path, make_documents(40))
    index.add(["gold gold ship", "rain"], **QUIET)
    true_scores = {}
    for result in index.search("gold ship", 99, explain=True):
        true_scores[result.id] = (result.vector_score, result.word_score)
    monkeypatch.setattr("st_reba.index.search.LIST_LENGTH", 3)
    results = index.search("gold ship", 3, explain=True)
    assert len(results) == 3
    for result in results:
        explained_scores = (result.vector_score, result.word_score)
        assert explained_scores == pytest.approx(true_scores[result.id])


def test_hybrid_results_of_one_score_are_in_the_order_they_were_added(
    index_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    index = build(index_path, ["ship king", "rain", "gold moon", "cat cat"])
    query_vector = np.asarray(MODEL.encode_query("gold", show_progress_bar=False))
    vector_order = ids_of(index.search(query_vector, 4))
    monkeypatch.setattr("st_reba.index.fusion.VECTORS_SHARE", 0)
    hybrid_order = ids_of(index.search("gold", 4, vectors=query_vector))
    assert hybrid_order == ["2", "0", "1", "3"]
    assert vector_order != hybrid_order


def test_each_mode_gives_its_own_score(index_path: Path) -> None:
    index = build(index_path, ["gold moon", "cat", "ship king", "rain"])
    cosines = encoded(["gold moon"]) @ encoded(["gold"], "encode_query")[0]
    hybrid_results = index.search("gold", 4)
    vector_results = index.search("gold", 4, mode="vectors")
    assert hybrid_results[0].score == 1
    assert len(hybrid_results) == 4
    assert vector_results[0].score == pytest.approx(cosines[0], abs=1e-6)
    assert ids_of(index.search("gold", 4, mode="words")) == ["0"]


def test_ready_vectors_take_the_place_of_the_model(index_path: Path) -> None:
    index = build(index_path, ["gold moon", "cat", "ship king", "rain"])
    query_vector = np.asarray(MODEL.encode_query("gold", show_progress_bar=False))
    assert index.search("gold", vectors=query_vector) == index.search("gold")
    several_results = index.search(["gold"], vectors=query_vector[None])
    with pytest.raises(ValueError, match="vectors: 1 for 2 texts; give one for each"):
        index.search(["gold", "ship"], vectors=query_vector[None])
    assert several_results == index.search(["gold"])
    assert index.search(query_vector) == index.search("gold", mode="vectors")


def test_only_explained_results_have_scores_of_sides(index_path: Path) -> None:
    index = build(index_path, ["gold moon", "cat"])
    plain_result = index.search("gold", 1)[0]
    assert plain_result.vector_score is None
    assert "word_score" not in plain_result.to_json()
    explained_result = index.search("gold", 1, explain=True)[0]
    assert {"vector_score", "word_score"} <= explained_result.to_json().keys()


def test_words_need_no_model(index_path: Path) -> None:
    build(index_path, make_documents(9)).close()  # of a model that is saved nowhere
    assert Index.open(index_path).search("gold", mode="words")


VECTOR = np.ones(16, np.float32)


@pytest.mark.parametrize(
    ("query", "options", "part_of_message"),
    [
        ("cat", {"mode": "word"}, "mode='word' is not known"),
        ("cat", {"vectors": np.ones((2, 16), np.float32)}, "vectors: 2 for 1 texts"),
        ("cat", {"mode": "words", "vectors": VECTOR}, "mode='words' needs no vectors"),
        (VECTOR, {"mode": "hybrid"}, "mode='hybrid' needs texts"),
        (VECTOR, {"mode": "words"}, "mode='words' needs texts"),
        (VECTOR, {"vectors": VECTOR}, "vectors=… belong to texts"),
    ],
)
def test_modes_and_vectors_that_do_not_fit_the_query_are_refused(
    index_path: Path,
    query: Any,
    options: dict[str, Any],
    part_of_message: str,
) -> None:
    index = build(index_path, ["cat", "dog"])
    with pytest.raises(ValueError, match=part_of_message):
        index.search(query, **options)


@pytest.mark.parametrize("query", ["!?", "\0", "\u200b", "😀", "zebra", '"*"'])
def test_hybrid_without_a_known_word_ranks_as_vectors_do(
    index_path: Path,
    query: str,
) -> None:
    index = build(index_path)
    query_vector = np.linspace(-1, 1, 16, dtype=np.float32)
    assert index.search(query, mode="words") == []
    hybrid_results = index.search(query, 40, vectors=query_vector)
    vector_results = index.search(query, 40, mode="vectors", vectors=query_vector)
    assert ids_of(hybrid_results) == ids_of(vector_results)


def test_words_are_of_whole_documents_and_passages_of_vectors(index_path: Path) -> None:
    model = tiny_model()
    model[0].tokenizer = WordSpans(model[0].tokenizer)
    passages_by_id = {
        "0": ["rain"],
        "1": ["cat cat ", "dog dog ", "ship ship ", "gold gold ", "gold moon"],
        "2": ["gold"],
    }
    input_texts = ["rain", "cat cat dog dog ship ship gold gold moon", "gold"]
    index = Index.build(model, input_texts, index_path, passages="2:0", **QUIET)
    for query in ("gold moon", "dog rain", "ship"):
        query_vector = encoded([query], "encode_query")[0]
        word_scores = expected_word_scores(input_texts, query)
        results = index.search(query, 3, explain=True)
        assert sorted(ids_of(results)) == ["0", "1", "2"]
        for result in results:
            passages = passages_by_id[result.id]
            vector_scores = encoded(passages) @ query_vector
            best_passage = passages[int(vector_scores.argmax())]
            assert result.vector_score == pytest.approx(vector_scores.max(), abs=1e-5)
            assert result.word_score == pytest.approx(word_scores[int(result.id)])
            assert result.passage in (None, best_passage)
    assert index.search("moon", mode="words")[0].passage is None
