"""Tables and figures of results, and which methods can be told apart."""

from __future__ import annotations

import math
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..folders import new_folder
from ..optional import required
from .charts import Chart, charts_of
from .figures import save_figure
from .frame import Shown, cut, key_of, label_of, natural, table_of, told
from .papers import PaperRow, PaperScore, averaged_over, metric_names, task_name
from .results import Result, read_results, slug
from .statistics import Evidence, differences
from .toy import Toy, draw_similarities

FILE, FIGURES = "report.md", "figures"
TITLE = "# Results of st-reba evaluate"
NOTHING = "–"
_METHODS = ("as saved", "classical", "prompteol", "echo", "reba", "nosink")


@dataclass(frozen=True)
class Report:
    """What folders of results say.

    Args:
        results: All, each once.
        draws: By identity and metric, its values on items drawn again and again.
        frame: A pandas table, a row a result and metric.
        notes: What is to be known of the folders.
        cosines: By identity, those of the toy structures, [triples, 2].
    """

    results: Sequence[Result]
    draws: Mapping[tuple[str, str], NDArray[np.float64]] = field(repr=False)
    frame: Any = field(repr=False)
    notes: Sequence[str] = ()
    cosines: Mapping[str, Evidence] = field(default_factory=dict, repr=False)

    def to_markdown(self, *, figures: bool = False) -> str:
        """The report as Markdown.

        Args:
            figures: With links to the figures beside it, as :func:`write_report` writes them.
        """
        lines = [TITLE, "", *(f"- {_one_line(note)}" for note in self.notes), ""]
        for (kind, shown), part in self.frame.groupby(["kind", "shown"], sort=False):
            metrics = ", ".join(part["metric"].unique())
            head = f"## {kind}: {metrics}" + (" (the papers' metric)" if shown == "paper" else "")
            lines += [_one_line(head), "", *markdown(_table(part)), ""]
            lines += [*(f"- {_one_line(note)}" for note in self._notes(part)), ""]
        if averages := _averages(self.frame):
            lines += ["## Averages that the papers print", "", *markdown(averages), ""]
        if figures and (charts := self.charts()):
            lines += ["## Figures", ""]
            for each in charts:
                caption = _one_line(each.caption).replace("[", "(").replace("]", ")")
                lines += [f"![{caption}]({FIGURES}/{each.name}.png)", ""]
        if commands := sorted({" ".join(result.command.split()) for result in self.results if result.command}):
            lines += ["## Commands", "", "```sh", *commands, "```"]
        return "\n".join(lines).rstrip() + "\n"

    def to_json(self) -> dict[str, Any]:
        """All of it as values that JSON can hold."""
        return {
            "results": [result.to_json() for result in self.results],
            "differences": [
                {"kind": kind, "task": task, "metric": metric, **vars(each)}
                for kind, task, metric, found in self._compared(self.frame)
                for each in found
            ],
            "papers": [
                {
                    **{name: getattr(row, name) for name in ("kind", "task", "base", "method", "metric")},
                    **{"paper": paper.label, "value": score.value, "difference": row.value - score.value},
                    "note": score.note,
                }
                for row in self.frame.itertuples()
                for paper, score in _beside(row)
            ],
            "averages": _averages(self.frame),
            "notes": list(self.notes),
        }

    def charts(self) -> list[Chart]:
        """The figures that the results allow."""
        seen: Counter[str] = Counter()
        charts = []
        for _, part in self.frame.groupby(["kind", "shown"], sort=False):
            for each in (*charts_of(part), *self._similarities(part)):
                seen[each.name] += 1
                charts.append(replace(each, name=f"{each.name}-{seen[each.name]}") if seen[each.name] > 1 else each)
        return charts

    def _similarities(self, part: Any) -> Iterator[Chart]:
        """The distributions behind the scores of the toy structures."""
        for base, own in part.groupby("base"):
            there = {
                (row.task, row.label): self.cosines[row.identity]
                for row in own.itertuples()
                if row.identity in self.cosines
            }
            if there:
                caption = f"{Toy.kind}, {base}: cosines with what means the same, and with what does not"
                yield Chart(f"{slug(Toy.kind)}-cosines-{slug(base)}", caption, partial(draw_similarities, there))

    def _notes(self, part: Any) -> Iterator[str]:
        yield from self._told_apart(part)
        items = {task: sorted({result.items for result in own["result"]}) for task, own in part.groupby("task")}
        yield "items: " + ", ".join(f"{task} {' or '.join(map(str, counts))}" for task, counts in items.items())
        for task, own in part.groupby("task"):
            if own["data"].nunique() > 1:
                yield f"**{task}: its rows are not of the same items**, as its file was changed between the runs"
        if common := told(_common(part)):
            yield f"all: {common}"
        seen: dict[str, None] = {}
        for row in part.itertuples():
            for reason, names in row.result.left_out.items():
                if names:
                    shown = "; ".join(cut(name) for name in names[:5]) + (" …" if len(names) > 5 else "")
                    seen[f"{row.task}, {len(names)} left out ({reason}): {shown}"] = None
            for paper, score in _beside(row):
                if score.note:
                    seen[f"* {paper.label}: {score.note}"] = None
                if row.base != score.base:
                    seen[f"{row.base} is taken for {score.base} by its folder's name"] = None
        yield from seen

    def _compared(self, part: Any) -> Iterator[tuple[str, str, str, Sequence[Any]]]:
        """The differences between the methods of each base on each task, and on average."""
        for (kind, shown, base), own in part.groupby(["kind", "shown", "base"], sort=False):
            known = own[[(row.identity, row.metric) in self.draws for row in own.itertuples()]]
            tasks = {}
            for (task, _), those in known.groupby(["task", "data"]):
                scores = {row.label: row.value for row in those.itertuples()}
                samples = {row.label: self.draws[row.identity, row.metric] for row in those.itertuples()}
                if len(scores) > 1:
                    tasks[task] = (scores, samples)
                    yield kind, f"{base}, {task}", those["metric"].iloc[0], differences(scores, samples)
            common = set.intersection(*(set(scores) for scores, _ in tasks.values())) if len(tasks) > 1 else set()
            if len(common) > 1:
                order = [label for label in dict.fromkeys(own["label"]) if label in common]
                mean = {name: float(np.mean([scores[name] for scores, _ in tasks.values()])) for name in order}
                drawn = {name: np.mean([samples[name] for _, samples in tasks.values()], axis=0) for name in order}
                yield kind, f"{base}, average", shown, differences(mean, drawn)

    def _told_apart(self, part: Any) -> Iterator[str]:
        for _, task, _, found in self._compared(part):
            words = []
            for each in found:
                if each.certain:
                    more, less = (each.first, each.second) if each.value > 0 else (each.second, each.first)
                    low, high = sorted(map(abs, each.corrected))
                    words.append(f"{more} > {less} by {abs(each.value):.4f} [{low:.4f}, {high:.4f}]")
            shown = "; ".join(words[:6]) + (f"; and {len(words) - 6} more" if len(words) > 6 else "")
            total = (
                f"{len(words)} of {len(found)} differences between methods are significant (95 %, corrected for all)"
            )
            yield f"{task}: {total}" + (f": {shown}" if words else "")


