"""NoSink's own choice of k and k0. (Its figures over k: `curve` with the option k.)"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from ..methods import Method
from . import readouts
from .run import compare
from .tasks import read_task

if TYPE_CHECKING:
    import pandas as pd


def choose_k(
    base: Any,
    table: Any,
    *,
    test: Any = None,
    pooling: str = "mean",
    m: int = 1,
    loading: Mapping[str, Any] | None = None,
    **reading: Any,
) -> tuple[Method, pd.DataFrame]:
    """Choose k and k0 on a labelled table by the paper's rule.

    In turn INPLACE-BIDIR for k = 0 … L, whose best k is k_b; MASK0-BIDIR for k = 1 … L, whose best is k_m; MASK0&BIDIR
    with k = k_b and k0 = k_m (LAST) or half of it (MID). Among equals the smaller k counts, then the smaller k0.

    Args:
        base, loading: As for :func:`~st_reba.evaluation.run.compare`.
        table: What chooses: a task, or what ``read_task`` reads.
        test: What the best of each setting is reported on; it does not choose. None: nothing.
        pooling: ``"mean"`` or ``"last"``.
        m: Sink tokens that are hidden.
        **reading: Arguments of ``read_task``, for both tables.

    Returns:
        The best method, and a table: a row for each that was tried, with its setting, k, k0, score, and test score.

    Source:
        NoSink, section 3.6 and finding 5.

    Example:
        >>> from st_reba.evaluation.toy import toy_tasks
        >>> method, table = choose_k("mini", toy_tasks(["S3"], ["en"], limit=20)[0])
        >>> method.name, table["setting"].unique().tolist()[:2]
        ('nosink', ['baseline', 'inplace-bidir'])
    """
    import pandas as pd

    model = readouts.opened(base, **(loading or {}))
    transformer: Any = model[0]
    task, scores = read_task(table, **reading), dict[Method, float]()

    def method(setting: str, k: int, k0: int | None = None) -> Method:
        if k == 0:
            return Method("nosink", pooling=pooling, setting="baseline")
        hidden = m if setting.startswith("mask0") else 1
        return Method("nosink", pooling=pooling, setting=setting, k=k, k0=k0, m=hidden)

    def best(methods: Iterable[Method], of: Any = task, known: dict[Method, float] = scores) -> Method:
        tried = list(methods)
        if new := [each for each in tried if each not in known]:
            known |= {Method.parse(each.method): each.score for each in compare(model, of, new, draws=0).results}
        return min(tried, key=lambda each: (-known[each], each.k or 0, each.k0 or 0))

    numbers = range(1, transformer.depth + 1)
    bidirectional = best([method("inplace-bidir", k) for k in (0, *numbers)])
    masked = best([method("mask0-bidir", k) for k in numbers])
    combined = {k0 for k0 in (masked.k, max(1, masked.k // 2)) if k0 <= (bidirectional.k or 0)}
    if combined:
        best([method("mask0&bidir", bidirectional.k, k0) for k0 in sorted(combined)])
    tops = [
        best([each for each in scores if each.setting == name]) for name in dict.fromkeys(e.setting for e in scores)
    ]
    tested: dict[Method, float] = {}
    if test is not None:
        best(tops, read_task(test, **{"kind": task.kind, **reading}), tested)
    rows = [
        {"setting": each.setting, "k": each.k or 0, "k0": each.k0, "score": score, "test": tested.get(each)}
        for each, score in scores.items()
    ]
    return best(scores), pd.DataFrame(rows)
