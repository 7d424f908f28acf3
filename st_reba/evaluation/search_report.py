"""What a search found, and the files that tell it: recipes, tables and a figure."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import yaml

from ..files import whole_file
from ..filters import SUFFIX
from ..optional import required
from .crossfit import Result
from .figures import STYLES, new_figure, save_figure
from .heldout import Row, digest
from .passes import Costs
from .space import NO_FILTER, Trial
from .statistics import Difference

_NAMES = {"echo": "Echo", "prompteol": "PromptEOL", "reba": "ReBA", "nosink": "NoSink", "fast": "composed, fast"}


@dataclass(frozen=True)
class Report:
    """What :func:`st_reba.evaluation.compose` found.

    Args:
        base: The base model.
        task: The items, described.
        metric: What a score is.
        depth: Number of the base's layers L.
        rows: The methods that are reported.
        against: The one that all are compared with.
        differences: Of the held-out scores to that one's.
        recipes: The recipe's file, by the name of a method that has one; the best method's first.
        results: All arms on all rungs.
        costs: Of methods.
        options: Of ``build``, but for the method's.
        command: What runs it all again; may be empty.
        folder: Where the files are.
    """

    base: str
    task: str
    metric: str
    depth: int
    rows: tuple[Row, ...]
    against: str
    differences: tuple[Difference, ...]
    recipes: Mapping[str, str]
    results: tuple[Result, ...]
    costs: Costs
    options: Mapping[str, Any]
    command: str
    folder: Path

    def row(self, name: str) -> Row:
        """A reported method."""
        return next(row for row in self.rows if row.name == name)

    @property
    def best(self) -> Row:
        """The method that validation likes best."""
        return self.row(next(iter(self.recipes)))

    @property
    def recipe(self) -> dict[str, Any]:
        """Keyword arguments of :func:`st_reba.build` for the best method."""
        return self.recipe_of(self.best.name)

    def recipe_of(self, name: str) -> dict[str, Any]:
        """Keyword arguments of :func:`st_reba.build` for a reported method; a filter's file lies beside the recipe."""
        trial = self.row(name).trial
        postfilter = self.filter_of(name) if trial.filter != NO_FILTER and name in self.recipes else None
        return {"base": self.base, **trial.arguments(self.depth, postfilter), **self.options}

    def filter_of(self, name: str) -> str:
        """The file of a method's post-filter."""
        return self.recipes[name].replace("recipe", "postfilter").replace(".yaml", SUFFIX)

    def trials(self) -> list[tuple[Result, Trial, float]]:
        """Every method that was scored, once a rung: arms that differ in layers that do not run give one method."""
        every = [(result, *each) for result in self.results for each in result.trials()]
        return list({(result.rung, trial): (result, trial, score) for result, trial, score in every}.values())

    def to_json(self) -> dict[str, Any]:
        """All of it but the single results, as values that JSON can hold."""
        names = ("base", "task", "metric", "depth", "against")
        return {
            **{name: getattr(self, name) for name in names},
            "rows": [{**asdict(row), "method": str(row.trial)} for row in self.rows],
            "differences": [{**asdict(each), "certain": each.certain} for each in self.differences],
            "recipes": {name: self.recipe_of(name) for name in self.recipes},
            "folder": str(self.folder),
        }

    def sentence(self) -> str:
        """Who is certain to be better or worse than the method that all are compared with."""
        words = []
        for word, sign in (("better", 1), ("worse", -1)):
            names = [_name(each.first) for each in self.differences if each.certain and each.value * sign > 0]
            words.append(f"certain to be {word} than {_name(self.against)}: {', '.join(names) or 'none'}")
        return f"Held-out, with 95 % for all comparisons together, {'; '.join(words)}."

    def __str__(self) -> str:
        lines = [f"{'':22}{'cost':>6}  {'validation':>10}  {'held-out':>8}  {'95 % interval':>15}  method"]
        for row in self.rows:
            low, high = row.interval
            numbers = f"{row.cost:6.2f}  {row.validation:10.4f}  {row.heldout:8.4f}  {low:7.4f}–{high:.4f}"
            lines.append(f"{_name(row.name) + ('*' if row.name == self.against else ''):22}{numbers}  {row.trial}")
        build = f"Build it: st-reba build {self.folder / self.recipes[self.best.name]} OUT"
        return "\n".join([*lines, f"* the others are compared with it. {self.sentence()}", build])


