"""All that a published model needs to run: nothing here imports the rest of st_reba."""

from __future__ import annotations

from .chunked import ChunkedReBAPooling
from .ensemble import PromptEnsemble
from .nosink import SETTINGS, NoSinkTransformer, named_plan
from .plan import LayerPlan, Stack
from .pooling import ReBAPooling
from .repeat import RepeatTransformer
from .transformer import DecoderTransformer
from .vendoring import publish

__all__ = [
    "SETTINGS",
    "ChunkedReBAPooling",
    "DecoderTransformer",
    "LayerPlan",
    "NoSinkTransformer",
    "PromptEnsemble",
    "ReBAPooling",
    "RepeatTransformer",
    "Stack",
    "named_plan",
]

# The classes that modules.json may name.
MODULES = (
    DecoderTransformer,
    RepeatTransformer,
    NoSinkTransformer,
    ReBAPooling,
    ChunkedReBAPooling,
    PromptEnsemble,
)
publish(__name__, *MODULES)
