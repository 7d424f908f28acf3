"""st_reba: any decoder-only language model as a text embedder, without training.

>>> import st_reba
>>> model = st_reba.build("mini", "reba", repeats=2)
>>> model.encode(["你好，世界", "Hello, world"]).shape
(2, 192)
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

# Now, as its file bears the same name, and would take its place.
from .build import build as build
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
    from .modules.authors import AuthorsReBAPooling as AuthorsReBAPooling
    from .modules.ensemble import PromptEnsemble as PromptEnsemble
    from .modules.nosink import NoSinkTransformer as NoSinkTransformer
    from .modules.pieces import ChunkedReBAPooling as ChunkedReBAPooling
    from .modules.pooling import ReBAPooling as ReBAPooling
    from .modules.shift import QueryShift as QueryShift
    from .modules.transformer import RepeatTransformer as RepeatTransformer
    from .safety import load as load
    from .words import encode_tokens as encode_tokens
    from .words import encode_words as encode_words

# Where the public names stand: imported on first use, so that importing the package takes no time.
_HOMES = {
    "methods": "Method method_of",
    "safety": "load",
    "words": "encode_words encode_tokens",
    "filters": "fit_filter",
    "linear_filter": "Filter",
    "index": "Index",
    "evaluation.tune": "tune",
    "modules": (
        "RepeatTransformer NoSinkTransformer ReBAPooling AuthorsReBAPooling ChunkedReBAPooling PromptEnsemble "
        "QueryShift"
    ),
}
_HOME = {name: home for home, names in _HOMES.items() for name in names.split()}

__all__ = sorted([*_HOME, "build", "zoo"])


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(import_module(f".{_HOME[name]}", __name__), name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
