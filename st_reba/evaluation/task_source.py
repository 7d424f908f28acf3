"""What a labelled task is read from."""

from __future__ import annotations

import os
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from ..corpus.records import preview
from .beir import is_beir_folder
from .tables import LabelledTable, Location, read_frame

Row = TypeVar("Row")


@dataclass(frozen=True, eq=False)
class TaskSource:
    """The arguments of :func:`~st_reba.evaluation.read_task`, from which a kind reads its items."""

    location: Location
    kind: str | None = None
    name: str | None = None
    train: Location | None = None
    columns: Mapping[str, str] | None = None
    labels: Mapping[Any, Any] | None = None
    limit: int | None = None
    seed: int = 0
    encoding: str | None = None

    def __post_init__(self) -> None:
        if self.kind is not None and not isinstance(self.kind, str):
            raise ValueError(f"kind={preview(repr(self.kind))} must be a name, such as 'STS'.")
        check_limit(self.limit)
        examples = {"columns": {"text1": "question"}, "labels": {"entailment": 1}}
        for option, example in examples.items():
            value = getattr(self, option)
            if value is not None and not isinstance(value, Mapping):
                raise ValueError(
                    f"{option}={preview(repr(value))} must be a dict, such as {example}."
                )

    @property
    def path(self) -> Path | None:
        """The file or folder; None: a table in memory."""
        if isinstance(self.location, (str, os.PathLike)):
            return Path(self.location)
        return None

    @property
    def task_name(self) -> str:
        """The name that was given, or the file's."""
        if self.name:
            return self.name
        if self.path is None:
            return "table"
        if self.path.is_file():
            return self.path.name.partition(".")[0]
        return self.path.name

    @property
    def is_conll(self) -> bool:
        """A file of tagged words."""
        return self.path is not None and self.path.suffix == ".conll"

    @property
    def is_beir(self) -> bool:
        """A folder in BEIR's layout."""
        return self.path is not None and is_beir_folder(self.path)

    @cached_property
    def table(self) -> LabelledTable:
        """The table, read once.

        Raises:
            ValueError: It is not a table.
        """
        if self.is_conll or self.is_beir:
            raise ValueError(
                f"kind={self.kind!r} is read from a table, and {self.path} is none. Drop it."
            )
        return self._open_table(self.location, "the table")

    @cached_property
    def train_table(self) -> LabelledTable | None:
        """The table of items that a classifier learns from, if there is one."""
        if self.train is None:
            return None
        return self._open_table(self.train, "train")

    def _open_table(self, location: Location, name: str) -> LabelledTable:
        if isinstance(location, (str, os.PathLike)):
            name = str(location)
        columns = self.columns or {}
        return LabelledTable(
            read_frame(location, self.encoding, name),
            name,
            {role: str(column_name) for role, column_name in columns.items()},
            self.labels,
        )

    def refuse(self, reader: str, *options: str) -> None:
        """Refuse options that a reader does not take."""
        for option in options:
            value = getattr(self, option)
            if value is not None:
                raise ValueError(f"{option}={value!r:.60}: {reader} takes none. Drop it.")

    def subsample(self, table_rows: Sequence[Row]) -> list[Row]:
        """As many of the rows as the limit allows."""
        return subsample(table_rows, self.limit, self.seed)


def check_limit(limit: object) -> None:
    """Refuse a number of items that cannot be drawn."""
    if limit is None or (isinstance(limit, (int, np.integer)) and limit > 0):
        return
    raise ValueError(f"limit={preview(repr(limit))} must be a whole number of at least 1.")


def subsample(
    table_rows: Sequence[Row],
    limit: int | None,
    seed: int,
) -> list[Row]:
    """Draw rows, keeping their order; the draw depends only on the seed and the number of rows."""
    check_limit(limit)
    if limit is None or limit >= len(table_rows):
        return list(table_rows)
    row_indices = random.Random(seed).sample(range(len(table_rows)), limit)
    return [table_rows[index] for index in sorted(row_indices)]
