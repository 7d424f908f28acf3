"""Score models on labelled files, and find NoSink's k and k0. Needs the extra ``evaluation``."""

from __future__ import annotations

from .reading import read_task
from .report import Report
from .tasks import ClassTask, PairTask, Scores, TagTask, Task
from .trials import Trial
from .tune import tune

__all__ = ["ClassTask", "PairTask", "Report", "Scores", "TagTask", "Task", "Trial", "read_task", "tune"]
