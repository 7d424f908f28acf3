"""What the kinds of tasks with pairs of texts, each with a number, have in common."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from scipy.stats import rankdata
from torch import Tensor

from ..measures import pair_cosines
from ..task import Evidence, Task, TaskKind, Vectors


class PairKind(TaskKind):
    """Pairs of texts with a number each.

    A kind whose number should rise with the cosine may set ``chooses_methods``, as `score_items`
    suits it.
    """

    needs_values = True

    def evidence(self, task: Task, vectors: Vectors) -> Evidence:
        """The cosine and the number of each pair."""
        first_rows, second_rows, values = zip(*task.items, strict=True)
        cosines = pair_cosines(vectors, first_rows, second_rows)
        return np.stack([cosines, np.asarray(values, np.float64)], axis=1)

    def score_items(self, task: Task, unit_vectors: Tensor) -> Tensor:
        """Products of the standardized ranks of cosine and number, whose mean is Spearman's correlation."""
        first_rows, second_rows, values = map(list, zip(*task.items, strict=True))
        cosines = (unit_vectors[first_rows] * unit_vectors[second_rows]).sum(dim=1)
        products = standardize_ranks(cosines.cpu()) * standardize_ranks(values)
        return torch.from_numpy(products).to(unit_vectors)


def standardize_ranks(values: ArrayLike) -> NDArray[np.float32]:
    """Ranks with mean 0 and standard deviation 1."""
    ranks = rankdata(values)
    deviation = max(ranks.std(), 1e-12)
    return np.asarray((ranks - ranks.mean()) / deviation, np.float32)
