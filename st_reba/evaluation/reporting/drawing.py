"""Panels of bars, curves, boxes and heat maps: what the figures of a report are put together from."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from ...optional import required
from ..figures import STYLES

_COLUMNS = 3
_GREY = "#555555"


@dataclass(frozen=True)
class Point:
    """A score at a place, with the bounds of its interval."""

    x: float
    y: float
    interval: tuple[float, float] | None = None


def draw_bars(
    panels: Mapping[str, Mapping[str, Mapping[str, Point]]],
    *,
    title: str,
    y_label: str,
    lines: Mapping[str, float] = {},
) -> Any:
    """Draw bars, a group a task and a bar a method, one panel below the other.

    Args:
        panels: By panel, task and method; a point's place is not used.
        title: Of the figure.
        y_label: Of the vertical axes.
        lines: Heights of dashed lines across all panels, by label.

    Returns:
        A matplotlib ``Figure``.

    Source:
        ReBA, figures 3 and 5.
    """
    methods = list(dict.fromkeys(name for tasks in panels.values() for bars in tasks.values() for name in bars))
    figure, grid = _figure(len(panels), 1, (9.0, 3.4), title)
    for axes, (name, tasks) in zip(grid, panels.items(), strict=False):
        width = 0.8 / len(methods)
        for place, method in enumerate(methods):
            known = [(number, bars[method]) for number, bars in enumerate(tasks.values()) if method in bars]
            x = [number + (place - (len(methods) - 1) / 2) * width for number, _ in known]
            points = [point for _, point in known]
            axes.bar(x, [point.y for point in points], width, color=_colour(place), label=readable(method))
            _whiskers(
                axes, [Point(at, point.y, point.interval) for at, point in zip(x, points, strict=True)], "#000000"
            )
        for label, height in lines.items():
            axes.axhline(height, color=_GREY, linestyle="--", linewidth=1, label=readable(label))
        axes.set_xticks(range(len(tasks)), [readable(task) for task in tasks], parse_math=False)
        _finish(axes, name, "", y_label, legend="beside")
    return figure


def draw_lines(
    panels: Mapping[str, Mapping[str, Sequence[Point]]],
    *,
    title: str,
    x_label: str,
    y_label: str,
    scale: Literal["linear", "log2"] = "linear",
    names: Mapping[float, str] = {},
    level: Mapping[str, Mapping[str, float]] = {},
) -> Any:
    """Draw curves, a panel a task and a line a method.

    Args:
        panels: By panel and method.
        title: Of the figure.
        x_label: Of the horizontal axes.
        y_label: Of the vertical axes.
        scale: Of the horizontal axes.
        names: Of places that are no numbers.
        level: Dashed lines of what does not change along the axis, by panel and method.

    Returns:
        A matplotlib ``Figure``.
    """
    methods = list(dict.fromkeys(name for curves in panels.values() for name in curves))
    columns = min(_COLUMNS, len(panels))
    figure, grid = _figure(len(panels), columns, (4.6, 3.4), title)
    for axes, (name, curves) in zip(grid, panels.items(), strict=False):
        for method, points in curves.items():
            place = methods.index(method)
            marker = STYLES[place % len(STYLES)][1]
            x, y = [point.x for point in points], [point.y for point in points]
            axes.plot(x, y, color=_colour(place), marker=marker, markersize=5, linewidth=1.5, label=readable(method))
            _whiskers(axes, points, _colour(place))
        for place, (method, height) in enumerate(level.get(name, {}).items(), len(methods)):
            axes.axhline(height, color=_colour(place), linestyle="--", linewidth=1.2, label=readable(method))
        places = sorted({point.x for points in curves.values() for point in points})
        if scale == "log2":
            axes.set_xscale("log", base=2)
        if len(places) <= 12:
            axes.set_xticks(places, [names.get(place, f"{place:g}") for place in places])
            axes.minorticks_off()
        _finish(axes, name, x_label, y_label, legend="inside")
    return figure


def draw_spread(panels: Mapping[str, Mapping[str, Sequence[float]]], *, title: str, y_label: str) -> Any:
    """Draw the spread of scores: a panel a task, a box with all its points a method.

    Args:
        panels: By panel and method.
        title: Of the figure.
        y_label: Of the vertical axes.

    Returns:
        A matplotlib ``Figure``.

    Source:
        Echo, figure 3 and appendix D.
    """
    methods = list(dict.fromkeys(name for boxes in panels.values() for name in boxes))
    figure, grid = _figure(len(panels), min(_COLUMNS, len(panels)), (4.6, 3.6), title)
    for axes, (name, boxes) in zip(grid, panels.items(), strict=False):
        for place, (method, values) in enumerate(boxes.items()):
            colour = _colour(methods.index(method))
            line = {"color": colour}
            axes.boxplot(
                [list(values)],
                positions=[place],
                widths=0.6,
                showfliers=False,
                manage_ticks=False,
                **{f"{part}props": line for part in ("box", "whisker", "cap", "median")},
            )
            # Spread by their order, not by chance: the same results make the same figure.
            x = [place + 0.3 * ((number * 0.618) % 1 - 0.5) for number in range(len(values))]
            axes.plot(
                x, list(values), linestyle="none", marker="o", markersize=4, alpha=0.6, label=readable(method), **line
            )
        labels = [readable(method) for method in boxes]
        axes.set_xticks(range(len(boxes)), labels, rotation=20, ha="right", fontsize=8, parse_math=False)
        axes.set_xlim(-0.6, len(boxes) - 0.4)
        _finish(axes, name, "", y_label)
    return figure


def draw_heat(
    rows: Sequence[str],
    columns: Sequence[str],
    values: Sequence[Sequence[float | None]],
    *,
    title: str,
    differences: Sequence[Sequence[float | None]] | None = None,
    label: str = "score",
) -> Any:
    """Draw a heat map with its numbers.

    Args:
        rows: Names of the rows.
        columns: Names of the columns.
        values: The numbers, row by row; None: an empty cell.
        title: Of the figure.
        differences: What colours the cells in place of the numbers, on a scale that is symmetric around zero.
        label: Of the colours.

    Returns:
        A matplotlib ``Figure``.
    """
    colours = values if differences is None else differences
    known = [value for row in colours for value in row if value is not None]
    reach = max((abs(value) for value in known), default=0.0) or 1e-9
    limits = (min(known), max(known)) if differences is None else (-reach, reach)
    size = (2.6 + 0.09 * max(map(len, rows)) + 0.95 * len(columns), 1.9 + 0.34 * len(rows))
    figure, (axes,) = _figure(1, 1, size, title)
    axes.set_facecolor("#dddddd")
    missing = float("nan")
    array = [[missing if value is None else value for value in row] for row in colours]
    map_name = "viridis" if differences is None else "RdBu"
    image = axes.imshow(array, aspect="auto", cmap=map_name, vmin=limits[0], vmax=limits[1])
    for line, row in enumerate(values):
        for place, value in enumerate(row):
            if value is not None:
                share = 0.5 if math.isnan(array[line][place]) else image.norm(array[line][place])
                dark = share < 0.55 if differences is None else not 0.15 < share < 0.85
                colour = "#ffffff" if dark else "#000000"
                axes.text(place, line, f"{value:.4f}", ha="center", va="center", fontsize=7, color=colour)
    axes.set_xticks(
        range(len(columns)), list(map(readable, columns)), rotation=30, ha="right", fontsize=8, parse_math=False
    )
    axes.set_yticks(range(len(rows)), list(map(readable, rows)), fontsize=8, parse_math=False)
    figure.colorbar(image, ax=axes, label=readable(label))
    return figure


def readable(text: str) -> str:
    """A text in characters that the default font has; the others, as Chinese, become ``?``."""
    return text.replace("…", "...").replace("–", "-").encode("ascii", "replace").decode()


def _figure(count: int, columns: int, size: tuple[float, float], title: str) -> tuple[Any, list[Any]]:
    lines = math.ceil(count / columns)
    width, height = size
    figure = required("matplotlib.figure", "evaluation").Figure(
        figsize=(width * columns, 0.5 + height * lines), dpi=110, layout="constrained"
    )
    # A drawing surface of its own: no window system, and no state that other figures share.
    required("matplotlib.backends.backend_agg", "evaluation").FigureCanvasAgg(figure)
    figure.suptitle(readable(title), parse_math=False, fontsize=11)
    grid = list(figure.subplots(lines, columns, squeeze=False).flat)
    for axes in grid[count:]:
        axes.set_axis_off()
    return figure, grid


def _finish(axes: Any, name: str, x_label: str, y_label: str, *, legend: str = "") -> None:
    axes.set_title(readable(name), fontsize=10, parse_math=False)
    axes.set_xlabel(readable(x_label))
    axes.set_ylabel(readable(y_label), parse_math=False)
    axes.grid(alpha=0.3, axis="y")
    if legend == "beside":
        # Bars leave no room.
        axes.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), fontsize=8, frameon=False)
    elif legend:
        axes.legend(fontsize=7, framealpha=0.7)


def _whiskers(axes: Any, points: Sequence[Point], colour: str) -> None:
    for point in points:
        if point.interval is not None:
            axes.vlines(point.x, *point.interval, color=colour, linewidth=1.2)


def _colour(place: int) -> str:
    return STYLES[place % len(STYLES)][0]
