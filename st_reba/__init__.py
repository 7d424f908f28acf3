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
from .filtered import fit_postfilter
from .modules import (
    MODULES,
    SETTINGS,
    ChunkedReBAPooling,
    DecoderTransformer,
    LayerPlan,
    NoSinkTransformer,
    PromptEnsemble,
    ReBAPooling,
    RepeatTransformer,
    named_plan,
)
from .postfilter import PostFilter
from .registration import register
from .truncation import truncate_layers
from .version import __version__
from .words import encode_word_layers, encode_words

if TYPE_CHECKING:
    from . import index as index
    from . import zoo as zoo


__all__ = [
    "METHODS",
    "SETTINGS",
    "ChunkedReBAPooling",
    "DecoderTransformer",
    "LayerPlan",
    "NoSinkTransformer",
    "PostFilter",
    "PromptEnsemble",
    "ReBAPooling",
    "RepeatTransformer",
    "__version__",
    "build",
    "encode_word_layers",
    "encode_words",
    "fit_postfilter",
    "index",
    "named_plan",
    "register",
    "truncate_layers",
    "zoo",
]

register(*MODULES)


def __getattr__(name: str) -> Any:
    if name in ("index", "zoo"):
        # Imported on first use: they need FAISS and YAML, which a model alone does not.
        return import_module(f".{name}", __name__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
