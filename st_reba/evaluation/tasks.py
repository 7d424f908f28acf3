"""Labelled tasks, read from tables, folders and files of tagged words."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from typing import Any

from .tables import Location
from .task import KINDS, Task, TaskKind, find_kind
from .task_source import TaskSource

logger = logging.getLogger(__name__)


def read_task(
    source: Task | Location,
    kind: str | None = None,
    *,
    name: str | None = None,
    train: Location | None = None,
    columns: Mapping[str, str] | None = None,
    labels: Mapping[Any, Any] | None = None,
    limit: int | None = None,
    seed: int = 0,
    encoding: str | None = None,
) -> Task:
    """Read a labelled task; docs/how-to/evaluate.md lists the kinds, their columns and scores.

    A warning counts the rows that could not be used.

    Args:
        source: A table of pandas, datasets, polars or Arrow, or a list of dicts; a file or folder
            of named columns that :func:`st_reba.corpus.tables.read_table` reads; STSBenchmark's and
            SemEval's tab-separated files without a header; ``id||text1||text2||score`` lines; a
            BEIR folder; CoNLL lines (kind NER). A path may have its kind before it, such as
            ``STS=pairs.tsv``.
        kind: Name of a kind of ``KINDS``; None: the first by ``detection_order`` whose
            columns are there.
        name: None: the file's name.
        train: Source of the items that a classifier learns from, read in the same way.
        columns: The column of a role, such as ``{"text1": "a"}``, if its name is not one of the
            usual ones. Names that are numbers count as strings.
        labels: Value of each label, such as ``{"entailment": 1, "contradiction": 0}``; other rows
            are dropped.
        limit: Number of items to draw; of a ranking, of queries.
        seed: Seed of that draw.
        encoding: Of a table that is a text file, such as ``"gb18030"``; None: UTF-8.

    Raises:
        ValueError: An argument of another type, or columns or values that the kind cannot use.

    Example:
        >>> import pandas as pd
        >>> pairs = pd.DataFrame({"text1": list("abcdefghijk"), "text2": list("kjihgfedcba"), "score": range(11)})
        >>> print(read_task(pairs, name="letters"))
        letters: STS, 11 items
    """
    if isinstance(source, Task):
        return source
    named_kind, source = split_kind(source)
    task_source = TaskSource(
        location=source,
        kind=named_kind or kind,
        name=name,
        train=train,
        columns=columns,
        labels=labels,
        limit=limit,
        seed=seed,
        encoding=encoding,
    )
    task = kind_of_source(task_source).read(task_source)
    if task.dropped:
        logger.warning("%s", task)
    return task


def split_kind(source: Location) -> tuple[str | None, Location]:
    """The kind named before a path, and the path; if none is, None and the source.

    Example:
        >>> split_kind("STS=pairs.tsv"), split_kind("a=b.tsv")
        (('STS', 'pairs.tsv'), (None, 'a=b.tsv'))
    """
    if isinstance(source, (str, os.PathLike)):
        kind_name, _, path = os.fspath(source).partition("=")
        if path and kind_name.casefold() in map(str.casefold, KINDS):
            return kind_name, path
    return None, source


def kind_of_source(source: TaskSource) -> TaskKind:
    """The kind that a source names or matches; if none, STS, whose error lists the columns."""
    if source.kind is not None:
        return find_kind(source.kind)
    for kind in sorted(KINDS.values(), key=lambda kind: kind.detection_order):
        if kind.matches(source):
            return kind
    return KINDS["STS"]
