"""The command line. Each command is one function, which calls one function of the package."""

from __future__ import annotations

from .app import app, main

__all__ = ["app", "main"]
