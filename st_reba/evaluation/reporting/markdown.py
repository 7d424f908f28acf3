"""A report as Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ..results import Result
from .averages import Average
from .tables import DIGITS, Beside, Column, Row, Table

NOTHING = "–"
# Of a list of names in a note, so many are written out.
_NAMED = 5
_LONG = 60


def table_lines(table: Table, *, costs: bool) -> list[str]:
    """A table with its notes.

    Args:
        table: The table.
        costs: With columns of seconds and tokens a text.
    """
    folders = any(row.folder is not None for row in table.rows)
    heads = [*(["folder"] if folders else []), "base", "method"]
    left = len(heads)
    one_metric = len(table.metrics) == 1
    heads += [column.task if one_metric else f"{column.task} ({column.metric})" for column in table.columns]
    heads += [*(["average"] if table.averaged else []), *(["s/text", "tokens/text"] if costs else [])]
    lines = [_row(map(cell, heads)), "|" + "---|" * left + "---:|" * (len(heads) - left)]
    for row in table.rows:
        cells = [*([row.folder or ""] if folders else []), row.base, method_label(row)]
        cells = list(map(cell, cells)) + [_score(table, row, column) for column in table.columns]
        if table.averaged:
            cells.append(_bold(row.average, table.best(row.base, None)))
        if costs:
            cells += [_short(row.seconds), _short(row.tokens)]
        lines.append(_row(cells))
        for beside in row.beside:
            label = f"paper: {beside.row.method} ({beside.row.source})"
            cells = [*([""] if folders else []), "", cell(label)]
            cells += [_paper(row.value(column), beside.scores.get(column)) for column in table.columns]
            if table.averaged:
                cells.append(_paper_average(row.average, beside))
            lines.append(_row([*cells, *(["", ""] if costs else [])]))
    notes = list(dict.fromkeys(_notes(table)))
    return [*lines, *([""] if notes else []), *(f"- {cell(note)}" for note in notes)]


def average_lines(averages: Sequence[Average]) -> list[str]:
    """The table of the papers' averages."""
    folders = any(each.folder is not None for each in averages)
    heads = [*(["folder"] if folders else []), "base", "method", "average", "tasks", "ours", "paper", "difference"]
    lines = [_row(heads), "|" + "---|" * (len(heads) - 4) + "---:|" * 4]
    notes: dict[str, None] = {}
    for each in averages:
        score = each.score
        name = f"{score.task}, {score.metric} ({score.source})" if score.metric != "average" else score.task
        name = name if score.metric != "average" else f"{name} ({score.source})"
        cells = [*([each.folder or ""] if folders else []), each.base, each.method, name, str(each.tasks)]
        numbers = [
            f"{each.value:.{DIGITS}f}",
            f"{score.value:.{score.digits}f}",
            f"{each.difference:+.{score.digits}f}",
        ]
        lines.append(_row([*map(cell, cells), *numbers]))
        if score.note:
            notes[f"{score.source}, {score.method}: {score.note}"] = None
    return [*lines, *([""] if notes else []), *(f"- {cell(note)}" for note in notes)]


def cell(text: str) -> str:
    """A text as a table's cell: one line, and no bar."""
    return " ".join(text.split()).replace("\\", "\\\\").replace("|", "\\|")


def method_label(row: Row) -> str:
    """The method, and the settings that differ in its table."""
    # A prompt that has a number is written out in a note.
    shown = {
        name: value for name, value in row.settings.items() if name != "prompt" or "prompt_number" not in row.settings
    }
    return f"{row.method} ({settings_text(shown)})" if shown else row.method


def settings_text(settings: Mapping[str, Any]) -> str:
    """Settings in words."""
    words = []
    for name, value in settings.items():
        if name == "max_tokens":
            words.append(f"{value} tokens" + (" a copy" if settings.get("budget") == "content" else ""))
        elif name != "budget" or "max_tokens" not in settings:
            words.append(f"{name.replace('_', ' ')} {_cut(str(value))}")
    return ", ".join(words)