def write_report(report: Report, filters: Path) -> None:
    """Write recipes and their filters, ``trials.csv``, ``report.md`` and ``costs.png``, each whole or not at all.

    Args:
        report: What was found.
        filters: The folder of the fitted filters.
    """
    frame = frame_of(report)
    _write(report.folder / "trials.csv", frame.to_csv(index=False, lineterminator="\n"))
    _write(report.folder / "report.md", _markdown(report, frame))
    save_figure(_figure(report, frame), report.folder / "costs.png")
    for name, file in report.recipes.items():
        trial = report.row(name).trial
        if trial.filter != NO_FILTER:
            fitted = filters / f"{digest(trial)}{SUFFIX}"
            with fitted.open("rb") as source, whole_file(report.folder / report.filter_of(name)) as stream:
                shutil.copyfileobj(source, stream)
        _write(report.folder / file, _recipe(report, name))


def frame_of(report: Report) -> Any:
    """A pandas table of every method that was scored, a row a method and rung."""
    rows = [
        {
            "rung": result.rung,
            "items": result.items,
            "score": score,
            "cost": round(report.costs.of(trial), 4),
            "tokens": round(report.costs.tokens(trial.arm), 2),
            "layers": trial.layers(report.depth),
            "method": trial.paper(report.depth),
            "setting": "" if trial.arm.nosink is None else trial.arm.nosink.setting.upper(),
            "k": "" if trial.arm.nosink is None else trial.arm.nosink.k or 0,
            "arm": str(trial.arm),
            "read": str(trial.read),
            "filter": str(trial.filter),
        }
        for result, trial, score in report.trials()
    ]
    return required("pandas", "evaluation").DataFrame(rows)


def markdown(rows: Sequence[Mapping[str, Any]]) -> str:
    """A Markdown table of rows by their columns' names.

    Example:
        >>> print(markdown([{"method": "a|b", "score": "0.5"}]))
        | method | score |
        |---|---|
        | a\\|b | 0.5 |
    """
    table = [list(rows[0]), *([" ".join(str(cell).split()) for cell in row.values()] for row in rows)]
    lines = ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in table]
    return "\n".join([lines[0], "|" + "---|" * len(table[0]), *lines[1:]])


def _name(name: str) -> str:
    return _NAMES.get(name, name)


def _write(path: Path, text: str) -> None:
    with whole_file(path) as stream:
        stream.write(text.encode())


def _recipe(report: Report, name: str) -> str:
    row, other = report.row(name), report.row(report.against)
    low, high = row.interval
    lines = [
        str(row.trial),
        report.task,
        f"{report.metric}: validation {row.validation:.4f}, held-out {row.heldout:.4f} ({low:.4f} to {high:.4f}); "
        f"{_name(other.name)} {other.validation:.4f}, {other.heldout:.4f}",
        f"Work: {row.cost:.2f} of the base's, which runs a text once through all {report.depth} layers",
        *([f"Found by: {report.command}"] if report.command else []),
    ]
    header = "".join(f"# {' '.join(line.split())}\n" for line in lines)
    return header + yaml.safe_dump(report.recipe_of(name), sort_keys=False, allow_unicode=True)


