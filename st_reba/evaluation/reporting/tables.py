"""Tables of results: what stands in which row and column, averages, the best, and the papers' numbers."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from ..results import Result
from .collect import Collection, Entry, numbers, settings_key
from .papers import PaperRow, PaperScore, paper_rows

Metric = Literal["main", "paper"]
DIGITS = 4
_KINDS = (
    "word sense",
    "Classification",
    "PairClassification",
    "Clustering",
    "Retrieval",
    "Reranking",
    "STS",
    "Summarization",
    "NER",
    "Domain",
    "toy structures",
)
_METHODS = ("as saved", "classical", "prompteol", "echo", "reba", "nosink")
# In the names of metrics of which less is better.
_LESS = ("error", "loss", "perplexity")


@dataclass(frozen=True)
class Column:
    """A task, and the metric that it is shown by."""

    task: str
    metric: str


@dataclass(frozen=True)
class Beside:
    """A paper's numbers beside a row's.

    Args:
        row: The paper's.
        scores: Those of the table's columns.
        average: Over the same tasks as the row's, where the paper has them all.
    """

    row: PaperRow
    scores: Mapping[Column, PaperScore]
    average: float | None


@dataclass(frozen=True)
class Row:
    """A base and a method, with the settings that differ in the table.

    Args:
        folder: The folder's label, where several have this row; None: one alone has it.
        base: The base's label.
        method: The method's name.
        settings: Those that differ in the table.
        results: By column.
        average: Over the table's ``averaged`` columns.
        beside: The papers' numbers.
    """

    folder: str | None
    base: str
    method: str
    settings: Mapping[str, Any]
    results: Mapping[Column, Result]
    average: float | None = None
    beside: tuple[Beside, ...] = ()

    @property
    def seconds(self) -> float | None:
        """Seconds a text, over all its tasks."""
        known = [result for result in self.results.values() if result.texts]
        texts = sum(result.texts for result in known)
        return sum(result.seconds for result in known) / texts if texts else None

    @property
    def tokens(self) -> float | None:
        """Positions a text, over all its tasks that counted them."""
        known = [result for result in self.results.values() if result.texts and result.tokens is not None]
        texts = sum(result.texts for result in known)
        return sum(result.tokens or 0 for result in known) / texts if texts else None

    def value(self, column: Column) -> float | None:
        """The score in a column."""
        return self.results[column].scores[column.metric] if column in self.results else None


@dataclass(frozen=True)
class Table:
    """The results of one kind of tasks by one metric.

    Args:
        kind: Of the tasks.
        metric: ``"main"``: the tasks' own; ``"paper"``: the papers'.
        columns: The tasks.
        rows: In the order of bases, methods and settings.
        averaged: The columns that averages are taken over; none where there is no average.
        constant: Settings that all results of a task have: of each task.
    """

    kind: str
    metric: Metric
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    averaged: tuple[Column, ...]
    constant: Mapping[str, Mapping[str, Any]]

    @property
    def metrics(self) -> tuple[str, ...]:
        """The metrics' names."""
        return tuple(dict.fromkeys(column.metric for column in self.columns))

    def best(self, base: str, column: Column | None) -> float | None:
        """The best of a base's rows in a column, or in the average, rounded as shown; None: nothing to compare."""
        values = [row.average if column is None else row.value(column) for row in self.rows if row.base == base]
        shown = [round(value, DIGITS) for value in values if value is not None]
        if len(shown) < 2:
            return None
        metrics = {each.metric for each in self.averaged} if column is None else {column.metric}
        return min(shown) if any(less in metric for less in _LESS for metric in metrics) else max(shown)


def tables(collection: Collection, metric: Literal["main", "paper", "both"] = "both") -> list[Table]:
    """Make the tables of a collection.

    Args:
        collection: See :func:`collect`.
        metric: ``"main"``, ``"paper"``, or ``"both"``, where a second table follows if the papers' metric is another.

    Raises:
        ValueError: An unknown metric.
    """
    if metric not in ("main", "paper", "both"):
        raise ValueError(f"metric={metric!r} is not known: choose one of ['main', 'paper', 'both'].")
    kinds = dict.fromkeys(entry.result.kind for entry in collection.entries)
    made = []
    for kind in sorted(kinds, key=lambda kind: (_place(_KINDS, kind), natural(kind))):
        for part in _parts([entry for entry in collection.entries if entry.result.kind == kind]):
            # Beside the first table, the second has what it adds.
            second = [entry for entry in part if metric == "paper" or _other(entry.result)]
            if metric != "paper":
                made.append(_table(part, collection.folders, "main"))
            if metric != "main" and second:
                made.append(_table(second, collection.folders, "paper"))
    return made


def natural(text: str) -> tuple[Any, ...]:
    """A key to sort by, in which 10 comes after 9."""
    parts = re.split(r"(\d+)", text)
    return tuple((0, int(part), "") if part.isdecimal() else (1, 0, part) for part in parts)


def _other(result: Result) -> bool:
    return result.paper is not None and result.paper != result.main


def _place(order: Sequence[str], name: str) -> int:
    return order.index(name) if name in order else len(order)


def _parts(entries: Sequence[Entry]) -> list[list[Entry]]:
    """Entries whose bases share tasks: bases without a common task have nothing to compare."""
    groups: list[tuple[set[str], set[str]]] = []
    for entry in entries:
        bases, tasks = {entry.result.base}, {entry.result.task}
        for group in [group for group in groups if group[0] & bases or group[1] & tasks]:
            groups.remove(group)
            bases, tasks = bases | group[0], tasks | group[1]
        groups.append((bases, tasks))
    groups.sort(key=lambda group: sorted(map(natural, group[0])))
    return [[entry for entry in entries if entry.result.base in bases] for bases, _ in groups]


