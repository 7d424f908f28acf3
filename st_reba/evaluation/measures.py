"""What several kinds of tasks measure: cosines, classes by a linear classifier, means of evidence."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from functools import partial

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.stats import rankdata
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression

from .statistics import Evidence
from .task import Metric
from .vectors import Vectors, normalize_rows

# Cosines are rounded to this many digits: those that float32 cannot tell apart are equal.
COSINE_DIGITS = 6


def pair_cosines(
    vectors: NDArray[np.floating],
    first_rows: ArrayLike,
    second_rows: ArrayLike,
) -> NDArray[np.float64]:
    """Cosines of pairs of rows, rounded to six digits; a zero vector has 0 with all."""
    unit_vectors = normalize_rows(vectors, np.float64)
    products = unit_vectors[np.asarray(first_rows)] * unit_vectors[np.asarray(second_rows)]
    return np.asarray(np.round(products.sum(axis=1), COSINE_DIGITS))


def classify(
    train_vectors: Vectors,
    train_labels: Sequence[str],
    vectors: Vectors,
    *,
    is_balanced: bool = False,
) -> list[str]:
    """Labels by the papers' linear classifier: logistic regression, LBFGS, 100 iterations.

    Args:
        train_vectors, train_labels: Vectors [N, d] and their labels.
        vectors: [M, d], to classify.
        is_balanced: Give all classes the same weight: otherwise vectors of length 1 that lie close
            together would all be put into the largest class.

    Source:
        NoSink, section 4.1 (domain tasks) and 3.2 (entities).
    """
    if len(set(train_labels)) == 1:
        return [train_labels[0]] * len(vectors)
    classifier = LogisticRegression(max_iter=100)
    if is_balanced:
        classifier.class_weight = "balanced"
    with warnings.catch_warnings():
        # 100 iterations are the papers' protocol, whether or not they converge.
        warnings.simplefilter("ignore", ConvergenceWarning)
        classifier.fit(np.asarray(train_vectors, np.float32), np.asarray(train_labels))
    labels = classifier.predict(np.asarray(vectors, np.float32))
    return list(labels.tolist())


def correlate_columns(evidence: Evidence) -> float:
    """Pearson's correlation of two columns, 0 where one is constant.

    scipy's functions also compute p-values, which takes ten times as long.
    """
    ranges = np.ptp(evidence, axis=0)
    if not ranges.all():
        return 0.0
    # Scaled, as the squares of the smallest numbers would be 0.
    scaled_columns = (evidence - evidence.min(axis=0)) / ranges
    return float(np.corrcoef(scaled_columns.T)[0, 1])


def correlate_ranks(evidence: Evidence) -> float:
    """Spearman's correlation of two columns, 0 where one is constant."""
    return correlate_columns(rankdata(evidence, axis=0))


def column_means(names: Iterable[str]) -> dict[str, Metric]:
    """A metric for each column of evidence: its mean."""
    metrics: dict[str, Metric] = {}
    for column, name in enumerate(names):
        metrics[name] = partial(_average_column, column=column)
    return metrics


def _average_column(evidence: Evidence, column: int) -> float:
    return float(evidence[:, column].mean())
