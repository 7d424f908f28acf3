"""The command line. Each command is one function, which calls one function of the package."""

from __future__ import annotations

from .app import app, main  # noqa: I001

# They enter their commands into ``app``, in the order of the help.
from . import models, vectors, evaluate, serve  # noqa: F401

__all__ = ["app", "main"]
