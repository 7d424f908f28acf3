"""What a search found, and the files that tell it: recipes, tables and a figure."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import yaml

from ..files import whole_file
from ..filters import SUFFIX
from ..optional import required
from .figures import STYLES, new_figure, save_figure
from .heldout import Found, Parts, Row, digest
from .methods import Base
from .report import markdown
from .statistics import Difference
from .trials import NO_FILTER

_NAMES = {
    "echo": "Echo",
    "prompteol": "PromptEOL",
    "reba": "ReBA",
    "nosink": "NoSink",
    "fast": "composed, fast",
    "plain": "last-layer mean",
}


@dataclass(frozen=True)
class Report:
    """What :func:`st_reba.evaluation.compose` found.

    Args:
        base: The base model.
        parts: The items.
        found: What the search ended with.
        rows: The methods that are reported.
        differences: Of their held-out scores to that of the method that all are compared with.
        loading: Further arguments of ``build``, such as ``max_seq_length``.
        command: What runs it all again; may be empty.
        folder: Where the files are.
    """

    base: Base
    parts: Parts
    found: Found
    rows: tuple[Row, ...]
    differences: tuple[Difference, ...]
    loading: Mapping[str, Any]
    command: str
    folder: Path

    @property
    def metric(self) -> str:
        """What a score is."""
        return self.parts.heldout.main

    def row(self, name: str) -> Row:
        """A reported method."""
        return next(row for row in self.rows if row.name == name)

    @property
    def best(self) -> Row:
        """The method that validation likes best."""
        return self.row(next(iter(self.found.recipes)))

    @property
    def recipe(self) -> dict[str, Any]:
        """Keyword arguments of :func:`st_reba.build` for the best method."""
        return self.recipe_of(self.best.name)

    def recipe_of(self, name: str) -> dict[str, Any]:
        """Keyword arguments of :func:`st_reba.build` for a reported method; a filter's file lies beside the recipe."""
        trial = self.row(name).trial
        filtered = trial.filter != NO_FILTER and name in self.found.recipes
        arguments = trial.arguments(self.found.depth, self.filter_of(name) if filtered else None)
        loading = {**self.loading, "revision": self.base.revision, "tokenizer": self.base.tokenizer}
        return {
            "base": self.base.name,
            **arguments,
            **{name: each for name, each in loading.items() if each is not None},
        }

    def filter_of(self, name: str) -> str:
        """The file of a method's post-filter."""
        return self.found.recipes[name].replace("recipe", "postfilter").replace(".yaml", SUFFIX)

    def to_json(self) -> dict[str, Any]:
        """All of it but the single results, as values that JSON can hold."""
        return {
            "base": self.base.name,
            "task": str(self.parts),
            "metric": self.metric,
            "depth": self.found.depth,
            "against": self.found.against,
            "rows": [{**asdict(row), "method": str(row.trial)} for row in self.rows],
            "differences": [{**asdict(each), "certain": each.certain} for each in self.differences],
            "recipes": {name: self.recipe_of(name) for name in self.found.recipes},
            "folder": str(self.folder),
        }

    def table(self) -> list[dict[str, str]]:
        """The reported methods, a row each."""
        apart = {each.first: each for each in self.differences}
        rows = []
        for row in self.rows:
            gain, (low, high) = apart.get(row.name), row.interval
            told = "—" if gain is None else f"{gain.value:+.4f} ({gain.corrected[0]:+.4f} to {gain.corrected[1]:+.4f})"
            rows.append(
                {
                    "": _name(row.name),
                    "cost": f"{row.cost:.2f}",
                    "validation": f"{row.validation:.4f}",
                    "held-out": f"{row.heldout:.4f} ({low:.4f}–{high:.4f})",
                    f"over {_name(self.found.against)}": told,
                    "positions": f"{row.tokens:.1f}",
                    "layers": str(row.trial.layers(self.found.depth)),
                    "method": str(row.trial),
                }
            )
        return rows

    def sentence(self) -> str:
        """Who is certain to be better or worse than the method that all are compared with."""
        words = []
        for word, sign in (("better", 1), ("worse", -1)):
            names = [_name(each.first) for each in self.differences if each.certain and each.value * sign > 0]
            words.append(f"certain to be {word} than {_name(self.found.against)}: {', '.join(names) or 'none'}")
        return f"Held-out, with 95 % for all comparisons together, {'; '.join(words)}."

    def __str__(self) -> str:
        table = required("pandas", "evaluation").DataFrame(self.table()).to_string(index=False)
        build = f"Build it: st-reba build {self.folder / self.found.recipes[self.best.name]} OUT"
        return f"{table}\n{self.sentence()}\n{build}"


def write_report(report: Report, filters: Path) -> None:
    """Write recipes and their filters, ``trials.csv``, ``report.md`` and ``costs.png``, each whole or not at all.

    Args:
        report: What was found.
        filters: The folder of the fitted filters.
    """
    frame = _frame(report)
    _write(report.folder / "trials.csv", frame.to_csv(index=False, lineterminator="\n"))
    _write(report.folder / "report.md", _markdown(report, frame))
    save_figure(_figure(report, frame), report.folder / "costs.png")
    for name, file in report.found.recipes.items():
        trial = report.row(name).trial
        if trial.filter != NO_FILTER:
            fitted = filters / f"{digest(trial)}{SUFFIX}"
            with fitted.open("rb") as source, whole_file(report.folder / report.filter_of(name)) as stream:
                shutil.copyfileobj(source, stream)
        _write(report.folder / file, _recipe(report, name))


