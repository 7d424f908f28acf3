"""NoSink's own choice of k and k0. (Its figures over k: `curve` with the option k.)"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pandas as pd
from sentence_transformers import SentenceTransformer

from ..methods import Method
from ..modules.settings import SETTINGS
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
    trial = SettingTrial(model, read_task(table, **reading_options), pooling, m)
    layer_counts = range(1, depth_of(model) + 1)
    baseline = Method("nosink", pooling=pooling, setting="baseline")
    bidirectional_methods = [trial.make_method("inplace-bidir", k) for k in layer_counts]
    k_bidirectional = trial.best_of([baseline, *bidirectional_methods]).k or 0
    k_masked = trial.best_of([trial.make_method("mask0-bidir", k) for k in layer_counts]).k or 0
    for k0 in sorted({k_masked, k_masked // 2}):
        if 0 < k0 <= k_bidirectional:
            trial.best_of([trial.make_method("mask0&bidir", k_bidirectional, k0)])
    table_rows = [
        (method.setting, method.k or 0, method.k0, score) for method, score in trial.scores.items()
    ]
    return min(trial.scores, key=trial.rank), pd.DataFrame(
        table_rows, columns=["setting", "k", "k0", "score"]
    )


@dataclass
class SettingTrial:
    """NoSink's settings on a task, and the scores of those that were tried."""

    model: SentenceTransformer
    task: Task
    pooling: str
    m: int
    scores: dict[Method, float] = field(default_factory=dict)

    def make_method(
        self,
        setting: str,
        k: int,
        k0: int | None = None,
    ) -> Method:
        """A setting, with m where it hides the sink."""
        m = self.m if SETTINGS[setting].hides_sink else 1
        return Method(
            "nosink",
            pooling=self.pooling,
            setting=setting,
            k=k,
            k0=k0,
            m=m,
        )

    def best_of(self, methods: Sequence[Method]) -> Method:
        """Score methods, and return the best one."""
        for result in compare(
            self.model,
            self.task,
            methods,
            draws=0,
        ).results:
            self.scores[Method.parse(result.method)] = result.score
        return min(methods, key=self.rank)

    def rank(self, method: Method) -> tuple[float, int]:
        """A sort key: the best first; among equal ones the smaller k, then the one tried first."""
        return -self.scores[method], method.k or 0
