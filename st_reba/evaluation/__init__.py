"""Measure methods on tasks, compare what was found, find NoSink's k, or compose the stages of all methods.

Needs the extra ``evaluation``, or ``mteb``.
"""

from __future__ import annotations

from .composing.compose import compose
from .composing.reading import Parted, read_parts
from .composing.report import ComposedReport
from .composing.space import Space
from .composing.spacefile import read_space
from .composing.trial import Filter
from .reading import read_task
from .tasks import ClassTask, PairTask, Scores, TagTask, Task
from .tuning.report import Report
from .tuning.trials import Trial
from .tuning.tune import tune

__all__ = [
    "ClassTask",
    "ComposedReport",
    "Filter",
    "PairTask",
    "Parted",
    "Report",
    "Scores",
    "Space",
    "TagTask",
    "Task",
    "Trial",
    "compose",
    "read_parts",
    "read_space",
    "read_task",
    "tune",
]
