"""Triples: a text, one that is nearer to it, and one that is farther."""

from __future__ import annotations

import numpy as np

from ..measures import column_means, pair_cosines
from ..tables import read_text
from ..task import Evidence, Task, TaskKind, Vectors, declare_kind


def nearer_share(evidence: Evidence) -> float:
    """The share of triples whose positive is nearer; a tie counts half."""
    signs = np.sign(evidence[:, 0] - evidence[:, 1])
    return float((signs.mean() + 1) / 2)


class Triples(TaskKind):
    """How often the positive is nearer than the negative."""

    name = "Triples"
    column_readers = {"anchor": read_text, "positive": read_text, "negative": read_text}
    detection_order = 40
    metrics = {
        "accuracy": nearer_share,
        **column_means(["mean cosine nearer", "mean cosine farther"]),
    }
    main_metric = "accuracy"

    def evidence(self, task: Task, vectors: Vectors) -> Evidence:
        """The cosines with the positive and with the negative."""
        anchors, positives, negatives = zip(*task.items, strict=True)
        nearer_cosines = pair_cosines(vectors, anchors, positives)
        farther_cosines = pair_cosines(vectors, anchors, negatives)
        return np.stack([nearer_cosines, farther_cosines], axis=1)


declare_kind(Triples())
