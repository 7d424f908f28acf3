"""Queries and documents that judge vectors for search, from labels or from unlabelled texts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..encode import Role
from ..sentences import QUERY_SAMPLE, as_query, sample_sentences, split_sentences
from .items import TuningItems, VectorsByRole
from .kinds.views import SAME_COSINE
from .tables import Location
from .task import Task, TextIndex
from .tasks import read_task
from .texts import draw_usable, has_views
from .vectors import search_similarities

Scores = NDArray[np.float64]
CUTOFF = 10  # of nDCG
MIN_VIEWS = 10
MIN_QUERIES = 30
# The most irrelevant documents that are added, among which a search has to find the relevant ones.
MAX_OTHER_DOCUMENTS = 1000


@dataclass(frozen=True)
class RetrievalItems(TuningItems):
    """Queries, and the documents among which each has to find those that are relevant to it.

    Args:
        queries: The texts of Q queries.
        documents: The texts of D documents.
        grades: For each query, the grade of every relevant document, by its index.
        query_sample: Sentences of the documents, used in place of queries to measure the queries'
            mean.
        is_labelled: The grades are labels; else the only relevant document is the one that a query
            was taken from.
    """

    queries: tuple[str, ...]
    documents: tuple[str, ...]
    grades: tuple[Mapping[int, float], ...]
    query_sample: tuple[str, ...]
    is_labelled: bool

    @property
    def kind(self) -> str:
        return "Retrieval" if self.is_labelled else "SearchViews"

    @property
    def item_count(self) -> int:
        return len(self.queries)

    @property
    def texts_by_role(self) -> Mapping[Role | None, Sequence[str]]:
        query_texts = dict.fromkeys([*self.queries, *self.query_sample])
        return {"query": list(query_texts), "document": self.documents}

    def score(
        self,
        vectors_by_role: VectorsByRole,
        filter_kind: str | None,
        device: torch.device,
    ) -> Tensor:
        query_vectors = vectors_by_role["query"]
        query_texts = list(self.texts_by_role["query"])
        similarities = search_similarities(
            queries=query_vectors[: len(self.queries)],
            query_sample=query_vectors[list(map(query_texts.index, self.query_sample))],
            documents=vectors_by_role["document"],
            filter_kind=filter_kind,
        )
        return torch.from_numpy(self.score_similarities(similarities)).float()

    def score_similarities(self, similarities: NDArray[np.floating]) -> Scores:
        """Score every query by its similarity to each document.

        With labels the score is nDCG@10. Views, which have one relevant document, score 1 -
        log(rank) / log(D): 1 at rank 1 and 0 at rank D. Documents that are as similar as a relevant
        one are ranked before it.

        Args:
            similarities: [Q, D].

        Returns:
            [Q], from 0 to 1.

        Example:
            >>> items = RetrievalItems(("a", "b"), ("A", "B"), ({0: 1.0}, {1: 1.0}), (), is_labelled=False)
            >>> items.score_similarities(np.array([[0.9, 0.1], [0.8, 0.2]])).tolist()
            [1.0, 0.0]
        """
        scores = np.zeros(len(self.queries))
        highest_rank = max(2, len(self.documents))
        for query_index, query_grades in enumerate(self.grades):
            ranks = rank_documents(similarities[query_index], list(query_grades))
            if self.is_labelled:
                scores[query_index] = normalized_gain(ranks, list(query_grades.values()))
            else:
                scores[query_index] = 1 - np.log(ranks[0]) / np.log(highest_rank)
        return scores


def rank_documents(
    similarities: NDArray[np.floating], document_indices: Sequence[int]
) -> NDArray[np.int64]:
    """Ranks, from 1, of some documents among all, by a query's similarities [D]."""
    lowest_equals = similarities[document_indices] - SAME_COSINE
    is_before = similarities[None] >= lowest_equals[:, None]
    return np.asarray(is_before.sum(axis=1))


def normalized_gain(ranks: NDArray[np.int64], grades: Sequence[float]) -> float:
    """nDCG@10 of the relevant documents of a query.

    Example:
        >>> normalized_gain(np.array([1, 30]), [1.0, 1.0])
        0.6131471927654584
    """
    gains = np.asarray(grades, np.float64) / np.log2(ranks + 1)
    ideal_grades = np.sort(np.asarray(grades, np.float64))[::-1][:CUTOFF]
    ideal_ranks = np.arange(1, len(ideal_grades) + 1)
    ideal_gains = ideal_grades / np.log2(ideal_ranks + 1)
    return float(gains[ranks <= CUTOFF].sum() / ideal_gains.sum())


@dataclass(frozen=True)
class View:
    """A sentence of a document, as query, and the rest of the document."""

    sentence: str
    passage: str


