"""A report on folders of results: Markdown, figures, JSON."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ...folders import new_folder
from ..figures import save_figure
from ..results import FORMAT, Result
from .averages import Average, averages
from .collect import Collection, collect
from .figures import Drawn, figures
from .markdown import average_lines, cell, command_lines, table_lines
from .tables import Beside, Column, Row, Table, tables

FILE = "report.md"
FIGURES = "figures"
_TITLE = "# Results of st-reba evaluate\n"


@dataclass(frozen=True)
class Report:
    """What folders of results say.

    Args:
        collection: The results.
        tables: Of each kind of tasks, by the tasks' own metric, by the papers', or by both.
        averages: Over whole benchmarks, beside the papers'.
        figures: What can be drawn of them.
    """

    collection: Collection
    tables: tuple[Table, ...]
    averages: tuple[Average, ...]
    figures: tuple[Drawn, ...]

    @property
    def results(self) -> list[Result]:
        """All results, each identity once."""
        found: dict[str, Result] = {}
        for entry in self.collection.entries:
            found.setdefault(entry.result.identity, entry.result)
        return list(found.values())

    def to_markdown(self, *, figures: bool = False) -> str:
        """The report as Markdown.

        Args:
            figures: With links to the figures beside it, as :func:`write_report` writes them.
        """
        lines = [_TITLE.strip(), "", *self._summary()]
        done: set[str] = set()
        alone = all(table.metric == "paper" for table in self.tables)
        for table in self.tables:
            if table.kind not in done:
                lines += [f"## {cell(table.kind)}", ""]
                done.add(table.kind)
            whose = "the tasks' own metric" if table.metric == "main" else "the papers' metric"
            lines += [f"### {cell(', '.join(table.metrics))} ({whose})", ""]
            # The second table of the same results needs no second account of their cost.
            lines += [*table_lines(table, costs=table.metric == "main" or alone), ""]
        if self.averages:
            lines += ["## Averages that the papers print", "", *average_lines(self.averages), ""]
        if figures and self.figures:
            lines += ["## Figures", ""]
            for drawn in self.figures:
                caption = cell(drawn.caption)
                alt = caption.replace("[", "(").replace("]", ")")
                lines += [caption, "", f"![{alt}]({FIGURES}/{drawn.name}.png)", ""]
        if commands := command_lines(self.results):
            lines += ["## Commands", "", *commands, ""]
        return "\n".join(lines).rstrip("\n") + "\n"

    def to_json(self) -> dict[str, Any]:
        """All of it as values that JSON can hold."""
        return {
            "format": FORMAT,
            "folders": list(self.collection.folders),
            "conflicts": list(self.collection.conflicts),
            "tables": [_table(table) for table in self.tables],
            "averages": [_average(each) for each in self.averages],
            "figures": [{"name": each.name, "caption": each.caption} for each in self.figures],
            "results": [result.to_json() for result in self.results],
        }

    def _summary(self) -> list[str]:
        counts = {folder: 0 for folder in self.collection.folders}
        for entry in self.collection.entries:
            counts[entry.folder] += 1
        lines = [f"- {cell(folder)}: {count} results" for folder, count in counts.items()]
        if self.collection.shared:
            lines.append(f"- {self.collection.shared} of them stand in several folders alike, and are shown once")
        for conflict in self.collection.conflicts:
            lines.append(f"- **Conflict**: one identity, different numbers: {cell(conflict)}")
        return [*lines, *_versions(self.results), ""]


def make_report(folders: Sequence[str | os.PathLike[str]], metric: Literal["main", "paper", "both"] = "both") -> Report:
    """Read folders of results, and set them side by side.

    Args:
        folders: As ``st-reba evaluate`` writes them.
        metric: ``"main"``: tables of the tasks' own metric; ``"paper"``: of the papers'; ``"both"``: the second where
            it is another.

    Returns:
        The report.

    Raises:
        FileNotFoundError: A folder is not there, or holds no results.
        ValueError: A file is no result, or two results of one folder cannot be told apart.

    Example:
        >>> from st_reba.evaluation.results import Result, Results
        >>> Results("found").add(Result("STS", "pairs", "mini", "echo-2 last", "00ff", {"spearman": 0.5}, "spearman"))
        >>> report = make_report(["found"])
        >>> [line for line in report.to_markdown().splitlines() if "echo" in line]
        ['| mini | echo-2 last | 0.5000 | – | – |']
    """
    if not folders:
        raise ValueError("No folder of results is given: name one at least.")
    collection = collect(folders)
    made = tables(collection, metric)
    return Report(collection, tuple(made), tuple(averages(collection)), tuple(figures(made)))


def write_report(report: Report, folder: str | os.PathLike[str], *, figures: bool = True) -> Path:
    """Write ``report.md`` and its figures, all or nothing.

    Args:
        report: From :func:`make_report`.
        folder: Made where it is not. An earlier report there is replaced; any other folder is refused.
        figures: Draw the figures.

    Returns:
        The Markdown file.

    Raises:
        FileExistsError: The folder holds something else.
        ImportError: Figures are to be drawn, and matplotlib is not installed.
    """
    with new_folder(folder, overwrite=True, kind="a report of st-reba", is_kind=is_report) as temporary:
        if figures and report.figures:
            (temporary / FIGURES).mkdir()
            for drawn in report.figures:
                save_figure(drawn.draw(), temporary / FIGURES / f"{drawn.name}.png")
        (temporary / FILE).write_text(report.to_markdown(figures=figures), encoding="utf-8", newline="\n")
    return Path(folder) / FILE


def is_report(folder: Path) -> bool:
    """Whether a folder holds a report and nothing else, so that it can be replaced."""
    names = {path.name for path in folder.iterdir()}
    if FILE not in names or not names <= {FILE, FIGURES}:
        return False
    with (folder / FILE).open(encoding="utf-8", errors="replace") as stream:
        if stream.readline() != _TITLE:
            return False
    drawn = folder / FIGURES
    return not drawn.exists() or (drawn.is_dir() and all(path.suffix == ".png" for path in drawn.iterdir()))


def _versions(results: Sequence[Result]) -> list[str]:
    found: dict[str, set[str]] = {}
    for result in results:
        for package, version in result.versions.items():
            if version is not None:
                found.setdefault(package, set()).add(version)
    same = [f"{package} {next(iter(found[package]))}" for package in sorted(found) if len(found[package]) == 1]
    lines = [f"- made with {', '.join(same)}"] if same else []
    return lines + [
        f"- **Versions differ**: results are of {package} {' and '.join(sorted(versions))}"
        for package, versions in sorted(found.items())
        if len(versions) > 1
    ]


def _table(table: Table) -> dict[str, Any]:
    return {
        "kind": table.kind,
        "metric": table.metric,
        "columns": [_column(column) for column in table.columns],
        "averaged": [_column(column) for column in table.averaged],
        "constant": {task: dict(settings) for task, settings in table.constant.items()},
        "rows": [_row(table, row) for row in table.rows],
    }


def _column(column: Column) -> dict[str, str]:
    return {"task": column.task, "metric": column.metric}


def _row(table: Table, row: Row) -> dict[str, Any]:
    cells = []
    for column in table.columns:
        if column in row.results:
            result = row.results[column]
            cells.append(
                {
                    **_column(column),
                    "value": result.scores[column.metric],
                    "interval": result.intervals.get(column.metric),
                    "best": round(result.scores[column.metric], 4) == table.best(row.base, column),
                    "items": result.items,
                    "left_out": dict(result.left_out),
                    "identity": result.identity,
                }
            )
    return {
        "folder": row.folder,
        "base": row.base,
        "method": row.method,
        "settings": dict(row.settings),
        "cells": cells,
        "average": row.average,
        "seconds_per_text": row.seconds,
        "tokens_per_text": row.tokens,
        "papers": [_beside(row, beside) for beside in row.beside],
    }


def _beside(row: Row, beside: Beside) -> dict[str, Any]:
    cells = []
    for column, score in beside.scores.items():
        ours = row.value(column)
        assert ours is not None
        cells.append({**_column(column), "value": score.value, "difference": ours - score.value, "note": score.note})
    return {
        "source": beside.row.source,
        "method": beside.row.method,
        "positions": beside.row.positions,
        "cells": cells,
        "average": beside.average,
    }


def _average(each: Average) -> dict[str, Any]:
    return {
        "folder": each.folder,
        "base": each.base,
        "method": each.method,
        "average": each.score.task,
        "metric": each.score.metric,
        "tasks": each.tasks,
        "value": each.value,
        "source": each.score.source,
        "paper": each.score.value,
        "difference": each.difference,
        "note": each.score.note,
    }
