"""Clustering: texts with the topic of each, which k-means has to find."""

from __future__ import annotations

from functools import partial

import numpy as np
from numpy.typing import NDArray
from scipy.special import entr
from sklearn.cluster import MiniBatchKMeans

from ..tables import read_label, read_text
from ..task import Evidence, Task, TaskKind, Vectors, declare_kind

# mteb's one start of k-means, and nine others, as one is partly luck.
KMEANS_SEEDS = range(42, 52)


def v_measure(evidence: Evidence, start_count: int) -> float:
    """The mean over k-means' starts. scikit-learn's function is slow, and every bootstrap sample calls it."""
    topics, *clusterings = evidence[:, : start_count + 1].astype(np.int64).T
    scores: list[float] = []
    for clusters in clusterings:
        separate_entropy = _entropy(topics) + _entropy(clusters)
        joint_entropy = _entropy(topics * (clusters.max() + 1) + clusters)
        if separate_entropy:
            scores.append(2 - 2 * joint_entropy / separate_entropy)
        else:
            scores.append(1.0)
    return float(np.mean(scores))


def _entropy(classes: NDArray[np.int64]) -> float:
    return float(entr(np.bincount(classes) / len(classes)).sum())


class Clustering(TaskKind):
    """How well the clusters match the topics."""

    name = "Clustering"
    column_readers = {"text": read_text, "label": read_label}
    detection_order = 90
    metrics = {
        "v_measure": partial(v_measure, start_count=len(KMEANS_SEEDS)),
        "v_measure, one start": partial(v_measure, start_count=1),
    }
    main_metric = "v_measure"
    paper_metric = "v_measure, one start"
    is_recentred = True
    needs_values = True

    def evidence(self, task: Task, vectors: Vectors) -> Evidence:
        """The topic of each item, and its cluster after each start."""
        text_indices, labels = zip(*task.items, strict=True)
        label_names, topics = np.unique(np.asarray(labels), return_inverse=True)
        points = np.asarray(vectors[list(text_indices)], np.float32)
        columns = [topics]
        for seed in KMEANS_SEEDS:
            kmeans = MiniBatchKMeans(
                len(label_names),
                random_state=seed,
                batch_size=500,
                n_init="auto",
            )
            columns.append(kmeans.fit_predict(points))
        return np.stack(columns, axis=1).astype(np.float64)


declare_kind(Clustering())
