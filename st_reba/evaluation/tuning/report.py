"""What a run found, and the files that tell it."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import yaml

from ...files import whole_file
from ..figures import Curve, draw_curves, save_figure
from .search import ARCHITECTURES, COMBINED, MASKS
from .trials import Trial, best

# Places in figures.STYLES: no two alike in one panel, and a setting alike in all.
_STYLES = {
    **{setting: place for place, setting in enumerate(ARCHITECTURES)},
    **{setting: place for place, setting in enumerate((*MASKS[:1], *COMBINED), 2)},
    **{setting: place for place, setting in enumerate(MASKS, 2)},
}
_PANELS = {
    "Architectures": ARCHITECTURES,
    "Masking the sink": ("inplace-bidir", "inplace-back", *MASKS),
    "MASK0&BIDIR": ("inplace-bidir", "mask0-bidir", *COMBINED),
}


@dataclass(frozen=True)
class Report:
    """What :func:`st_reba.evaluation.tune` found.

    Args:
        base: The base model.
        task: Its description.
        metric: What a score is.
        layers: Number of the base's layers L.
        trials: All trials, in the order of the search.
        skipped: What was not tried, and why.
        recipe: Keyword arguments of :func:`st_reba.build` for the chosen model.
        command: What runs it all again; empty for a task that was made in Python.
        folder: Where the files are.
    """

    base: str
    task: str
    metric: str
    layers: int
    trials: tuple[Trial, ...]
    skipped: tuple[str, ...]
    recipe: dict[str, Any]
    command: str
    folder: Path

    @property
    def baseline(self) -> Trial:
        """The unconverted model."""
        return next(trial for trial in self.trials if trial.setting == "baseline")

    @property
    def chosen(self) -> Trial:
        """The best on the validation part; among equals the smaller k, so that the baseline wins a draw."""
        return best(self.trials) or self.baseline

    @property
    def best_of_each(self) -> dict[str, Trial]:
        """Each setting's best on the validation part, the baseline first."""
        settings = dict.fromkeys(trial.setting for trial in self.trials)
        found = {name: best([trial for trial in self.trials if trial.setting == name]) for name in settings}
        return {name: trial for name, trial in found.items() if trial is not None}

    def to_json(self) -> dict[str, Any]:
        """All of it as values that JSON can hold."""
        values = {**asdict(self), "folder": str(self.folder), "chosen": asdict(self.chosen)}
        return {**values, "best_of_each": {name: asdict(trial) for name, trial in self.best_of_each.items()}}

    def __str__(self) -> str:
        rows = [("", self.metric, "validation", "held-out")]
        rows += [
            ("*" if trial == self.chosen else "", str(trial), _number(trial.validation), _number(trial.heldout))
            for trial in self.best_of_each.values()
        ]
        width = max(len(row[1]) for row in rows)
        lines = [f"{mark:1} {name:{width}}  {one:>10}  {other:>8}" for mark, name, one, other in rows]
        return "\n".join(
            [*lines, f"Chosen (*): {self.chosen}. Build it: st-reba build {self.folder / 'recipe.yaml'} OUT"]
        )


def recipe_of(trial: Trial) -> dict[str, Any]:
    """The keyword arguments of :func:`st_reba.build` that convert as a trial did.

    Example:
        >>> recipe_of(Trial("mask0-mid", 4, 2, 1, "mean", "", 0.5, 0.5, 1.0))
        {'setting': 'mask0&bidir', 'k': 4, 'k0': 2, 'm': 1}
        >>> recipe_of(Trial("baseline", 0, None, 1, "mean", "", 0.5, 0.5, 1.0))
        {'setting': 'baseline'}
    """
    if trial.setting == "baseline":
        return {"setting": "baseline"}
    if trial.k0 is None:
        return {"setting": trial.setting, "k": trial.k, **({"m": trial.m} if trial.setting in MASKS else {})}
    # Under its general name: build would halve MASK0-MID's k0 once more.
    return {"setting": "mask0&bidir", "k": trial.k, "k0": trial.k0, "m": trial.m}


def write_report(report: Report) -> None:
    """Write ``recipe.yaml``, ``trials.csv``, ``trials.md`` and ``tune.png``, each whole or not at all."""
    _write(report.folder / "trials.csv", _csv(report.trials))
    _write(report.folder / "trials.md", _markdown(report))
    save_figure(_figure(report), report.folder / "tune.png")
    _write(report.folder / "recipe.yaml", _recipe(report))


