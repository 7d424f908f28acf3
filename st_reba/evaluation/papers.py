"""The numbers that the papers print: the zoo's models hold many, ``papers.yaml`` the others."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from ..methods import Method
from ..zoo import recipe, zoo
from .run import Result

# By which a printed value is divided, and the digits that it then has.
_PRINTED = {"reba": (1, 4), "echo": (100, 4), "nosink": (100, 3)}
_NAMES = {"reba": "ReBA", "echo": "Echo", "nosink": "NoSink"}
# The papers' names of tasks that mteb calls otherwise.
_TASKS = {"CMedQAv1": "CMedQAv1-reranking", "CMedQAv2": "CMedQAv2-reranking"}
# The papers' names of metrics, and what they are called now. Micro-F1 of one class a text is the accuracy.
_METRICS = {
    "cos_sim_accuracy": ("cosine_accuracy",),
    "cos_sim_pearson": ("cosine_pearson",),
    "cos_sim_spearman": ("cosine_spearman",),
    "map": ("map_at_1000",),
    "f1": ("f1", "entity_f1"),
    "micro_f1": ("accuracy",),
    "macro_f1": ("f1",),
}


@dataclass(frozen=True)
class PaperScore:
    """A number of a paper.

    Args:
        paper: ``"reba"``, ``"echo"`` or ``"nosink"``.
        table: Where it stands.
        base: The base model, as the zoo spells it.
        arguments: Fields of :class:`st_reba.Method`, ``name`` among them; none: the base is an embedder as it is.
        task: Of a benchmark, or a set of tasks that was averaged, as the paper calls it.
        metric: As the paper calls it; ``"main_score"``: each task's own; ``"average"``: of the paper's metrics.
        printed: The value as it is printed: a fraction, or percent.
        fine_tuned: Of a model trained further, whose weights no base here has.
        note: What is to be known of it, as that another table contradicts it.
    """

    paper: str
    table: str
    base: str
    arguments: Mapping[str, Any] = field(hash=False)
    task: str
    metric: str
    printed: float
    fine_tuned: bool = False
    note: str | None = None

    @property
    def value(self) -> float:
        """A fraction."""
        divisor, digits = _PRINTED[self.paper]
        return round(self.printed / divisor, digits)

    @property
    def source(self) -> str:
        """The paper and the table."""
        return f"{_NAMES[self.paper]}, {self.table}"


@cache
def paper_scores() -> tuple[PaperScore, ...]:
    """All numbers of the papers' tables that the project knows, those of the zoo's models first."""
    return (*_of_zoo(), *_of_file())


def beside(result: Result) -> list[PaperScore]:
    """The papers' numbers of a result's base, method, task and metrics; none where the instructions are others.

    A base without a slash, a local folder's name, stands for the Hub id that ends so.

    Example:
        >>> scores = {"accuracy": 0.3}
        >>> (found,) = beside(Result("TNews", "", "ckiplab/gpt2-base-chinese", "reba", "accuracy", 0.3, scores=scores))
        >>> found.source, found.value
        ('ReBA, Table 3', 0.3061)
    """
    own = Method.parse(result.method).to_dict() if result.method else {}
    return [
        each
        for each in paper_scores()
        if not each.fine_tuned
        and result.model in (each.base, each.base.rpartition("/")[2])
        and task_name(each.task) == task_name(result.task)
        and (each.metric == "main_score" or set(metric_names(each.metric)) & set(result.scores))
        and result.prompts == ("nosink" if each.task == "MTEB-15" else "none")
        and _canonical(own) == _canonical(each.arguments)
        and _same(own.get("max_seq_length"), each.arguments.get("max_seq_length"))
    ]


def task_name(name: str) -> str:
    """A task's name here, its letters and digits alone: ``"CoNLL-2003"`` is ``"conll2003"``."""
    return "".join(letter for letter in _TASKS.get(name, name).casefold() if letter.isalnum())


def metric_names(name: str) -> tuple[str, ...]:
    """Names that a paper's metric may have here."""
    return _METRICS.get(name, (name,))


def _same(limit: int | None, of_paper: int | None) -> bool:
    return None in (limit, of_paper) or limit == of_paper


def _canonical(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments with their defaults, without limits and numbers of layers, which the papers chose for each task."""
    whole = {key: value for key, value in arguments.items() if key not in ("k", "k0", "max_seq_length")}
    if not whole:
        return {}  # a model as it is
    if whole.get("setting") == "baseline":
        whole = {"pooling": "mean", **whole, "name": "classical"}
        whole.pop("setting")
    whole.setdefault("pooling", "mean" if whole["name"] == "nosink" else "last")
    if whole["name"] in ("reba", "echo"):
        whole.setdefault("repeats", 2)
    return whole


def _of_zoo() -> Iterator[PaperScore]:
    for each in map(recipe, zoo()):
        for score in each.about.get("scores", ()):
            where = (each.about["paper"], score["table"], each.base, each.method)
            yield PaperScore(*where, score["task"], score["metric"], float(score["value"]))


def _of_file() -> Iterator[PaperScore]:
    rows = yaml.safe_load(Path(__file__).with_name("papers.yaml").read_text(encoding="utf-8"))["rows"]
    for row in rows:
        disputed = row.get("disputed", {})
        where = (row["paper"], row["table"], row["base"], row["arguments"])
        for metric, scores in row["scores"].items():
            for task, value in scores.items():
                contradicted = f"{task}: {disputed[task]}" if task in disputed else None
                notes = " ".join(note for note in (row.get("note"), contradicted) if note)
                yield PaperScore(*where, task, metric, float(value), row.get("fine_tuned", False), notes or None)
