"""Curves: the same tasks and methods over token budgets, numbers of copies, or wordings of the template."""

from __future__ import annotations

from .run import sweep_prompts, sweep_repeats, sweep_tokens
from .templates import sample_templates

__all__ = ["sample_templates", "sweep_prompts", "sweep_repeats", "sweep_tokens"]