def split_view(
    text: str,
    random_state: Random,
    shared_sentences: Collection[str] = (),
) -> View | None:
    """Draw a sentence, and remove it wherever it occurs; None: no sentence, or no rest, is usable.

    Args:
        text: The document.
        random_state: For the draw.
        shared_sentences: Sentences that other documents contain too, so that as queries they would
            not single this one out.
    """
    sentences: list[str] = []
    for sentence in split_sentences(text):
        if has_views(sentence) and sentence not in shared_sentences:
            sentences.append(sentence)
    if not sentences:
        return None
    drawn_sentence = random_state.choice(sentences)
    passage = text.replace(drawn_sentence, " ").strip()
    if not has_views(passage):
        return None
    return View(as_query(drawn_sentence), passage)


def retrieval_views(texts: Sequence[str], seed: int) -> RetrievalItems:
    """Make a query and a passage from each text: a sentence drawn from it, and the rest.

    Source:
        Lee et al. (2019), Latent Retrieval for Weakly Supervised Open Domain Question Answering
        (arXiv 1906.00300), section 5: the inverse cloze task, by which retrievers are trained.

    Raises:
        ValueError: The texts have too few sentences of their own.

    Example:
        >>> texts = [f"Old ship {number} left at dawn. It never came back." for number in range(10)]
        >>> items = retrieval_views(texts, seed=0)
        >>> items.queries[0], items.documents[0]
        ('Old ship 0 left at dawn.', 'It never came back.')
    """
    text_counts: Counter[str] = Counter()
    for text in texts:
        text_counts.update(set(split_sentences(text)))
    shared_sentences = {sentence for sentence, count in text_counts.items() if count > 1}
    random_state = Random(seed)
    passage_of_query: dict[str, str] = {}
    for text in texts:
        view = split_view(text, random_state, shared_sentences)
        if view is not None:
            passage_of_query[view.sentence] = view.passage
    if len(passage_of_query) < MIN_VIEWS:
        raise ValueError(
            f"texts: {len(passage_of_query)} of {len(texts)} texts have two sentences, one of them in no other text: "
            f"give at least {MIN_VIEWS} such texts, without what all texts repeat."
        )
    queries = tuple(passage_of_query)
    return RetrievalItems(
        queries=queries,
        documents=tuple(passage_of_query.values()),
        grades=tuple({index: 1.0} for index in range(len(queries))),
        query_sample=queries[:QUERY_SAMPLE],
        is_labelled=False,
    )


def draw_documents(
    texts: Iterable[str],
    count: int,
    seed: int,
) -> list[str]:
    """Draw different texts of two sentences or more.

    Raises:
        ValueError: There are fewer than 50.
    """
    remedy = (
        "For single sentences (each line of a .txt file is a text) give purpose='similarity', "
        "or queries with their documents as labels."
    )
    return draw_usable(
        texts,
        lambda text: split_view(text, Random(seed)) is not None,
        count,
        seed,
        "two sentences",
        remedy,
    )


def read_rankings(source: Task | Location) -> Task:
    """Read queries with their documents: a BEIR folder, or a table of query, document and perhaps relevance.

    Args:
        source: As for :func:`~st_reba.evaluation.read_task`, which also takes names of columns.

    Returns:
        A task of the kind Retrieval.

    Raises:
        ValueError: There are no queries with documents, or fewer than 30.
    """
    task = read_task(source, "Retrieval")
    if task.kind == "Reranking":
        task = replace(task, kind="Retrieval")
    if task.kind != "Retrieval" or len(task.items) < MIN_QUERIES:
        raise ValueError(
            f"labels: {task}. Give {MIN_QUERIES} or more queries with their relevant documents."
        )
    return task


def labelled_items(
    task: Task,
    queries: Sequence[str],
    seed: int,
) -> RetrievalItems:
    """Some queries of a task, with their relevant documents and a random sample of others.

    Args:
        task: Of the kind Retrieval.
        queries: Some of its queries.
        seed: Seed of the draw.
    """
    grades_of_query = relevant_documents(task)
    documents: TextIndex[str] = TextIndex()
    grades: list[Mapping[int, float]] = []
    for query in queries:
        query_grades: dict[int, float] = {}
        for document, grade in grades_of_query[query].items():
            query_grades[documents.add(document)] = grade
        grades.append(query_grades)
    other_documents = sorted(set(task.texts[task.query_count :]) - set(documents.texts))
    other_count = min(MAX_OTHER_DOCUMENTS, len(other_documents))
    all_documents = (*documents.texts, *Random(seed).sample(other_documents, other_count))
    return RetrievalItems(
        queries=tuple(queries),
        documents=all_documents,
        grades=tuple(grades),
        query_sample=tuple(sample_sentences(list(all_documents), QUERY_SAMPLE, seed)),
        is_labelled=True,
    )


def relevant_documents(task: Task) -> dict[str, dict[str, float]]:
    """Grades above 0 of a task of the kind Retrieval, by the texts of query and document."""
    grades_of_query: dict[str, dict[str, float]] = {}
    for query_index, document_indices, grades in task.items:
        query_grades: dict[str, float] = {}
        for document_index, grade in zip(document_indices, grades, strict=True):
            if grade > 0:
                query_grades[task.texts[document_index]] = grade
        grades_of_query[task.texts[query_index]] = query_grades
    return grades_of_query
