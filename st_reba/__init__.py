"""st_reba: any decoder-only language model as a text embedder, without training.

>>> import st_reba
>>> model = st_reba.build("mini", method="reba", repeats=2)
>>> model.encode(["你好，世界", "Hello, world"]).shape
(2, 192)
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .build import METHODS, build
from .modules import (
    SETTINGS,
    ChunkedReBAPooling,
    DecoderTransformer,
    LayerPlan,
    NoSinkTransformer,
    ReBAPooling,
    RepeatTransformer,
    named_plan,
)
from .registration import register
from .version import __version__
from .words import encode_words

if TYPE_CHECKING:
    from . import index as index


__all__ = [
    "METHODS",
    "SETTINGS",
    "ChunkedReBAPooling",
    "DecoderTransformer",
    "LayerPlan",
    "NoSinkTransformer",
    "ReBAPooling",
    "RepeatTransformer",
    "__version__",
    "build",
    "encode_words",
    "index",
    "named_plan",
    "register",
]

# Published repositories name these classes by one dot, "st_reba.ReBAPooling"; ST writes a class's own module path,
# so that this is also what every later save writes.
_MODULES = (DecoderTransformer, RepeatTransformer, NoSinkTransformer, ReBAPooling, ChunkedReBAPooling)
for _module in _MODULES:
    _module.__module__ = __name__
register(*_MODULES)


def __getattr__(name: str) -> Any:
    if name == "index":
        # Imported on first use: it needs FAISS, which a model alone does not.
        return import_module(".index", __name__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
