"""Metrics: each makes a score, a fraction of which more is better, of some items' evidence [items, numbers].

They are called a thousand times for an interval, so they are written with NumPy alone; tests hold each against
scikit-learn, scipy or mteb.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..optional import required
from .statistics import Evidence, Metric


def means(*names: str) -> Mapping[str, Metric]:
    """The mean of each column, by the columns' names."""
    return {name: partial(_mean, column=column) for column, name in enumerate(names)}


def _mean(evidence: Evidence, column: int) -> float:
    return float(evidence[:, column].mean())


# Of two columns: cosines, and scores or labels


def spearman(evidence: Evidence) -> float:
    """Spearman's correlation of two columns; 0 where one is all alike."""
    # As scipy's spearmanr, which takes ten times as long.
    return pearson(required("scipy.stats", "evaluation").rankdata(evidence, axis=0))


def pearson(evidence: Evidence) -> float:
    """Pearson's correlation of two columns; 0 where one is all alike."""
    if not np.ptp(evidence, axis=0).all():
        return 0.0
    one, other = (evidence - evidence.mean(axis=0)).T
    return share(float(one @ other), math.sqrt(float(one @ one) * float(other @ other)))


def average_precision(evidence: Evidence) -> float:
    """Average precision of a column of scores for a column of 0 and 1; equal scores count as one step."""
    labels, last = _ranked_labels(evidence)
    if not labels.any():
        return 0.0
    right = np.cumsum(labels)[last]
    return float(np.sum(np.diff(right, prepend=0) * right / (last + 1)) / labels.sum())


def best_accuracy(evidence: Evidence) -> float:
    """Accuracy at the threshold of the scores that makes it largest."""
    labels, last = _ranked_labels(evidence)
    # So many are right when all up to here are called 1.
    right = (np.cumsum(labels) + (1 - labels).sum() - np.cumsum(1 - labels))[last]
    return float(max(right.max(initial=0.0), (1 - labels).sum()) / len(labels))


def _ranked_labels(evidence: Evidence) -> tuple[NDArray[np.float64], NDArray[np.intp]]:
    """Labels by falling scores, and the last place of each score."""
    scores, labels = evidence[np.argsort(-evidence[:, 0], kind="stable")].T
    return labels, np.flatnonzero(np.append(np.diff(scores) != 0, True))


# Of two columns of codes of classes: found, wanted


def accuracy(evidence: Evidence) -> float:
    """How often the first column equals the second."""
    return float((evidence[:, 0] == evidence[:, 1]).mean())


def class_f1(evidence: Evidence, weighted: bool = False) -> float:
    """The mean F1 of the classes that are found or wanted; or weighted by how often each is wanted."""
    codes = evidence.astype(np.intp)
    count = partial(np.bincount, minlength=int(codes.max()) + 1)
    found, wanted, right = count(codes[:, 0]), count(codes[:, 1]), count(codes[codes[:, 0] == codes[:, 1], 1])
    there = found + wanted > 0
    f1 = 2 * right[there] / (found + wanted)[there]
    return float(np.average(f1, weights=wanted[there] if weighted else None))


# Of labels and clusters


def mean_v_measure(evidence: Evidence) -> float:
    """The mean v-measure of the clusterings in the columns behind that of labels."""
    labels, *clusterings = evidence.astype(np.intp).T
    return sum(_v_measure(labels, clusters) for clusters in clusterings) / len(clusterings)


def _v_measure(labels: NDArray[np.intp], clusters: NDArray[np.intp]) -> float:
    """The harmonic mean of homogeneity and completeness, by natural logarithms."""
    shape = (int(labels.max()) + 1, int(clusters.max()) + 1)
    table = np.bincount(labels * shape[1] + clusters, minlength=shape[0] * shape[1]).reshape(shape)

    def entropy(counts: NDArray[Any]) -> float:
        shares = counts[counts > 0] / len(labels)
        return float(-(shares * np.log(shares)).sum())

    of_labels, of_clusters = entropy(table.sum(axis=1)), entropy(table.sum(axis=0))
    shared = of_labels + of_clusters - entropy(table)
    homogeneity = shared / of_labels if of_labels else 1.0
    completeness = shared / of_clusters if of_clusters else 1.0
    return share(2 * homogeneity * completeness, homogeneity + completeness)


# Of three columns a type of entity: right, found, wanted


def entity_metrics(types: Sequence[str]) -> Mapping[str, Metric]:
    """Precision, recall and F1 of all entities, and the F1 of each type."""
    return {
        "entity_f1": _entity_f1,
        "precision": lambda evidence: share(evidence[:, 0::3].sum(), evidence[:, 1::3].sum()),
        "recall": lambda evidence: share(evidence[:, 0::3].sum(), evidence[:, 2::3].sum()),
        **{f"f1 {name}": partial(_entity_f1, place=place) for place, name in enumerate(types)},
    }


def _entity_f1(evidence: Evidence, place: int | None = None) -> float:
    """F1 of all types or of one; 0 where there is no entity."""
    columns = evidence if place is None else evidence[:, 3 * place : 3 * place + 3]
    right, found, wanted = (float(columns[:, column::3].sum()) for column in range(3))
    return share(2 * right, found + wanted)


# Of one ranking

RANKED = ("map_at_1000", "ndcg_at_10", "mrr_at_10", "recall_at_10", "recall_at_1000")


def ranked(grades: NDArray[np.float64], known: NDArray[np.float64]) -> list[float]:
    """The values of ``RANKED`` of one query's ranked grades; gains are linear, as mteb's.

    Args:
        grades: In the order of the ranking.
        known: Of all documents, in any order.
    """
    relevant = grades > 0
    count = max(1, int((known > 0).sum()))
    ranks = np.flatnonzero(relevant) + 1
    precision = float(np.sum(np.arange(1, len(ranks) + 1) / ranks)) / count
    discount = 1 / np.log2(np.arange(2, 12))
    best = np.sort(known)[::-1][:10]
    gain, ideal = (float(each @ discount[: len(each)]) for each in (grades[:10], best))
    first = 1 / ranks[0] if len(ranks) and ranks[0] <= 10 else 0.0
    return [precision, share(gain, ideal), float(first), relevant[:10].sum() / count, relevant.sum() / count]


def share(part: float, whole: float) -> float:
    """A share; 0 of nothing."""
    return float(part / whole) if whole else 0.0
