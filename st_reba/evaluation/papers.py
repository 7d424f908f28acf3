"""The numbers that the papers print: the zoo's recipes hold many, ``papers.yaml`` the others."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from functools import cache
from importlib.resources import files
from typing import Any

import yaml

from .. import zoo
from .methods import Base, flat, name_of
from .mteb_tasks import suites

# By which a printed value is divided, and the digits that it then has.
_PRINTED = {"reba": (1, 4), "echo": (100, 4), "nosink": (100, 3)}
NAMES = {"reba": "ReBA", "echo": "Echo", "nosink": "NoSink"}
# Settings that leave a result comparable; any other makes it an experiment of its own.
_COMPARABLE = ("seed", "max_tokens", "budget", "prompts")
# The instructions that a paper puts in front of a set of tasks.
_PROMPTS = {"MTEB-15": "nosink"}
_OF_BASE = ("base", *(each.name for each in fields(Base)))
# The papers' names of tasks that mteb calls otherwise.
_TASKS = {
    "CMedQAv1": "CMedQAv1-reranking",
    "CMedQAv2": "CMedQAv2-reranking",
}
# The papers' names of metrics, those of mteb's earlier versions, and what they are called now.
_METRICS = {
    "cos_sim_accuracy": ("cosine_accuracy",),
    "cos_sim_pearson": ("cosine_pearson",),
    "cos_sim_spearman": ("cosine_spearman",),
    "map": ("map_at_1000",),
    "f1": ("f1", "entity_f1"),
    # Each text has one class, so that micro-F1 is the accuracy.
    "micro_f1": ("accuracy",),
    "macro_f1": ("f1",),
}
# A paper's set of tasks, and the suite that is the same; MTEB-MINI's is not whole.
_SUITES = {"C-MTEB": "C-MTEB", "MTEB": "MTEB-56", "MTEB-15": "MTEB-15"}
_KINDS = {
    "classification": "Classification",
    "pair classification": "PairClassification",
    "clustering": "Clustering",
    "retrieval": "Retrieval",
    "reranking": "Reranking",
    "STS": "STS",
    "summarization": "Summarization",
}


@dataclass(frozen=True)
class PaperScore:
    """A number of a paper.

    Args:
        paper: ``"reba"``, ``"echo"`` or ``"nosink"``.
        table: Where it stands.
        base: The base model, as the zoo spells it.
        arguments: Of the method, as for :class:`st_reba.evaluation.methods.Method`.
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
        return round(self.printed / _PRINTED[self.paper][0], self.digits)

    @property
    def positions(self) -> int | None:
        """The paper's limit of a text."""
        return self.arguments.get("max_seq_length")

    @property
    def digits(self) -> int:
        """Digits behind the point that the paper's print gives a fraction."""
        return _PRINTED[self.paper][1]

    @property
    def source(self) -> str:
        """The paper and the table."""
        return f"{NAMES[self.paper]}, {self.table}"

    @property
    def method(self) -> str:
        """The method's name, without the limit of positions."""
        return _named(self.arguments)


@dataclass(frozen=True, eq=False)
class PaperRow:
    """What one table of a paper has on one base and method.

    Args:
        source: The paper and the table.
        method: The method's name.
        positions: The paper's limit of a text.
        scores: By task (as ``task_name`` gives it) and metric.
    """

    source: str
    method: str
    positions: int | None
    scores: Mapping[tuple[str, str], PaperScore] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """What tables call it."""
        limit = f", {self.positions} positions" if self.positions is not None else ""
        return f"{self.method} ({self.source}{limit})"

    def find(self, task: str, metric: str, main: str | None) -> PaperScore | None:
        """The paper's number of a task by a metric; ``main`` is the name of the task's own main metric."""
        if found := self.scores.get((task_name(task), metric)):
            return found
        return self.scores.get((task_name(task), "main_score")) if metric == main else None


@cache
def paper_scores() -> tuple[PaperScore, ...]:
    """All numbers of the papers' tables that the project knows, those of the zoo's recipes first.

    Example:
        >>> found = {(each.base, each.method, each.task): each for each in paper_scores()}
        >>> each = found["ckiplab/gpt2-base-chinese", "reba-2 last", "TNews"]
        >>> each.value, each.source
        (0.3061, 'ReBA, Table 3')
    """
    return (*_of_recipes(), *_of_file())


