"""Queries and documents that judge vectors for search: where they come from, and how they score."""

from __future__ import annotations

import json
from collections import Counter
from itertools import product
from pathlib import Path
from random import Random

import numpy as np
import pandas as pd
import pytest

from st_reba import build
from st_reba.evaluation import Task, read_task
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

DOCUMENT = "Ship {0} left the old harbour. Captain {0} was glad. It was raining on day {0}."
DOCUMENTS = list(map(DOCUMENT.format, range(60)))


def test_a_view_is_a_sentence_and_the_document_without_it() -> None:
    text = "The ship left at noon. It is old and grey. The ship left at noon. 船离开了老港口。天上下着大雨。"
    drawn_sentences = set()
    for seed in range(40):
        view = split_view(text, Random(seed))
        assert view is not None
        assert view.sentence in text
        assert view.sentence not in view.passage
        missing_letters = Counter(text.replace(" ", "")) - Counter(view.passage.replace(" ", ""))
        occurrences = view.sentence.replace(" ", "") * text.count(view.sentence)
        assert missing_letters == Counter(occurrences)
        drawn_sentences.add(view.sentence)
    assert len(drawn_sentences) == 4


def test_a_long_sentence_is_taken_out_whole() -> None:
    long_sentence = "word " * 100 + "end."
    passages = set()
    for seed in range(20):
        view = split_view(f"{long_sentence} The ship left at noon.", Random(seed))
        assert view is not None
        if view.sentence.startswith("word"):
            passages.add(view.passage)
            assert len(view.sentence) == 200
    assert passages == {"The ship left at noon."}


@pytest.mark.parametrize(
    "text", ["The ship left at noon.", "No. Yes. Perhaps.", "", "The ship left at noon. Why?"]
)
def test_a_text_without_two_sentences_has_no_view(text: str) -> None:
    assert split_view(text, Random(0)) is None


@pytest.mark.parametrize("seed", range(5))
def test_no_query_has_two_right_answers(seed: int) -> None:
    """A sentence that several documents have is not a query; other documents may still hold it."""
    documents = list(map("{} The weather was fine.".format, DOCUMENTS))
    views = retrieval_views(documents, seed)
    assert len(views.queries) == len(set(views.queries)) == 60
    assert "The weather was fine." not in views.queries
    for query_index, query in enumerate(views.queries):
        assert views.grades[query_index] == {query_index: 1.0}
        assert [text for text in documents if query in text] == [documents[query_index]]
        assert not any(query in passage for passage in views.documents)


def test_documents_without_a_sentence_of_their_own_are_refused() -> None:
    with pytest.raises(ValueError, match="0 of 120"):
        retrieval_views(DOCUMENTS * 2, 0)


def test_different_documents_are_drawn() -> None:
    assert len(draw_documents(DOCUMENTS * 2, 55, 0)) == 55


def test_too_few_documents_are_refused() -> None:
    with pytest.raises(ValueError, match="purpose='similarity'"):
        draw_documents(["The ship left at noon."] * 100, 100, 0)


@pytest.mark.parametrize(
    ("similarities", "score"),
    [
        ((0.1, 0.2, 0.9, 0.3), 1.0),
        ((0.9, 0.2, 0.4, 0.3), 0.5),
        ((0.9, 0.9, 0.4, 0.4), 0.0),
    ],
    ids=["first", "second", "tied last"],
)
def test_views_score_the_rank_on_a_logarithmic_scale(
    similarities: tuple[float, ...], score: float
) -> None:
    views = RetrievalItems(
        ("q",),
        tuple("abcd"),
        ({2: 1.0},),
        (),
        is_labelled=False,
    )
    assert views.score_similarities(np.array([similarities])) == pytest.approx([score])


@pytest.mark.parametrize("seed", range(20))
def test_labels_score_the_gain_of_evaluate(seed: int) -> None:
    generator = np.random.default_rng(seed)
    vectors = generator.normal(size=(31, 8))
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    documents = tuple(generator.choice(np.arange(1, 31), size=14, replace=False).tolist())
    grades = tuple(generator.integers(1, 4, size=14).astype(float).tolist())
    task = Task(
        "t",
        "Retrieval",
        tuple(map(str, range(31))),
        ((0, documents, grades),),
        query_count=1,
    )
    evidence = task.task_kind.evidence(task, vectors.astype(np.float32))
    expected_score = evidence[0, RANKING_METRICS.index("ndcg_at_10")]
    items = labelled_items(task, ["0"], 0)
    document_rows = [int(text) for text in items.documents]
    assert items.score_similarities(vectors[:1] @ vectors[document_rows].T) == pytest.approx(
        [expected_score]
    )


