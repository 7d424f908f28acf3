"""The averages over whole benchmarks that the papers print, beside ours."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..results import Result
from .aliases import metric_names, task_name
from .collect import Collection, numbers
from .papers import PaperScore, averaged_over, paper_rows
from .tables import natural


@dataclass(frozen=True)
class Average:
    """An average over all tasks of a set, ours and the paper's.

    Args:
        folder: The folder's label, where several give one of its tasks different results.
        base: The base's label.
        method: The method's name.
        tasks: How many.
        value: Ours, over the paper's metrics.
        score: The paper's.
    """

    folder: str | None
    base: str
    method: str
    tasks: int
    value: float
    score: PaperScore

    @property
    def difference(self) -> float:
        """Ours minus the paper's."""
        return self.value - self.score.value


def averages(collection: Collection) -> list[Average]:
    """All averages that a paper prints and whose tasks are all there."""
    runs: dict[tuple[str, str], list[tuple[str, Result]]] = {}
    for entry in collection.entries:
        runs.setdefault((entry.result.base, entry.result.method), []).append((entry.folder, entry.result))
    found = []
    for (base, method), run in runs.items():
        for folder, results in _by_folder(run, collection.folders).items():
            found += _averages(folder, base, method, results)
    return sorted(
        found, key=lambda each: (natural(each.base), natural(each.method), each.score.source, each.score.task)
    )


def _by_folder(run: list[tuple[str, Result]], folders: tuple[str, ...]) -> Mapping[str | None, list[Result]]:
    plain = [(folder, result) for folder, result in run if _rows(result)]
    tasks: dict[tuple[str, str], set[str]] = {}
    for _, result in plain:
        tasks.setdefault((result.kind, result.task), set()).add(result.identity + numbers(result))
    if all(len(found) == 1 for found in tasks.values()):
        return {None: [result for _, result in plain]}
    return {each: [result for folder, result in plain if folder == each] for each in folders}


def _rows(result: Result) -> list[Any]:
    return paper_rows(result.base, result.arguments, result.settings)


def _averages(folder: str | None, base: str, method: str, results: list[Result]) -> list[Average]:
    by_source: dict[tuple[Any, ...], tuple[Any, dict[str, list[Result]]]] = {}
    for result in results:
        for row in _rows(result):
            _, tasks = by_source.setdefault((row.source, row.method, row.positions), (row, {}))
            tasks.setdefault(task_name(result.task), []).append(result)
    made = []
    for row, tasks in by_source.values():
        for score in dict.fromkeys(row.scores.values()):
            over = averaged_over(score.task)
            if over is None:
                continue
            values = [_value(tasks.get(task_name(task), []), metric, score.metric) for task, metric in over]
            known = [value for value in values if value is not None]
            if len(known) == len(values):
                made.append(Average(folder, base, method, len(over), sum(known) / len(known), score))
    return made


def _value(results: list[Result], own: str | None, metric: str) -> float | None:
    """The one value of a task that an average takes; None: there is none, or results disagree on it."""
    found = set()
    for result in results:
        if own is not None or metric not in ("average", "main_score"):
            names: tuple[str, ...] = metric_names(own or metric)
        else:
            names = (result.main if metric == "main_score" else result.paper or result.main,)
        found |= {result.scores[name] for name in names if name in result.scores}
    return found.pop() if len(found) == 1 else None
