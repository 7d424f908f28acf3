"""What unlabelled texts alone say about how good their vectors are.

A text is shown in two views; good vectors of the first find that of the second among those of all texts. Or a word is
taken out of the texts that share it; good vectors still tell which it was.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from ..modules.options import unknown
from .items import DIGITS, units

How = Literal["overlap", "disjoint", "query", "order", "prefix", "template"]
Array = NDArray[np.float64]

# Chinese, Japanese and Korean have no spaces between words: there a piece is one character, with what closes it.
_DENSE = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff"
_PIECE = re.compile(rf"[{_DENSE}][^\w\s]*|[^\s{_DENSE}]+")
_WORD = re.compile(rf"[{_DENSE}]+|[^\W\d_{_DENSE}]{{3,}}")
# A text of fewer pieces has no two views that differ.
_FEWEST_PIECES = 4
# What stands behind so many is not shown: models cut long texts, and two parts that were cut would no longer overlap.
_MOST_PIECES = 150
# How many times more often than by chance two characters of one word stand side by side.
_TOGETHER = 8
_ZH, _EN = "关于“{}”的内容", "This is about: {}"


@dataclass(frozen=True)
class Views:
    """Two views of each of some texts.

    Args:
        rows: Which texts; those that are too short are left out.
        first, second: A view of each.
    """

    rows: tuple[int, ...]
    first: tuple[str, ...]
    second: tuple[str, ...]


def views(texts: Sequence[str], how: How = "overlap") -> Views:
    """Show each text in two ways.

    ============  ====================================  ==================================
    how           first                                 second
    ============  ====================================  ==================================
    overlap       its first two thirds                  its last two thirds
    disjoint      its first half                        its last half
    query         its middle third                      the whole
    prefix        its first two thirds                  the whole
    order         its second half before its first      the whole
    template      a sentence that names it              the whole
    ============  ====================================  ==================================

    Parts are counted in words, or in characters where the script has no spaces, so that titles of some words have them
    too. Of a long text the first 150 are shown.

    Args:
        texts: The texts.
        how: See above.

    Raises:
        ValueError: There is no such way.

    Source:
        Cropping: Izacard et al. (2022), Contriever (arXiv 2112.09118), section 3.1.

    Example:
        >>> views(["one two three four five six", "short", "北京今天下大雪"]).first
        ('one two three four', '北京今天下')
        >>> views(["one two three four five six"], "disjoint").second
        ('four five six',)
    """
    if how not in get_args(How):
        raise ValueError(unknown("how", how, list(get_args(How)), how))
    rows, first, second = [], [], []
    for row, text in enumerate(texts):
        spans = [match.span() for match in islice(_PIECE.finditer(text), _MOST_PIECES)]
        if len(spans) < _FEWEST_PIECES:
            continue
        one, other = _two(text, spans, how)
        rows.append(row)
        first.append(one)
        second.append(other)
    return Views(tuple(rows), tuple(first), tuple(second))


def _two(text: str, spans: Sequence[tuple[int, int]], how: How) -> tuple[str, str]:
    count = len(spans)

    def part(start: int, end: int) -> str:
        return text[spans[start][0] : spans[end - 1][1]]

    half, most, third = -(-count // 2), -(-2 * count // 3), count // 3
    whole = part(0, count)
    if how == "overlap":
        return part(0, most), part(count - most, count)
    if how == "disjoint":
        return part(0, half), part(half, count)
    if how == "query":
        return part(third, count - third), whole
    if how == "prefix":
        return part(0, most), whole
    if how == "order":
        dense = re.match(f"[{_DENSE}]", text[spans[half][0]]) is not None
        return part(half, count) + ("" if dense else " ") + part(0, half), whole
    dense = re.search(f"[{_DENSE}]", text) is not None
    return (_ZH if dense else _EN).format(whole), whole


def pieces(text: str) -> int:
    """How long a text is, in words, or in characters of scripts without spaces.

    Example:
        >>> pieces("How do I page a list?"), pieces("北京，今天下大雪")
        (6, 7)
    """
    return sum(1 for _ in _PIECE.finditer(text))


def reciprocal_ranks(first: NDArray[Any], second: NDArray[Any]) -> Array:
    """How well two views of the same texts find each other; their mean is the MRR.

    Args:
        first: Vectors [N, d] of the first views.
        second: Vectors [N, d] of the second views, row n of the same text.

    Returns:
        [N]: of each text the mean of 1/rank in both directions, by cosine. What cannot be told from a text's other view
        stands before it, so vectors that are all alike earn 1/N.

    Example:
        >>> one = np.array([[1.0, 0.0], [0.0, 1.0], [0.7, 0.7]])
        >>> reciprocal_ranks(one, one).tolist(), reciprocal_ranks(one, one[[1, 0, 2]]).round(2).tolist()
        ([1.0, 1.0, 1.0], [0.33, 0.33, 1.0])
    """
    near = np.round(units(first) @ units(second).T, DIGITS)
    own = near.diagonal()
    return np.asarray((1 / (near >= own[:, None]).sum(axis=1) + 1 / (near >= own).sum(axis=0)) / 2)


def hidden_words(
    texts: Sequence[str], classes: int = 20, share: float = 0.03, fewest: int = 8
) -> list[tuple[str, str]]:
    """Texts that share a word, without it, and the word: topics that nobody labelled.

    A word is one of three letters or more, or two characters of a script without spaces. Taken are the most frequent of
    those that stand in at most ``share`` of the texts and seldom beside one that is taken already.

    Args:
        texts: The texts.
        classes: Take so many words at most.
        share: Of the texts that may hold a word.
        fewest: Texts that a word must be left with.

    Returns:
        Rows (text, word) for items of the kind Classification; a text with several of the words is left out. None where
        the texts share too little.

    Example:
        >>> texts = [f"a {word} {n}" for word in ("cat", "ship") for n in range(10)]
        >>> rows = hidden_words([*texts, *map(str, range(400))])
        >>> len(rows), rows[0]
        (20, ('a 0', 'cat'))
    """
    held = [_words(text) for text in texts]
    counts = Counter(word for words in held for word in words)
    single = Counter(sign for text in texts for sign in set(text))
    counts = Counter({word: n for word, n in counts.items() if _holds_together(word, n, single, len(texts))})
    places: dict[str, set[int]] = {
        word: set() for word, count in counts.items() if fewest <= count <= share * len(texts)
    }
    for row, words in enumerate(held):
        for word in words & places.keys():
            places[word].add(row)
    taken: list[str] = []
    for word in sorted(places, key=lambda each: (-len(places[each]), each)):
        if len(taken) < classes and all(len(places[word] & places[each]) * 4 <= len(places[word]) for each in taken):
            taken.append(word)
    times = Counter(row for word in taken for row in places[word])
    rows = [(row, word) for word in taken for row in sorted(places[word]) if times[row] == 1]
    left = Counter(word for _, word in rows)
    without = [(_without(texts[row], word), word) for row, word in rows if left[word] >= fewest]
    return [(text, word) for text, word in without if text]


def _words(text: str) -> set[str]:
    found: set[str] = set()
    for run in _WORD.findall(text.lower()):
        found |= {run[at : at + 2] for at in range(len(run) - 1)} if re.match(f"[{_DENSE}]", run) else {run}
    return found


def _holds_together(word: str, count: int, signs: Mapping[str, int], texts: int) -> bool:
    """Whether two characters stand side by side far more often than by chance: a word rather than a seam of two."""
    if len(word) != 2:
        return True
    return count * texts >= _TOGETHER * signs[word[0]] * signs[word[1]]


def _without(text: str, word: str) -> str:
    dense = re.match(f"[{_DENSE}]", word) is not None
    pattern = re.escape(word) if dense else rf"(?<!\w){re.escape(word)}(?!\w)"
    return " ".join(re.sub(pattern, "", text, flags=re.IGNORECASE).split())