def test_a_document_at_rank_11_gains_nothing() -> None:
    assert normalized_gain(np.array([11]), [1.0]) == 0.0


@pytest.fixture
def ranking() -> Task:
    table_rows = []
    for query, grade in product(range(40), range(3)):
        table_rows.append((f"q{query}", f"d{query} {grade}", grade))
    return read_rankings(
        read_task(pd.DataFrame(table_rows, columns=["query", "document", "relevance"]))
    )


def test_labelled_items_have_some_queries_and_drawn_documents(ranking: Task) -> None:
    items = labelled_items(ranking, ["q3", "q7"], 0)
    assert items.queries == ("q3", "q7")
    assert len(items.documents) == 120


def test_labelled_items_have_the_grades_of_relevant_documents(ranking: Task) -> None:
    items = labelled_items(ranking, ["q3", "q7"], 0)
    grades_by_text = []
    for grades in items.grades:
        grades_by_text.append({items.documents[index]: grade for index, grade in grades.items()})
    assert grades_by_text == [
        {"d3 1": 1.0, "d3 2": 2.0},
        {"d7 1": 1.0, "d7 2": 2.0},
    ]


PAIRS = pd.DataFrame(
    {
        "query": list(map("q{}".format, range(30))),
        "answer": list(map("d{}".format, range(30))),
    }
)


def check_pairs(task: Task) -> None:
    assert (task.kind, len(task.items)) == ("Retrieval", 30)
    assert task.items[4] == (4, (34,), (1.0,))


def test_tables_without_relevance_are_rankings(tmp_path: Path) -> None:
    check_pairs(read_rankings(PAIRS))
    PAIRS.to_csv(tmp_path / "pairs.csv", index=False)
    check_pairs(read_rankings(tmp_path / "pairs.csv"))


def test_reranking_tasks_are_rankings(ranking: Task) -> None:
    assert ranking.kind == "Retrieval"
    assert len(ranking.items) == 40


def test_beir_folders_are_rankings(tmp_path: Path) -> None:
    (tmp_path / "qrels").mkdir()
    for name in ("corpus", "queries"):
        lines = [
            json.dumps(
                {
                    "_id": f"{name[0]}{row_number}",
                    "text": f"{name} {row_number}",
                }
            )
            for row_number in range(30)
        ]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(lines), encoding="utf-8")
    judgements = [f"q{row_number}\tc{row_number}\t1" for row_number in range(30)]
    (tmp_path / "qrels" / "test.tsv").write_text(
        "\n".join(judgements),
        encoding="utf-8",
    )
    check_pairs(read_rankings(tmp_path))


@pytest.mark.parametrize(
    "source",
    [
        PAIRS[:29],
        pd.DataFrame(
            {
                "text": list("ab" * 20),
                "label": list("ab" * 20),
            }
        ),
    ],
    ids=["few", "classes"],
)
def test_other_tables_are_no_rankings(source: pd.DataFrame) -> None:
    with pytest.raises(ValueError):
        read_rankings(source)


def test_tasks_of_other_kinds_are_no_rankings() -> None:
    pairs = pd.DataFrame({"text1": DOCUMENTS, "text2": DOCUMENTS[::-1], "score": range(60)})
    with pytest.raises(ValueError, match="table: STS, 60 items. Give 30 or more queries"):
        read_rankings(read_task(pairs))


def test_word_scores_are_those_of_an_index(tmp_path: Path) -> None:
    documents = [*DOCUMENTS[:20], "船离开了老港口。", "天上下着大雨。"]
    queries = ["the old captain 7", "港口", "nothing that stands there"]
    index = Index.build(build("mini"), documents, tmp_path / "index")
    for query, query_scores in zip(
        queries,
        word_scores(queries, documents),
        strict=True,
    ):
        results = index.search(query, 30, mode="words")
        assert len(results) == np.count_nonzero(query_scores)
        for result in results:
            assert query_scores[documents.index(result.text)] == pytest.approx(result.score)
