"""NoSink's own choice of k and k0. (Its figures over k: `curve` with the option k.)"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import pandas as pd

from ..methods import Method
from .readouts import depth_of
from .run import compare, open_base
from .tables import Location
from .task import Task
from .tasks import read_task


def choose_k(
    base: Any,
    table: Task | Location,
    *,
    pooling: str = "mean",
    m: int = 1,
    loading: Mapping[str, Any] | None = None,
    **reading_options: Any,
) -> tuple[Method, pd.DataFrame]:
    """Choose k and k0 on a labelled table by the paper's rule.

    Tried in turn: INPLACE-BIDIR for k = 0 … L, whose best k is k_b; MASK0-BIDIR for k = 1 … L,
    whose best k is k_m; MASK0&BIDIR with k = k_b and k0 = k_m (LAST) or half of it (MID). Ties go
    to the smaller k, then to the smaller k0.

    Args:
        base, loading: As for :func:`~st_reba.evaluation.compare`.
        table: The task that chooses, or what ``read_task`` reads.
        pooling: ``"mean"`` or ``"last"``.
        m: Sink tokens that are hidden.
        **reading_options: Arguments of ``read_task``.

    Returns:
        The best method, and a table: a row for each that was tried, with its setting, k, k0 and
        score.

    Source:
        NoSink, section 3.6 and finding 5.

    Example:
        >>> import pandas as pd
        >>> words = ["cat", "tiger", "lion", "dog", "wolf", "fox", "rain", "snow", "hail", "storm", "fog"]
        >>> pairs = pd.DataFrame({"text1": words, "text2": words[::-1], "score": range(11)})
        >>> method, table = choose_k("mini", pairs)
        >>> method.name, table["setting"].unique().tolist()[:2]
        ('nosink', ['baseline', 'inplace-bidir'])
    """
    model = open_base(base, loading)
    task = read_task(table, **reading_options)
    nosink = partial(Method, "nosink", pooling=pooling)
    scores: dict[Method, float] = {}

    def best_of(methods: Sequence[Method]) -> Method:
        """Score methods; the best, of equal ones the first."""
        results = compare(model, task, methods, draws=0).results
        for method, result in zip(methods, results, strict=True):
            scores[method] = result.score
        return max(methods, key=scores.__getitem__)

    layer_counts = range(1, depth_of(model) + 1)
    bidirectional_methods = [nosink(setting="inplace-bidir", k=k) for k in layer_counts]
    k_bidirectional = best_of([nosink(setting="baseline"), *bidirectional_methods]).k or 0
    masked_methods = [nosink(setting="mask0-bidir", k=k, m=m) for k in layer_counts]
    k_masked = best_of(masked_methods).k or 0
    combined_methods = [
        nosink(setting="mask0&bidir", k=k_bidirectional, k0=k0, m=m)
        for k0 in sorted({k_masked, k_masked // 2})
        if 0 < k0 <= k_bidirectional
    ]
    if combined_methods:
        best_of(combined_methods)
    methods_by_k = sorted(scores, key=lambda method: method.k or 0)
    table_rows = [
        (method.setting, method.k or 0, method.k0, score) for method, score in scores.items()
    ]
    score_table = pd.DataFrame(table_rows, columns=["setting", "k", "k0", "score"])
    return max(methods_by_k, key=scores.__getitem__), score_table
