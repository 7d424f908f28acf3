"""Modules that only evaluation needs, imported on first use."""

from __future__ import annotations

from importlib import import_module
from typing import Any


def required(module: str) -> Any:
    """Import a module that the extra ``evaluation`` installs.

    Args:
        module: Its full name, as ``"matplotlib.figure"``.

    Raises:
        ImportError: It is not installed, or does not load; the message has the remedy.

    Example:
        >>> required("scipy.stats").rankdata([30, 10, 20]).tolist()
        [3.0, 1.0, 2.0]
    """
    try:
        return import_module(module)
    except ImportError as error:
        raise ImportError(
            f"evaluation needs {module.partition('.')[0]}, which could not be imported ({error}). "
            "Run: pip install 'st-reba[evaluation]'"
        ) from error
