"""Queries and documents that judge vectors for search, and how they are made of unlabelled texts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from random import Random

import numpy as np
from numpy.typing import NDArray

from ..sentences import QUERY_SAMPLE, as_query, split_sentences
from .views import FEWEST_TEXTS, SAME_COSINE, has_views

Scores = NDArray[np.float64]
CUTOFF = 10  # of nDCG


@dataclass(frozen=True)
class RetrievalItems:
    """Queries, and the documents among which each has to find those that are relevant to it.

    Args:
        queries: The texts of Q queries.
        documents: The texts of D documents.
        grades: For each query, the grade of every relevant document, by its index.
        query_sample: Sentences of the documents, which stand for queries where their mean is measured.
        is_labelled: The grades were given; else the only relevant document is what a query was taken from.
    """

    queries: tuple[str, ...]
    documents: tuple[str, ...]
    grades: tuple[Mapping[int, float], ...]
    query_sample: tuple[str, ...]
    is_labelled: bool

    def score(self, similarities: NDArray[np.floating]) -> Scores:
        """Score every query by its similarity to each document.

        With labels the score is nDCG@10. Views, which have one relevant document, score 1 - log(rank) / log(D):
        1 at rank 1 and 0 at rank D. Documents that are as similar as a relevant one stand before it.

        Args:
            similarities: [Q, D].

        Returns:
            [Q], from 0 to 1.

        Example:
            >>> items = RetrievalItems(("a", "b"), ("A", "B"), ({0: 1.0}, {1: 1.0}), (), is_labelled=False)
            >>> items.score(np.array([[0.9, 0.1], [0.8, 0.2]])).tolist()
            [1.0, 0.0]
        """
        scores = np.zeros(len(self.queries))
        document_count = max(2, len(self.documents))
        for query_index, query_grades in enumerate(self.grades):
            query_similarities = similarities[query_index]
            ranks = rank_documents(query_similarities, list(query_grades))
            if self.is_labelled:
                scores[query_index] = normalized_gain(ranks, list(query_grades.values()))
            else:
                scores[query_index] = 1 - np.log(ranks[0]) / np.log(document_count)
        return scores


def rank_documents(
    similarities: NDArray[np.floating],
    document_indices: Sequence[int],
) -> NDArray[np.int64]:
    """Ranks, from 1, of some documents of all that a query is compared with, similarities [D]."""
    lowest_equals = similarities[document_indices] - SAME_COSINE
    is_before = similarities[None] >= lowest_equals[:, None]
    return np.asarray(is_before.sum(axis=1))


def normalized_gain(ranks: NDArray[np.int64], grades: Sequence[float]) -> float:
    """nDCG@10 of the relevant documents of a query.

    Example:
        >>> normalized_gain(np.array([1, 30]), [1.0, 1.0])
        0.6131471927654584
    """
    known_grades = np.asarray(grades, np.float64)
    gains = known_grades / np.log2(ranks + 1)
    ideal_grades = np.sort(known_grades)[::-1][:CUTOFF]
    ideal_gains = ideal_grades / np.log2(np.arange(len(ideal_grades)) + 2)
    return float(gains[ranks <= CUTOFF].sum() / ideal_gains.sum())


@dataclass(frozen=True)
class View:
    """A sentence of a document, as query, and the rest of the document."""

    sentence: str
    passage: str


def split_view(text: str, random_state: Random) -> View | None:
    """Draw a sentence, and take it out of the text wherever it stands there; None: the text has no two sentences."""
    sentences: list[str] = []
    for sentence in split_sentences(text):
        if has_views(sentence):
            sentences.append(sentence)
    if not sentences:
        return None
    drawn_sentence = random_state.choice(sentences)
    passage = text.replace(drawn_sentence, " ").strip()
    if not has_views(passage):
        return None
    return View(as_query(drawn_sentence), passage)


def retrieval_views(texts: Iterable[str], seed: int) -> RetrievalItems:
    """Make a query and a passage of each text: a sentence that is drawn, and the rest.

    Source:
        Lee et al. (2019), Latent Retrieval for Weakly Supervised Open Domain Question Answering (arXiv 1906.00300),
        section 5: the inverse cloze task, by which retrievers are trained.

    Example:
        >>> items = retrieval_views(["The old ship left at dawn. It never came back to us."], seed=1)
        >>> items.queries, items.documents
        (('The old ship left at dawn.',), ('It never came back to us.',))
    """
    random_state = Random(seed)
    # By query and by passage: what is there already would make two right answers.
    passage_of_query: dict[str, str] = {}
    passages: set[str] = set()
    for text in texts:
        view = split_view(text, random_state)
        if view is None or view.sentence in passage_of_query or view.passage in passages:
            continue
        passage_of_query[view.sentence] = view.passage
        passages.add(view.passage)
    grades: list[Mapping[int, float]] = []
    for document_index in range(len(passage_of_query)):
        grades.append({document_index: 1.0})
    queries = tuple(passage_of_query)
    return RetrievalItems(
        queries=queries,
        documents=tuple(passage_of_query.values()),
        grades=tuple(grades),
        query_sample=queries[:QUERY_SAMPLE],
        is_labelled=False,
    )


def draw_documents(texts: Iterable[str], count: int, seed: int) -> list[str]:
    """Draw different texts of two sentences or more.

    Raises:
        ValueError: There are fewer than 50.
    """
    usable_texts: list[str] = []
    for text in dict.fromkeys(map(str.strip, texts)):
        if split_view(text, Random(seed)) is not None:
            usable_texts.append(text)
    if len(usable_texts) < FEWEST_TEXTS:
        raise ValueError(
            f"texts: {len(usable_texts)} different texts of two sentences or more: give {FEWEST_TEXTS} at least. "
            "For single sentences give purpose='similarity', or queries with their documents as labels."
        )
    return Random(seed).sample(usable_texts, min(count, len(usable_texts)))
