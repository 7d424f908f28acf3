"""Evaluation: methods compared on labelled tables, models scored on tasks, a base tuned to texts.

>>> from st_reba.evaluation import compare, evaluate
"""

from .run import compare, curve, evaluate
from .tasks import Task, read_task

__all__ = ["Task", "compare", "curve", "evaluate", "read_task"]