def _table(entries: Sequence[Entry], folders: Sequence[str], metric: Metric) -> Table:
    columns = tuple(
        sorted({_column(entry.result, metric) for entry in entries}, key=lambda each: (natural(each.task), each.metric))
    )
    varying, constant = _settings([entry.result for entry in entries])
    keyed: dict[tuple[str, str, str], list[Entry]] = {}
    for entry in entries:
        shown = {name: value for name, value in entry.result.settings.items() if name in varying}
        key = (entry.result.base, entry.result.method, settings_key(shown))
        keyed.setdefault(key, []).append(entry)
    rows = []
    for group in keyed.values():
        first = group[0].result
        shown = {name: value for name, value in sorted(first.settings.items()) if name in varying}
        for folder, part in _split(group, folders):
            results: dict[Column, Result] = {}
            for entry in part:
                results.setdefault(_column(entry.result, metric), entry.result)
            rows.append(Row(folder, first.base, first.method, shown, results))
    rows.sort(key=lambda row: _order(row, folders))
    averaged = _averaged(columns, rows)
    return Table(
        entries[0].result.kind,
        metric,
        columns,
        tuple(_with_papers(_with_average(row, averaged), columns, averaged) for row in rows),
        averaged,
        constant,
    )


def _column(result: Result, metric: Metric) -> Column:
    return Column(result.task, (result.paper if metric == "paper" else None) or result.main)


def _settings(results: Iterable[Result]) -> tuple[set[str], dict[str, dict[str, Any]]]:
    """Names of the settings that differ among results of one task; and of each task those that do not."""
    by_task: dict[str, list[Result]] = {}
    for result in results:
        by_task.setdefault(result.task, []).append(result)
    values: dict[str, dict[str, set[str]]] = {}
    for task, group in by_task.items():
        names = {name for result in group for name in result.settings}
        values[task] = {name: {settings_key({"": each.settings.get(name)}) for each in group} for name in names}
    varying = {name for known in values.values() for name, found in known.items() if len(found) > 1}
    constant = {
        task: {name: by_task[task][0].settings[name] for name in sorted(set(known) - varying)}
        for task, known in sorted(values.items(), key=lambda item: natural(item[0]))
    }
    return varying, {task: known for task, known in constant.items() if known}


def _split(group: Sequence[Entry], folders: Sequence[str]) -> list[tuple[str | None, list[Entry]]]:
    """A row's entries together; or folder by folder, where two folders give one task different results."""
    seen: dict[str, set[tuple[str, str]]] = {}
    for entry in group:
        seen.setdefault(entry.result.task, set()).add((entry.result.identity, numbers(entry.result)))
    if all(len(found) == 1 for found in seen.values()):
        return [(None, list(group))]
    parts = [(folder, [entry for entry in group if entry.folder == folder]) for folder in folders]
    return [(folder, part) for folder, part in parts if part]


def _order(row: Row, folders: Sequence[str]) -> tuple[Any, ...]:
    # Numbers first: prompts in the order in which they are numbered.
    settings = sorted((isinstance(value, str), name, natural(str(value))) for name, value in row.settings.items())
    folder = -1 if row.folder is None else folders.index(row.folder)
    return natural(row.base), _place(_METHODS, family(row.method)), natural(row.method), settings, folder


def family(method: str) -> str:
    """The method's own name in ``Method.name``.

    Example:
        >>> family("reba-3 last"), family("as saved")
        ('reba', 'as saved')
    """
    return method if method in _METHODS else re.split(r"[-\s]", method, maxsplit=1)[0]


def _averaged(columns: tuple[Column, ...], rows: Sequence[Row]) -> tuple[Column, ...]:
    """The tasks that averages are over, two at least.

    All, where a row has all; else those that every row has; else the most that two rows have.
    """
    if len(columns) < 2:
        return ()
    if any(len(row.results) == len(columns) for row in rows):
        return columns
    common = tuple(column for column in columns if all(column in row.results for row in rows))
    if len(common) > 1:
        return common
    sets = [set(row.results) for row in rows]
    shared = [each for each in sets if len(each) > 1 and sum(each <= other for other in sets) > 1]
    # Of equally many the first, as rows are in order.
    most = max(shared, key=len, default=set())
    return tuple(column for column in columns if column in most)


def _with_average(row: Row, averaged: tuple[Column, ...]) -> Row:
    values = [row.value(column) for column in averaged]
    found = [value for value in values if value is not None]
    return replace(row, average=sum(found) / len(found)) if found and len(found) == len(averaged) else row


def _with_papers(row: Row, columns: Sequence[Column], averaged: Sequence[Column]) -> Row:
    beside: dict[tuple[Any, ...], dict[Column, PaperScore]] = {}
    rows: dict[tuple[Any, ...], PaperRow] = {}
    for column in columns:
        if (result := row.results.get(column)) is None:
            continue
        # By each result's own arguments and settings: a row may hold several.
        for paper in paper_rows(row.base, result.arguments, result.settings):
            if score := paper.find(column.task, column.metric, result.main):
                key = (paper.source, paper.method, paper.positions)
                rows[key] = paper
                beside.setdefault(key, {})[column] = score
    made = []
    for key, scores in beside.items():
        whole = bool(averaged) and row.average is not None and all(column in scores for column in averaged)
        average = sum(scores[column].value for column in averaged) / len(averaged) if whole else None
        made.append(Beside(rows[key], scores, average))
    return replace(row, beside=tuple(sorted(made, key=lambda each: natural(each.row.source))))
