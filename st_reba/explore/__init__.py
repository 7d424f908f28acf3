"""A page in the browser that compares methods, looks inside a text, and searches. Needs the extra ``explore``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .space import write_space

if TYPE_CHECKING:
    from .serve import launch as launch

__all__ = ["launch", "write_space"]


def __getattr__(name: str) -> Any:
    # A mistake in the names of models must not wait for the libraries that run them.
    if name == "launch":
        from .serve import launch

        return launch
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
