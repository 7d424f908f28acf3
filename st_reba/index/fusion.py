"""Hybrid search: words and vectors of documents combined in one score.

Both sides list their best documents, and each document on either list gets its true score on both
sides. The scores of a side are then scaled to 0 … 1, because BM25 and cosines cannot be compared as
they are, and added.
"""

from __future__ import annotations

import numpy as np

from .bm25 import Scores

# Share of the vectors in a score; the rest is of the words. Chosen on Cranfield, CISI, STARD and
# XQuAD: of 0.3 to 0.5, the average of 0.35 and 0.4 is the best, and the more vectors count, the
# more is lost where they are weak (SmolLM2 on STARD: 0.5 points at 0.35, 2.0 at 0.4).
VECTORS_SHARE = 0.35
# Documents on each list, unless more are asked for.
LIST_LENGTH = 100


def fused_scores(word_scores: Scores, vector_scores: Scores) -> Scores:
    """Scores from 0 to 1 of the documents of both lists.

    Args:
        word_scores: BM25, [documents]. 0 stays 0: no word of the query; the best becomes 1.
        vector_scores: Cosines or inner products, [documents]. The lowest becomes 0, the best 1.

    Example:
        >>> fused_scores(np.array([4.0, 0.0, 2.0]), np.array([0.7, 0.9, 0.5])).round(2).tolist()
        [0.82, 0.35, 0.32]
    """
    lowest_vector_score = float(vector_scores.min(initial=np.inf))
    scaled_vectors = _scaled(vector_scores, lowest_vector_score)
    scaled_words = _scaled(word_scores, 0.0)
    vectors_part = VECTORS_SHARE * scaled_vectors
    words_part = (1 - VECTORS_SHARE) * scaled_words
    return vectors_part + words_part


def _scaled(scores: Scores, floor: float) -> Scores:
    """Scores scaled so that the best is 1 and the floor 0; all are 0 if the two are equal."""
    best_score = float(scores.max(initial=-np.inf))
    score_range = best_score - floor
    if score_range <= 0:
        return np.zeros(len(scores))
    return (scores - floor) / score_range
