"""Labelled queries and documents: read from files, and divided by queries."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

from ..sentences import QUERY_SAMPLE, sample_sentences
from .beir import is_beir_folder
from .retrieval_views import RetrievalItems
from .tasks import COLUMNS, Task, check_source, frame_of, read_task

if TYPE_CHECKING:
    import pandas as pd

FEWEST_QUERIES = 30
# Documents beside the relevant ones, from which a search has to tell these.
MOST_OTHER_DOCUMENTS = 1000


def read_rankings(
    source: Task | str | os.PathLike[str] | pd.DataFrame,
    *,
    columns: Mapping[str, str] | None = None,
    labels: Mapping[str, float] | None = None,
) -> Task:
    """Read queries with their documents: a BEIR folder, or a table of query, document and perhaps relevance.

    Args:
        source, columns, labels: As for :func:`~st_reba.evaluation.tasks.read_task`. Without a column of relevance
            every document of the table is relevant to its query.

    Returns:
        A task of the kind Retrieval.

    Raises:
        ValueError: There are no such, or fewer than 30 queries.
    """
    if isinstance(source, Task):
        task = source
    elif isinstance(source, (str, os.PathLike)) and is_beir_folder(Path(source)):
        task = read_task(source, "Retrieval", columns=columns, labels=labels)
    else:
        task = _read_table(source, columns or {}, labels)
    if task.kind == "Reranking":
        task = replace(task, kind="Retrieval")
    is_retrieval = task.kind == "Retrieval"
    if not is_retrieval or len(task.items) < FEWEST_QUERIES:
        raise ValueError(f"labels: {task}. Give {FEWEST_QUERIES} or more queries with their relevant documents.")
    return task


def _read_table(
    source: str | os.PathLike[str] | pd.DataFrame,
    columns: Mapping[str, str],
    labels: Mapping[str, float] | None,
) -> Task:
    check_source(source)
    table_name = None
    if isinstance(source, (str, os.PathLike)):
        table_name = Path(source).name
    table = frame_of(source)
    usual_columns = set(COLUMNS["relevance"])
    has_relevance = "relevance" in columns or not usual_columns.isdisjoint(table.columns)
    if not has_relevance:
        table = table.assign(relevance=1.0)
    return read_task(table, "Retrieval", name=table_name, columns=columns, labels=labels)


def labelled_items(
    task: Task,
    queries: Sequence[str],
    seed: int,
) -> RetrievalItems:
    """Some queries of a task, with their relevant documents and others that are drawn.

    Args:
        task: Of the kind Retrieval.
        queries: Some of its queries.
        seed: Seed of the draw.
    """
    grades_by_query = relevant_documents(task)
    query_grades = [grades_by_query[query] for query in queries]
    documents: dict[str, None] = {}
    for document_grades in query_grades:
        documents |= dict.fromkeys(document_grades)
    all_documents = set(task.texts[task.queries :])
    other_documents = sorted(all_documents - documents.keys())
    other_count = min(MOST_OTHER_DOCUMENTS, len(other_documents))
    drawn_documents = Random(seed).sample(other_documents, other_count)
    documents |= dict.fromkeys(drawn_documents)
    index_of_document: dict[str, int] = {}
    for document in documents:
        index_of_document[document] = len(index_of_document)
    indexed_grades: list[Mapping[int, float]] = []
    for document_grades in query_grades:
        grades_by_index: dict[int, float] = {}
        for document, grade in document_grades.items():
            document_index = index_of_document[document]
            grades_by_index[document_index] = grade
        indexed_grades.append(grades_by_index)
    query_sample = sample_sentences(list(documents), QUERY_SAMPLE, seed)
    return RetrievalItems(
        queries=tuple(queries),
        documents=tuple(documents),
        grades=tuple(indexed_grades),
        query_sample=tuple(query_sample),
        is_labelled=True,
    )


def relevant_documents(task: Task) -> dict[str, dict[str, float]]:
    """Grades above 0 of a task of the kind Retrieval, by the texts of query and document."""
    grades_by_query: dict[str, dict[str, float]] = {}
    for query_index, document_indices, grades in task.items:
        document_grades: dict[str, float] = {}
        for document_index, grade in zip(document_indices, grades, strict=True):
            if grade > 0:
                document = task.texts[document_index]
                document_grades[document] = grade
        query = task.texts[query_index]
        grades_by_query[query] = document_grades
    return grades_by_query
