"""Other ways to show a text twice, and texts that share a word: what was tried beside overlapping crops.

>>> ways("one two three four five six", "disjoint")
('one two three', 'four five six')
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence

from st_reba.evaluation.signals import DENSE, spans

WAYS = ("disjoint", "query", "prefix", "order", "template")
_WORD = re.compile(rf"[{DENSE}]+|[^\W\d_{DENSE}]{{3,}}")
# How many times more often than by chance two characters of one word stand side by side.
_TOGETHER = 8
_ZH, _EN = "关于“{}”的内容", "This is about: {}"


def ways(text: str, how: str) -> tuple[str, str]:
    """Two views of a text of four pieces or more.

    ============  ====================================  ==================================
    how           first                                 second
    ============  ====================================  ==================================
    disjoint      its first half                        its last half
    query         its middle third                      the whole
    prefix        its first two thirds                  the whole
    order         its second half before its first      the whole
    template      a sentence that names it              the whole
    ============  ====================================  ==================================
    """
    shown = spans(text)
    count = len(shown)

    def part(start: int, end: int) -> str:
        return text[shown[start][0] : shown[end - 1][1]]

    half, most, third = -(-count // 2), -(-2 * count // 3), count // 3
    whole = part(0, count)
    if how == "disjoint":
        return part(0, half), part(half, count)
    if how == "query":
        return part(third, count - third), whole
    if how == "prefix":
        return part(0, most), whole
    if how == "order":
        dense = re.match(f"[{DENSE}]", text[shown[half][0]]) is not None
        return part(half, count) + ("" if dense else " ") + part(0, half), whole
    dense = re.search(f"[{DENSE}]", text) is not None
    return (_ZH if dense else _EN).format(whole), whole


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
        found |= {run[at : at + 2] for at in range(len(run) - 1)} if re.match(f"[{DENSE}]", run) else {run}
    return found


def _holds_together(word: str, count: int, signs: Mapping[str, int], texts: int) -> bool:
    """Whether two characters stand side by side far more often than by chance: a word rather than a seam of two."""
    if len(word) != 2:
        return True
    return count * texts >= _TOGETHER * signs[word[0]] * signs[word[1]]


def _without(text: str, word: str) -> str:
    dense = re.match(f"[{DENSE}]", word) is not None
    pattern = re.escape(word) if dense else rf"(?<!\w){re.escape(word)}(?!\w)"
    return " ".join(re.sub(pattern, "", text, flags=re.IGNORECASE).split())
