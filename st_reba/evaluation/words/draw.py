"""Senses of words → questions: three sentences of one sense and one of another, drawn by a seed."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

ALIKE = 3
_SHAPE = "{word: {sense: [sentences]}}"


def read_senses(path: Path, text: str) -> dict[str, dict[str, list[str]]]:
    """Parse ``{word: {sense: [sentences]}}``.

    Raises:
        ValueError: It is no JSON, or of another shape; the word is named.
    """
    try:
        words = json.loads(text, object_pairs_hook=lambda pairs: _unique(path, pairs))
    except (json.JSONDecodeError, RecursionError) as error:
        raise ValueError(f"{path}: not JSON ({error}); it must hold {_SHAPE}.") from None
    if not isinstance(words, dict):
        raise ValueError(f"{path}: it must hold {_SHAPE}, not a {type(words).__name__}.")
    for word, senses in words.items():
        if not word or not isinstance(senses, dict):
            raise ValueError(f"{path}: {word!r:.60} has {type(senses).__name__} for its senses; write {_SHAPE}.")
        for sense, sentences in senses.items():
            if not isinstance(sentences, list) or not all(isinstance(sentence, str) for sentence in sentences):
                raise ValueError(f"{path}: the sense {sense!r:.60} of {word!r:.60} is no list of sentences ({_SHAPE}).")
    return words


def draw(word: str, senses: Mapping[str, Iterable[str]], seed: int) -> tuple[list[str], int] | str:
    """Draw one question.

    Senses with three sentences at least are as likely as each other, and so are the others of the word then. A
    sentence counts once; one that stands under several senses is not drawn, as it has no right answer.

    Args:
        word: The word.
        senses: Sentences that hold it, by sense.
        seed: Of the draw, which depends on the word and its sentences beside, and on nothing else in the file.

    Returns:
        Four sentences and the number (from 0) of the odd one; or why there are none.

    Example:
        >>> draw("bank", {"money": ["a", "b", "c"], "river": ["d"]}, seed=0)
        (['c', 'd', 'a', 'b'], 1)
        >>> draw("bank", {"money": ["a", "b"], "river": ["d"]}, seed=0)
        'no sense with 3 sentences that hold the word'
    """
    distinct = {sense: list(dict.fromkeys(sentences)) for sense, sentences in senses.items()}
    places = Counter(sentence for sentences in distinct.values() for sentence in sentences)
    usable = {sense: [each for each in sentences if places[each] == 1] for sense, sentences in distinct.items()}
    there = [sense for sense, sentences in usable.items() if sentences]
    if len(there) < 2:
        return "fewer than 2 senses with a sentence that holds the word"
    large = [sense for sense in there if len(usable[sense]) >= ALIKE]
    if not large:
        return f"no sense with {ALIKE} sentences that hold the word"
    common = in_order(large, seed, word, "sense")[0]
    other = in_order([sense for sense in there if sense != common], seed, word, "other sense")[0]
    odd = in_order(usable[other], seed, word, "odd one")[0]
    four = in_order(usable[common], seed, word, "alike")[:ALIKE] + [odd]
    four = in_order(four, seed, word, "order")
    return four, four.index(odd)


def in_order(values: Iterable[str], seed: int, *purpose: str) -> list[str]:
    """An order that depends on the seed, the purpose and the values alone, not on theirs or a library's version."""

    def place(value: str) -> bytes:
        return hashlib.sha256(json.dumps([seed, *purpose, value]).encode()).digest()

    return sorted(values, key=place)


def _unique(path: Path, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if twice := [name for name, times in Counter(name for name, _ in pairs).items() if times > 1]:
        raise ValueError(f"{path}: {twice[0]!r:.60} stands twice, so that one of both would be lost. Join them.")
    return dict(pairs)
