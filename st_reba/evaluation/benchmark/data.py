"""A task's data while it is scored: loaded, drawn from alike for every method, and let go."""

from __future__ import annotations

import copy
import random
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import numpy as np

from .package import mteb_module
from .suites import parts


class NoData(ValueError):
    """A task's data cannot be loaded."""


@contextmanager
def loaded(task: Any, seed: int) -> Iterator[None]:
    """A task with its data; what was not in memory before is not afterwards.

    Args:
        task: mteb's task.
        seed: Of what is drawn from the data as they are loaded.

    Raises:
        NoData: The data cannot be loaded, as when there is no network.
    """
    before = task.data_loaded
    # mteb's removal of the data also takes the metadata of a task that is not one of its own.
    metadata = vars(task).get("metadata")
    if not before and not task.is_aggregate:
        draw_anew(task, seed)
        try:
            task.load_data()
        except Exception as error:
            raise NoData(
                f"its data ({task.metadata.dataset['path']}) cannot be loaded: {one_line(error)}. Data of mteb is "
                "downloaded once, and read from its cache from then on"
            ) from error
    try:
        with _plain_columns(task):
            yield
    finally:
        if task.data_loaded and not before:
            task.unload_data()
            if metadata is not None:
                task.metadata = metadata


def draw_anew(task: Any, seed: int) -> None:
    """Put a task's generators to their start: a method's draws must not depend on the methods before it."""
    for each in {id(each): each for each in (task, *parts(task))}.values():
        each.seed = seed
        each.rng_state = random.Random(seed)
        each.np_rng = np.random.default_rng(seed)
    random.seed(seed)
    np.random.seed(seed % 2**32)


@contextmanager
def quiet() -> Iterator[None]:
    """Without a bar for each step of preparing data."""
    bars = mteb_module("datasets.utils.logging")
    shown = bars.is_progress_bar_enabled()
    bars.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            bars.enable_progress_bar()


def one_line(error: BaseException) -> str:
    """An error's message, its lines joined."""
    return " ".join(str(error).split())[:500] or type(error).__name__


@contextmanager
def _plain_columns(task: Any) -> Iterator[None]:
    """Give a classification its labels as lists, for as long as it is scored.

    mteb hands a column of ``datasets`` to each of scikit-learn's metrics, in each of ten experiments. It is read from
    Arrow anew, row by row, hundreds of times: for a small model that takes longer than to encode the texts.
    """
    put_back = []
    if hasattr(task, "n_experiments") and isinstance(task.dataset, dict):
        for splits in (task.dataset, *(value for value in task.dataset.values() if isinstance(value, dict))):
            for name, data in splits.items():
                if type(data) is _datasets().Dataset:
                    put_back.append((splits, name, data))
        for splits, name, data in put_back:
            splits[name] = copy.copy(data)
            splits[name].__class__ = _with_plain_columns()
    try:
        yield
    finally:
        for splits, name, data in put_back:
            splits[name] = data


def _datasets() -> Any:
    return mteb_module("datasets")


@cache
def _with_plain_columns() -> Any:
    dataset: Any = _datasets().Dataset

    class PlainColumns(dataset):  # type: ignore[misc]
        """A data set whose columns are lists."""

        def __getitem__(self, key: Any) -> Any:
            found = super().__getitem__(key)
            return found[:] if isinstance(key, str) else found

    return PlainColumns