def _write(path: Path, text: str) -> None:
    with whole_file(path) as stream:
        stream.write(text.encode())


def _number(score: float | None) -> str:
    return "failed" if score is None else f"{score:.4f}"


def _recipe(report: Report) -> str:
    chosen, baseline = report.chosen, report.baseline
    lines = [
        f"{chosen}: {chosen.stack}",
        report.task,
        f"{report.metric}: validation {_number(chosen.validation)} (baseline {_number(baseline.validation)}), "
        f"held-out {_number(chosen.heldout)} (baseline {_number(baseline.heldout)})",
        *([f"Found by: {report.command}"] if report.command else []),
        "Build it: st-reba build recipe.yaml OUT, or st_reba.build('recipe.yaml')",
    ]
    if chosen == baseline:
        lines.insert(1, "No conversion was better than the unconverted model.")
    # A line break in a name must not end the comment.
    header = "".join(f"# {' '.join(line.split())}\n" for line in lines)
    return header + yaml.safe_dump(report.recipe, sort_keys=False, allow_unicode=True)


def _csv(trials: Sequence[Trial]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, [field.name for field in fields(Trial)], lineterminator="\n")
    writer.writeheader()
    writer.writerows(asdict(trial) for trial in trials)
    return text.getvalue()


def _markdown(report: Report) -> str:
    lines = [
        f"# {_cell(report.base)}: NoSink settings",
        "",
        f"Task: {_cell(report.task)}. {report.layers} layers.",
        "",
        *(["```", report.command, "```", ""] if report.command else []),
        "Chosen by validation; of equals the smaller k.",
        "",
        f"| setting | k | k0 | {report.metric}, validation | held-out | layers |",
        "|---|---|---|---|---|---|",
    ]
    for trial in report.best_of_each.values():
        k0 = "" if trial.k0 is None else str(trial.k0)
        cells = [
            trial.setting.upper(),
            str(trial.k),
            k0,
            _number(trial.validation),
            _number(trial.heldout),
            trial.stack,
        ]
        lines.append(_row(f"**{cell}**" if trial == report.chosen and cell else cell for cell in cells))
    lines += ["", f"{report.metric} on the validation part for every k; bold: the best of a setting.", ""]
    columns = {name: [t for t in report.trials if t.setting == name] for name in report.best_of_each}
    del columns["baseline"]
    heads = [name.upper() + _fixed_k0(trials) for name, trials in columns.items()]
    lines += [_row(["k", *heads]), "|" + "---|" * (len(heads) + 1)]
    winners = {name: best([report.baseline, *trials]) for name, trials in columns.items()}
    for k in range(max(trial.k for trial in report.trials) + 1):
        cells = [str(k)]
        for name, trials in columns.items():
            at_k = report.baseline if k == 0 else next((t for t in trials if t.k == k), None)
            cell = "" if at_k is None else _number(at_k.validation)
            cells.append(f"**{cell}**" if cell and at_k == winners[name] else cell)
        lines.append(_row(cells))
    lines += ["", "k = 0 is BASELINE."]
    failed = [f"{trial}: failed, {trial.error}" for trial in report.trials if trial.error is not None]
    if notes := [*report.skipped, *failed]:
        lines += ["", *(f"- {_cell(note)}" for note in notes)]
    return "\n".join(lines) + "\n"


def _fixed_k0(trials: Sequence[Trial]) -> str:
    """What the name of a setting does not say."""
    return f" k0={trials[0].k0}" if trials[0].setting in ("mask0-mid", "mask0-last") else ""


def _row(cells: Any) -> str:
    return "| " + " | ".join(cells) + " |"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _figure(report: Report) -> Any:
    there = report.best_of_each
    panels = _PANELS if "mask0-all" in there else {"NoSink": _PANELS["MASK0&BIDIR"]}
    drawn = {
        name: [_curve(report, setting) for setting in settings if setting in there] for name, settings in panels.items()
    }
    chosen = report.chosen
    return draw_curves(
        drawn,
        report.baseline.validation or 0.0,
        title=f"{report.base}, {report.task.partition(':')[0]}",
        y_label=f"{report.metric} (validation)",
        chosen=None if chosen.validation is None else (chosen.k, chosen.validation),
    )


def _curve(report: Report, setting: str) -> Curve:
    trials = [trial for trial in report.trials if trial.setting == setting and trial.validation is not None]
    points = sorted((trial.k, trial.validation) for trial in trials if trial.validation is not None)
    return Curve(setting.upper() + _fixed_k0(trials), points, _STYLES[setting])
