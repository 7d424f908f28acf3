"""Labelled items over a list of texts, and the score of vectors on them: pairs, triples, classes, queries."""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from ...optional import required
from ..tasks import logistic_regression

Kind = Literal["pairs", "triples", "classes", "ranking"]
Vectors = NDArray[np.float64]
Indices = NDArray[np.intp]
# A choice among many looks at this many items at the least; fewer are mostly chance.
MIN_ITEMS = 40
# Of a ranking, what counts.
CUTOFF = 10


class Part(Protocol):
    """Items whose texts are numbered; what scores them gets one vector a text."""

    @property
    def texts(self) -> tuple[str, ...]:
        """Each once."""

    @property
    def kind(self) -> Kind:
        """What its items are."""

    @property
    def metric(self) -> str:
        """What a score is, in a word or two."""

    @property
    def learns(self) -> bool:
        """Whether a score needs other items to learn from."""

    def __len__(self) -> int:
        """Number of items."""

    def of_items(self, items: Indices) -> Part:
        """Some of the items, with their texts alone."""

    def joined(self, other: Part) -> Part:
        """The items of both, this one's first; each text once.

        Args:
            other: Of the same kind.
        """

    def folds(self) -> tuple[Indices, Indices]:
        """The items in two halves: what learns from one is scored on the other."""

    def evidence(self, vectors: Vectors, items: Indices, learn: Indices) -> NDArray[np.float64]:
        """What each item says, [items, numbers], from which :meth:`score_of` makes a score.

        Args:
            vectors: [texts, d], of length 1.
            items: Which are scored.
            learn: Which others a classifier may learn from.
        """

    def score_of(self, evidence: NDArray[np.float64]) -> float:
        """The score of some items' evidence, a fraction: more is better."""


@dataclass(frozen=True)
class _Items(ABC):
    """What all four share.

    Args:
        texts: Each once.
        items: Numbers of an item's texts, and what is known of it.
    """

    texts: tuple[str, ...]
    items: tuple[Any, ...]

    @property
    def learns(self) -> bool:
        return False

    def __len__(self) -> int:
        return len(self.items)

    def of_items(self, items: Indices) -> Any:
        chosen = [self.items[index] for index in items]
        used = sorted({number for item in chosen for number in self._numbers(item)})
        places = {number: place for place, number in enumerate(used)}
        return type(self)(tuple(self.texts[number] for number in used), tuple(self._moved(i, places) for i in chosen))

    def joined(self, other: Any) -> Any:
        texts = tuple(dict.fromkeys((*self.texts, *other.texts)))
        numbers = {text: number for number, text in enumerate(texts)}
        items: list[Any] = []
        for part in (self, other):
            places = {number: numbers[text] for number, text in enumerate(part.texts)}
            items += [part._moved(item, places) for item in part.items]
        return type(self)(texts, tuple(items))

    def folds(self) -> tuple[Indices, Indices]:
        return np.arange(0, len(self), 2), np.arange(1, len(self), 2)

    def score_of(self, evidence: NDArray[np.float64]) -> float:
        return float(evidence[:, 0].mean())

    @abstractmethod
    def _numbers(self, item: Any) -> Sequence[int]:
        """Numbers of an item's texts."""

    @abstractmethod
    def _moved(self, item: Any, places: dict[int, int]) -> Any:
        """An item whose texts have other numbers."""


@dataclass(frozen=True)
class Pairs(_Items):
    """Items (text, text, score): Spearman's correlation of cosines and scores.

    Example:
        >>> pairs = Pairs(("a", "b", "c"), ((0, 1, 5.0), (0, 2, 1.0)))
        >>> vectors = np.array([[1.0, 0.0], [0.8, 0.6], [0.6, 0.8]])
        >>> every = np.arange(2)
        >>> round(pairs.score_of(pairs.evidence(vectors, every, every)), 6)
        1.0
    """

    kind: Kind = "pairs"
    metric: str = "Spearman"

    def evidence(self, vectors: Vectors, items: Indices, learn: Indices) -> NDArray[np.float64]:
        first, second, scores = (np.asarray(each) for each in zip(*(self.items[i] for i in items), strict=True))
        return np.stack([_cosines(vectors, first, second), scores.astype(np.float64)], axis=1)

    def score_of(self, evidence: NDArray[np.float64]) -> float:
        # As scipy's spearmanr, which takes ten times as long, and intervals are made of thousands of these.
        ranks = required("scipy.stats", "evaluation").rankdata(evidence, axis=0)
        one, other = (ranks - ranks.mean(axis=0)).T
        lengths = float(np.sqrt((one @ one) * (other @ other)))
        # Cosines, or a few items' scores, may be all alike: no order then follows the other.
        return float(one @ other) / lengths if lengths else 0.0

    def _numbers(self, item: Any) -> Sequence[int]:
        return (item[0], item[1])

    def _moved(self, item: Any, places: dict[int, int]) -> Any:
        return (places[item[0]], places[item[1]], item[2])


