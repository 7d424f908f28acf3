"""Which figures a report has: those that its results suffice for."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..results import slug
from .drawing import Point, draw_bars, draw_heat, draw_lines, draw_spread
from .markdown import method_label, settings_text
from .tables import Column, Row, Table, family

# Settings along which curves are drawn, so that bars and heat maps leave such rows out.
SWEPT = ("layer", "max_tokens", "prompt", "prompt_number")
_CHANCE = {"word sense": {"chance": 0.25}}


@dataclass(frozen=True)
class Drawn:
    """A figure.

    Args:
        name: Of its file, without the ending.
        caption: What it shows.
        draw: Makes the matplotlib ``Figure``.
    """

    name: str
    caption: str
    draw: Callable[[], Any]


def figures(tables: Sequence[Table]) -> list[Drawn]:
    """The figures that tables suffice for; nothing is drawn yet."""
    found: dict[str, Drawn] = {}
    for table in tables:
        for drawn in (*_bars(table), *_heat(table), *_curves(table), *_repeats(table), *_spreads(table)):
            name, number = drawn.name, 2
            while name in found:
                name, number = f"{drawn.name}-{number}", number + 1
            found[name] = Drawn(name, drawn.caption, drawn.draw)
    return list(found.values())


def _bars(table: Table) -> Iterator[Drawn]:
    rows = _plain(table)
    if table.kind != "word sense" or len(rows) < 2:
        return
    panels: dict[str, dict[str, dict[str, Point]]] = {}
    for row in rows:
        for column, point in _points(row, table.columns, 0.0):
            panels.setdefault(_base(row), {}).setdefault(_task(table, column), {})[_method(row)] = point
    caption = f"{table.kind}: {_metric(table)} of each method, by task, with 95 % intervals where there are any."
    yield Drawn(
        _name(table, "bars"),
        caption,
        lambda: draw_bars(
            panels, title=f"{table.kind}: {_metric(table)}", y_label="accuracy", lines=_CHANCE[table.kind]
        ),
    )


def _heat(table: Table) -> Iterator[Drawn]:
    rows = _plain(table)
    if len(rows) < 2 or len(table.columns) < 2:
        return
    classical = [_classical(row, rows) for row in rows]
    columns: list[Column | None] = [*table.columns, *([None] if table.averaged else [])]
    values = [[_value(row, column) for column in columns] for row in rows]
    differences: list[list[float | None]] | None = None
    if any(other is not None for other in classical):
        differences = [
            [_minus(_value(row, column), None if other is None else _value(other, column)) for column in columns]
            for row, other in zip(rows, classical, strict=True)
        ]
        if not any(value is not None for each in differences for value in each):
            differences = None
    heads = ["average" if column is None else _task(table, column) for column in columns]
    what = _metric(table)
    coloured = what if differences is None else "difference to classical"
    bases = len({(row.folder, row.base) for row in rows}) > 1
    names = [f"{_base(row)}: {_method(row)}" if bases else _method(row) for row in rows]
    yield Drawn(
        _name(table, "heat"),
        f"{table.kind}: {what} by method and task; colours: {coloured}.",
        lambda: draw_heat(names, heads, values, title=f"{table.kind}: {what}", differences=differences, label=coloured),
    )


def _curves(table: Table) -> Iterator[Drawn]:
    for setting, x_label, what in (
        ("max_tokens", "tokens a text", "budgets"),
        ("layer", "layer", "layers"),
    ):
        for base, rows in _by_base(table).items():
            yield from _curve(table, base, rows, setting, x_label, what)


def _curve(table: Table, base: str, rows: Sequence[Row], setting: str, x_label: str, what: str) -> Iterator[Drawn]:
    known = [float(row.settings[setting]) for row in rows if _is_number(row.settings.get(setting))]
    # Without its setting a result is of the last layer; of a budget it is the whole text, which has no place here.
    last = max(known, default=0.0) + 1 if setting == "layer" else None
    panels: dict[str, dict[str, list[Point]]] = {}
    for row in rows:
        x = float(row.settings[setting]) if _is_number(row.settings.get(setting)) else last
        if x is None or any(name in row.settings for name in SWEPT if name != setting):
            continue
        for column, point in _points(row, table.columns, x):
            panels.setdefault(_task(table, column), {}).setdefault(_method(row, setting), []).append(point)
    panels = _sorted(panels)
    if not panels or not known:
        return
    unit = f"{x_label} ({budget})" if setting == "max_tokens" and (budget := _budget(rows)) else x_label
    yield Drawn(
        _name(table, what, base),
        f"{table.kind}, {base}: {_metric(table)} over {unit}.",
        lambda: draw_lines(
            panels,
            title=f"{table.kind}, {base}",
            x_label=unit,
            y_label=_metric(table),
            scale="log2" if setting == "max_tokens" else "linear",
            names={} if last is None else {last: "last"},
        ),
    )


def _repeats(table: Table) -> Iterator[Drawn]:
    plain = _plain(table)
    for base, rows in _by_base(table).items():
        panels: dict[str, dict[str, list[Point]]] = {}
        level: dict[str, dict[str, float]] = {}
        for row in rows:
            if row not in plain:
                continue
            copies = re.match(r"(reba|echo)-(\d+)\b", row.method)
            for column, point in _points(row, table.columns, float(copies[2]) if copies else 1.0):
                task = _task(table, column)
                if copies:
                    name = _method(row).replace(copies[0], copies[1], 1)
                    panels.setdefault(task, {}).setdefault(name, []).append(point)
                elif family(row.method) == "classical":
                    level.setdefault(task, {})[_method(row)] = point.y
        if panels := _sorted(panels):
            yield _repeat_figure(table, base, panels, level)


def _repeat_figure(
    table: Table,
    base: str,
    panels: Mapping[str, Mapping[str, Sequence[Point]]],
    level: Mapping[str, Mapping[str, float]],
) -> Drawn:
    return Drawn(
        _name(table, "repeats", base),
        f"{table.kind}, {base}: {_metric(table)} over the number of copies k; dashed: classical.",
        lambda: draw_lines(
            panels, title=f"{table.kind}, {base}", x_label="copies k", y_label=_metric(table), level=level
        ),
    )


def _spreads(table: Table) -> Iterator[Drawn]:
    for base, rows in _by_base(table).items():
        panels: dict[str, dict[str, list[float]]] = {}
        for row in rows:
            if "prompt" in row.settings or "prompt_number" in row.settings:
                for column, point in _points(row, table.columns, 0.0):
                    name = _method(row, "prompt", "prompt_number")
                    panels.setdefault(_task(table, column), {}).setdefault(name, []).append(point.y)
        # Methods in the order of the table; one score alone has no spread.
        if any(len(values) > 1 for boxes in panels.values() for values in boxes.values()):
            yield _spread_figure(table, base, panels)


def _spread_figure(table: Table, base: str, panels: Mapping[str, Mapping[str, Sequence[float]]]) -> Drawn:
    return Drawn(
        _name(table, "prompts", base),
        f"{table.kind}, {base}: spread of {_metric(table)} over prompts.",
        lambda: draw_spread(panels, title=f"{table.kind}, {base}: prompts", y_label=_metric(table)),
    )


def _plain(table: Table) -> list[Row]:
    """The rows that belong to no curve; what all rows of a base have alike makes none."""
    swept: dict[str, set[str]] = {}
    for row in table.rows:
        swept.setdefault(_base(row), set()).add(settings_text(_swept(row)))
    return [row for row in table.rows if not _swept(row) or len(swept[_base(row)]) == 1]


def _swept(row: Row) -> dict[str, Any]:
    return {name: value for name, value in row.settings.items() if name in SWEPT}


def _by_base(table: Table) -> dict[str, list[Row]]:
    found: dict[str, list[Row]] = {}
    for row in table.rows:
        found.setdefault(_base(row), []).append(row)
    return found


def _base(row: Row) -> str:
    return row.base if row.folder is None else f"{row.folder}: {row.base}"


def _method(row: Row, *without: str) -> str:
    if not without:
        return method_label(row)
    rest = {name: value for name, value in row.settings.items() if name not in (*without, "budget")}
    return f"{row.method} ({settings_text(rest)})" if rest else row.method


def _task(table: Table, column: Column) -> str:
    return column.task if len(table.metrics) == 1 else f"{column.task} ({column.metric})"


def _metric(table: Table) -> str:
    return table.metrics[0] if len(table.metrics) == 1 else "score"


def _name(table: Table, what: str, base: str = "") -> str:
    return "-".join(slug(part) for part in (table.kind, table.metric, what, base) if part)


def _points(row: Row, columns: Sequence[Column], x: float) -> Iterator[tuple[Column, Point]]:
    for column in columns:
        value = row.value(column)
        if value is not None:
            yield column, Point(x, value, row.results[column].intervals.get(column.metric))


def _sorted(panels: Mapping[str, Mapping[str, Sequence[Point]]]) -> dict[str, dict[str, list[Point]]]:
    """Lines of two points at least; panels with such a line."""
    found = {
        name: {method: sorted(points, key=lambda point: point.x) for method, points in curves.items()}
        for name, curves in panels.items()
    }
    return {name: curves for name, curves in found.items() if any(len(points) > 1 for points in curves.values())}


def _value(row: Row, column: Column | None) -> float | None:
    return row.average if column is None else row.value(column)


def _minus(value: float | None, other: float | None) -> float | None:
    return None if value is None or other is None else value - other


def _classical(row: Row, rows: Sequence[Row]) -> Row | None:
    """The classical row to compare with: of the same pooling where there is one."""
    found = [
        each
        for each in rows
        if (each.folder, each.base) == (row.folder, row.base) and family(each.method) == "classical"
    ]
    same = [each for each in found if set(each.method.split()[1:]) & {"last", "mean", "cls"} & set(row.method.split())]
    return next(iter(same or found), None)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _budget(rows: Sequence[Row]) -> str:
    budgets = {str(result.settings.get("budget", "")) for row in rows for result in row.results.values()} - {""}
    return budgets.pop() if len(budgets) == 1 else ""
