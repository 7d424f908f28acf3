"""Metrics of columns of numbers against scikit-learn, and by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from sklearn.metrics import average_precision_score, v_measure_score
from sklearn.metrics import f1_score as sklearn_f1

from st_reba.evaluation.metrics import (
    RANKED,
    average_precision,
    best_accuracy,
    class_f1,
    mean_v_measure,
    pearson,
    ranked,
    spearman,
)

EXACT = 1e-9


@pytest.mark.parametrize("seed", range(20))
def test_equal_scores_are_one_step(seed: int) -> None:
    """Few different scores: no order among equals, no threshold between them."""
    chance = np.random.default_rng(seed)
    scores, labels = chance.integers(4, size=15) / 4, chance.integers(2, size=15).astype(float)
    evidence = np.stack([scores, labels], axis=1)
    if labels.any():
        assert average_precision(evidence) == pytest.approx(average_precision_score(labels, scores), abs=EXACT)
    wanted = max(np.mean((scores >= cut) == labels) for cut in (*scores, 2.0))
    assert best_accuracy(evidence) == pytest.approx(wanted, abs=EXACT)
    assert average_precision(evidence * [1, 0]) == 0.0


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("average", ["macro", "weighted"])
def test_f1_of_classes(seed: int, average: str) -> None:
    """Of the classes that are wanted or found: one that a draw does not hold is none of its classes."""
    chance = np.random.default_rng(seed)
    found, wanted = chance.integers(5, size=(2, 12))
    evidence = np.stack([found, wanted], axis=1).astype(float)
    by_sklearn = sklearn_f1(wanted, found, average=average, zero_division=0)
    assert class_f1(evidence, weighted=average == "weighted") == pytest.approx(by_sklearn, abs=EXACT)


def test_f1_by_hand() -> None:
    """Three classes: wanted 5, 2 and 0 times, found 4, 2 and 1 times, and right 4, 2 and 0 times."""
    wanted, found = [0, 0, 0, 0, 0, 1, 1], [0, 0, 0, 0, 2, 1, 1]
    evidence = np.array([found, wanted], float).T
    first, second = 2 * 4 / (5 + 4), 2 * 2 / (2 + 2)
    assert class_f1(evidence) == pytest.approx((first + second + 0) / 3, abs=EXACT)
    assert class_f1(evidence, weighted=True) == pytest.approx((5 * first + 2 * second) / 7, abs=EXACT)


@pytest.mark.parametrize("flat", [0.1, 0.3])
def test_a_column_without_an_order_correlates_with_nothing(flat: float) -> None:
    evidence = np.array([[flat] * 3, [1.0, 2.0, 5.0]]).T
    assert (spearman(evidence), pearson(evidence), pearson(evidence[:, [0, 0]])) == (0.0, 0.0, 0.0)


def test_clusters_of_one_label_and_one_cluster_of_all_labels() -> None:
    for one, two in (([0, 0, 1, 1], [1, 1, 0, 0]), ([0, 0, 1, 1], [0, 0, 0, 0]), ([0, 0, 0], [0, 1, 2])):
        found = mean_v_measure(np.array([one, two], float).T)
        assert found == pytest.approx(v_measure_score(one, two), abs=EXACT)


def test_a_ranking_by_hand() -> None:
    """Grades 0, 2, 1 in this order, and one relevant document that the ranking does not hold."""
    found = dict(zip(RANKED, ranked(np.array([0.0, 2.0, 1.0]), np.array([0.0, 2.0, 1.0, 1.0])), strict=True))
    ideal = 2 + 1 / math.log2(3) + 1 / math.log2(4)
    assert found == pytest.approx(
        {
            "map_at_1000": (1 / 2 + 2 / 3) / 3,
            "ndcg_at_10": (2 / math.log2(3) + 1 / math.log2(4)) / ideal,
            "mrr_at_10": 1 / 2,
            "recall_at_10": 2 / 3,
            "recall_at_1000": 2 / 3,
        },
        abs=EXACT,
    )
