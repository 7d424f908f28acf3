"""The figure: how alike q and s+ are, and q and s-, a row a structure, a column a method."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ...optional import required
from ..results import Result, Results
from .evaluate import KIND, similarities

# Told apart by people with any colour vision, and in print by their hatching.
_STYLES = (("sim(q,s+)", "#0072B2", ""), ("sim(q,s-)", "#D55E00", "///"))
_BINS = 24


def draw_similarities(results: Results, found: Sequence[Result] | None = None) -> Any:
    """Draw the distributions of similarities that stand beside the results.

    Args:
        results: The folder of results.
        found: Which of them; None: all of this kind.

    Returns:
        A matplotlib ``Figure``; :func:`st_reba.evaluation.figures.save_figure` writes it.

    Raises:
        ImportError: matplotlib is not installed.
        FileNotFoundError: The similarities beside a result are gone.
        ValueError: There is no result to draw.

    Source:
        Echo, figure 2.

    Example:
        >>> from st_reba.evaluation.methods import Base, read_methods
        >>> from st_reba.evaluation.structures import evaluate_structures
        >>> results = Results("out")
        >>> methods = read_methods("classical:pooling=mean,echo:pooling=mean")
        >>> _ = evaluate_structures(Base("mini"), methods, results, languages=["en"], sample=10)
        >>> [axes.get_title() for axes in draw_similarities(results).axes[:2]]
        ['classical mean', 'echo-2 mean']
    """
    chosen = [one for one in (results.all() if found is None else found) if one.kind == KIND]
    if not chosen:
        raise ValueError(f"{results.folder}: no results of {KIND} to draw. Run: st-reba evaluate toy")
    rows = list(dict.fromkeys(map(_row, chosen)))
    kinds = [{name: value for name, value in one.settings.items() if name != "part"} for one in chosen]
    # What all have in common is no part of a column's name.
    differing = {name for kind in kinds for name in kind if any(other.get(name) != kind[name] for other in kinds)}
    names = {
        one.identity: "\n".join([one.method, *(f"{name} {kind[name]}" for name in sorted(differing & {*kind}))])
        for one, kind in zip(chosen, kinds, strict=True)
    }
    columns = list(dict.fromkeys(names.values()))
    if found is None:
        rows.sort(key=lambda row: (row[0].split()[::-1], row))
    figure = required("matplotlib.figure", "evaluation").Figure(
        figsize=(1.4 + 2.3 * len(columns), 1.0 + 1.8 * len(rows)), dpi=120, layout="constrained"
    )
    # A drawing surface of its own: no window system, and no state that other figures share.
    required("matplotlib.backends.backend_agg", "evaluation").FigureCanvasAgg(figure)
    panels = figure.subplots(len(rows), len(columns), squeeze=False)
    there = {(_row(one), names[one.identity]): one for one in chosen}
    for y, row in enumerate(rows):
        values = {column: similarities(results, there[row, column]) for column in columns if (row, column) in there}
        for x, column in enumerate(columns):
            axes = panels[y, x]
            if column in values:
                _panel(axes, values[column], there[row, column])
            else:
                axes.set_axis_off()
            if y == 0:
                axes.set_title(_ascii(column), fontsize=9, parse_math=False)
            if x == 0:
                axes.set_axis_on()
                axes.set_ylabel(_ascii("\n".join(part for part in row if part)), fontsize=9, parse_math=False)
            if y == len(rows) - 1:
                axes.set_xlabel("cosine", fontsize=8)
    handles = next(axes for axes in panels.flat if axes.patches).get_legend_handles_labels()
    figure.legend(*handles, loc="outside upper center", ncols=2, frameon=False, fontsize=9)
    return figure


def _panel(axes: Any, cosines: Any, result: Result) -> None:
    """Both distributions in the same bins, their means, and the accuracy."""
    low, high = float(cosines.min()), float(cosines.max())
    # All equal, as those of a part that sees nothing else: a bin must have a width.
    edges = np.linspace(low, high, _BINS + 1) if high - low > 1e-6 else np.linspace(low - 0.01, high + 0.01, _BINS + 1)
    for side, (label, colour, hatch) in enumerate(_STYLES):
        axes.hist(cosines[:, side], edges, color=colour, alpha=0.5, hatch=hatch, label=label)
        axes.axvline(float(cosines[:, side].mean()), color=colour, linewidth=1.5)
    axes.text(0.03, 0.95, f"accuracy {result.scores['accuracy']:.2f}", transform=axes.transAxes, va="top", fontsize=7)
    axes.tick_params(labelsize=7)
    axes.xaxis.set_major_locator(required("matplotlib.ticker", "evaluation").MaxNLocator(3))
    axes.set_yticks([])


def _row(result: Result) -> tuple[str, str]:
    return result.task, f"{result.settings['part']} part" if "part" in result.settings else ""


def _ascii(text: str) -> str:
    """The default font has no Chinese."""
    return text.encode("ascii", "replace").decode()
