"""Scores of methods and models, and tables of them."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pandas as pd

from .statistics import DRAWS, MIN_GROUPS, Difference, Evidence, paired_bootstrap
from .task import Task

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Result:
    """The scores of one method, or model, on one task.

    Args:
        task, kind: The task's.
        model: The base, or the model.
        method: The method, in the short form; empty: a model of another package.
        metric, score, interval: The metric, its value (more is better) and 95 % interval; None: not
            known.
        scores: All metrics.
        items: How many were scored; None: those of an mteb task.
        seconds: Time to compute the vectors; methods that share a pass are measured together.
        prompts: Name of the instructions before the texts.
    """

    task: str
    kind: str
    model: str
    method: str
    metric: str
    score: float
    interval: tuple[float, float] | None = None
    scores: Mapping[str, float] = field(default_factory=dict)
    items: int | None = None
    seconds: float | None = None
    prompts: str = "none"


@dataclass(frozen=True)
class Comparison:
    """Methods on one task: their results, and the differences of all pairs with joint intervals."""

    task: str  # with its kind, the number of items, and the rows that were dropped
    results: Sequence[Result]
    differences: Sequence[Difference]

    def table(self) -> pd.DataFrame:
        """One row per method: score, 95 % interval, and its significant wins and losses."""
        table_rows: dict[str, dict[str, float]] = {}
        for result in self.results:
            low, high = result.interval or (math.nan, math.nan)
            table_row = {
                result.metric: result.score,
                "low": low,
                "high": high,
                "better": 0,
                "worse": 0,
            }
            table_rows[result.method] = table_row
        for difference in self.differences:
            if difference.significant:
                winner, loser = difference.first, difference.second
                if difference.value < 0:
                    winner, loser = loser, winner
                table_rows[winner]["better"] += 1
                table_rows[loser]["worse"] += 1
        return pd.DataFrame.from_dict(table_rows, orient="index")

    def __str__(self) -> str:
        first = self.results[0]
        heading = f"{first.model}, {self.task}, {first.seconds:.1f} seconds"
        legend = "better, worse: how many methods it significantly beats or trails (95 %, corrected for all pairs)"
        return "\n\n".join([heading, markdown(self.table()), legend])


@dataclass(frozen=True)
class Scorer:
    """Scores evidence of methods on one task.

    Args:
        task: The task.
        metric: The metric to compare by; None: the kind's main one; ``"paper"``: the papers'.
        draws, seed: As for :func:`~st_reba.evaluation.statistics.paired_bootstrap`; 0 draws: no
            intervals.

    Raises:
        ValueError: The kind has no such metric.
    """

    task: Task
    metric: str | None = None
    draws: int = DRAWS
    seed: int = 0

    def __post_init__(self) -> None:
        if self.metric_name not in self.task.task_kind.metrics:
            metrics = ", ".join(self.task.task_kind.metrics)
            raise ValueError(f"metric={self.metric!r}: {self.task.kind} has {metrics}.")

    @property
    def metric_name(self) -> str:
        """The metric to compare by."""
        kind = self.task.task_kind
        if self.metric == "paper":
            return kind.paper_metric or kind.main_metric
        return self.metric or kind.main_metric

    def score(
        self,
        evidences: Mapping[str, Evidence],
        *,
        model: str,
        prompts: str,
        seconds: float,
    ) -> tuple[list[Result], list[Difference]]:
        """Results of methods, and the differences of all pairs.

        Args:
            evidences: By method.
            model, prompts, seconds: As for :class:`Result`.
        """
        kind = self.task.task_kind
        intervals: dict[str, tuple[float, float]] = {}
        differences: list[Difference] = []
        if self.draws:
            intervals, differences = paired_bootstrap(
                evidences,
                kind.metrics[self.metric_name],
                groups=self.task.groups,
                recentred=kind.is_recentred,
                draws=self.draws,
                seed=self.seed,
            )
            if not intervals:
                logger.warning(
                    "%s: no intervals, and no difference counts as significant, as there are fewer than %d "
                    "independent items",
                    self.task.name,
                    MIN_GROUPS,
                )
        results: list[Result] = []
        for method, evidence in evidences.items():
            scores = {name: metric(evidence) for name, metric in kind.metrics.items()}
            result = Result(
                task=self.task.name,
                kind=self.task.kind,
                model=model,
                method=method,
                metric=self.metric_name,
                score=scores[self.metric_name],
                interval=intervals.get(method),
                scores=scores,
                items=len(self.task.items),
                seconds=seconds,
                prompts=prompts,
            )
            results.append(result)
        return results, differences


def markdown(frame: pd.DataFrame) -> str:
    """A table in Markdown, numbers to three digits."""
    header = ["", *map(_format_cell, frame.columns)]
    lines = [" | ".join(header), " | ".join(["---"] * len(header))]
    for cells in frame.itertuples(name=None):
        lines.append(" | ".join(map(_format_cell, cells)))
    return "\n".join(f"| {line} |" for line in lines)


def _format_cell(value: object) -> str:
    if value is None or value != value:
        return ""
    if isinstance(value, float):
        return f"{value:.3f}"
    return str(value).replace("|", "\\|").replace("\n", " ")
