"""A page in the browser that compares methods, looks inside a text, and searches. Needs the extra ``explore``."""

from __future__ import annotations

from .serve import launch
from .space import write_space

__all__ = ["launch", "write_space"]
