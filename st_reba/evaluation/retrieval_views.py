"""Queries and documents that judge vectors for search, and how they are made of unlabelled texts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from random import Random

import numpy as np
from numpy.typing import NDArray

from ..sentences import QUERY_SAMPLE, as_query, split_sentences
from .views import FEWEST_TEXTS, SAME_COSINE, has_views

Scores = NDArray[np.float64]
CUTOFF = 10  # of nDCG
FEWEST_VIEWS = 10


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

    def score(
        self,
        similarities: NDArray[np.floating],
    ) -> Scores:
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
                grades = list(query_grades.values())
                score = normalized_gain(ranks, grades)
            else:
                score = 1 - np.log(ranks[0]) / np.log(document_count)
            scores[query_index] = score
        return scores


def rank_documents(
    similarities: NDArray[np.floating],
    document_indices: Sequence[int],
) -> NDArray[np.int64]:
    """Ranks, from 1, of some documents of all that a query is compared with, similarities [D]."""
    lowest_equals = similarities[document_indices] - SAME_COSINE
    is_before = similarities[None] >= lowest_equals[:, None]
    return np.asarray(is_before.sum(axis=1))


def normalized_gain(
    ranks: NDArray[np.int64],
    grades: Sequence[float],
) -> float:
    """nDCG@10 of the relevant documents of a query.

    Example:
        >>> normalized_gain(np.array([1, 30]), [1.0, 1.0])
        0.6131471927654584
    """
    known_grades = np.asarray(grades, np.float64)
    gains = known_grades / np.log2(ranks + 1)
    falling_grades = np.sort(known_grades)[::-1]
    ideal_grades = falling_grades[:CUTOFF]
    ideal_ranks = np.arange(1, len(ideal_grades) + 1)
    ideal_gains = ideal_grades / np.log2(ideal_ranks + 1)
    counted_gains = gains[ranks <= CUTOFF]
    return float(counted_gains.sum() / ideal_gains.sum())


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
    """Draw a sentence, and take it out of the text wherever it stands there; None: the text has no two sentences.

    Args:
        text: The document.
        random_state: Of the draw.
        shared_sentences: Sentences that other documents have too, so that they ask for none of them.
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
    """Make a query and a passage of each text: a sentence that is drawn, and the rest.

    Source:
        Lee et al. (2019), Latent Retrieval for Weakly Supervised Open Domain Question Answering (arXiv 1906.00300),
        section 5: the inverse cloze task, by which retrievers are trained.

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
        distinct_sentences = set(split_sentences(text))
        text_counts.update(distinct_sentences)
    shared_sentences = {sentence for sentence, count in text_counts.items() if count > 1}
    random_state = Random(seed)
    passage_of_query: dict[str, str] = {}
    for text in texts:
        view = split_view(text, random_state, shared_sentences)
        if view is not None:
            passage_of_query[view.sentence] = view.passage
    if len(passage_of_query) < FEWEST_VIEWS:
        raise ValueError(
            f"texts: {len(passage_of_query)} of {len(texts)} texts have two sentences, and one that no other text has: "
            f"give {FEWEST_VIEWS} such at least, without what all texts repeat."
        )
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


def draw_documents(
    texts: Iterable[str],
    count: int,
    seed: int,
) -> list[str]:
    """Draw different texts of two sentences or more.

    Raises:
        ValueError: There are fewer than 50.
    """
    usable_texts: list[str] = []
    stripped_texts = map(str.strip, texts)
    for text in dict.fromkeys(stripped_texts):
        view = split_view(text, Random(seed))
        if view is not None:
            usable_texts.append(text)
    if len(usable_texts) < FEWEST_TEXTS:
        raise ValueError(
            f"texts: {len(usable_texts)} different texts of two sentences or more: give {FEWEST_TEXTS} at least. "
            "For single sentences give purpose='similarity', or queries with their documents as labels."
        )
    drawn_count = min(count, len(usable_texts))
    return Random(seed).sample(usable_texts, drawn_count)
