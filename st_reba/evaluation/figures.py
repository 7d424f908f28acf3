"""Figures of scores: bars by method, lines over a value."""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ..optional import required
from .results import Result

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FilePath = str | os.PathLike[str]
# Bytes of a file's name, on the usual file systems.
LONGEST_NAME = 255
# Chinese is drawn with the first of these that is installed.
FONTS = (
    "DejaVu Sans",
    "Noto Sans CJK SC",
    "WenQuanYi Micro Hei",
    "Microsoft YaHei",
    "PingFang SC",
    "Arial Unicode MS",
)


def new_figure(width: float, height: float) -> Figure:
    """A figure in inches, without matplotlib's global state."""
    figures = required("matplotlib.figure", "evaluation")
    figure: Figure = figures.Figure(
        figsize=(width, height),
        dpi=120,
        layout="constrained",
    )
    return figure


def save_figure(figure: Figure, path: FilePath) -> None:
    """Write a figure as PNG or SVG, by the suffix."""
    from matplotlib import font_manager, rc_context
    from matplotlib.text import Text

    installed_fonts = font_manager.get_font_names()
    fonts = [name for name in FONTS if name in installed_fonts]
    # Titles and names come from users: a dollar sign must not begin a formula.
    for text in figure.findobj(Text):
        text.set_parse_math(False)
    with rc_context({"font.sans-serif": fonts}), warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*missing from font.*")
        figure.savefig(path)


def check_figure(path: FilePath) -> None:
    """Before any work, refuse a figure that could not be written; nothing is written yet.

    Raises:
        FileNotFoundError: Its folder is not there.
        ValueError: It is not the name of a file, or its format cannot be drawn.
    """
    check_writable(path, "figure (--figure)")
    formats = new_figure(1, 1).canvas.get_supported_filetypes()
    suffix = Path(path).suffix[1:].lower()
    # The format pgf needs TeX.
    if suffix not in formats or suffix == "pgf":
        remedy = "End it in .png or .svg."
        raise ValueError(
            f"figure (--figure): {str(path)!r} ends in no format that can be drawn. {remedy}"
        )


def check_writable(path: FilePath, option: str) -> None:
    """Refuse a file to write that is a folder or a pipe, or whose folder is not there."""
    file = Path(path)
    if len(os.fsencode(file.name)) > LONGEST_NAME:
        raise ValueError(
            f"{option}: the file's name has more than {LONGEST_NAME} bytes. Give a shorter one."
        )
    if not str(path).strip() or file.is_dir():
        raise ValueError(
            f"{option}: {str(path)!r} is a folder, not a file. Give the name of a file."
        )
    if file.is_fifo():
        raise ValueError(f"{option}: {str(path)!r} is a pipe. Give the name of a file.")
    if not file.parent.is_dir():
        raise FileNotFoundError(
            f"{option}: there is no folder {str(file.parent)!r}. Make it first."
        )
    changed_path = file if file.exists() else file.parent
    if not os.access(changed_path, os.W_OK):
        raise PermissionError(f"{option}: {str(path)!r} cannot be written. Give another file.")


def draw_results(results: Sequence[Result]) -> Figure:
    """Bars of the methods' scores with their 95 % intervals, one panel per task."""
    results_by_task: dict[str, list[Result]] = {}
    for result in results:
        results_by_task.setdefault(result.task, []).append(result)
    panel_count = len(results_by_task)
    max_bars = max(map(len, results_by_task.values()))
    figure = new_figure(3.2 + 2.8 * panel_count, 1.0 + 0.32 * max_bars)
    panels = figure.subplots(1, panel_count, squeeze=False)[0]
    for axes, (task, task_results) in zip(panels, results_by_task.items(), strict=True):
        axes.set_title(task, fontsize=9)
        _draw_bars(axes, task_results)
    return figure


def _draw_bars(axes: Axes, results: Sequence[Result]) -> None:
    """The bars of one task, the first at the top."""
    for row, result in enumerate(reversed(results)):
        axes.barh(
            result.method or result.model,
            result.score,
            color="#0072B2",
        )
        if result.interval is not None:
            axes.plot(
                result.interval,
                [row, row],
                color="black",
                linewidth=1,
            )
    axes.set_xlabel(results[0].metric, fontsize=8)
    axes.tick_params(labelsize=7)


def draw_curve(
    frame: pd.DataFrame,
    option: str,
    metric: str,
) -> Figure:
    """One line of scores per row of the table, over the option's values, its columns."""
    figure = new_figure(6.0, 3.6)
    axes = figure.subplots()
    frame.T.plot(
        ax=axes,
        marker="o",
        markersize=3,
        xticks=range(len(frame.columns)),
        xlabel=option,
        ylabel=metric,
        fontsize=7,
    )
    return figure
