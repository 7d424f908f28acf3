"""A labelled task, and what a kind of task declares."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from .statistics import Evidence as Evidence
from .tables import COLUMNS, ColumnReaders, read_text
from .task_source import TaskSource
from .vectors import Vectors as Vectors

Metric = Callable[[Evidence], float]
TextSpan = tuple[str, tuple[int, int]]
"""A text, and the characters (start, end) of a word in it."""
Text = TypeVar("Text", str, TextSpan)


@dataclass(frozen=True)
class Task:
    """Labelled items over a list of texts.

    Args:
        name: Its name in tables.
        kind: Name of a :class:`TaskKind`.
        texts: Each once; the queries of a ranking come first. Vectors have one row per text.
        items: The scored items: indices of texts first, then labels: a score, a class, (documents,
            grades), …
        train: Items that a classifier learns from, over the same texts; empty: the items are scored
            in five folds.
        query_count: How many of the texts are queries.
        spans: For words: the characters (start, end) of each text that its vector stands for;
            empty: whole texts.
        groups: One group per item; items of one group are similar, and are drawn together in a
            bootstrap.
        dropped: Rows that could not be used, counted by reason.

    Raises:
        ValueError: Too few items, or labels that nothing can be learned from.
    """

    name: str
    kind: str
    texts: tuple[str, ...]
    items: tuple[tuple[Any, ...], ...]
    train: tuple[tuple[Any, ...], ...] = ()
    query_count: int = 0
    spans: tuple[tuple[int, int], ...] = ()
    groups: tuple[str, ...] = ()
    dropped: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.task_kind.check(self)

    @property
    def task_kind(self) -> TaskKind:
        """The declaration of its kind."""
        return find_kind(self.kind)

    def __str__(self) -> str:
        description = f"{self.name}: {self.kind}, {len(self.items)} items"
        if self.train:
            description += f", {len(self.train)} to learn from"
        for reason, count in self.dropped.items():
            description += f", {count} dropped ({reason})"
        return description


class TextIndex(Generic[Text]):
    """Texts, each once, in the order in which they were added."""

    def __init__(self) -> None:
        self._indices: dict[Text, int] = {}

    def add(self, text: Text) -> int:
        """Index of a text."""
        return self._indices.setdefault(text, len(self._indices))

    @property
    def texts(self) -> tuple[Text, ...]:
        """All texts."""
        return tuple(self._indices)


class TaskKind(ABC):
    """A kind of task: how its items are read, and how vectors are scored on them.

    A subclass sets these attributes, and overrides what is different; :func:`declare_kind` makes it
    known.

    Args:
        name: Its name.
        column_readers: The reader of each column of its tables, by role: texts by ``read_text``,
            and last a label, if its items have one.
        column_names: Usual names of each role's column. A role that is neither in this nor in
            ``tables.COLUMNS`` is itself the name of its column.
        detection_order: If a table has the columns of several kinds, the one with the lowest number
            is chosen; any other must be named by ``kind=``. The package's kinds have 10 to 90.
        metrics: Scores by name, each computed from all items' evidence; more is better.
        main_metric: The metric that tables show.
        paper_metric: The one that the papers show, if it is another one.
        is_recentred: As for :func:`~st_reba.evaluation.statistics.paired_bootstrap`.
        min_items: The fewest items that a task may have.
        takes_train, needs_train: Whether it may or must have items that a classifier learns from.
        needs_values: Its labels have to differ, and those of ``train`` to be among them.
        chooses_methods: ``tune`` can choose by its labels: :meth:`score_items` suits it, and an
            item consists of indices of texts and, last, its label.
        item_name: Name of its items in the reports of ``tune``.
    """

    name: str
    column_readers: ColumnReaders = {}
    column_names: Mapping[str, tuple[str, ...]] = {}
    detection_order = 100
    metrics: Mapping[str, Metric]
    main_metric: str
    paper_metric: str | None = None
    is_recentred = False
    min_items = 10
    takes_train = False
    needs_train = False
    needs_values = False
    chooses_methods = False
    item_name = "labelled pairs"

    def matches(self, task_source: TaskSource) -> bool:
        """Whether a source that names no kind is of this kind."""
        if task_source.is_conll or task_source.is_beir:
            return False
        return bool(task_source.table.find_columns(self.column_readers))

    def read(self, task_source: TaskSource) -> Task:
        """Read the items.

        Raises:
            ValueError: Columns or values that the kind cannot use.
        """
        table_rows, dropped = task_source.table.read_rows(self.column_readers)
        train_rows: list[tuple[Any, ...]] = []
        if task_source.train_table is not None:
            train_rows = task_source.train_table.read_rows(self.column_readers).rows
        texts: TextIndex[str] = TextIndex()
        task_items = self._index_rows(task_source.subsample(table_rows), texts)
        train = self._index_rows(train_rows, texts)
        return Task(
            task_source.task_name,
            self.name,
            texts.texts,
            task_items,
            train,
            dropped=dropped,
        )

    def _index_rows(
        self,
        table_rows: Iterable[tuple[Any, ...]],
        texts: TextIndex[str],
    ) -> tuple[tuple[Any, ...], ...]:
        """Rows with their texts replaced by indices."""
        task_items: list[tuple[Any, ...]] = []
        for row in table_rows:
            item: list[Any] = []
            for read_cell, value in zip(self.column_readers.values(), row, strict=True):
                if read_cell is read_text:
                    value = texts.add(value)
                item.append(value)
            task_items.append(tuple(item))
        return tuple(task_items)

    def check(self, task: Task) -> None:
        """Refuse a task that cannot be scored."""
        if len(task.items) < self.min_items:
            raise ValueError(f"{task}; {self.min_items} are needed.")
        if self.needs_train and not task.train:
            raise ValueError(f"{task.name}: {self.name} needs train=… (--train FILE).")
        if task.train and not self.takes_train:
            raise ValueError(f"{task.name}: {self.name} takes no train=… (--train FILE).")
        if self.needs_values:
            values = {item[-1] for item in task.items}
            train_values = {item[-1] for item in task.train}
            if len(values) < 2:
                raise ValueError(
                    f"{task.name}: all {len(task.items)} items have the value {values.pop()!r}."
                )
            if train_values and not values <= train_values:
                unknown_label = min(values - train_values)
                raise ValueError(f"{task.name}: no text of train has the label {unknown_label!r}.")

    def list_words(self, task: Task) -> list[TextSpan]:
        """The words that its vectors stand for; empty: they stand for whole texts."""
        return list(zip(task.texts, task.spans, strict=False))

    @abstractmethod
    def evidence(self, task: Task, vectors: Vectors) -> Evidence:
        """What the metrics are computed from, [items, numbers].

        Args:
            task: A task of this kind.
            vectors: [N, d], of its texts or of its words: as the model gives them, so of any
                length, but all numbers are finite, and no vector is zero.
        """

    def score_items(self, task: Task, unit_vectors: Tensor) -> Tensor:
        """Score every item by itself, [items] float32; the mean is the task's score.

        The first number of an item's evidence, unless a kind overrides this.

        Args:
            task: A task of this kind.
            unit_vectors: [N, d] of length 1, of its texts.

        Raises:
            ValueError: ``tune`` does not choose by labels of this kind.
        """
        if not self.chooses_methods:
            raise ValueError(f"{task}: its items have no scores of their own.")
        evidence = self.evidence(task, unit_vectors.cpu().numpy())
        return torch.from_numpy(evidence[:, 0]).to(unit_vectors)


KINDS: dict[str, TaskKind] = {}


def declare_kind(kind: TaskKind) -> None:
    """Make a kind of task known; declaring it again, as a notebook cell does, replaces the old one.

    Raises:
        ValueError: There is another kind with this name, or other columns for one of its roles.
    """
    known_kind = KINDS.get(kind.name)
    if known_kind is not None and _place_of(known_kind) != _place_of(kind):
        raise ValueError(f"kind={kind.name!r} is there already. Choose another name.")
    for role, names in kind.column_names.items():
        if known_kind is None and COLUMNS.get(role, names) != names:
            raise ValueError(
                f"kind={kind.name!r}: the role {role!r} has the columns {', '.join(COLUMNS[role])} already. "
                "Choose another name for the role."
            )
    KINDS[kind.name] = kind
    COLUMNS.update(kind.column_names)
    for role in kind.column_readers:
        COLUMNS.setdefault(role, (role,))


def _place_of(kind: TaskKind) -> tuple[str, str]:
    """The module and the name of its class."""
    return type(kind).__module__, type(kind).__qualname__


def find_kind(name: str) -> TaskKind:
    """The kind with a name, in upper or lower case.

    Raises:
        ValueError: The name is not known.
    """
    for kind in KINDS.values():
        if kind.name.casefold() == name.casefold():
            return kind
    raise ValueError(f"kind={name!r} is not known. Choose from {', '.join(KINDS)}.")
