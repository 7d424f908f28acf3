"""Reranking: queries with documents that are judged for each, relevant and irrelevant ones."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from sklearn.metrics import average_precision_score, ndcg_score

from ..beir import read_beir
from ..measures import COSINE_DIGITS, column_means
from ..tables import read_score, read_text
from ..task import Evidence, Task, TaskKind, TextIndex, declare_kind
from ..task_source import TaskSource
from ..vectors import Vectors, normalize_rows

# How many documents of a ranking count, as in mteb.
CUTOFF = 1000
RANKING_METRICS = ("map_at_1000", "ndcg_at_10", "mrr_at_10", "recall_at_10", "recall_at_1000")
Judgements = Mapping[str, Mapping[str, float]]
"""The grade of each judged document, by the texts of query and document."""


class RankingKind(TaskKind):
    """Queries and the documents that each ranks."""

    column_readers = {"query": read_text, "document": read_text, "relevance": read_score}
    metrics = column_means(RANKING_METRICS)
    min_items = 1
    item_name = "labelled queries"
    ranks_all_documents: ClassVar[bool]

    def read(self, task_source: TaskSource) -> Task:
        """Read a table of judgements, or a folder in BEIR's layout."""
        if task_source.is_beir and task_source.path is not None:
            task_source.refuse("a BEIR folder", "columns", "labels", "train", "encoding")
            folder = read_beir(task_source.path)
            return self._make_task(
                task_source,
                folder.grades,
                folder.documents,
                dict(folder.dropped),
            )
        task_source.refuse(self.name, "train")
        table = task_source.table
        if self.ranks_all_documents and not table.find_columns(["relevance"]):
            # Without grades every document is relevant to its query.
            table = replace(table, frame=table.frame.assign(relevance=1.0))
        judgement_rows, dropped_counts = table.read_rows(self.column_readers)
        judgements: dict[str, dict[str, float]] = {}
        documents: list[str] = []
        for query, document, grade in judgement_rows:
            grades = judgements.setdefault(query, {})
            grades[document] = max(grade, grades.get(document, grade))
            documents.append(document)
        return self._make_task(task_source, judgements, documents, dropped_counts)

    def _make_task(
        self,
        task_source: TaskSource,
        judgements: Judgements,
        documents: Iterable[str],
        dropped_counts: dict[str, int],
    ) -> Task:
        usable_queries = [query for query, grades in judgements.items() if self._is_usable(grades)]
        if len(usable_queries) < len(judgements):
            needed = (
                "a relevant document"
                if self.ranks_all_documents
                else "both relevant and irrelevant documents"
            )
            dropped_counts[f"queries without {needed}"] = len(judgements) - len(usable_queries)
        queries = task_source.subsample(usable_queries)
        ranked_documents: TextIndex[str] = TextIndex()
        if self.ranks_all_documents:
            for document in documents:
                ranked_documents.add(document)
        ranking_items: list[tuple[int, tuple[int, ...], tuple[float, ...]]] = []
        for query_index, query in enumerate(queries):
            indices = [
                len(queries) + ranked_documents.add(document) for document in judgements[query]
            ]
            # Grades below 0 are of irrelevant documents.
            grades = [max(0.0, grade) for grade in judgements[query].values()]
            ranking_items.append((query_index, tuple(indices), tuple(grades)))
        texts = (*queries, *ranked_documents.texts)
        return Task(
            task_source.task_name,
            self.name,
            texts,
            tuple(ranking_items),
            query_count=len(queries),
            dropped=dropped_counts,
        )

    def _is_usable(self, grades: Mapping[str, float]) -> bool:
        highest_grade = max(grades.values())
        if self.ranks_all_documents:
            return highest_grade > 0
        return highest_grade > 0 >= min(grades.values())

    def evidence(self, task: Task, vectors: Vectors) -> Evidence:
        """The values of ``RANKING_METRICS`` for each query."""
        unit_vectors = normalize_rows(vectors, np.float64)
        metric_rows: list[list[float]] = []
        for query, judged_documents, judged_grades in task.items:
            documents = np.asarray(judged_documents)
            grades = np.asarray(judged_grades)
            if self.ranks_all_documents:
                documents = np.arange(task.query_count, len(unit_vectors))
                grades = np.zeros(len(documents))
                grades[np.asarray(judged_documents) - task.query_count] = judged_grades
            cosines = np.round(unit_vectors[documents] @ unit_vectors[query], COSINE_DIGITS)
            # Among equal cosines the lower grade comes first, so that ties earn nothing.
            ranking = np.lexsort((grades, -cosines))
            metric_rows.append(score_ranking(grades[ranking]))
        return np.asarray(metric_rows, np.float64)


def score_ranking(grades: NDArray[np.float64]) -> list[float]:
    """The values of ``RANKING_METRICS`` for grades in the order of a ranking, one of them above 0."""
    ranking_scores = -np.arange(len(grades), dtype=np.float64)
    is_relevant = grades[:CUTOFF] > 0
    relevant_count = int((grades > 0).sum())
    recall_at_10 = float(is_relevant[:10].sum()) / relevant_count
    recall = float(is_relevant.sum()) / relevant_count
    precision = 0.0
    if is_relevant.any():
        precision = average_precision_score(is_relevant, ranking_scores[:CUTOFF])
    first_relevant = is_relevant[:10].argmax()
    reciprocal_rank = is_relevant[first_relevant] / (first_relevant + 1)
    gain = ndcg_score(grades[None], ranking_scores[None], k=10)
    return [precision * recall, gain, reciprocal_rank, recall_at_10, recall]


class Reranking(RankingKind):
    """How well the documents that are judged for a query are ranked."""

    name = "Reranking"
    detection_order = 50
    main_metric = "map_at_1000"
    chooses_methods = True
    ranks_all_documents = False


declare_kind(Reranking())
