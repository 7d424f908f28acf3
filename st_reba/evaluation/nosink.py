"""NoSink's own choice of k and k0. (Its figures over k: `curve` with the option k.)"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from ..methods import Method
from ..modules.settings import SETTINGS
from .run import compare, loaded_base
from .tasks import read_task


def choose_k(
    base: Any,
    table: Any,
    *,
    pooling: str = "mean",
    m: int = 1,
    loading: Mapping[str, Any] | None = None,
    **reading: Any,
) -> tuple[Method, pd.DataFrame]:
    """Choose k and k0 on a labelled table by the paper's rule.

    In turn INPLACE-BIDIR for k = 0 … L, whose best k is k_b; MASK0-BIDIR for k = 1 … L, whose best is k_m; MASK0&BIDIR
    with k = k_b and k0 = k_m (LAST) or half of it (MID). Among equals the smaller k counts, then the smaller k0.

    Args:
        base, loading: As for :func:`~st_reba.evaluation.compare`.
        table: The task that chooses, or what ``read_task`` reads.
        pooling: ``"mean"`` or ``"last"``.
        m: Sink tokens that are hidden.
        **reading: Arguments of ``read_task``.

    Returns:
        The best method, and a table: a row for each that was tried, with its setting, k, k0 and score.

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
    model = loaded_base(base, loading)
    transformer: Any = model[0]
    task, scores = read_task(table, **reading), dict[Method, float]()

    def method(setting: str, k: int, k0: int | None = None) -> Method:
        if k == 0:
            return Method("nosink", pooling=pooling, setting="baseline")
        return Method(
            "nosink", pooling=pooling, setting=setting, k=k, k0=k0, m=m if SETTINGS[setting].hides_sink else 1
        )

    def rank(each: Method) -> tuple[float, int]:
        return -scores[each], each.k or 0  # of equal ones the first: the smaller k0

    def best(methods: Sequence[Method]) -> Method:
        found = compare(model, task, methods, draws=0).results
        scores.update((Method.parse(each.method), each.score) for each in found)
        return min(methods, key=rank)

    numbers = range(1, transformer.depth + 1)
    bidirectional = best([method("inplace-bidir", k) for k in (0, *numbers)])
    masked = best([method("mask0-bidir", k) for k in numbers])
    for k0 in sorted({masked.k, masked.k // 2} & {*range(1, 1 + (bidirectional.k or 0))}):
        best([method("mask0&bidir", bidirectional.k, k0)])
    rows = [(each.setting, each.k or 0, each.k0, score) for each, score in scores.items()]
    return min(scores, key=rank), pd.DataFrame(rows, columns=["setting", "k", "k0", "score"])