def make_report(
    folders: Sequence[str | os.PathLike[str]], shown: Shown = "both", only: Sequence[Result] | None = None
) -> Report:
    """Read folders of results, and set them side by side.

    Args:
        folders: As ``st-reba evaluate`` writes them.
        shown: ``"main"``: the tasks' own metric; ``"paper"``: the papers'; ``"both"``: a second table where it is
            another.
        only: These results alone; None: all, of those with the same names the latest.

    Raises:
        FileNotFoundError: A folder is not there, or holds no results.
        ValueError: A file is no result.

    Example:
        >>> from st_reba.evaluation import Result, Results
        >>> results = Results("found")
        >>> with results.writing():
        ...     results.add(Result("STS", "pairs", "mini", "echo-2 last", "00ff", {"spearman": 0.5}, "spearman"))
        >>> report = make_report(["found"])
        >>> [line for line in report.to_markdown().splitlines() if "echo" in line]
        ['| mini | echo-2 last | 0.5000 | – | – |']
    """
    if not folders:
        raise ValueError("no folder of results is given: name one at least.")
    if shown not in ("main", "paper", "both"):
        raise ValueError(f"metric={shown!r} is not known: choose main, paper or both (--metric).")
    read = {os.fspath(folder): read_results(folder) for folder in dict.fromkeys(folders)}
    wanted = None if only is None else {each.identity for each in only}
    notes: list[str] = []
    entries: list[tuple[str, Result]] = []
    for folder, results in read.items():
        found = [each for each in results.all() if wanted is None or each.identity in wanted]
        latest = {key_of(each): each for each in sorted(found, key=results.written)}
        if wanted is None and len(latest) < len(found):
            older = len(found) - len(latest)
            notes.append(f"{folder}: {older} results are left out, as later ones have the same names")
        entries += [(folder, result) for result in latest.values()]
    if not entries:
        raise FileNotFoundError(f"{', '.join(read)}: there are no results yet. Run: st-reba evaluate … --out FOLDER")
    every: dict[str, Result] = {}
    identities: dict[tuple[Any, ...], set[str]] = {}
    draws, cosines = {}, {}
    for folder, result in entries:
        if every.setdefault(result.identity, result).scores != result.scores:
            notes.append(f"**Conflict**: {folder} has other numbers of {result.base}, {result.method}, {result.task}")
        identities.setdefault(key_of(result), set()).add(result.identity)
        for metric, values in read[folder].draws(result).items():
            draws[result.identity, metric] = values
        if result.kind == Toy.kind and (evidence := read[folder].evidence(result)) is not None:
            cosines[result.identity] = evidence
    # A row of which folders have different results stands there once a folder.
    split = {key[2:] for key, of_key in identities.items() if len(of_key) > 1}
    located = [(folder if key_of(result)[2:] in split else "", result) for folder, result in entries]
    notes += _versions(list(every.values()))
    return Report(list(every.values()), draws, table_of(located, shown), notes, cosines)


