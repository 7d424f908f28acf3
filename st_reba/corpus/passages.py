"""Long texts cut into overlapping passages, by the model's own tokens."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

Cut = Callable[[list[str]], list[tuple[int, ...]]]
"""Finds the bounds of texts' passages in characters (start, stop, start, stop, …), () of a text that is not cut."""


def parse_passages(passages: str | None) -> tuple[int, int] | None:
    """Tokens of a passage and of the overlap, from ``"256:32"``."""
    if passages is None:
        return None
    found = re.fullmatch(r"(\d{1,7})(?::(\d{1,7}))?", passages) if isinstance(passages, str) else None
    size, overlap = (int(found[1]), int(found[2] or 0)) if found else (0, 0)
    if overlap >= size:
        raise ValueError(f"passages={passages!r}: give the tokens of a passage and fewer of the overlap, as '256:32'")
    return size, overlap


def cutter(model: SentenceTransformer, passages: str | None) -> Cut:
    """A function that finds the passages of texts.

    A text of more tokens than a passage is cut into passages of that many, each beginning size − overlap tokens after
    the one before; the last begins earlier, so that it is as long as the others.
    """
    sizes = parse_passages(passages)
    tokenizer: Any = getattr(model, "tokenizer", None)
    if sizes and not getattr(tokenizer, "is_fast", False):
        raise ValueError(f"passages={passages!r} needs a fast tokenizer; this model's is a {type(tokenizer).__name__}")

    def cut(texts: list[str]) -> list[tuple[int, ...]]:
        if sizes is None or not texts:
            return [()] * len(texts)
        options = {"return_offsets_mapping": True, "truncation": False, "verbose": False}
        offsets = tokenizer(texts, add_special_tokens=False, **options)["offset_mapping"]
        return [_bounds(places, len(text), *sizes) for places, text in zip(offsets, texts, strict=True)]

    return cut


def _bounds(places: list[tuple[int, int]], length: int, size: int, overlap: int) -> tuple[int, ...]:
    count, bounds = len(places), list[int]()
    for first in [*range(0, count - size, size - overlap), count - size] if count > size else ():
        # Characters between tokens belong to the token before, so that none is lost.
        start = places[first][0] if first else 0
        stop = length if first + size == count else places[first + size][0]
        bounds += [start, max(stop, start + 1)]
    return tuple(bounds)
