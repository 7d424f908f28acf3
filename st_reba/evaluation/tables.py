"""Labelled tables: which column holds what, and the values of its cells."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import pandas as pd

from ..corpus.records import preview
from ..corpus.tables import frame_of_rows, is_dataset, read_table, table_rows
from ..corpus.text_files import check_encoding

# A path; or a table of pandas, datasets, polars or Arrow, or a list of dicts.
Location: TypeAlias = Any
CellReader = Callable[[Any], Any]
# The number of a table's row, from 1, and its cells.
NumberedRow: TypeAlias = tuple[int, tuple[Any, ...]]
# The reader for each column, by role. Texts come first; a label or a score, if there is one, comes last.
ColumnReaders = Mapping[str, CellReader]

# Usual names of the columns of a role; the first name that a table has counts. Kinds add theirs.
COLUMNS: dict[str, tuple[str, ...]] = {
    "text1": ("text1", "sentence1", "sentence_1", "sent1", "s1", "premise"),
    "text2": ("text2", "sentence2", "sentence_2", "sent2", "s2", "hypothesis"),
    "score": ("score", "similarity", "similarity_score", "gold"),
    "text": ("text", "sentence", "review", "content", "title", "body"),
    "label": ("label", "labels", "class", "category"),
    "query": ("query", "question"),
    "document": ("document", "passage", "title", "text", "answer"),
    "relevance": ("relevance", "grade", "score", "label"),
    "positive": ("positive", "pos"),
    "negative": ("negative", "neg"),
}
# Sums and squares of larger scores overflow.
LARGEST_NUMBER = 1e30
_TRUTH_VALUES = {"1": 1, "1.0": 1, "true": 1, "0": 0, "0.0": 0, "false": 0}


class HeaderlessFormat(NamedTuple):
    """A file of pairs without a header or quotes: its separator, and the fields of a row."""

    separator: str
    field_count: int
    score_field: int
    text_fields: tuple[int, int]
    may_have_more: bool = False

    def matches(self, line: str) -> bool:
        """The line has these fields, with a number for a score."""
        fields = line.split(self.separator)
        if len(fields) < self.field_count:
            return False
        if len(fields) > self.field_count and not self.may_have_more:
            return False
        return is_number(fields[self.score_field])


HEADERLESS_FORMATS = (
    HeaderlessFormat("||", 4, score_field=3, text_fields=(1, 2)),  # STS-B-zh
    HeaderlessFormat(
        "\t",
        7,
        score_field=4,
        text_fields=(5, 6),
        may_have_more=True,
    ),  # STSBenchmark
    HeaderlessFormat("\t", 3, score_field=0, text_fields=(1, 2)),  # SemEval
)


class NoNumberError(ValueError):
    """A cell of a score or a grade that is no number."""


class LabelledRows(NamedTuple):
    """Values of the rows, and how many rows were dropped, by reason."""

    rows: list[tuple[Any, ...]]
    dropped_counts: dict[str, int]


@dataclass(frozen=True, eq=False)
class LabelledTable:
    """A table of labelled items.

    Args:
        frame: The table.
        name: Its name in errors.
        chosen_columns: The columns, by role, whose names are not the usual ones.
        labels: Value of each label; rows with other labels are dropped. None: labels are values.

    Raises:
        ValueError: There are no rows, two columns have one name, or a chosen column is missing.
    """

    frame: pd.DataFrame
    name: str
    chosen_columns: Mapping[str, str]
    labels: Mapping[Any, Any] | None

    def __post_init__(self) -> None:
        if self.frame.empty:
            raise ValueError(
                f"{self.name}: there are no rows. Give some, below the names of the columns."
            )
        if len(set(self.column_names)) < len(self.column_names):
            shown_names = ", ".join(map(repr, self.column_names[:20]))
            raise ValueError(
                f"{self.name}: two columns have one name; there: {shown_names}. Rename one."
            )
        for role, column_name in self.chosen_columns.items():
            if role not in COLUMNS:
                roles = ", ".join(COLUMNS)
                raise ValueError(
                    f"columns (--column): {role!r} is not a role. The roles are {roles}."
                )
            if column_name not in self.column_names:
                names = ", ".join(self.column_names[:20])
                raise ValueError(
                    f"columns (--column): there is no {column_name!r} in {self.name}, but {names}."
                )

    @cached_property
    def column_names(self) -> list[str]:
        """Names of all columns."""
        return list(map(str, self.frame.columns))

    def find_columns(
        self,
        roles: Iterable[str],
        *,
        may_score_by_label: bool = False,
    ) -> list[str]:
        """The column of each role; empty if one of them has no column of its own.

        Args:
            roles: Keys of ``COLUMNS``.
            may_score_by_label: Where there is no score, take a label.
        """
        columns: list[str] = []
        for role in roles:
            column_name = self._find_column(role)
            if column_name is None and role == "score" and may_score_by_label:
                column_name = self._find_column("label")
            if column_name is None or column_name in columns:
                return []
            columns.append(column_name)
        return columns

    def read_rows(self, readers: ColumnReaders) -> LabelledRows:
        """Read the columns of a kind that was chosen.

        Raises:
            ValueError: A column is missing, or a cell cannot be read.
        """
        columns = self._require_columns(readers)
        numbered_rows: list[NumberedRow] = list(
            enumerate(self.frame[columns].itertuples(index=False, name=None), 1)
        )
        dropped_counts: dict[str, int] = {}
        if self.labels is not None:
            if list(readers.values())[-1] is read_text:
                raise ValueError(
                    f"{self.name}: labels=… belongs to kinds with a label; this one has none."
                )
            labelled_rows = self._replace_labels(numbered_rows, self.labels)
            if len(labelled_rows) < len(numbered_rows):
                dropped_counts["its label"] = len(numbered_rows) - len(labelled_rows)
            numbered_rows = labelled_rows
        cell_readers = list(zip(readers, columns, readers.values(), strict=True))
        value_rows = [self._read_cells(row, cell_readers) for row in numbered_rows]
        return LabelledRows(value_rows, dropped_counts)

    def _require_columns(self, readers: ColumnReaders) -> list[str]:
        """The column of each role, where a score may be a label; a ValueError if one is missing."""
        columns = self.find_columns(readers, may_score_by_label=True)
        if columns:
            return columns
        names = ", ".join(self.column_names[:20])
        first_role = next(iter(readers))
        example = f"columns={{{first_role!r}: …}} (--column {first_role}=…)"
        raise ValueError(
            f"{self.name}: the columns {names} are not {', '.join(readers)}: name them, {example}, "
            "or another kind of task, kind=… (--kind)."
        )

    def _read_cells(
        self, numbered_row: NumberedRow, cell_readers: Sequence[tuple[str, str, CellReader]]
    ) -> tuple[Any, ...]:
        """The values of a row, whose columns are named with their roles and readers."""
        row_number, cells = numbered_row
        values: list[Any] = []
        for (role, column_name, read_cell), cell in zip(cell_readers, cells, strict=True):
            try:
                values.append(read_cell(cell))
            except ValueError as error:
                remedy = ""
                if isinstance(error, NoNumberError):
                    remedy = f" {_remedy_for_classes(role, column_name)}"
                raise ValueError(
                    f"{self.name}, row {row_number}, column {column_name!r}: {error}{remedy}"
                ) from None
        return tuple(values)

    def _replace_labels(
        self, numbered_rows: Sequence[NumberedRow], values: Mapping[Any, Any]
    ) -> list[NumberedRow]:
        """The rows whose label, which stands last, has a value, with that value in its place."""
        value_of_label = {label_text(label): value for label, value in values.items()}
        labelled_rows: list[NumberedRow] = []
        unknown_labels: dict[str, None] = {}
        for row_number, (*texts, cell) in numbered_rows:
            label = label_text(cell)
            if label in value_of_label:
                labelled_rows.append((row_number, (*texts, value_of_label[label])))
            else:
                unknown_labels[label] = None
        if unknown_labels and not labelled_rows:
            raise ValueError(
                f"{self.name}: labels=… names {', '.join(value_of_label)}, but the labels are "
                f"{', '.join(list(unknown_labels)[:10])}. Give some of these (--label)."
            )
        return labelled_rows

    def _find_column(self, role: str) -> str | None:
        if role in self.chosen_columns:
            return self.chosen_columns[role]
        for name in COLUMNS[role]:
            if name in self.column_names:
                return name
        return None


def read_frame(
    location: Location,
    encoding: str | None = None,
    name: str = "the table",
) -> pd.DataFrame:
    """Read a table, whose names of columns are strings; known file formats without a header get such names."""
    if not isinstance(location, (str, os.PathLike)):
        return _frame_in_memory(location, name)
    check_encoding(encoding)
    file_path = Path(location)
    if file_path.is_dir() and not is_dataset(file_path):
        raise ValueError(
            f"{file_path} is a folder, but not saved by the datasets library; a ranking may also be in BEIR's layout "
            "(corpus.jsonl, queries.jsonl, qrels/*.tsv). Give a file."
        )
    # Only regular files: to read a pipe may never end.
    if file_path.suffix in (".tsv", ".csv", ".txt") and file_path.is_file():
        try:
            file_lines = file_path.read_text(encoding=encoding or "utf-8-sig").split("\n")
        except UnicodeDecodeError:
            return read_table(file_path, encoding)
        for file_format in HEADERLESS_FORMATS:
            if file_format.matches(file_lines[0]):
                return _read_headerless(file_path, file_lines, file_format)
    return read_table(file_path, encoding)


def _frame_in_memory(table: Any, name: str) -> pd.DataFrame:
    """A table that is no file; a ValueError, which begins with a name, if it is no table either."""
    if isinstance(table, pd.DataFrame):
        return table.set_axis(list(map(str, table.columns)), axis="columns")
    if isinstance(table, list) and all(isinstance(row, Mapping) for row in table):
        return _frame_in_memory(pd.DataFrame(table), name)
    rows = table_rows(table)
    if rows is None:
        raise ValueError(
            f"{name}: {preview(repr(table))} ({type(table).__name__}) is no table. "
            "Give a file, a DataFrame or a list of dicts."
        )
    return frame_of_rows(rows)


def _read_headerless(
    file_path: Path,
    file_lines: Sequence[str],
    file_format: HeaderlessFormat,
) -> pd.DataFrame:
    first, second = file_format.text_fields
    value_rows: list[tuple[str, str, str]] = []
    for line_number, line in enumerate(file_lines, 1):
        if not line:
            continue
        fields = line.split(file_format.separator)
        if len(fields) < file_format.field_count:
            needed = (
                f"{file_format.field_count} fields between {file_format.separator!r} are needed"
            )
            raise ValueError(f"{file_path}, line {line_number}: {needed}.")
        value_rows.append((fields[file_format.score_field], fields[first], fields[second]))
    return pd.DataFrame(value_rows, columns=["score", "text1", "text2"])


def is_number(cell: Any) -> bool:
    """Whether a cell holds a score: finite, and at most 1e30 either way."""
    try:
        return abs(float(cell)) <= LARGEST_NUMBER
    except (TypeError, ValueError, OverflowError):
        return False


def read_text(cell: object) -> str:
    """A text that is not empty."""
    if not isinstance(cell, str) or not cell.strip():
        raise ValueError(f"{cell!r:.60} is not a text.")
    return cell


def read_label(cell: object) -> str:
    """The name of a class."""
    if cell is None or cell != cell or not str(cell).strip():
        raise ValueError("the label or score is missing.")
    return label_text(cell)


def label_text(cell: object) -> str:
    """A label as a string; whole numbers without a point, as pandas makes 1.0 of 1 where other cells are empty."""
    if isinstance(cell, (float, np.floating)) and cell.is_integer():
        return str(int(cell))
    return str(cell)


def read_score(cell: Any) -> float:
    """A score or grade."""
    read_label(cell)  # refuses a missing one
    if is_number(cell):
        return float(cell)
    raise NoNumberError(f"{cell!r:.60} is not a number up to {LARGEST_NUMBER:.0e}.")


def _remedy_for_classes(role: str, column_name: str) -> str:
    """What to give where words stand in the column of a role that needs numbers."""
    if role != "score":
        return "Give numbers, or say what each word stands for: labels=… (--label)."
    options = ["kind='PairClassification' (--kind)", "labels=… (--label)"]
    if column_name not in COLUMNS["label"]:
        options.append(f"columns={{'label': {column_name!r}}} (--column label={column_name})")
    return f"If these are classes: {', '.join(options)}."


def read_truth(cell: object) -> int:
    """1 or 0."""
    label = read_label(cell).lower()
    if label not in _TRUTH_VALUES:
        example = f"labels={{{cell!r}: 1, …}} (--label {cell}=1)"
        raise ValueError(
            f"the label {cell!r:.60} is not 0 or 1: say what it stands for, {example}."
        )
    return _TRUTH_VALUES[label]