@dataclass(frozen=True)
class Triples(_Items):
    """Items (text, nearer, farther): share in which the cosine with the nearer is larger; a tie counts half."""

    kind: Kind = "triples"
    metric: str = "accuracy of triples"

    def evidence(self, vectors: Vectors, items: Indices, learn: Indices) -> NDArray[np.float64]:
        anchor, near, far = np.asarray([self.items[i] for i in items], np.intp).T
        apart = _cosines(vectors, anchor, near) - _cosines(vectors, anchor, far)
        return (np.sign(apart)[:, None] + 1) / 2

    def _numbers(self, item: Any) -> Sequence[int]:
        return tuple(item)

    def _moved(self, item: Any, places: dict[int, int]) -> Any:
        return tuple(places[number] for number in item)


@dataclass(frozen=True)
class Classes(_Items):
    """Items (text, label): accuracy of a logistic regression (LBFGS, 100 iterations) that learns from other items."""

    kind: Kind = "classes"
    metric: str = "accuracy"

    @property
    def learns(self) -> bool:
        return True

    def folds(self) -> tuple[Indices, Indices]:
        # Class by class: whatever order a file has, a half must not lack what the other is asked.
        order = np.asarray(sorted(range(len(self)), key=lambda index: self.items[index][1]), np.intp)
        return np.sort(order[0::2]), np.sort(order[1::2])

    def evidence(self, vectors: Vectors, items: Indices, learn: Indices) -> NDArray[np.float64]:
        numbers, labels = zip(*(self.items[i] for i in learn), strict=True)
        wanted = np.asarray([self.items[i][1] for i in items])
        if len(set(labels)) == 1:
            return np.asarray(wanted == labels[0], np.float64)[:, None]
        classifier = logistic_regression(vectors[list(numbers)].astype(np.float32), labels)
        rows = vectors[[self.items[i][0] for i in items]].astype(np.float32)
        return np.asarray(classifier.predict(rows) == wanted, np.float64)[:, None]

    def _numbers(self, item: Any) -> Sequence[int]:
        return (item[0],)

    def _moved(self, item: Any, places: dict[int, int]) -> Any:
        return (places[item[0]], item[1])


@dataclass(frozen=True)
class Ranking(_Items):
    """Items (query, documents, grades): nDCG@10 of the documents by their cosines; of equal cosines the later first."""

    kind: Kind = "ranking"
    metric: str = f"nDCG@{CUTOFF}"

    def evidence(self, vectors: Vectors, items: Indices, learn: Indices) -> NDArray[np.float64]:
        values = []
        for index in items:
            query, documents, grades = self.items[index]
            cosines = vectors[list(documents)] @ vectors[query]
            # From the back, so that an order that the file has by itself earns nothing.
            order = np.argsort(-cosines[::-1], kind="stable")
            ranked = np.asarray(grades, np.float64)[::-1][order]
            values.append(_gain(ranked) / _gain(np.sort(np.asarray(grades, np.float64))[::-1]))
        return np.asarray(values)[:, None]

    def _numbers(self, item: Any) -> Sequence[int]:
        return (item[0], *item[1])

    def _moved(self, item: Any, places: dict[int, int]) -> Any:
        return (places[item[0]], tuple(places[number] for number in item[1]), item[2])


def fingerprint(part: Part) -> str:
    """SHA-256 over a part's kind, texts and items."""
    content = json.dumps([part.kind, part.texts, part.items], sort_keys=True)  # type: ignore[attr-defined]
    return hashlib.sha256(content.encode("utf-8", "surrogatepass")).hexdigest()


def _cosines(vectors: Vectors, first: Any, second: Any) -> NDArray[np.float64]:
    values: NDArray[np.float64] = np.einsum("nd,nd->n", vectors[first], vectors[second])
    return values


def _gain(grades: NDArray[np.float64]) -> float:
    top = grades[:CUTOFF]
    return float(np.sum((2.0**top - 1) / np.log2(np.arange(2, len(top) + 2))))
