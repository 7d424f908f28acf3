"""Classification: texts with the class of each, which a linear classifier learns."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Sequence
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.metrics import f1_score
from sklearn.model_selection import StratifiedGroupKFold
from torch import Tensor

from ..measures import classify
from ..tables import read_label, read_text
from ..task import Evidence, Task, TaskKind, Vectors, declare_kind

# For texts without a training set of their own.
FOLD_COUNT = 5


def accuracy(evidence: Evidence) -> float:
    """The share of classes that are right."""
    return float((evidence[:, 0] == evidence[:, 1]).mean())


def f1(evidence: Evidence, average: str) -> float:
    """F1 of the classes; ``average`` as in scikit-learn's ``f1_score``."""
    predicted, expected = evidence.T
    return float(f1_score(expected, predicted, average=average))


class Classification(TaskKind):
    """How often a linear classifier gives the right class."""

    name = "Classification"
    column_readers = {"text": read_text, "label": read_label}
    detection_order = 80
    metrics = {
        "accuracy": accuracy,
        "f1": partial(f1, average="macro"),
        "weighted_f1": partial(f1, average="weighted"),
    }
    main_metric = "accuracy"
    takes_train = True
    needs_values = True
    chooses_methods = True
    item_name = "labelled texts"

    def check(self, task: Task) -> None:
        """Refuse a task whose folds would be empty, or lack a class."""
        super().check(task)
        if task.train:
            return
        remedy = "Give more items, or the texts to learn from: train=… (--train FILE)."
        label_counts = Counter(label for _, label in task.items)
        if max(label_counts.values()) < FOLD_COUNT:
            raise ValueError(
                f"{task.name}: no label has {FOLD_COUNT} texts, as {FOLD_COUNT} folds need. {remedy}"
            )
        text_count = len({text_index for text_index, _ in task.items})
        if text_count < FOLD_COUNT:
            raise ValueError(
                f"{task.name}: {text_count} different texts are too few for {FOLD_COUNT} folds. {remedy}"
            )

    def evidence(self, task: Task, vectors: Vectors) -> Evidence:
        """Predicted and expected class of each item, as numbers."""
        text_indices, item_labels = map(np.asarray, zip(*task.items, strict=True))
        if task.train:
            train_indices, train_labels = zip(*task.train, strict=True)
            predicted = classify(vectors[list(train_indices)], train_labels, vectors[text_indices])
        else:
            predicted = classify_in_folds(vectors, text_indices, item_labels)
        all_labels = np.array([predicted, item_labels], dtype=str)
        label_numbers = np.unique(all_labels, return_inverse=True)[1]
        return label_numbers.reshape(2, -1).T.astype(np.float64)

    def score_items(self, task: Task, unit_vectors: Tensor) -> Tensor:
        """1 where the nearest class centroid, computed without the item, is its own class's."""
        text_indices, item_labels = zip(*task.items, strict=True)
        return match_nearest_centroid(unit_vectors[list(text_indices)], item_labels)


def classify_in_folds(
    vectors: Vectors,
    text_indices: NDArray[np.int64],
    item_labels: NDArray[np.str_],
) -> list[str]:
    """Classify each fifth of the items by the others; no text is on both sides."""
    predicted = np.empty(len(item_labels), dtype=object)
    with warnings.catch_warnings():
        # A class with fewer texts than folds is missing in some.
        warnings.filterwarnings("ignore", "The least populated class", UserWarning)
        folds = list(
            StratifiedGroupKFold(FOLD_COUNT).split(text_indices, item_labels, text_indices)
        )
    for train_rows, test_rows in folds:
        train_vectors = vectors[text_indices[train_rows]]
        train_labels = item_labels[train_rows].tolist()
        test_vectors = vectors[text_indices[test_rows]]
        predicted[test_rows] = classify(train_vectors, train_labels, test_vectors, is_balanced=True)
    return list(predicted)


def match_nearest_centroid(unit_vectors: Tensor, item_labels: Sequence[str]) -> Tensor:
    """1 where the nearest centroid of all other vectors [N, d] is that of the vector's own class, else 0: [N]."""
    _, label_numbers = np.unique(np.asarray(item_labels), return_inverse=True)
    own_class = torch.from_numpy(label_numbers).to(unit_vectors.device)
    membership = torch.nn.functional.one_hot(own_class).to(unit_vectors.dtype)
    class_sums = membership.T @ unit_vectors
    products = unit_vectors @ class_sums.T
    lengths = class_sums.norm(dim=1).expand_as(products).clone()
    # A vector does not count in the sum of its own class.
    rows = torch.arange(len(own_class), device=unit_vectors.device)
    products[rows, own_class] -= (unit_vectors * unit_vectors).sum(dim=1)
    lengths[rows, own_class] = (class_sums[own_class] - unit_vectors).norm(dim=1)
    has_others = membership.sum(dim=0) - membership > 0
    cosines = torch.where(has_others, products / lengths.clamp_min(1e-12), -torch.inf)
    return (cosines.argmax(dim=1) == own_class).float()


declare_kind(Classification())
