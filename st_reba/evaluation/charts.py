"""What a report draws of its table of results: bars, curves, boxes and heat maps."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from .figures import STYLES, new_figure
from .frame import label_of, natural
from .results import slug

# Settings that make a curve, and what its axis is called.
SWEPT = {"layer": "layer", "max_tokens": "tokens", "template": "template"}
_COLUMNS = 3


@dataclass(frozen=True)
class Chart:
    """A figure that can be drawn.

    Args:
        name: Of its file.
        caption: What it shows.
        draw: Gives the matplotlib ``Figure``.
    """

    name: str
    caption: str
    draw: Callable[[], Any]


def charts_of(part: Any) -> Iterator[Chart]:
    """A kind's figures: bars of all methods, and curves over what was swept."""
    kind, metric = part["kind"].iloc[0], part["metric"].iloc[0]
    swept = [name for name in SWEPT if len({str(each.get(name)) for each in part["settings"]}) > 1]
    stem = slug(f"{kind}-{metric}")
    for base, own in part[[not set(swept) & set(each) for each in part["settings"]]].groupby("base"):
        name, title = f"{stem}-{slug(base)}", f"{kind}, {base}"
        tasks = sorted(own["task"].unique(), key=natural)
        yield Chart(name, f"{title}: {metric}, with 95 % intervals", partial(bars, own, tasks, metric, title))
        if len(tasks) > 2 and own["label"].nunique() > 2:
            yield Chart(f"{name}-map", f"{title}: {metric}", partial(heat_map, own, tasks, title))
        copies = own.assign(
            x=own["method"].str.extract(r"^(?:reba|echo)-(\d+)")[0].astype(float),
            line=own["label"].str.replace(r"-\d+", "", n=1, regex=True),
        ).dropna(subset="x")
        copies["tick"] = copies["x"].map("{:g}".format)
        if copies.groupby(["task", "line"])["x"].nunique().max() > 1:
            draw = partial(curves, copies, "copies", metric, title)
            yield Chart(f"{name}-copies", f"{title}: {metric} over copies", draw)
    for setting in swept:
        # Only the last layer stands in no setting.
        for base, own in part[[setting in each or setting == "layer" for each in part["settings"]]].groupby("base"):
            name, title = f"{stem}-{setting}-{slug(base)}", f"{kind}, {base}"
            rest = [{key: value for key, value in each.items() if key != setting} for each in own["varied"]]
            last = max(each.get(setting, 0) for each in own["settings"]) + 1
            points = own.assign(
                line=list(map(label_of, own["method"], rest, own["folder"])),
                x=[float(each.get(setting, last)) for each in own["settings"]],
                tick=[str(each.get(setting, "last")) for each in own["settings"]],
            )
            if setting == "template":
                yield Chart(name, f"{title}: spread over templates", partial(spread, points, metric, title))
            else:
                draw = partial(curves, points, SWEPT[setting], metric, title)
                yield Chart(name, f"{title}: {metric} over {SWEPT[setting]}", draw)


def bars(frame: Any, tasks: Sequence[str], metric: str, title: str) -> Any:
    """Bars with intervals, a group a task and a bar a method.

    Source:
        ReBA, figures 3 and 5.
    """
    methods = list(dict.fromkeys(frame["label"]))
    figure, axes = new_figure(min(60.0, max(6.0, 1.5 + 0.35 * len(tasks) * len(methods))), 4.0)
    width = 0.8 / len(methods)
    for place, method in enumerate(methods):
        own = {row.task: row for row in frame[frame.label == method].itertuples()}
        at = [number + (place - (len(methods) - 1) / 2) * width for number, task in enumerate(tasks) if task in own]
        rows = [own[task] for task in tasks if task in own]
        axes[0, 0].bar(at, [row.value for row in rows], width, color=_colour(place), label=method)
        for x, row in zip(at, rows, strict=True):
            _whisker(axes[0, 0], x, row, "#000000")
    turned = {"rotation": 30, "ha": "right"} if len(tasks) > 4 else {}
    axes[0, 0].set_xticks(range(len(tasks)), tasks, parse_math=False, **turned)
    return _finished(figure, axes[0, 0], title, "", metric)


