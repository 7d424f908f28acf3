"""All that a published model needs to run: nothing here imports the rest of st_reba."""

from __future__ import annotations

from .pooling import ReBAPooling
from .repeat import RepeatTransformer
from .transformer import DecoderTransformer

__all__ = ["DecoderTransformer", "ReBAPooling", "RepeatTransformer"]