def write_report(report: Report, out: str | os.PathLike[str], *, figures: bool = True) -> Path:
    """Write ``report.md`` and ``figures/*.png`` into a folder, all or nothing, in place of an earlier report there.

    Raises:
        FileExistsError: The folder holds something else.
        ImportError: matplotlib is not installed (``figures``).
    """
    if figures:
        required("matplotlib.figure", "evaluation")
    with new_folder(out, overwrite=True, kind="a report of st-reba", is_kind=_is_report) as folder:
        (folder / FILE).write_text(report.to_markdown(figures=figures), encoding="utf-8")
        for chart in report.charts() if figures else ():
            (folder / FIGURES).mkdir(exist_ok=True)
            save_figure(chart.draw(), folder / FIGURES / f"{chart.name}.png")
    return Path(out) / FILE


def _is_report(folder: Path) -> bool:
    """Whether a folder holds a report and nothing else, so that it can be replaced."""
    files = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if not path.is_dir()}
    if FILE not in files or not all(name == FILE or re.fullmatch(rf"{FIGURES}/[^/]+\.png", name) for name in files):
        return False
    return (folder / FILE).read_text(encoding="utf-8", errors="replace").startswith(TITLE)


def markdown(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """A table: its columns in the order in which they come up."""
    heads = list(dict.fromkeys(name for row in rows for name in row))
    text = {name for name in heads if all(not re.match(r"[*–+-]*\d", str(row.get(name, "x"))) for row in rows)}
    lines = [_line(heads), "|" + "".join("---|" if name in text else "--:|" for name in heads)]
    return [*lines, *(_line([str(row.get(name, "")) for name in heads]) for row in rows)]


# Making


def _versions(results: Sequence[Result]) -> Iterator[str]:
    found: dict[str, set[str]] = {}
    for result in results:
        for package, version in result.versions.items():
            if version is not None:
                found.setdefault(package, set()).add(version)
    if found:
        several = any(len(versions) > 1 for versions in found.values())
        listed = ", ".join(f"{package} {' and '.join(sorted(found[package]))}" for package in sorted(found))
        yield f"made with {listed}" + (" (**versions differ**)" if several else "")


def _common(part: Any) -> dict[str, Any]:
    first: dict[str, Any] = part["settings"].iloc[0]
    return {name: value for name, value in first.items() if all(each.get(name) == value for each in part["settings"])}


def _table(part: Any) -> list[dict[str, str]]:
    """The cells of a table: a row a base, method and setting, and the papers' rows under it."""
    tasks = sorted(part["task"].unique(), key=natural)
    one_metric = part["metric"].nunique() == 1
    heads = {task: task if one_metric else f"{task} ({part[part.task == task].metric.iloc[0]})" for task in tasks}
    groups = sorted(part.groupby(["base", "label"], sort=False), key=_order)
    shared = [task for task in tasks if all(task in set(own["task"]) for _, own in groups)]
    means = part[part["task"].isin(shared)].groupby(["base", "label"])["value"].mean()
    rows: list[dict[str, str]] = []
    for (base, label), own in groups:
        values = {row.task: row for row in own.itertuples()}
        cells = {"base": base, "method": label}
        for task in tasks:
            rivals = part[(part.base == base) & (part.task == task)].value
            cells[heads[task]] = _cell(values[task], rivals) if task in values else NOTHING
        if len(shared) > 1:
            cells["average"] = _bold(means[base, label], means[base])
        results = [row.result for row in values.values()]
        texts = sum(result.texts for result in results)
        cells["s/text"] = f"{sum(result.seconds for result in results) / texts:.3g}" if texts else NOTHING
        tokens = [result.tokens for result in results if result.tokens is not None]
        cells["tokens/text"] = f"{sum(tokens) / texts:.3g}" if texts and len(tokens) == len(results) else NOTHING
        rows.append(cells)
        # The papers' numbers of these tasks, with ours minus theirs in brackets.
        papers: dict[str, dict[str, str]] = {}
        for task, row in values.items():
            for paper, score in _beside(row):
                note = "*" if score.note else ""
                shown = f"{score.value:.{score.digits}f}{note} ({row.value - score.value:+.{score.digits}f})"
                papers.setdefault(paper.label, {})[heads[task]] = shown
        rows += [{"base": "", "method": f"paper: {name}", **them} for name, them in papers.items()]
    return rows


def _beside(row: Any) -> Iterator[tuple[PaperRow, PaperScore]]:
    """The papers' numbers of a row of the frame."""
    for paper in row.papers:
        if score := paper.find(row.task, row.metric, row.result.main):
            yield paper, score


def _order(group: Any) -> tuple[Any, ...]:
    (base, label), own = group
    method = own["method"].iloc[0]
    family = method if method in _METHODS else re.split(r"[-\s]", method, maxsplit=1)[0]
    place = _METHODS.index(family) if family in _METHODS else len(_METHODS)
    return natural(base), place, natural(label)


def _cell(row: Any, rivals: Any) -> str:
    text = _bold(row.value, rivals)
    return text if math.isnan(row.low) else f"{text} [{row.low:.4f}, {row.high:.4f}]"


def _bold(value: float, rivals: Any) -> str:
    best = len(rivals) > 1 and round(value, 4) == round(rivals.max(), 4)
    return f"**{value:.4f}**" if best else f"{value:.4f}"


def _line(cells: Iterable[str]) -> str:
    return "| " + " | ".join(map(_one_line, cells)) + " |"


def _one_line(text: str) -> str:
    """A text that cannot break a table or a list."""
    return " ".join(text.split()).replace("|", "\\|")


def _averages(frame: Any) -> list[dict[str, str]]:
    """The papers' averages over sets of tasks, where all of these were run."""
    runs: dict[tuple[str, str, PaperScore], tuple[PaperRow, dict[str, list[Result]]]] = {}
    for row in frame.drop_duplicates(["folder", "identity"]).itertuples():
        for paper in row.papers:
            for score in dict.fromkeys(paper.scores.values()):
                if averaged_over(score.task):
                    _, tasks = runs.setdefault((row.base, label_of(row.method, {}, row.folder), score), (paper, {}))
                    tasks.setdefault(task_name(row.task), []).append(row.result)
    rows = []
    for (base, method, score), (paper, tasks) in runs.items():
        over = averaged_over(score.task) or ()
        found = [_value_of(tasks.get(task_name(task), []), task, own or score.metric, paper) for task, own in over]
        values = [value for value in found if value is not None]
        if len(values) == len(over):
            ours = sum(values) / len(values)
            rows.append(
                {
                    "base": base,
                    "method": method,
                    "average": f"{score.task}, {score.metric} ({score.source})",
                    "tasks": str(len(values)),
                    "ours": f"{ours:.4f}",
                    "paper": f"{score.value:.{score.digits}f}" + ("*" if score.note else ""),
                    "difference": f"{ours - score.value:+.{score.digits}f}",
                    **({"note": score.note} if score.note else {}),
                }
            )
    return rows


def _value_of(results: Sequence[Result], task: str, metric: str, paper: PaperRow) -> float | None:
    """The one value of a task that an average takes; None: there is none, or results disagree on it."""
    found = set()
    for result in results:
        names: Sequence[str] = metric_names(metric)
        if metric == "main_score":
            names = [result.main]
        elif metric == "average":
            # Each task by the metric that the paper prints of it, if it does.
            printed = [name for one, name in paper.scores if one == task_name(task) and name != "main_score"]
            names = printed or [result.paper or result.main]
        found |= {result.scores[name] for name in names if name in result.scores}
    return found.pop() if len(found) == 1 else None
