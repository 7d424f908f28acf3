"""Queries and documents that judge vectors for search: what they are made of, and how they score."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from random import Random

import numpy as np
import pandas as pd
import pytest

from st_reba import build
from st_reba.evaluation import Task
from st_reba.evaluation.kinds.reranking import RANKING_METRICS
from st_reba.evaluation.retrieval_items import (
    RetrievalItems,
    draw_documents,
    labelled_items,
    normalized_gain,
    read_rankings,
    retrieval_views,
    split_view,
)
from st_reba.evaluation.word_scores import word_scores
from st_reba.index import Index

DOCUMENTS = [f"Ship {n} left the old harbour. Captain {n} was glad. It was raining on day {n}." for n in range(60)]


def test_a_view_is_a_sentence_and_the_document_without_it() -> None:
    text = "The ship left at noon. It is old and grey. The ship left at noon. 船离开了老港口。天上下着大雨。"
    seen = set()
    for seed in range(40):
        view = split_view(text, Random(seed))
        assert view is not None and view.sentence in text and view.sentence not in view.passage
        missing_letters = Counter(text.replace(" ", "")) - Counter(view.passage.replace(" ", ""))
        assert missing_letters == Counter(view.sentence.replace(" ", "") * text.count(view.sentence))
        seen.add(view.sentence)
    assert len(seen) == 4


def test_of_a_long_sentence_all_is_taken_out() -> None:
    long_sentence = "word " * 100 + "end."
    views = [split_view(f"{long_sentence} The ship left at noon.", Random(seed)) for seed in range(20)]
    passages = {view.passage for view in views if view is not None and view.sentence.startswith("word")}
    assert passages == {"The ship left at noon."}
    assert max(len(view.sentence) for view in views if view is not None) == 200


@pytest.mark.parametrize("text", ["The ship left at noon.", "No. Yes. Perhaps.", "", "The ship left at noon. Why?"])
def test_a_text_without_two_sentences_has_no_view(text: str) -> None:
    assert split_view(text, Random(0)) is None


def test_no_query_has_two_right_answers() -> None:
    """A sentence that several documents have is no query; other documents may still hold it."""
    documents = [f"{text} The weather was fine." for text in DOCUMENTS]
    for seed in range(5):
        items = retrieval_views(documents, seed)
        assert len(items.queries) == len(set(items.queries)) == 60 and "The weather was fine." not in items.queries
        for index, query in enumerate(items.queries):
            assert items.grades[index] == {index: 1.0}
            assert [text for text in documents if query in text] == [documents[index]]
            assert not any(query in passage for passage in items.documents)
    with pytest.raises(ValueError, match="0 of 120"):
        retrieval_views(documents * 2, 0)


def test_too_few_documents_are_refused() -> None:
    with pytest.raises(ValueError, match="purpose='similarity'"):
        draw_documents(["The ship left at noon."] * 100, 100, 0)
    assert len(draw_documents(DOCUMENTS * 2, 55, 0)) == 55


def test_views_score_the_rank_on_a_logarithmic_scale() -> None:
    items = RetrievalItems(("q",), tuple("abcd"), ({2: 1.0},), (), is_labelled=False)
    rows = {(0.1, 0.2, 0.9, 0.3): 1.0, (0.9, 0.2, 0.4, 0.3): 0.5, (0.9, 0.9, 0.4, 0.4): 0.0}
    for row, score in rows.items():
        assert items.score(np.array([row])) == pytest.approx([score])


def test_gain_is_that_of_evaluate() -> None:
    generator = np.random.default_rng(0)
    for _ in range(20):
        vectors = generator.normal(size=(31, 8))
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        documents = tuple(generator.choice(np.arange(1, 31), size=14, replace=False).tolist())
        grades = tuple(generator.integers(1, 4, size=14).astype(float).tolist())
        task = Task("t", "Retrieval", tuple(map(str, range(31))), ((0, documents, grades),), queries=1)
        expected = task.task_kind.evidence(task, vectors)[0, RANKING_METRICS.index("ndcg_at_10")]
        items = labelled_items(task, ["0"], 0)
        order = [int(text) for text in items.documents]
        assert items.score(vectors[:1] @ vectors[order].T) == pytest.approx([expected])
    assert normalized_gain(np.array([11]), [1.0]) == 0.0


def _ranking() -> Task:
    rows = [(f"q{n}", f"d{n} {m}", m) for n in range(40) for m in range(3)]
    return read_rankings(pd.DataFrame(rows, columns=["query", "document", "relevance"]))


def test_labelled_items_keep_their_queries_and_drawn_documents() -> None:
    items = labelled_items(_ranking(), ["q3", "q7"], 0)
    assert items.queries == ("q3", "q7") and len(items.documents) == 120
    by_text = [{items.documents[index]: grade for index, grade in grades.items()} for grades in items.grades]
    assert by_text == [{"d3 1": 1.0, "d3 2": 2.0}, {"d7 1": 1.0, "d7 2": 2.0}]


def test_rankings_are_read_from_tables_and_folders(tmp_path: Path) -> None:
    pairs = pd.DataFrame({"query": [f"q{n}" for n in range(30)], "answer": [f"d{n}" for n in range(30)]})
    pairs.to_csv(tmp_path / "pairs.csv", index=False)
    for task in (read_rankings(pairs), read_rankings(tmp_path / "pairs.csv")):
        assert (task.kind, len(task.items), task.items[4]) == ("Retrieval", 30, (4, (34,), (1.0,)))
    renamed = pairs.rename(columns={"query": "asked"})
    assert len(read_rankings(renamed, columns={"query": "asked"}).items) == 30
    assert _ranking().kind == "Retrieval"
    (tmp_path / "qrels").mkdir()
    for name in ("corpus", "queries"):
        lines = [json.dumps({"_id": f"{name[0]}{n}", "text": f"{name} {n}"}) for n in range(30)]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(lines), encoding="utf-8")
    lines = [f"q{n}\tc{n}\t1" for n in range(30)]
    (tmp_path / "qrels" / "test.tsv").write_text("\n".join(lines), encoding="utf-8")
    assert len(read_rankings(tmp_path).items) == 30
    for refused in (pairs[:29], pd.DataFrame({"text": list("ab" * 20), "label": list("ab" * 20)})):
        with pytest.raises(ValueError):
            read_rankings(refused)


def test_word_scores_are_those_of_an_index(tmp_path: Path) -> None:
    documents = [*DOCUMENTS[:20], "船离开了老港口。", "天上下着大雨。"]
    queries = ["the old captain 7", "港口", "nothing that stands there"]
    index = Index.build(build("mini"), documents, tmp_path / "index")
    scores = word_scores(queries, documents)
    for query, query_scores in zip(queries, scores, strict=True):
        results = index.search(query, 30, mode="words")
        assert len(results) == np.count_nonzero(query_scores)
        for result in results:
            assert query_scores[documents.index(result.text)] == pytest.approx(result.score)
