"""What all figures share: the surface, the colours, and fonts that have Chinese."""

from __future__ import annotations

import logging
import os
import warnings
from contextlib import suppress
from functools import cache
from typing import Any

from ..files import whole_file
from ..optional import required

logger = logging.getLogger(__name__)

# Colours that people with any colour vision tell apart (Okabe and Ito's, yellow replaced), each with its own marker.
STYLES = (
    ("#D55E00", "o"),
    ("#0072B2", "s"),
    ("#009E73", "^"),
    ("#CC79A7", "v"),
    ("#E69F00", "D"),
    ("#56B4E9", "P"),
    ("#000000", "X"),
    ("#882255", "*"),
)
# matplotlib takes each glyph from the first of these that has it.
FONTS = (
    "DejaVu Sans",
    "Noto Sans CJK SC",
    # What matplotlib before 3.11 calls the same file.
    "Noto Sans CJK JP",
    "Noto Sans SC",
    "WenQuanYi Micro Hei",
    "WenQuanYi Zen Hei",
    "Microsoft YaHei",
    "PingFang SC",
    "SimHei",
    "Arial Unicode MS",
)


def new_figure(width: float, height: float, rows: int = 1, columns: int = 1) -> tuple[Any, Any]:
    """A figure with a drawing surface of its own: no window system, and no state that other figures share.

    Args:
        width: In inches.
        height: In inches.
        rows: Panels below each other.
        columns: Panels beside each other.

    Returns:
        A matplotlib ``Figure``, and its axes, an array of [rows, columns].

    Raises:
        ImportError: matplotlib is not installed.

    Example:
        >>> figure, axes = new_figure(4, 3, columns=2)
        >>> axes.shape
        (1, 2)
    """
    figure = required("matplotlib.figure", "evaluation").Figure(figsize=(width, height), dpi=120, layout="constrained")
    required("matplotlib.backends.backend_agg", "evaluation").FigureCanvasAgg(figure)
    return figure, figure.subplots(rows, columns, squeeze=False)


def save_figure(figure: Any, path: str | os.PathLike[str]) -> None:
    """Write a figure as PNG, whole or not at all; Chinese is shown where one of ``FONTS`` that has it is installed.

    Args:
        figure: A matplotlib ``Figure``.
        path: The file to write or replace.

    Example:
        >>> figure, axes = new_figure(4, 3)
        >>> _ = axes[0, 0].plot([1, 2], [3, 4])
        >>> save_figure(figure, "one.png")
        >>> open("one.png", "rb").read(4)
        b'\\x89PNG'
    """
    fonts = _fonts()
    # Some texts, such as those of ticks, are made only when a figure is drawn.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        figure.draw_without_rendering()
    for text in figure.findobj(required("matplotlib.text", "evaluation").Text):
        text.set_fontfamily(fonts)
    with whole_file(path) as stream, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        figure.savefig(stream, format="png")
    for each in caught:
        if "missing from font" not in str(each.message):
            warnings.warn_explicit(each.message, each.category, each.filename, each.lineno)
    if missing := sum("missing from font" in str(each.message) for each in caught):
        # One line in place of one a character.
        logger.warning("%s: %d characters have no font here; install Noto Sans CJK", path, missing)


def _fonts() -> list[str]:
    """Those of ``FONTS`` that are installed, also since matplotlib made the list that it keeps between runs."""
    manager = required("matplotlib.font_manager", "evaluation")
    there = set(manager.get_font_names())
    if not there & set(FONTS[1:]):
        for path in _new_font_files():
            # A font that matplotlib cannot read is none.
            with suppress(Exception):
                manager.fontManager.addfont(path)
        there = set(manager.get_font_names())
    return [name for name in FONTS if name in there]


@cache
def _new_font_files() -> frozenset[str]:
    """The system's font files that matplotlib does not know."""
    manager = required("matplotlib.font_manager", "evaluation")
    return frozenset(manager.findSystemFonts()) - {each.fname for each in manager.fontManager.ttflist}