def _frame(report: Report) -> Any:
    """Every method that was scored, a row a method and rung: arms that differ in layers that do not run are one."""
    costs, depth = report.found.costs, report.found.depth
    every = ((result, *each) for result in report.found.results for each in result.trials())
    once = {(result.rung, trial): (result, trial, score) for result, trial, score in every}
    rows = [
        {
            "rung": result.rung,
            "items": result.items,
            "score": score,
            "cost": round(costs.of(trial), 4),
            "tokens": round(costs.tokens(trial.arm), 2),
            "layers": trial.layers(depth),
            "method": trial.paper(depth),
            "setting": "" if trial.arm.nosink is None else trial.arm.nosink.setting.upper(),
            "k": "" if trial.arm.nosink is None else trial.arm.nosink.k or 0,
            "arm": str(trial.arm),
            "read": str(trial.read),
            "filter": str(trial.filter),
        }
        for result, trial, score in once.values()
    ]
    return required("pandas", "evaluation").DataFrame(rows)


def _name(name: str) -> str:
    return _NAMES.get(name, name)


def _write(path: Path, text: str) -> None:
    with whole_file(path) as stream:
        stream.write(text.encode())


def _recipe(report: Report, name: str) -> str:
    row, against = report.row(name), report.found.against
    # Of what all are compared with, the other figures are those of the plain method, where there is one.
    wanted = "plain" if name == against else against
    other = next((each for each in report.rows if each.name == wanted), row)
    low, high = row.interval
    lines = [
        str(row.trial),
        str(report.parts),
        f"{report.metric}: validation {row.validation:.4f}, held-out {row.heldout:.4f} ({low:.4f} to {high:.4f}); "
        f"{_name(other.name)} {other.validation:.4f}, {other.heldout:.4f}",
        f"Work: {row.cost:.2f} of the base's, which runs a text once through all {report.found.depth} layers",
        *([f"Found by: {report.command}"] if report.command else []),
    ]
    header = "".join(f"# {' '.join(line.split())}\n" for line in lines)
    return header + yaml.safe_dump(report.recipe_of(name), sort_keys=False, allow_unicode=True)


def _markdown(report: Report, frame: Any) -> str:
    results, depth = report.found.results, report.found.depth
    bold = {_name(name): f"**{_name(name)}**" for name in report.found.recipes}
    rows = [{**row, "": bold.get(row[""], row[""])} for row in report.table()]
    tokens, seconds = (sum(getattr(each, name) for each in results) for name in ("tokens", "seconds"))
    last = frame[frame.rung == frame.rung.max()]
    best = last.sort_values("score", ascending=False, kind="stable").head(20)
    parts = [
        f"# {report.base.name}: {report.metric}",
        f"{report.parts}. {depth} layers.",
        f"```\n{report.command}\n```" if report.command else "",
        f"{len(results)} arms and rungs, {tokens:,} positions, {seconds / 60:.1f} minutes. Held-out items chose "
        "nothing. Cost: positions times layers, as a share of the unconverted base's over the text once. In brackets: "
        "95 % intervals by the bootstrap, of differences those that hold for all together. Bold: has a recipe.",
        "\n".join(markdown(rows)),
        report.sentence(),
        *report.found.notes,
        "![Cost and quality](costs.png)",
        "The twenty best on the validation part:",
        "\n".join(markdown(best.round({"score": 4})[["score", "cost", "arm", "read", "filter"]].to_dict("records"))),
    ]
    if (last.setting != "").any():
        pivot = last[last.k != 0].pivot_table(index="setting", columns="k", values="score", aggfunc="max", sort=False)
        parts += ["Validation scores by k:", "\n".join(markdown(_pivoted(pivot)))]
    if failed := sorted({f"- Failed: {result.arm}: {result.error}" for result in results if result.error}):
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
        points = last.sort_values("cost")
        axes.scatter(points.cost, points.score, s=6, color="#BBBBBB", linewidths=0, label="tried on all items")
        label = "best at no more than this cost"
        axes.step(points.cost, points.score.cummax(), where="post", color="#555555", linewidth=1, label=label)
        for place, row in enumerate(report.rows):
            colour, marker = STYLES[place % len(STYLES)]
            # Hollow, where all styles are taken.
            filled = "full" if place < len(STYLES) else "none"
            style = {"linestyle": "none", "color": colour, "marker": marker, "markersize": 9, "fillstyle": filled}
            axes.plot([row.cost], [row.validation], label=_name(row.name), **style)
        axes.set_xlabel("cost: positions x layers, 1 = the unconverted base, the text once")
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.set_ylabel(f"{report.metric} (validation)", parse_math=False)
    axes.grid(alpha=0.3)
    axes.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), frameon=False, fontsize=9)
    axes.set_title(f"{report.base.name}, {report.parts.task.name}", fontsize=10, parse_math=False)
    return figure
