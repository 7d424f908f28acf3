"""Measure methods on tasks, compare what was found, find NoSink's k. Needs the extra ``evaluation``, or ``mteb``."""

from __future__ import annotations

from .reading import read_task
from .tasks import ClassTask, PairTask, Scores, TagTask, Task
from .tuning.report import Report
from .tuning.trials import Trial
from .tuning.tune import tune

__all__ = ["ClassTask", "PairTask", "Report", "Scores", "TagTask", "Task", "Trial", "read_task", "tune"]
