"""Modules that only an extra installs, imported on first use."""

from __future__ import annotations

from importlib import import_module
from typing import Any


def required(module: str, extra: str, need: str | None = None) -> Any:
    """Import a module that an extra of st_reba installs, or say how to install it; ``need`` begins the message."""
    try:
        return import_module(module)
    except ImportError as error:
        need = need or f"this needs {module.partition('.')[0]}"
        run = f"pip install 'st-reba[{extra}]' (in a checkout: '.[{extra}]')"
        raise ImportError(f"{need}, which could not be imported ({error}). Run: {run}") from error
