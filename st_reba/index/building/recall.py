"""How much of exact search an approximate index finds, and the search parameters that find enough."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..vectors.factory import parts, set_parameters
from ..vectors.flat import load_faiss
from .shards import Shards

QUERIES = 256
K = 10
# Parts of a million: equal vectors in different blocks may differ by a rounding.
_EQUAL = 1e-6


@dataclass(frozen=True)
class Recall:
    """Recall against exact search.

    Args:
        k: How many neighbours were looked for.
        queries: How many documents were queries, each without itself.
        recall: The mean share of exact neighbours that were found. A document that scores as high as the last of
            them counts, whichever of equals was found.
        parameters: The FAISS search parameters, as "nprobe=16"; None: there are none to set.
        seed: Of the drawing of queries.
    """

    k: int
    queries: int
    recall: float
    parameters: str | None
    seed: int

    def to_json(self) -> dict[str, Any]:
        """What the manifest keeps."""
        return asdict(self)


def measure_recall(
    index: Any,
    shards: Shards,
    *,
    parameters: str | None = None,
    aim: float = 0.95,
    seed: int = 0,
    say: Callable[[str], object] = lambda line: None,
) -> Recall:
    """Measure recall on documents as queries, and set the search parameters that reach the aim.

    Args:
        index: The FAISS index of all rows of `shards`; the parameters found are set in it.
        shards: The vectors.
        parameters: Use these as they are. None: FAISS's own are doubled until the aim is reached, or nothing is gained.
        aim: The recall to reach.
        seed: Of the drawing of queries.
        say: Takes a line a setting that was tried.

    Returns:
        The recall.

    Raises:
        ValueError: The parameters do not fit the index.
    """
    count = shards.count
    rows = np.sort(np.random.Generator(np.random.PCG64(seed)).choice(count, min(QUERIES, count), replace=False))
    k = min(K, count - 1)
    queries = shards.take(rows)
    thresholds = _exact_scores(shards, queries, rows, k)[:, -1] if k else np.zeros(len(rows), np.float32)

    def measured() -> float:
        if not k:
            return 1.0
        return _share(index, shards, queries, rows, thresholds, k)

    if parameters is not None:
        set_parameters(index, parameters)
        return Recall(k, len(rows), measured(), parameters, seed)
    knobs = _knobs(index)
    values = tried = {name: low for name, (low, _) in knobs.items()}
    best, misses = _try(index, values, measured, say), 0
    # One step without a gain may be chance.
    while best < aim and misses < 2:
        steps = [{**tried, name: min(2 * tried[name], high)} for name, (_, high) in knobs.items() if tried[name] < high]
        if not steps:
            break
        recall, _, tried = max(
            ((_try(index, step, measured, say), -place, step) for place, step in enumerate(steps)),
            key=lambda one: one[:2],
        )
        misses = 0 if recall > best else misses + 1
        if recall > best:
            best, values = recall, tried
    if values:
        set_parameters(index, _written(values))
    return Recall(k, len(rows), best, _written(values) if values else None, seed)


def _try(index: Any, values: dict[str, int], measured: Callable[[], float], say: Callable[[str], object]) -> float:
    if values:
        set_parameters(index, _written(values))
    recall = measured()
    say(f"recall@{K} {recall:.3f} with {_written(values) or 'no parameters'}")
    return recall


def _written(values: dict[str, int]) -> str:
    return ",".join(f"{name}={value}" for name, value in values.items())


def _knobs(index: Any) -> dict[str, tuple[int, int]]:
    """The parameters that trade time for recall, each with FAISS's own value and the highest that makes sense."""
    faiss = load_faiss()
    knobs = {}
    inverted = faiss.try_extract_index_ivf(index)
    if inverted is not None:
        knobs["nprobe"] = (1, int(inverted.nlist))
    elif any(isinstance(part, faiss.IndexHNSW) for part in parts(index)):
        knobs["efSearch"] = (16, 4096)
    if isinstance(index, faiss.IndexRefine):
        knobs["k_factor_rf"] = (1, 256)
    return knobs


def _exact_scores(shards: Shards, queries: NDArray[np.float32], own: NDArray[np.int64], k: int) -> NDArray[np.float32]:
    """The k best scores of each query [q, k], itself left out, a block of the corpus at a time."""
    best = np.full((len(queries), k), -np.inf, np.float32)
    start = 0
    for block in shards.blocks():
        scores = queries @ block.T
        inside = np.flatnonzero((own >= start) & (own < start + len(block)))
        scores[inside, own[inside] - start] = -np.inf
        best = -np.partition(-np.concatenate([best, scores], axis=1), k - 1, axis=1)[:, :k]
        start += len(block)
    ordered: NDArray[np.float32] = -np.sort(-best, axis=1)
    return ordered


def _share(
    index: Any,
    shards: Shards,
    queries: NDArray[np.float32],
    own: NDArray[np.int64],
    thresholds: NDArray[np.float32],
    k: int,
) -> float:
    _, found = index.search(queries, k + 1)
    # Each query's own row is left out, or else the last.
    dropped = found == own[:, None]
    dropped[~dropped.any(axis=1), -1] = True
    found = found[~dropped].reshape(len(queries), k)
    there = np.unique(found[found >= 0])
    vectors = shards.take(there)
    hits = 0
    for query, rows, threshold in zip(queries, found, thresholds, strict=True):
        scores = vectors[np.searchsorted(there, rows[rows >= 0])] @ query
        hits += int((scores >= threshold - _EQUAL * max(1.0, abs(float(threshold)))).sum())
    return float(hits / found.size)