def curves(frame: Any, x_label: str, metric: str, title: str) -> Any:
    """Curves with intervals, a panel a task; the frame's columns ``x``, ``tick`` and ``line`` say where points are."""
    tasks, lines = sorted(set(frame["task"])), list(dict.fromkeys(frame["line"]))
    columns = min(_COLUMNS, len(tasks))
    rows = math.ceil(len(tasks) / columns)
    figure, grid = new_figure(1.5 + 4.4 * columns, 3.2 * rows + 0.4, rows, columns)
    for axes, task in zip(grid.flat, tasks, strict=False):
        for place, line in enumerate(lines):
            own = frame[(frame.task == task) & (frame.line == line)].sort_values("x")
            marker = STYLES[place % len(STYLES)][1]
            axes.plot(own["x"], own["value"], color=_colour(place), marker=marker, markersize=5, label=line)
            for row in own.itertuples():
                _whisker(axes, row.x, row, _colour(place))
        places = dict(sorted(zip(frame["x"], frame["tick"], strict=True)))
        if x_label == "tokens":
            axes.set_xscale("log", base=2)
        if len(places) <= 12:
            axes.set_xticks(list(places), list(places.values()))
            axes.minorticks_off()
        _finished(figure, axes, task, x_label, metric, legend=axes is grid.flat[0])
    for axes in list(grid.flat)[len(tasks) :]:
        axes.set_axis_off()
    figure.suptitle(title, parse_math=False)
    return figure


def spread(frame: Any, metric: str, title: str) -> Any:
    """How far scores are apart over templates: a box a task and ``line`` of the frame.

    Source:
        Echo, appendix D.
    """
    groups = list(frame.groupby(["task", "line"], sort=False))
    figure, axes = new_figure(max(6.0, 1.2 * len(groups)), 4.0)
    axes[0, 0].boxplot([list(own["value"]) for _, own in groups], showmeans=True)
    names = [f"{line}\n{task}" for (task, line), _ in groups]
    axes[0, 0].set_xticks(range(1, len(groups) + 1), names, parse_math=False, fontsize=7)
    return _finished(figure, axes[0, 0], title, "", metric, legend=False)


def heat_map(frame: Any, tasks: Sequence[str], title: str) -> Any:
    """Every score, coloured by how far it is from the task's mean."""
    methods = list(dict.fromkeys(frame["label"]))
    table = frame.pivot_table(index="label", columns="task", values="value").reindex(index=methods, columns=tasks)
    values = table.to_numpy()
    apart = values - np.nanmean(values, axis=0)
    most = float(np.nanmax(np.abs(apart))) or 1.0
    figure, axes = new_figure(2.5 + 0.9 * len(tasks), 1.2 + 0.4 * len(methods))
    image = axes[0, 0].imshow(apart, cmap="RdBu", vmin=-most, vmax=most, aspect="auto")
    for (row, column), value in np.ndenumerate(values):
        if math.isfinite(value):
            axes[0, 0].text(column, row, f"{value:.3f}", ha="center", va="center", fontsize=7)
    axes[0, 0].set_xticks(range(len(tasks)), tasks, rotation=30, ha="right", parse_math=False, fontsize=8)
    axes[0, 0].set_yticks(range(len(methods)), methods, parse_math=False, fontsize=8)
    axes[0, 0].set_title(title, fontsize=10, parse_math=False)
    figure.colorbar(image, ax=axes, label="difference to the task's mean")
    return figure


def _colour(place: int) -> str:
    return STYLES[place % len(STYLES)][0]


def _whisker(axes: Any, x: float, row: Any, colour: str) -> None:
    """An interval, where there is one."""
    if not math.isnan(row.low):
        axes.plot([x, x], [row.low, row.high], color=colour, linewidth=1)


def _finished(figure: Any, axes: Any, title: str, x_label: str, y_label: str, legend: bool = True) -> Any:
    axes.set_title(title, fontsize=10, parse_math=False)
    axes.set_xlabel(x_label)
    axes.set_ylabel(y_label, parse_math=False)
    axes.grid(axis="y", alpha=0.3)
    if legend:
        drawn = figure.legend(*axes.get_legend_handles_labels(), loc="outside right center", frameon=False, fontsize=8)
        for text in drawn.get_texts():
            text.set_parse_math(False)
    return figure
