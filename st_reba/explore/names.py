"""What the page is opened with, checked before a library or a model is loaded."""

from __future__ import annotations

import os
from collections.abc import Sequence
from importlib.util import find_spec

from ..embedded import EMBEDDED
from ..evaluation.methods import read_methods
from ..modules.options import unknown
from ..optional import missing

DEFAULT = ("mini classical:pooling=mean", "mini echo:pooling=mean", "mini reba:pooling=mean")
LANGUAGES = {"en": "English", "zh": "中文"}
MOST_MODELS = 6


def check_language(language: str | None) -> None:
    """Raise a ValueError for a language that the page does not speak."""
    if language is not None and language not in LANGUAGES:
        raise ValueError(unknown("language", language, list(LANGUAGES), language))


def check_installed() -> None:
    """Raise an ImportError where the page's packages are not installed."""
    for module in ("gradio", "uvicorn", "fastapi"):
        if find_spec(module) is None:
            raise missing(module, "explore")


def base_and_method(name: str) -> tuple[str, str]:
    """The parts of a name such as ``"mini echo:pooling=mean"``; the method is empty where there is none.

    Example:
        >>> base_and_method("mini echo:pooling=mean")
        ('mini', 'echo:pooling=mean')
    """
    if os.path.exists(name):
        return name, ""
    base, _, method = name.partition(" ")
    return base, method


def checked(names: Sequence[str]) -> list[str]:
    """The names with single spaces.

    Raises:
        ValueError: There is none or too many, one stands twice, or a method is not known: the nearest is told.
    """
    names = [" ".join(name.split()) for name in names]
    if not 1 <= len(names) <= MOST_MODELS:
        raise ValueError(f"MODEL: you named {len(names)} models, and the page shows 1 to {MOST_MODELS}.")
    if twice := [name for name in names if names.count(name) > 1]:
        raise ValueError(f"MODEL {twice[0]!r} is given twice. Give it once.")
    for _, method in map(base_and_method, names):
        if method:
            read_methods([method])
    return names


def on_this_machine(name: str) -> bool:
    """Whether a name is a folder or a file, and no model that comes with the package."""
    base, _ = base_and_method(name)
    return base not in EMBEDDED and os.path.exists(base)
