"""A result's metrics: mteb's own main score, and the one that ReBA's tables hold."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

from .suites import suites

# ReBA, table 3: accuracy, v_measure, map, cos_sim accuracy, cos_sim pearson, recall_at_1000; by mteb's names today.
REBA = {
    "Classification": "accuracy",
    "Clustering": "v_measure",
    "PairClassification": "cosine_accuracy",
    "Reranking": "map_at_1000",
    "Retrieval": "recall_at_1000",
    "STS": "cosine_pearson",
}
# As many digits as mteb's files hold, so that a result is the same whether it comes from there or from a run.
_DIGITS = 6


def read_scores(task: Any, found: Any) -> dict[str, float]:
    """The metrics of a task, averaged over splits and subsets as mteb averages its main score.

    Args:
        task: mteb's task; only its own splits and subsets count.
        found: mteb's result of it.

    Returns:
        Every metric that is a finite number on each of them, by mteb's name.

    Raises:
        ValueError: The main score is none.
    """
    rows = [
        row
        for split in task.eval_splits
        for row in found.scores.get(split, ())
        if task.is_aggregate or row["hf_subset"] in task.hf_subsets
    ]
    names = [name for name in (rows[0] if rows else ()) if name != "main_score"]
    scores = {}
    for name in names:
        values = [row.get(name) for row in rows]
        if all(_is_number(value) for value in values):
            scores[name] = math.fsum(round(float(value), _DIGITS) for value in values) / len(values)
    main = task.metadata.main_score
    if main not in scores:
        shown = [row.get(main) for row in rows]
        raise ValueError(
            f"its main score {main!r} is {shown}: no finite number. Are all its vectors, or all its labels, the same?"
        )
    return scores


def paper_metric(task: Any, scores: dict[str, float]) -> str | None:
    """Name of the papers' metric where it is not the main score: ReBA's; Echo and NoSink report mteb's own.

    Args:
        task: mteb's task.
        scores: Its scores.
    """
    metadata = task.metadata
    metric = None if metadata.name in _reported_by_mteb() else REBA.get(metadata.type)
    return metric if metric in scores and metric != metadata.main_score else None


@cache
def _reported_by_mteb() -> frozenset[str]:
    return frozenset(name for suite in suites().values() if suite.scores == "mteb" for name in suite.names)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
