"""mteb's tasks, its runner and its metrics, for a base model's methods. Needs the extra ``mteb``."""

from __future__ import annotations

from .prompts import Prompts, read_prompts
from .run import TasksFailed, evaluate_mteb
from .suites import Suite, read_tasks, suites

__all__ = ["Prompts", "Suite", "TasksFailed", "evaluate_mteb", "read_prompts", "read_tasks", "suites"]
