"""Evaluation: methods compared on labelled tables, models scored on tasks, a base tuned to texts.

>>> from st_reba.evaluation import compare, evaluate
"""

from . import kinds  # noqa: F401  # declares them
from .run import compare, curve, evaluate
from .task import Task
from .tasks import read_task

__all__ = ["Task", "compare", "curve", "evaluate", "read_task"]
