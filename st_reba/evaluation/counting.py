"""Scores from counts: of entities in sentences, and of classes of texts.

Counts add up, so that the score of any draw of sentences or texts is that of a sum.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ..optional import required


def entity_counts(
    wanted: Sequence[Sequence[str]], found: Sequence[Sequence[str]]
) -> tuple[NDArray[np.float64], list[str]]:
    """Count the entities of sentences.

    Args:
        wanted: The right tags of each sentence.
        found: Those that were predicted.

    Returns:
        [sentences, types, 3]: entities found rightly, found, and wanted; and the types' names.

    Example:
        >>> counts, types = entity_counts([["B-LOC", "I-LOC", "B-PER"]], [["B-LOC", "I-LOC", "B-LOC"]])
        >>> types, counts[0].tolist()
        (['LOC', 'PER'], [[1.0, 2.0, 1.0], [0.0, 0.0, 1.0]])
    """
    entities = required("seqeval.metrics.sequence_labeling", "evaluation").get_entities
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pairs = [(set(entities(list(a))), set(entities(list(b)))) for a, b in zip(wanted, found, strict=True)]
    types = sorted({entity[0] for pair in pairs for side in pair for entity in side})
    place = {name: number for number, name in enumerate(types)}
    counts = np.zeros((len(pairs), len(types), 3))
    for row, (right, guessed) in enumerate(pairs):
        for column, side in enumerate((right & guessed, guessed, right)):
            for entity in side:
                counts[row, place[entity[0]], column] += 1
    return counts, types


def entity_scores(counts: NDArray[np.float64], types: Sequence[str]) -> dict[str, float]:
    """Precision, recall and F1 of all entities, and the F1 of each type; 0 where nothing was found.

    Args:
        counts: From :func:`entity_counts`.
        types: From there too.
    """
    each = counts.sum(axis=0)
    right, found, wanted = (float(value) for value in each.sum(axis=0))
    return {
        "entity F1": float(f1(each.sum(axis=0)[None])[0]),
        "precision": right / found if found else 0.0,
        "recall": right / wanted if wanted else 0.0,
        **{f"F1 {name}": float(value) for name, value in zip(types, f1(each), strict=True)},
    }


def class_counts(wanted: Sequence[str], found: Sequence[str]) -> NDArray[np.float64]:
    """Count texts by class: [texts, classes × 3]: found rightly, found, and wanted."""
    place = {name: number for number, name in enumerate(sorted({*wanted, *found}))}
    counts = np.zeros((len(wanted), len(place), 3))
    for row, (right, guessed) in enumerate(zip(wanted, found, strict=True)):
        counts[row, place[guessed], 1] = 1
        counts[row, place[right], 2] = 1
        counts[row, place[right], 0] = right == guessed
    return counts.reshape(len(wanted), -1)


def f1(sums: NDArray[np.float64]) -> NDArray[np.float64]:
    """F1 of sums: [n, 3], found rightly, found, and wanted → [n]; 0 where nothing is either."""
    right, both = sums[:, 0], sums[:, 1] + sums[:, 2]
    return np.divide(2 * right, both, out=np.zeros(len(sums)), where=both > 0)


def accuracy(sums: NDArray[np.float64]) -> NDArray[np.float64]:
    """Accuracy of sums of :func:`class_counts`: [n, classes × 3] → [n]."""
    each = sums.reshape(len(sums), -1, 3).sum(axis=1)
    return np.asarray(each[:, 0] / each[:, 2])


def macro_f1(sums: NDArray[np.float64]) -> NDArray[np.float64]:
    """The mean F1 of the classes that are wanted or found, of sums as for :func:`accuracy`."""
    each = sums.reshape(len(sums), -1, 3)
    there = (each[..., 1] + each[..., 2]) > 0
    scores = f1(each.reshape(-1, 3)).reshape(there.shape)
    return np.asarray((scores * there).sum(axis=1) / there.sum(axis=1))
