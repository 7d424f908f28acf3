"""Figures: time and memory over the length of the texts, each with its ratio to the baseline below."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from .growth import seconds_a_text, series
from .measuring import Record
from .mistakes import UsageError

# Methods by families of colours that people with any colour vision tell apart: Echo and the classical ones black to
# brown, ReBA warm, NoSink cold, what ReBA is compared with violet. Colour, marker and line of each variant.
STYLES: dict[str, tuple[str, str, str]] = {
    "Echo-2 last": ("#000000", "o", "-"),
    "Echo-2 mean": ("#555555", "s", "--"),
    "classical last": ("#999999", "v", "-"),
    "PromptEOL": ("#8B5E34", "P", ":"),
    "ReBA-2 last": ("#D55E00", "o", "-"),
    "ReBA-2 mean": ("#E69F00", "s", "-"),
    "ReBA-2 words": ("#882255", "D", "-"),
    "ReBA chunked last": ("#D55E00", "^", ":"),
    "ReBA chunked mean": ("#E69F00", "^", ":"),
    "NoSink mask0-bidir": ("#56B4E9", "o", "-"),
    "NoSink mask0&bidir": ("#0072B2", "s", "--"),
    "NoSink bidirectional": ("#009E73", "^", "-."),
    "output_attentions": ("#7B3FB5", "X", "-"),
    "double loop": ("#CC79A7", "X", "--"),
}
OTHER = ("#000000", "x", ":")
# From one variant's min-max bar to the next one's, as a factor on the length.
SHIFT = 1.005

Value = Callable[[Record], float | None]


def check_figures() -> None:
    """Whether figures can be drawn at all.

    Raises:
        UsageError: matplotlib is not installed.
    """
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise UsageError(f"--figures needs matplotlib ({error}). Run: pip install 'st-reba[evaluation]'") from error


def draw(records: Iterable[Record], title: str, folder: Path, name: str) -> list[Path]:
    """Write two figures a series of lengths, time and peak memory.

    Args:
        records: What was measured; cases without a series are passed over.
        title: Of all figures.
        folder: Where to.
        name: What all file names begin with.

    Returns:
        The files.
    """
    measures: dict[str, tuple[str, Value, Value]] = {
        "time": ("seconds a text", seconds_a_text, lambda record: record.ratio.median),
        "memory": (
            "peak memory above the model, MiB a text",
            mebibytes_a_text,
            lambda record: record.memory_ratio or None,
        ),
    }
    files = []
    for group, variants in series(records).items():
        for measure, (label, absolute, relative) in measures.items():
            if not any(absolute(record) for line in variants.values() for record in line):
                continue
            figure = _figure(variants, f"{title}\n{group}", label, absolute, relative, spread=measure == "time")
            file = folder / f"{name}-{measure}-{_slug(group)}.png"
            figure.savefig(file, format="png")
            files.append(file)
    return files


def _figure(
    variants: Mapping[str, Sequence[Record]], title: str, label: str, absolute: Value, relative: Value, *, spread: bool
) -> Any:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullFormatter, NullLocator

    figure = Figure(figsize=(9.5, 9), dpi=120, layout="constrained")
    # A drawing surface of its own: no window system, and no state that other figures share.
    FigureCanvasAgg(figure)
    figure.suptitle(title, fontsize=10, parse_math=False)
    top, bottom = figure.subplots(2, 1, sharex=True)
    baseline = next(iter(variants))
    known = list(STYLES)
    ordered = sorted(variants.items(), key=lambda item: known.index(item[0]) if item[0] in known else len(known))
    for place, (name, line) in enumerate(ordered):
        colour, marker, dash = STYLES.get(name, OTHER)
        look = {"color": colour, "marker": marker, "linestyle": dash, "markersize": 6, "linewidth": 1.6, "label": name}
        for axes, value in ((top, absolute), (bottom, relative)):
            points = [(int(record.case["length"]), found) for record in line if (found := value(record))]
            if points:
                axes.plot(*zip(*points, strict=True), **look)
        for record in line if spread and name != baseline else ():
            # Side by side, as bars at the same length would hide one another.
            beside = int(record.case["length"]) * SHIFT ** (place - len(variants) / 2)
            bottom.plot([beside] * 2, [record.ratio.min, record.ratio.max], color=colour, linewidth=1.2, alpha=0.5)
    lengths = sorted({int(record.case["length"]) for line in variants.values() for record in line})
    for axes in (top, bottom):
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.grid(alpha=0.3)
        axes.xaxis.set_major_locator(FixedLocator(lengths))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.yaxis.set_minor_formatter(NullFormatter())
    top.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    bottom.yaxis.set_major_locator(LogLocator(subs=(1.0, 1.5, 2.0, 3.0, 5.0, 7.0)))
    top.set_ylabel(label)
    bottom.set_ylabel(f"ratio to {baseline}" + (", median and min-max" if spread else ""))
    bottom.set_xlabel("content tokens n of the longest text")
    figure.legend(*top.get_legend_handles_labels(), loc="outside right center", frameon=False, fontsize=9)
    return figure


def mebibytes_a_text(record: Record) -> float | None:
    """Peak memory of one text of a batch."""
    return record.peak_bytes / int(record.case["batch_size"]) / 2**20 if record.peak_bytes else None


def _slug(text: str) -> str:
    """A file name of a group's words."""
    return "-".join("".join(each if each.isalnum() else " " for each in text).split())