def _markdown(report: Report, frame: Any) -> str:
    apart = {each.first: each for each in report.differences}
    rows = []
    for row in report.rows:
        gain, (low, high) = apart.get(row.name), row.interval
        told = "—" if gain is None else f"{gain.value:+.4f} ({gain.corrected[0]:+.4f} to {gain.corrected[1]:+.4f})"
        rows.append(
            {
                "": f"**{_name(row.name)}**" if row.name in report.recipes else _name(row.name),
                "method": row.trial,
                "positions": f"{row.tokens:.1f}",
                "layers": row.trial.layers(report.depth),
                "cost": f"{row.cost:.2f}",
                f"{report.metric}, validation": f"{row.validation:.4f}",
                "held-out": f"{row.heldout:.4f} ({low:.4f}–{high:.4f})",
                f"over {_name(report.against)}": told,
            }
        )
    tokens, seconds = (sum(getattr(each, name) for each in report.results) for name in ("tokens", "seconds"))
    last = frame[frame.rung == frame.rung.max()]
    best = last.sort_values("score", ascending=False, kind="stable").head(20)
    parts = [
        f"# {report.base}: {report.metric}",
        f"{report.task}. {report.depth} layers.",
        f"```\n{report.command}\n```" if report.command else "",
        f"{len(report.results)} arms and rungs, {tokens:,} positions, {seconds / 60:.1f} minutes. Held-out items chose "
        "nothing. Cost: positions times layers, as a share of the unconverted base's over the text once. In brackets: "
        "95 % intervals by the bootstrap, of differences those that hold for all together. Bold: has a recipe.",
        markdown(rows),
        report.sentence(),
        "![Cost and quality](costs.png)",
        "The twenty best on the validation part:",
        markdown(best.round({"score": 4})[["score", "cost", "arm", "read", "filter"]].to_dict("records")),
    ]
    if (last.setting != "").any():
        pivot = last[last.k != 0].pivot_table(index="setting", columns="k", values="score", aggfunc="max", sort=False)
        parts += ["Validation scores by k:", markdown(_pivoted(pivot))]
    if failed := sorted({f"- Failed: {result.arm}: {result.error}" for result in report.results if result.error}):
        parts.append("\n".join(" ".join(each.split()) for each in failed))
    return "\n\n".join(part for part in parts if part) + "\n"


def _pivoted(pivot: Any) -> list[dict[str, str]]:
    """Rows of settings by k, the best of each bold."""
    rows = []
    for name, row in pivot.iterrows():
        top = row.idxmax()
        cells = {k: "" if value != value else f"{value:.4f}" for k, value in sorted(row.items())}
        rows.append({"setting": name, **{f"k = {k}": f"**{cell}**" if k == top else cell for k, cell in cells.items()}})
    return rows


def _figure(report: Report, frame: Any) -> Any:
    """Score over cost, what no cheaper method reaches, and what is reported; of NoSink's settings score over k."""
    last = frame[frame.rung == frame.rung.max()]
    figure, panels = new_figure(9, 5)
    axes = panels[0, 0]
    if (last.setting != "").any():
        axes.axhline(report.row("BASELINE").validation, color="#555555", linestyle="--", label="BASELINE")
        for place, (name, rows) in enumerate(last[last.k != 0].groupby("setting", sort=False)):
            colour, marker = STYLES[place % len(STYLES)]
            line = ("-", "--", ":")[place // len(STYLES) % 3]
            axes.plot(rows.k.astype(int), rows.score, color=colour, marker=marker, linestyle=line, label=name)
        axes.set_xlabel("number of converted layers k")
    else:
        points = last.sort_values(["cost", "score"], ascending=[True, False])
        axes.scatter(points.cost, points.score, s=6, color="#BBBBBB", linewidths=0, label="tried on all items")
        label = "best at no more than this cost"
        axes.step(points.cost, points.score.cummax(), where="post", color="#555555", linewidth=1, label=label)
        for place, row in enumerate(report.rows):
            colour, marker = STYLES[place % len(STYLES)]
            style = {"linestyle": "none", "color": colour, "marker": marker, "markersize": 9}
            axes.plot([row.cost], [row.validation], label=_name(row.name), **style)
        axes.set_xlabel("cost: positions x layers, 1 = the unconverted base, the text once")
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.set_ylabel(f"{report.metric} (validation)", parse_math=False)
    axes.grid(alpha=0.3)
    axes.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), frameon=False, fontsize=9)
    axes.set_title(f"{report.base}, {report.task.partition(':')[0]}", fontsize=10, parse_math=False)
    return figure
