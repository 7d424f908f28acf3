"""The papers' sets of tasks, and task objects of what people name."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Literal

import yaml

from .package import mteb_module

_FILE = Path(__file__).with_name("suites.yaml")
_TASK_FILES = (".yaml", ".yml")


@dataclass(frozen=True)
class Suite:
    """A set of mteb's tasks that a paper scores.

    Args:
        name: What people ask for.
        source: The paper, and where it names the tasks.
        scores: Whose metric the paper's tables hold: ``"mteb"``: its main score; ``"reba"``: ReBA's, by kind.
        tasks: mteb's names, by kind.
        prompts: Name of the instructions that the paper puts in front; None: none.
        splits: Of tasks that are scored on others than mteb's default.
        subsets: Of multilingual tasks: those of the paper's language.
    """

    name: str
    source: str
    scores: Literal["mteb", "reba"]
    tasks: Mapping[str, Sequence[str]]
    prompts: str | None = None
    splits: Mapping[str, Sequence[str]] = field(default_factory=dict)
    subsets: Mapping[str, Sequence[str]] = field(default_factory=dict)

    @property
    def names(self) -> list[str]:
        """All tasks, kind by kind."""
        return [name for names in self.tasks.values() for name in names]

    def task(self, name: str) -> Any:
        """mteb's object of one of the tasks, with the splits and subsets that the paper scores."""
        mteb = mteb_module()
        return mteb.get_task(name, eval_splits=self.splits.get(name), hf_subsets=self.subsets.get(name))


@dataclass(frozen=True)
class Chosen:
    """A task that is to be scored.

    Args:
        task: mteb's object.
        prompts: Name of the instructions that belong to it where nothing else is asked for.
    """

    task: Any
    prompts: str | None = None

    @property
    def name(self) -> str:
        """mteb's name of the task."""
        return str(self.task.metadata.name)


@cache
def suites() -> dict[str, Suite]:
    """The papers' sets of tasks, by name.

    Example:
        >>> {name: len(suite.names) for name, suite in suites().items()}
        {'C-MTEB': 31, 'MTEB-15': 15, 'MTEB-MINI': 26, 'MTEB-56': 56}
    """
    values = yaml.safe_load(_FILE.read_text(encoding="utf-8"))
    return {name: Suite(name, **suite) for name, suite in values.items()}


def read_tasks(words: str | Iterable[Any], *, seed: int = 42) -> list[Chosen]:
    """Find the tasks that people name.

    Args:
        words: Names of suites, of mteb's tasks or of its benchmarks; ``KIND=PATH`` or a task file (.yaml) for data of
            one's own (see :func:`st_reba.evaluation.benchmark.local.read_local`); or mteb's task objects.
        seed: Of what is drawn from data of one's own.

    Returns:
        The tasks in their order, each once.

    Raises:
        ValueError: A name is not known, a task has no revision, or one stands twice with other data or splits.
        OSError: A file of one's own cannot be read.
    """
    chosen: dict[tuple[str, str | None], Chosen] = {}
    for word in [words] if isinstance(words, str) else words:
        for each in _chosen(word, seed):
            _check(each.task)
            first = chosen.setdefault((each.name, each.prompts), each)
            if fingerprint(first.task) != fingerprint(each.task):
                raise ValueError(
                    f"tasks: {each.name!r} stands twice, with other data, splits or subsets. Give one another name, or "
                    "run them one after the other."
                )
    if not chosen:
        raise ValueError(f"tasks={words!r}: name one at least, as C-MTEB, STSB, or STS=pairs.tsv.")
    return list(chosen.values())


def is_local(word: str) -> bool:
    """Whether a word names data of one's own: no task of mteb has such a name."""
    return "=" in word or word.lower().endswith(_TASK_FILES)


def parts(task: Any) -> list[Any]:
    """The tasks that are run for a task: itself, or those whose scores it averages."""
    return [part for each in task.metadata.tasks for part in parts(each)] if task.is_aggregate else [task]


def fingerprint(task: Any) -> dict[str, Any]:
    """What a task's scores depend on, beside the model and the seed: its data, and how mteb scores it."""
    metadata = task.metadata
    protocol = {name: getattr(task, name) for name in _PROTOCOL if hasattr(task, name)}
    return {
        "name": metadata.name,
        "type": metadata.type,
        "data": [part.metadata.dataset["revision"] for part in parts(task)],
        "splits": list(task.eval_splits),
        "subsets": sorted(task.hf_subsets),
        "main": metadata.main_score,
        "protocol": {name: list(value) if isinstance(value, tuple) else value for name, value in protocol.items()},
    }


# What a kind of task lets a subclass set, and its scores depend on.
_PROTOCOL = (
    "samples_per_label",
    "n_experiments",
    "train_split",
    "is_cross_validation",
    "n_splits",
    "max_fraction_of_documents_to_embed",
    "max_document_to_embed",
    "max_documents_per_cluster",
    "n_clusters",
    "k_mean_batch_size",
    "max_depth",
    "ignore_identical_ids",
    "skip_first_result",
    "k_values",
    "min_score",
    "max_score",
)


def _chosen(word: Any, seed: int) -> list[Chosen]:
    if not isinstance(word, str):
        if not hasattr(word, "metadata"):
            raise ValueError(f"tasks: {word!r} is neither a name nor one of mteb's tasks.")
        return [Chosen(word)]
    if is_local(word):
        from .local import read_local

        return [Chosen(task) for task in read_local(word, seed=seed)]
    named = {suite.name.lower(): suite for suite in suites().values()}
    if suite := named.get(word.lower()):
        return [Chosen(suite.task(name), suite.prompts) for name in suite.names]
    mteb = mteb_module()
    try:
        return [Chosen(mteb.get_task(word))]
    except KeyError:
        pass
    try:
        return [Chosen(task) for task in mteb.get_benchmark(word).tasks]
    except (KeyError, ValueError):
        names = [*suites(), *(task.metadata.name for task in mteb.get_tasks(exclude_superseded=False))]
        near = difflib.get_close_matches(word, names, n=3)
        raise ValueError(
            f"tasks: {word!r} is neither a suite {list(suites())} nor a task of mteb"
            + (f"; like it are {near}" if near else "")
            + ". Data of your own: KIND=PATH, as STS=pairs.tsv."
        ) from None


def _check(task: Any) -> None:
    """Refuse what texts cannot be scored on, and what cannot be told apart from other data when a run goes on."""
    for part in parts(task):
        if list(part.metadata.modalities) != ["text"]:
            raise ValueError(f"tasks: {part.metadata.name!r} is of {part.metadata.modalities}, not of text alone.")
        revision = part.metadata.dataset.get("revision")
        if not revision or revision in ("NA", "N/A"):
            raise ValueError(
                f"tasks: {part.metadata.name!r} has revision={revision!r}, so that its results could be taken for "
                "those of other data. Set metadata.dataset['revision'] to a hash of the data."
            )
