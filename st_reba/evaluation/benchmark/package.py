"""mteb itself, imported on first use."""

from __future__ import annotations

from importlib import import_module
from typing import Any


def mteb_module(module: str = "mteb") -> Any:
    """Import mteb, or a module of it.

    Args:
        module: Its full name, as ``"mteb.models"``.

    Raises:
        ImportError: It is not installed, or does not load; the message has the remedy.
    """
    try:
        return import_module(module)
    except ImportError as error:
        raise ImportError(
            f"evaluate mteb needs mteb, which could not be imported ({error}). With Python 3.11 or newer, run: "
            "pip install 'st-reba[mteb]'"
        ) from error