def paper_rows(base: str, arguments: Mapping[str, Any], settings: Mapping[str, Any]) -> list[PaperRow]:
    """What the papers have on a base and a method, a row a table.

    Args:
        base: The base's label. One without a slash, a local folder's, stands for the Hub id that ends so.
        arguments: Of the method that was run.
        settings: Of the results.

    Returns:
        The rows; none where a setting or a limit of positions is another than the paper's.
    """
    if any(name not in _COMPARABLE for name in settings) or settings.get("budget", "total") != "total":
        return []
    positions = settings.get("max_tokens", arguments.get("max_seq_length"))
    rows = []
    for (of, prompts, source, method, limit), scores in _scores_by_row().items():
        if base not in (of, of.rpartition("/")[2]) or settings.get("prompts") != prompts:
            continue
        if None not in (positions, limit) and positions != limit:
            continue
        if _named(_without_open(arguments, scores[0].arguments)) == method:
            named = {(task_name(each.task), name): each for each in scores for name in metric_names(each.metric)}
            rows.append(PaperRow(source, method, limit, named))
    return rows


@cache
def _scores_by_row() -> dict[tuple[Any, ...], list[PaperScore]]:
    """Numbers of models that were not trained further: by base, instructions, table, method and limit of positions."""
    rows: dict[tuple[Any, ...], list[PaperScore]] = {}
    for each in paper_scores():
        if not each.fine_tuned:
            row = (each.base, _PROMPTS.get(each.task), each.source, each.method, each.positions)
            rows.setdefault(row, []).append(each)
    return rows


def averaged_over(task: str) -> tuple[tuple[str, str | None], ...] | None:
    """The tasks behind a paper's average, each with its metric where it has several; None: a task of its own.

    Example:
        >>> averaged_over("Law")[0], averaged_over("C-MTEB pair classification")
        (('SCOTUS', 'micro_f1'), (('Ocnli', None), ('Cmnli', None)))
    """
    if task in _file()["averages"]:
        return tuple((each, None) if isinstance(each, str) else tuple(each) for each in _file()["averages"][task])
    for name, suite in _SUITES.items():
        if task != name and not task.startswith(f"{name} "):
            continue
        kinds = suites()[suite].tasks
        if task == name:
            return tuple((each, None) for tasks in kinds.values() for each in tasks)
        if (kind := _KINDS.get(task[len(name) + 1 :], "")) in kinds:
            return tuple((each, None) for each in kinds[kind])
    return None


def _named(arguments: Mapping[str, Any]) -> str:
    """A method's name, without the limit of positions; an unconverted NoSink model is the classical one."""
    rest = {name: value for name, value in flat(arguments).items() if name not in ("max_seq_length", *_OF_BASE)}
    if rest.get("setting") == "baseline":
        pooling = rest.get("pooling") or "mean"
        rest = {name: value for name, value in rest.items() if name not in ("setting", "k", "k0", "m")}
        rest |= {"method": "classical", "pooling": pooling}
    return name_of(rest)


def _without_open(arguments: Mapping[str, Any], of_paper: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments without the numbers of layers that the paper chose for each task and does not name."""
    paper = flat(of_paper)
    free = [name for name in ("k", "k0") if "setting" in paper and name not in paper]
    return {name: value for name, value in flat(arguments).items() if name not in free}


def _of_recipes() -> Iterator[PaperScore]:
    for recipe in map(zoo.load, zoo.names()):
        arguments = {name: value for name, value in recipe.values.items() if name not in _OF_BASE}
        for score in recipe.about.scores:
            assert recipe.about.paper is not None
            task, metric, printed = score["task"], score["metric"], float(score["value"])
            yield PaperScore(recipe.about.paper, score["table"], recipe.base, arguments, task, metric, printed)


def _of_file() -> Iterator[PaperScore]:
    for row in _file()["rows"]:
        disputed = row.get("disputed", {})
        where = (row["paper"], row["table"], row["base"], row["arguments"])
        for metric, scores in row["scores"].items():
            for task, value in scores.items():
                contradicted = f"{task}: {disputed[task]}" if task in disputed else None
                notes = " ".join(note for note in (row.get("note"), contradicted) if note)
                fine_tuned = row.get("fine_tuned", False)
                yield PaperScore(*where, task, metric, float(value), fine_tuned, notes or None)


@cache
def _file() -> dict[str, Any]:
    text = files(__package__).joinpath("papers.yaml").read_text(encoding="utf-8")
    values: dict[str, Any] = yaml.safe_load(text)
    return values


def task_name(name: str) -> str:
    """What a task is called here; spelling apart.

    Example:
        >>> task_name("CMedQAv1") == task_name("CMedQAv1-reranking"), task_name("CoNLL-2003")
        (True, 'conll2003')
    """
    return "".join(letter for letter in _TASKS.get(name, name).casefold() if letter.isalnum())


def metric_names(name: str) -> tuple[str, ...]:
    """What a paper's metric may be called here.

    Example:
        >>> metric_names("cos_sim_pearson"), metric_names("v_measure")
        (('cosine_pearson',), ('v_measure',))
    """
    return _METRICS.get(name, (name,))
