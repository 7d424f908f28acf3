"""Pairs of texts with a number each: what kinds of them share."""

from __future__ import annotations

import numpy as np
import torch
from scipy.stats import rankdata
from torch import Tensor

from ..measures import pair_cosines
from ..task import Evidence, Task, TaskKind, Vectors


class PairKind(TaskKind):
    """Pairs of texts with a number each.

    A kind whose number is to rise with the cosine sets ``chooses_methods``: `score_items` fits it.
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
        return standardize_ranks(cosines) * standardize_ranks(
            torch.tensor(values, device=cosines.device)
        )


def standardize_ranks(values: Tensor) -> Tensor:
    """Ranks with mean 0 and standard deviation 1."""
    ranks = torch.from_numpy(rankdata(values.cpu().numpy())).to(values.device)
    deviation = ranks.std(correction=0).clamp_min(1e-12)
    return ((ranks - ranks.mean()) / deviation).float()
