"""st_reba: any decoder-only language model as a text embedder, without training.

>>> import st_reba
>>> model = st_reba.build("mini", "reba", repeats=2)
>>> model.encode(["你好，世界", "Hello, world"]).shape
(2, 192)
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .registration import register
from .version import __version__ as __version__

if TYPE_CHECKING:
    from .building import build as build
    from .evaluation.tune import tune as tune
    from .filters import PostFilter as PostFilter
    from .filters import fit_postfilter as fit_postfilter
    from .index import Index as Index
    from .modules import Classical as Classical
    from .modules import Echo as Echo
    from .modules import Ensemble as Ensemble
    from .modules import LayerPlan as LayerPlan
    from .modules import NoSink as NoSink
    from .modules import Prepend as Prepend
    from .modules import PromptEOL as PromptEOL
    from .modules import ReadLayers as ReadLayers
    from .modules import ReBA as ReBA
    from .modules.chunked import ChunkedReBAPooling as ChunkedReBAPooling
    from .modules.decoder import DecoderTransformer as DecoderTransformer
    from .modules.nosink import NoSinkTransformer as NoSinkTransformer
    from .modules.pooling import ReBAPooling as ReBAPooling
    from .modules.prompts import PromptEnsemble as PromptEnsemble
    from .modules.repeat import RepeatTransformer as RepeatTransformer
    from .spec import Spec as Spec
    from .spec import spec_of as spec_of
    from .truncation import truncate_layers as truncate_layers
    from .words import encode_word_layers as encode_word_layers
    from .words import encode_words as encode_words

# Where the public names stand: imported on first use, so that importing the package takes no time.
_HOMES = {
    "building": "build",
    "spec": "Spec spec_of",
    "words": "encode_words encode_word_layers",
    "filters": "PostFilter fit_postfilter",
    "truncation": "truncate_layers",
    "index": "Index",
    "evaluation.tune": "tune",
    "modules": "ReBA Echo Classical PromptEOL NoSink LayerPlan ReadLayers Prepend Ensemble RepeatTransformer "
    "NoSinkTransformer DecoderTransformer ReBAPooling ChunkedReBAPooling PromptEnsemble",
}
_HOME = {name: home for home, names in _HOMES.items() for name in names.split()}
_PARTS = ("index", "zoo")

__all__ = sorted(_HOME)

register()


def __getattr__(name: str) -> Any:
    if name in _PARTS:
        return import_module(f".{name}", __name__)
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(import_module(f".{_HOME[name]}", __name__), name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_PARTS})
