"""The command line. Each command is one function, which calls one function of the package."""

from __future__ import annotations

from importlib import import_module

from .app import app, main

# They enter their commands into ``app``, in the order of the help.
for _commands in ("models", "vectors", "search", "evaluate", "serve"):
    import_module(f".{_commands}", __name__)

__all__ = ["app", "main"]
