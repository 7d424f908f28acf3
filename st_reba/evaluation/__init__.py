"""Evaluation: methods compared on labelled tables, models scored on tasks, a base tuned to texts.

>>> from st_reba.evaluation import compare, evaluate
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .run import compare as compare
    from .run import curve as curve
    from .run import evaluate as evaluate
    from .tasks import Task as Task
    from .tasks import read_task as read_task

_NAMES = {"compare": "run", "curve": "run", "evaluate": "run", "Task": "tasks", "read_task": "tasks"}
__all__ = list(_NAMES)


def __getattr__(name: str) -> Any:
    if name not in _NAMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_NAMES[name]}", __name__), name)
