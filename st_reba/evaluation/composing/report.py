"""What a search found, and the files that tell it."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import yaml

from ...files import whole_file
from ...optional import required
from ..figures import STYLES, save_figure
from .costs import Costs
from .heldout import Row
from .results import Result
from .trial import NO_FILTER, Trial

_NAMES = {
    "classical": "classical",
    "echo": "Echo",
    "prompteol": "PromptEOL",
    "reba": "ReBA",
    "nosink": "NoSink",
    "fast": "composed, fast",
    "composed": "composed",
}
RECIPES = {"composed": "recipe.yaml", "fast": "recipe-fast.yaml"}
POSTFILTERS = {"composed": "postfilter.safetensors", "fast": "postfilter-fast.safetensors"}


@dataclass(frozen=True)
class ComposedReport:
    """What :func:`st_reba.evaluation.compose` found.

    Args:
        base: The base model.
        task: The items, described.
        metric: What a score is.
        layers: Number of the base's layers L.
        arms: Arms that the first rung ran.
        tokens: Positions that ran in all.
        seconds: That all arms took.
        rows: The methods that are reported.
        results: All arms on all rungs.
        costs: Of methods.
        options: Of ``build``, but for the method's.
        command: What runs it all again; empty where no file holds the items.
        folder: Where the files are.
    """

    base: str
    task: str
    metric: str
    layers: int
    arms: int
    tokens: int
    seconds: float
    rows: tuple[Row, ...]
    results: tuple[Result, ...]
    costs: Costs
    options: Mapping[str, Any]
    command: str
    folder: Path

    def row(self, name: str) -> Row:
        """A reported method."""
        return next(row for row in self.rows if row.name == name)

    @property
    def recipe(self) -> dict[str, Any]:
        """Keyword arguments of :func:`st_reba.build` for the best composition."""
        return self.recipe_of("composed")

    def recipe_of(self, name: str) -> dict[str, Any]:
        """Keyword arguments of :func:`st_reba.build` for a reported method."""
        trial = self.row(name).trial
        filtered = trial.filter != NO_FILTER and name in POSTFILTERS
        postfilter = POSTFILTERS[name] if filtered else None
        return {"base": self.base, **trial.arguments(self.layers, postfilter), **self.options}

    def trials(self) -> list[tuple[Result, Trial, float]]:
        """Every method that was scored, once a rung, and its score.

        Arms that differ only in layers that a method does not run give one method.
        """
        found = {
            (result.rung, trial): (result, trial, score) for result in self.results for trial, score in result.trials()
        }
        return list(found.values())

    def last(self) -> list[tuple[Trial, float]]:
        """Those of the last rung."""
        last = max(result.rung for result in self.results)
        return [(trial, score) for result, trial, score in self.trials() if result.rung == last]

    @property
    def single(self) -> Row | None:
        """The best single paper's method, by validation."""
        return next((row for row in self.rows if row.single), None)

    def to_json(self) -> dict[str, Any]:
        """All of it but the single results, as values that JSON can hold."""
        names = ("base", "task", "metric", "layers", "arms", "tokens", "seconds")
        rows = [{**asdict(row), "method": str(row.trial)} for row in self.rows]
        recipes = {name: self.recipe_of(name) for name in RECIPES if any(row.name == name for row in self.rows)}
        return {
            **{name: getattr(self, name) for name in names},
            "rows": rows,
            "recipes": recipes,
            "folder": str(self.folder),
        }

    def __str__(self) -> str:
        lines = [f"{'':18}{'cost':>6}  {'validation':>10}  {'held-out':>8}  {'95 % interval':>15}  method"]
        for row in self.rows:
            low, high = row.interval
            numbers = f"{row.cost:6.2f}  {row.validation:10.4f}  {row.heldout:8.4f}  {low:7.4f}–{high:.4f}"
            lines.append(f"{_NAMES[row.name] + ('*' if row.single else ''):18}{numbers}  {row.trial}")
        gain = self.row("composed").gain
        if gain is not None:
            lines.append(
                f"* best single method. The composition's gain over it, held-out: {gain[0]:+.4f} to {gain[1]:+.4f} "
                "(95 %)."
            )
        lines.append(f"Build it: st-reba build {self.folder / RECIPES['composed']} OUT")
        return "\n".join(lines)


def write_composed(report: ComposedReport) -> None:
    """Write recipes, ``trials.csv``, ``report.md`` and ``costs.png``, each whole or not at all."""
    _write(report.folder / "trials.csv", _csv(report))
    _write(report.folder / "report.md", _markdown(report))
    save_figure(_figure(report), report.folder / "costs.png")
    for name, file in RECIPES.items():
        if any(row.name == name for row in report.rows):
            _write(report.folder / file, _recipe(report, name))


def _write(path: Path, text: str) -> None:
    with whole_file(path) as stream:
        stream.write(text.encode())


