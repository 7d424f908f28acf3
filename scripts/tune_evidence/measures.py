"""Signals of vectors that were tried beside those that tune uses.

>>> vectors = np.random.default_rng(0).normal(size=(200, 8))
>>> round(agreement(vectors, vectors), 3), round(alignment(vectors, vectors), 3)
(1.0, 0.0)
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from st_reba.evaluation.items import units

Vectors = NDArray[Any]


def nearest(vectors: Vectors, k: int = 10) -> NDArray[np.intp]:
    """Places [N, k] of each vector's nearest others by cosine."""
    unit = units(vectors)
    cosines = unit @ unit.T
    np.fill_diagonal(cosines, -np.inf)
    return np.argsort(-cosines, axis=1, kind="stable")[:, :k]


def agreement(first: Vectors, second: Vectors, k: int = 10) -> float:
    """Share of the k nearest neighbours that two spaces [N, d] and [N, e] of the same texts have in common."""
    return shared(nearest(first, k), nearest(second, k))


def shared(first: NDArray[np.intp], second: NDArray[np.intp]) -> float:
    """The same for neighbours [N, k]."""
    return float((first[:, :, None] == second[:, None, :]).any(axis=2).mean())


def rank_me(vectors: Vectors) -> float:
    """Effective rank: e to the entropy of the singular values (Garrido et al. 2023, RankMe, arXiv 2210.02885)."""
    values = np.linalg.svd(units(vectors), compute_uv=False)
    part = values / values.sum() + 1e-7
    return float(np.exp(-(part * np.log(part)).sum()))


def two_nn(vectors: Vectors, discarded: float = 0.1) -> float:
    """Intrinsic dimension by the two nearest neighbours (Facco et al. 2017, arXiv 1803.06992).

    The slope through the origin of −log(1 − F(μ)) over log μ, μ the ratio of the second distance to the first, without
    the largest tenth. Equal vectors are left out. KV-Embedding (arXiv 2601.01046) chooses layers by it.
    """
    unit = units(vectors)
    squares = np.maximum(2 - 2 * unit @ unit.T, 0)
    np.fill_diagonal(squares, np.inf)
    two = np.sort(squares, axis=1)[:, :2]
    two = two[two[:, 0] > 1e-12]
    ratio = np.sort(np.log(two[:, 1] / two[:, 0]) / 2)
    count = len(ratio)
    kept = int(count * (1 - discarded))
    # F of the last would be 1, whose logarithm is not there: it is among those discarded.
    height = -np.log(1 - np.arange(1, kept + 1) / count)
    return float(height @ ratio[:kept] / (ratio[:kept] @ ratio[:kept]))


def isotropy(vectors: Vectors) -> float:
    """From 0 to 1: smallest over largest of the partition function along the principal directions.

    Mu and Viswanath (2018), All-but-the-Top, section 2.2.
    """
    unit = units(vectors)
    directions = np.linalg.eigh(unit.T @ unit)[1]
    sums = np.exp(unit @ directions).sum(axis=0), np.exp(-unit @ directions).sum(axis=0)
    both = np.concatenate(sums)
    return float(both.min() / both.max())


def alignment(first: Vectors, second: Vectors) -> float:
    """Mean squared distance of two views' unit vectors (Wang and Isola 2020, arXiv 2005.10242); less is closer."""
    return float(((units(first) - units(second)) ** 2).sum(axis=1).mean())


def uniformity(vectors: Vectors) -> float:
    """Logarithm of the mean of e^(−2 squared distance) over pairs (Wang and Isola 2020); less is more even."""
    unit = units(vectors)
    squares = 2 - 2 * (unit @ unit.T)[np.triu_indices(len(unit), 1)]
    return float(np.log(np.exp(-2 * squares).mean()))


def hubness(vectors: Vectors, k: int = 10) -> float:
    """Skewness of how often a text is among the k nearest of others (Radovanović et al. 2010, JMLR 11)."""
    times = np.bincount(nearest(vectors, k).ravel(), minlength=len(vectors)).astype(float)
    apart = times - times.mean()
    return float((apart**3).mean() / max((apart**2).mean() ** 1.5, 1e-12))


def same_near(vectors: Vectors, labels: NDArray[Any], k: int = 5) -> float:
    """Share of the k nearest that have a text's own label."""
    return float((labels[nearest(vectors, k)] == labels[:, None]).mean())
