"""Long texts cut into overlapping passages, by the model's own tokens."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer


def parse_passages(passages: str | None) -> tuple[int, int] | None:
    """Tokens of a passage and of the overlap, from ``"256:32"``.

    Example:
        >>> parse_passages("256:32"), parse_passages("128"), parse_passages(None)
        ((256, 32), (128, 0), None)
    """
    if passages is None:
        return None
    found = re.fullmatch(r"(\d{1,7})(?::(\d{1,7}))?", passages)
    size, overlap = (int(found[1]), int(found[2] or 0)) if found else (0, 0)
    if size < 1 or overlap >= size:
        raise ValueError(
            f"passages={passages!r}: give the tokens of a passage and of the overlap, which must be fewer, as '256:32'"
        )
    return size, overlap


def cutter(model: SentenceTransformer, passages: str | None) -> Callable[[list[str]], list[tuple[int, ...]]]:
    """A function that finds the passages of texts.

    A text of more tokens than a passage is cut into passages of that many, each beginning size − overlap tokens after
    the one before; the last is moved forward, so that it is as long as the others.

    Returns:
        A function of texts to their bounds in characters (start, stop, start, stop, …), () for a text that is not cut.

    Example:
        >>> import st_reba
        >>> cutter(st_reba.build("mini"), "9:3")(["你好，世界", "春天来了，河边的柳树发了新芽。"])
        [(), (0, 9, 6, 15)]
    """
    sizes = parse_passages(passages)
    if sizes is None:
        return lambda texts: [()] * len(texts)
    tokenizer: Any = getattr(model, "tokenizer", None)
    if not getattr(tokenizer, "is_fast", False):
        raise ValueError(
            f"passages={passages!r} needs a tokenizer with offsets (a fast one of transformers), and this model's is "
            f"a {type(tokenizer).__name__}; cut the texts before, or leave it out"
        )

    def cut(texts: list[str]) -> list[tuple[int, ...]]:
        offsets = tokenizer(
            texts, add_special_tokens=False, return_offsets_mapping=True, truncation=False, verbose=False
        )["offset_mapping"]
        return [_bounds(places, len(text), *sizes) for places, text in zip(offsets, texts, strict=True)]

    return cut


def _bounds(places: list[tuple[int, int]], length: int, size: int, overlap: int) -> tuple[int, ...]:
    count = len(places)
    if count <= size:
        return ()
    bounds = []
    for first in [*range(0, count - size, size - overlap), count - size]:
        # Characters between tokens belong to the token before, so that none is lost.
        start = places[first][0] if first else 0
        stop = length if first + size == count else places[first + size][0]
        bounds += [start, max(stop, start + 1)]
    return tuple(bounds)