def _recipe(report: ComposedReport, name: str) -> str:
    row, single = report.row(name), report.single
    low, high = row.interval
    beside = (
        f"; best single method ({_NAMES[single.name]}) {single.validation:.4f}, {single.heldout:.4f}" if single else ""
    )
    lines = [
        str(row.trial),
        report.task,
        f"{report.metric}: validation {row.validation:.4f}, held-out {row.heldout:.4f} ({low:.4f} to {high:.4f})"
        f"{beside}",
        f"Work: {row.cost:.2f} of the base's, which runs a text once through all {report.layers} layers",
        *([f"Found by: {report.command}"] if report.command else []),
    ]
    header = "".join(f"# {' '.join(line.split())}\n" for line in lines)
    return header + yaml.safe_dump(report.recipe_of(name), sort_keys=False, allow_unicode=True)


def _csv(report: ComposedReport) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["rung", "items", "score", "cost", "tokens", "layers", "method", "arm", "read", "filter"])
    for result, trial, score in report.trials():
        own = (f"{report.costs.of(trial):.4f}", f"{report.costs.tokens(trial.arm):.2f}", trial.read.runs)
        cells = (trial.paper(report.layers), str(trial.arm), str(trial.read), str(trial.filter))
        writer.writerow([result.rung, result.items, f"{score:.6f}", *own, *cells])
    return text.getvalue()


def _markdown(report: ComposedReport) -> str:
    lines = [
        f"# {_cell(report.base)}: stages composed",
        "",
        f"Task: {_cell(report.task)}. {report.layers} layers.",
        "",
        *(["```", report.command, "```", ""] if report.command else []),
        f"{report.arms} arms, {report.tokens:,} positions run, {report.seconds / 60:.1f} minutes. Chosen by "
        "validation; held-out items chose nothing. Cost: positions times layers, as a share of the unconverted base's "
        "over the text once. In brackets and of gains 95 % intervals by the bootstrap.",
        "",
        f"| | method | positions | layers | cost | {report.metric}, validation | held-out | gain on the best |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in report.rows:
        low, high = row.interval
        gain = "—" if row.single or row.gain is None else f"{row.gain[0]:+.4f} to {row.gain[1]:+.4f}"
        cells = [
            f"**{_NAMES[row.name]}**" if row.single else _NAMES[row.name],
            _cell(str(row.trial)),
            f"{row.tokens:.1f}",
            str(row.trial.read.runs),
            f"{row.cost:.2f}",
            f"{row.validation:.4f}",
            f"{row.heldout:.4f} ({low:.4f}–{high:.4f})",
            gain,
        ]
        lines.append("| " + " | ".join(cells) + " |")
    lines += [
        "",
        "Bold: the best single paper's method, by validation; gains are over it."
        if report.single
        else "No single paper's method was in the space.",
        "",
        "![Cost and quality](costs.png)",
    ]
    best = sorted(report.last(), key=lambda each: -each[1])
    lines += ["", "The twenty best on the validation part:", "", "| score | cost | method |", "|---|---|---|"]
    lines += [f"| {score:.4f} | {report.costs.of(trial):.2f} | {_cell(str(trial))} |" for trial, score in best[:20]]
    failed = {f"{result.arm}: {result.error}" for result in report.results if result.error}
    if failed:
        lines += ["", *(f"- Failed: {_cell(each)}" for each in sorted(failed))]
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _figure(report: ComposedReport) -> Any:
    """Score over cost: what the last rung ran, what no cheaper method reaches, and what is reported."""
    figure = required("matplotlib.figure", "evaluation").Figure(figsize=(8, 5), dpi=120, layout="constrained")
    required("matplotlib.backends.backend_agg", "evaluation").FigureCanvasAgg(figure)
    axes = figure.subplots()
    points = sorted((report.costs.of(trial), -score) for trial, score in report.last())
    axes.scatter(
        [cost for cost, _ in points],
        [-score for _, score in points],
        s=6,
        color="#BBBBBB",
        linewidths=0,
        label="tried on all items",
    )
    # Of equal costs the best stands first.
    front: list[tuple[float, float]] = []
    for cost, negative in points:
        if not front or -negative > front[-1][1]:
            front.append((cost, -negative))
    # On to the dearest, as what is best at some cost is best there at more.
    front.append((points[-1][0], front[-1][1]))
    axes.step(
        [cost for cost, _ in front],
        [score for _, score in front],
        where="post",
        color="#555555",
        linewidth=1,
        label="best at no more than this cost",
    )
    for place, row in enumerate(report.rows):
        colour, marker = STYLES[place % len(STYLES)]
        axes.plot(
            [row.cost],
            [row.validation],
            linestyle="none",
            color=colour,
            marker=marker,
            markersize=9,
            label=_NAMES[row.name],
        )
    axes.set_xlabel("cost: positions x layers, 1 = the unconverted base, the text once")
    axes.set_ylabel(f"{report.metric} (validation)", parse_math=False)
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.grid(alpha=0.3)
    axes.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), frameon=False, fontsize=9)
    title = f"{report.base}, {report.task.partition(':')[0]}".encode("ascii", "replace").decode()
    axes.set_title(title, fontsize=10, parse_math=False)
    return figure
