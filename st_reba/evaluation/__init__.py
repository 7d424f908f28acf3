"""Measure methods on labelled items or on mteb's tasks, compare them, and search for the best combination.

Needs the extra ``evaluation``; mteb's own tasks need ``mteb``.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

# Each name, and the module that has it: an import of one must not wait for all.
_MODULES = {
    "Base": "methods",
    "Limit": "methods",
    "Method": "methods",
    "Result": "results",
    "Results": "results",
    "Space": "space",
    "Task": "data",
    "compose": "search",
    "evaluate": "run",
    "make_report": "report",
    "make_task": "data",
    "read_methods": "methods",
    "read_task": "data",
    "read_tasks": "data",
}
__all__ = sorted(_MODULES)


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_MODULES[name]}", __name__), name)
