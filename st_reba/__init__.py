"""st_reba: any decoder-only language model as a text embedder, without training.

>>> import st_reba
>>> model = st_reba.build("mini", "reba", repeats=2)
>>> model.encode(["你好，世界", "Hello, world"]).shape
(2, 192)
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

# Imported eagerly: otherwise `st_reba.build` would be the submodule.
from .build import build as build
from .modules import MODULES
from .modules import registration as registration
from .modules.version import __version__ as __version__
from .recipe import zoo as zoo

if TYPE_CHECKING:
    from .evaluation.tune import tune as tune
    from .filters import fit_filter as fit_filter
    from .index import Index as Index
    from .linear_filter import Filter as Filter
    from .methods import Method as Method
    from .methods import method_of as method_of
    from .modules import *  # noqa: F403
    from .safety import load as load
    from .words import encode_tokens as encode_tokens
    from .words import encode_words as encode_words

# The modules of the public names, imported on first use, so that importing the package takes no
# time.
_MODULES = {
    **dict.fromkeys(MODULES, "modules"),
    "Filter": "linear_filter",
    "Index": "index",
    "Method": "methods",
    "encode_tokens": "words",
    "encode_words": "words",
    "fit_filter": "filters",
    "load": "safety",
    "method_of": "methods",
    "tune": "evaluation.tune",
}

__all__ = sorted([*_MODULES, "build", "zoo"])


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(import_module(f".{_MODULES[name]}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
