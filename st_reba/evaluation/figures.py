"""Figures: scores over the number of converted layers."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..files import whole_file
from ..optional import required

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


@dataclass(frozen=True)
class Curve:
    """One line of a panel.

    Args:
        label: What the legend calls it.
        points: (k, score) each.
        style: Its place in ``STYLES``.
    """

    label: str
    points: Sequence[tuple[int, float]]
    style: int


def draw_curves(
    panels: Mapping[str, Sequence[Curve]],
    baseline: float,
    *,
    title: str,
    x_label: str = "number of converted layers k",
    y_label: str = "score",
    chosen: tuple[int, float] | None = None,
) -> Any:
    """Draw curves over k, one panel below the other, the baseline a dashed line in each.

    Args:
        panels: The curves of each panel, by the panel's title.
        baseline: Score of the unconverted model.
        title: Of the figure. In all texts, what is not ASCII becomes "?": the default font has no Chinese.
        x_label: Of the horizontal axes.
        y_label: Of the vertical axes.
        chosen: The point (k, score) to ring.

    Returns:
        A matplotlib ``Figure``.

    Raises:
        ImportError: matplotlib is not installed.

    Source:
        NoSink, figures 2, 4 and 6.

    Example:
        >>> curve = Curve("MASK0-BIDIR", [(1, 0.5), (2, 0.6), (3, 0.4)], style=2)
        >>> figure = draw_curves({"NoSink": [curve]}, 0.45, title="mini", chosen=(2, 0.6))
        >>> [line.get_label() for line in figure.axes[0].get_lines()]
        ['BASELINE', 'MASK0-BIDIR', 'chosen']
    """
    figure = required("matplotlib.figure", "evaluation").Figure(
        figsize=(8, 0.6 + 4 * len(panels)), dpi=120, layout="constrained"
    )
    # A drawing surface of its own: no window system, and no state that other figures share.
    required("matplotlib.backends.backend_agg", "evaluation").FigureCanvasAgg(figure)
    figure.suptitle(_ascii(title), parse_math=False)
    integers = required("matplotlib.ticker", "evaluation").MaxNLocator
    for axes, (name, curves) in zip(figure.subplots(len(panels), 1, squeeze=False)[:, 0], panels.items(), strict=True):
        axes.axhline(baseline, color="#555555", linestyle="--", linewidth=1.5, label="BASELINE")
        for curve in curves:
            colour, marker = STYLES[curve.style % len(STYLES)]
            x, y = zip(*curve.points, strict=True) if curve.points else ((), ())
            axes.plot(x, y, color=colour, marker=marker, markersize=6, linewidth=1.5, label=_ascii(curve.label))
        if chosen is not None and any(chosen in curve.points for curve in curves):
            ring = {"marker": "o", "markersize": 15, "markerfacecolor": "none", "markeredgecolor": "#000000"}
            axes.plot(*([value] for value in chosen), linestyle="none", label="chosen", **ring)
        axes.set_title(_ascii(name), fontsize=10, parse_math=False)
        axes.set_xlabel(_ascii(x_label))
        axes.set_ylabel(_ascii(y_label), parse_math=False)
        axes.xaxis.set_major_locator(integers(integer=True))
        axes.grid(alpha=0.3)
        axes.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), frameon=False, fontsize=9)
    return figure


def save_figure(figure: Any, path: str | os.PathLike[str]) -> None:
    """Write a figure as PNG, whole or not at all.

    Args:
        figure: A matplotlib ``Figure``.
        path: The file to write or replace.

    Example:
        >>> save_figure(draw_curves({"": [Curve("one", [(1, 0.5)], 0)]}, 0.4, title="one"), "one.png")
        >>> open("one.png", "rb").read(4)
        b'\\x89PNG'
    """
    with whole_file(path) as stream:
        figure.savefig(stream, format="png")


def _ascii(text: str) -> str:
    return text.encode("ascii", "replace").decode()
