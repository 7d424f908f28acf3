"""The words of a text, without a tokenizer."""

from __future__ import annotations

import re
import unicodedata

# Han and kana, which are written without spaces.
_ALONE = re.compile("[\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]")


def words_of(text: str, word: str | None = None) -> list[tuple[str, tuple[int, int]]]:
    """The words of a text, for :func:`encode_words`: letters, marks and digits between white space and punctuation.

    A Chinese character or a Japanese kana is a word by itself; an apostrophe or a hyphen inside a word belongs to it.

    Args:
        text: The text.
        word: Only where this word stands, which may be a phrase; never as a part of a longer word of letters.

    Returns:
        (text, (start, end)) each, in characters, end excluded, in the order of the text.

    Example:
        >>> [text[start:end] for text, (start, end) in words_of("It's 在银行.")]
        ["It's", '在', '银', '行']
        >>> words_of("他的银行在河岸，银行很大", "银行"), words_of("a party of art", "art")[0][1]
        ([('他的银行在河岸，银行很大', (2, 4)), ('他的银行在河岸，银行很大', (8, 10))], (11, 14))
    """
    shape = "".join(map(_shape, text))
    if word is None:
        return [(text, match.span()) for match in re.finditer("HM*|L[LM]*(?:-L[LM]*)*", shape)]
    if not word:
        raise ValueError("word='': give a word, or None for all words.")
    cuts = {match.start() + 1 for match in re.finditer("[LM](?=[LM])", shape)}
    spans = [match.span() for match in re.finditer(re.escape(word), text)]
    return [(text, span) for span in spans if not cuts & {*span}]


def _shape(letter: str) -> str:
    """H: a word by itself; L: a letter or digit; M: a mark on what is before it; -: joins two letters."""
    kind = unicodedata.category(letter)[0]
    if kind in "LN":
        return "H" if _ALONE.match(letter) else "L"
    return "M" if kind == "M" else "-" if letter in "'’-" else " "
