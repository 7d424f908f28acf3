"""Does an embedding see what is said early in a sentence, and what is said late? Echo's toy structures S1, S2, S3."""

from __future__ import annotations

from .evaluate import evaluate_structures
from .figure import draw_similarities
from .triples import LANGUAGES, STRUCTURES, Sentence, Triple, triples

__all__ = [
    "LANGUAGES",
    "STRUCTURES",
    "Sentence",
    "Triple",
    "draw_similarities",
    "evaluate_structures",
    "triples",
]
