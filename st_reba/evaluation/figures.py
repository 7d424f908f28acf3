"""Figures of scores: bars by method, lines over a value."""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..optional import required

if TYPE_CHECKING:
    import pandas as pd

    from .run import Result

# Bytes of a file's name, on the usual file systems.
LONGEST_NAME = 255
# Chinese is shown by the first of these that is installed.
FONTS = ("DejaVu Sans", "Noto Sans CJK SC", "WenQuanYi Micro Hei", "Microsoft YaHei", "PingFang SC", "Arial Unicode MS")


def new_figure(width: float, height: float, panels: int = 1) -> tuple[Any, Any]:
    """A matplotlib ``Figure`` in inches without global state, and the axes of its panels, side by side."""
    figure = required("matplotlib.figure", "evaluation").Figure(figsize=(width, height), dpi=120, layout="constrained")
    return figure, figure.subplots(1, panels, squeeze=False)[0]


def save_figure(figure: Any, path: str | os.PathLike[str]) -> None:
    """Write a figure as PNG or SVG, by the suffix."""
    from matplotlib import font_manager, rc_context

    fonts = [name for name in FONTS if name in font_manager.get_font_names()]
    # Titles and names are texts of their users: a dollar sign begins no formula.
    for text in figure.findobj(lambda each: hasattr(each, "set_parse_math")):
        text.set_parse_math(False)
    with rc_context({"font.sans-serif": fonts}), warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*missing from font.*")
        figure.savefig(path)


def check_figure(path: str | os.PathLike[str]) -> None:
    """Refuse a figure that could not be written, before the work; nothing is written.

    Raises:
        FileNotFoundError: Its folder is not there.
        ValueError: It is no name of a file, or its format cannot be drawn.
    """
    check_writable(path, "figure (--figure)")
    # The format pgf needs TeX.
    formats = new_figure(1, 1)[0].canvas.get_supported_filetypes().keys() - {"pgf"}
    suffix = Path(path).suffix[1:].lower()
    if suffix not in formats:
        remedy = "End it in .png or .svg."
        raise ValueError(f"figure (--figure): {str(path)!r} ends in no format that can be drawn. {remedy}")


def check_writable(path: str | os.PathLike[str], option: str) -> None:
    """Refuse a file to write that is a folder or a pipe, or whose folder is not there."""
    if len(os.fsencode(Path(path).name)) > LONGEST_NAME:
        raise ValueError(f"{option}: the file's name has more than {LONGEST_NAME} bytes. Give a shorter one.")
    if not str(path).strip() or Path(path).is_dir():
        raise ValueError(f"{option}: {str(path)!r} is no file but a folder. Give the name of a file.")
    if Path(path).is_fifo():
        raise ValueError(f"{option}: {str(path)!r} is a pipe. Give the name of a file.")
    folder = Path(path).parent
    if not folder.is_dir():
        raise FileNotFoundError(f"{option}: there is no folder {str(folder)!r}. Make it first.")
    if not os.access(path if Path(path).exists() else folder, os.W_OK):
        raise PermissionError(f"{option}: {str(path)!r} cannot be written. Give another file.")


def draw_results(results: Sequence[Result]) -> Any:
    """Bars of the methods' scores with their 95 % intervals, a panel a task."""
    tasks = list(dict.fromkeys(each.task for each in results))
    most = max(sum(each.task == task for each in results) for task in tasks)
    figure, panels = new_figure(3.2 + 2.8 * len(tasks), 1.0 + 0.32 * most, len(tasks))
    for axes, task in zip(panels, tasks, strict=True):
        shown = [each for each in results if each.task == task][::-1]
        axes.barh([each.method or each.model for each in shown], [each.score for each in shown], color="#0072B2")
        for row, each in enumerate(shown):
            if each.interval is not None:
                axes.plot(each.interval, [row, row], color="black", linewidth=1)
        axes.set_title(task, fontsize=9)
        axes.set_xlabel(shown[0].metric, fontsize=8)
        axes.tick_params(labelsize=7)
    return figure


def draw_curve(frame: pd.DataFrame, name: str, metric: str) -> Any:
    """Lines of scores, a row of the table each, over the values of its columns."""
    figure, panels = new_figure(6.0, 3.6)
    options = {"xticks": range(len(frame.columns)), "xlabel": name, "ylabel": metric, "fontsize": 7}
    frame.T.plot(ax=panels[0], marker="o", markersize=3, **options)
    return figure
