"""Items without labels: two views of a text, which should find each other among the views of other texts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np

from .items import Items, Rows, Vectors, chosen
from .metrics import means
from .signals import reciprocal_ranks
from .statistics import Evidence, Metric


@dataclass(frozen=True)
class Viewed(Items):
    """Items (view, view): how well the two views of a text find each other. ``names`` are the texts themselves.

    The evidence is the reciprocal rank of a text's second view among all second views, by their cosines with its first
    view, and the other way round; the mean of both. Views that a method does not tell apart from a text's own stand
    before it.

    Source:
        Two crops of a text as a pair: Inverse Cloze Task (Lee et al. 2019), Contriever (Izacard et al. 2022), where
        they train a model. Here they choose among untrained ones.

    Example:
        >>> items = Viewed.of(["cats sleep", "ships sail"], [("cats", "sleep"), ("ships", "sail")])
        >>> vectors = np.array([[1.0, 0.0], [0.8, 0.6], [0.0, 1.0], [0.9, 0.1]])
        >>> items.evidence(vectors).ravel().tolist()
        [0.75, 0.5]
    """

    kind: ClassVar[str] = "Views"
    main: ClassVar[str] = "mrr"
    width: ClassVar[int] = 2
    metrics: ClassVar[Mapping[str, Metric]] = means("mrr")

    @classmethod
    def of(cls, texts: Sequence[str], views: Sequence[tuple[str, str]]) -> Self:
        """Items of texts and the two views of each."""
        place: dict[str, int] = {}
        items = [tuple(place.setdefault(view, len(place)) for view in pair) for pair in views]
        return cls(tuple(place), tuple(items), tuple(texts))

    @property
    def fitted_on(self) -> tuple[str, ...]:
        # What is embedded later is whole texts; what was scored is views, and they make enough for a wide filter.
        return tuple(dict.fromkeys((*self.names, *self.texts)))

    def evidence(self, vectors: Vectors, rows: Rows | None = None, learn: Rows | None = None) -> Evidence:
        first, second = np.asarray(chosen(self.items, rows), np.intp).T
        return reciprocal_ranks(vectors[first], vectors[second])[:, None]
