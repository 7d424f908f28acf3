"""STS: pairs of texts with a score of their similarity."""

from __future__ import annotations

import numpy as np
import torch
from scipy.stats import rankdata
from torch import Tensor

from ..measures import correlate_columns, correlate_ranks, pair_cosines
from ..tables import read_score, read_text
from ..task import Evidence, Task, TaskKind, Vectors, declare_kind


class PairKind(TaskKind):
    """Pairs of texts with a number each."""

    needs_values = True
    chooses_methods = True

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


class STS(PairKind):
    """How well cosines follow the scores."""

    name = "STS"
    column_readers = {"text1": read_text, "text2": read_text, "score": read_score}
    detection_order = 60
    metrics = {"cosine_spearman": correlate_ranks, "cosine_pearson": correlate_columns}
    main_metric = "cosine_spearman"
    paper_metric = "cosine_pearson"


declare_kind(STS())