def _cut(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= _LONG else f"{text[: _LONG - 1]}…"


def _row(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _bold(value: float | None, best: float | None, interval: tuple[float, float] | None = None) -> str:
    if value is None:
        return NOTHING
    text = f"{value:.{DIGITS}f}"
    if best is not None and round(value, DIGITS) == best:
        text = f"**{text}**"
    return text if interval is None else f"{text} [{interval[0]:.{DIGITS}f}, {interval[1]:.{DIGITS}f}]"


def _score(table: Table, row: Row, column: Column) -> str:
    if (result := row.results.get(column)) is None:
        return NOTHING
    interval = result.intervals.get(column.metric)
    return _bold(row.value(column), table.best(row.base, column), interval)


def _paper(ours: float | None, score: Any) -> str:
    if score is None or ours is None:
        return NOTHING
    return f"{score.value:.{score.digits}f} ({ours - score.value:+.{score.digits}f})"


def _paper_average(ours: float | None, beside: Beside) -> str:
    if ours is None or beside.average is None:
        return NOTHING
    return f"{beside.average:.{DIGITS}f} ({ours - beside.average:+.{DIGITS}f})"


def _short(value: float | None) -> str:
    return NOTHING if value is None else f"{value:.3g}" if value < 1000 else f"{value:.0f}"


def _notes(table: Table) -> Iterable[str]:
    if table.averaged:
        if len(table.averaged) == len(table.columns):
            yield f"average: over all {len(table.columns)} tasks."
        else:
            names = ", ".join(column.task for column in table.averaged)
            yield f"average: over {len(table.averaged)} of the {len(table.columns)} tasks: {names}."
        if missing := [row for row in table.rows if row.average is None]:
            yield f"no average, for want of some of these tasks: {_list(map(_label, missing))}."
    elif len(table.columns) > 1:
        yield "No average: no two rows share two tasks."
    if any(row.beside for row in table.rows):
        yield "paper: as printed, and in brackets ours minus the paper's; its average is over the same tasks as ours."
    for row in table.rows:
        yield from _paper_notes(row)
    if items := _items(table):
        yield f"items: {items}."
    alike: dict[str, list[str]] = {}
    for task, settings in table.constant.items():
        alike.setdefault(settings_text(settings), []).append(task)
    tasks = {column.task for column in table.columns}
    for text, those in alike.items():
        yield f"{'all tasks' if set(those) == tasks else ', '.join(those)}: {text}."
    yield from _prompts(table)
    yield from _left_out(table)


def _label(row: Row) -> str:
    return ", ".join([*([row.folder] if row.folder else []), row.base, method_label(row)])


def _paper_notes(row: Row) -> Iterable[str]:
    for beside in row.beside:
        name = f"{beside.row.source}, {beside.row.method}"
        first = next(iter(beside.scores.values()))
        if "/" not in row.base and row.base != first.base:
            yield f"{row.base} is taken for {first.base} by its folder's name."
        if beside.row.positions is not None:
            yield f"{name}: {beside.row.positions} positions a text."
        for score in beside.scores.values():
            if score.note:
                yield f"{name}: {score.note}"


def _items(table: Table) -> str:
    words = []
    for column in table.columns:
        counts = {row.results[column].items for row in table.rows if column in row.results} - {0}
        if counts:
            low, high = min(counts), max(counts)
            words.append(f"{column.task} {low}" if low == high else f"{column.task} {low} to {high}")
    return ", ".join(dict.fromkeys(words))


def _prompts(table: Table) -> Iterable[str]:
    found: dict[tuple[int, str], dict[str, None]] = {}
    for row in table.rows:
        if "prompt" in row.settings and "prompt_number" in row.settings:
            key = (int(row.settings["prompt_number"]), str(row.settings["prompt"]))
            found.setdefault(key, {})[row.method] = None
    for (number, prompt), methods in sorted(found.items()):
        yield f"prompt {number} ({', '.join(methods)}): {prompt!r}"


def _left_out(table: Table) -> Iterable[str]:
    grouped: dict[tuple[str, str, tuple[str, ...]], list[str]] = {}
    for row in table.rows:
        for column, result in row.results.items():
            for reason, names in result.left_out.items():
                if names:
                    grouped.setdefault((column.task, reason, tuple(names)), []).append(_label(row))
    for (task, reason, left), rows in grouped.items():
        who = "all rows" if len(rows) == _with_task(table, task) else _list(rows)
        yield f"{task}: {len(left)} left out ({reason}): {_list(left)}; in {who}."


def _with_task(table: Table, task: str) -> int:
    return sum(any(column.task == task for column in row.results) for row in table.rows)


def _list(names: Iterable[str]) -> str:
    every = list(names)
    rest = f" and {len(every) - _NAMED} more" if len(every) > _NAMED else ""
    return "; ".join(map(_cut, every[:_NAMED])) + rest


def command_lines(results: Iterable[Result]) -> list[str]:
    """What runs the results again, each command once."""
    commands = sorted({" ".join(result.command.split()) for result in results if result.command})
    return ["```", *commands, "```"] if commands else []
