"""Unlabelled texts: which of them can be used, a draw of them, and their script."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from os import PathLike
from random import Random
from typing import Any

from ..corpus.records import preview
from ..modules.reversal import CJK

# Chinese and Japanese have no spaces between words: there a piece is one character, with the
# punctuation after it.
_PIECE = re.compile(rf"[{CJK}][^\w\s]*|[^\s{CJK}]+")
# In a shorter text, the parts would be the same.
MIN_PIECES = 4
MIN_TEXTS = 50


def split_pieces(text: str) -> list[tuple[int, int]]:
    """Spans of a text's words, in characters; of its characters, if the script has no spaces."""
    return [match.span() for match in _PIECE.finditer(text)]


def has_views(text: str) -> bool:
    """Whether the views of a text differ: it has four words, or characters if the script has no spaces."""
    return len(split_pieces(text[:2000])) >= MIN_PIECES


def draw_texts(
    texts: Iterable[str],
    count: int,
    seed: int = 0,
) -> list[str]:
    """Draw different texts from which views can be made.

    Raises:
        ValueError: There are fewer than 50, or these are no texts.
    """
    return draw_usable(texts, has_views, count, seed, "four words")


def draw_usable(
    texts: Iterable[str],
    is_usable: Callable[[str], bool],
    count: int,
    seed: int,
    needed: str,
    remedy: str = "",
) -> list[str]:
    """Draw different texts that can be used; an error says what they need, and a remedy."""
    distinct_texts = dict.fromkeys(map(str.strip, iterate_texts(texts)))
    usable_texts = list(filter(is_usable, distinct_texts))
    if len(usable_texts) < MIN_TEXTS:
        problem = (
            f"{len(usable_texts)} different texts of {needed} or more: give {MIN_TEXTS} at least."
        )
        raise ValueError(f"texts: {problem} {remedy}".strip())
    return Random(seed).sample(usable_texts, min(count, len(usable_texts)))


def iterate_texts(texts: Any) -> Iterator[str]:
    """The texts of a list, an iterator or a column; a ValueError for anything else, and for an item that is none."""
    remedy = "Give a list of texts; st-reba tune reads a file."
    is_table = isinstance(texts, Mapping) or hasattr(texts, "columns")
    is_whole = isinstance(texts, (str, bytes, PathLike))
    if is_table or is_whole or not isinstance(texts, Iterable):
        raise ValueError(
            f"texts={preview(repr(texts))} ({type(texts).__name__}) is no list. {remedy}"
        )
    for index, text in enumerate(texts):
        if not isinstance(text, str):
            raise ValueError(f"texts[{index}]={preview(repr(text))} is not a text. {remedy}")
        yield text


def script_of(text: str) -> str:
    """The script of most of a text's letters, as Unicode names it; kana count as ``"CJK"``, "" where there are none."""
    script_counts: Counter[str] = Counter()
    for letter in filter(str.isalpha, text[:200]):
        script_name = unicodedata.name(letter, "").partition(" ")[0]
        if script_name in ("HIRAGANA", "KATAKANA"):
            script_name = "CJK"
        script_counts[script_name] += 1
    most_common = script_counts.most_common(1)
    return most_common[0][0] if most_common else ""


def common_script(texts: Sequence[str]) -> str:
    """The commonest script of the first texts, each text counting once, however long."""
    script_counts = Counter(map(script_of, texts[:200]))
    return script_counts.most_common(1)[0][0]
