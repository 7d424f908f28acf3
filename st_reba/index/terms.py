"""How a text becomes words: its preparation for SQLite's FTS5, and FTS5's tokenizers.

European words are read by ``unicode61``, and stemmed by ``porter`` where the texts are English.
Scripts without spaces become overlapping pairs of characters, and single characters, here.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable

ENGLISH = "English"
OTHER = "other"
# Marks are parts of words: the vowels of Hindi, for instance.
_LETTERS = "unicode61 remove_diacritics 2 categories 'L* M* N* Co'"
TOKENIZERS = {
    ENGLISH: f"porter {_LETTERS}",
    OTHER: _LETTERS,
}


# Characters that are invisible within words, or belong to a symbol: soft hyphens, joiners, marks of
# direction, enclosing marks and variation selectors.
_INVISIBLE_CODES = (
    *(0xAD, 0x200D, 0x200E, 0x200F, 0xFEFF),
    *range(0x180B, 0x1810),
    *range(0x2060, 0x2065),
    *range(0x20D0, 0x2100),
    *range(0xFE00, 0xFE10),
    *range(0xE0100, 0xE01F0),
)


class _CharacterTable(dict[int, str]):
    """What stands for each character, by its code; filled as characters are met.

    SQLite knows only the characters of Unicode 6.1. It takes all newer ones for letters, even
    emoji, and does not know which of them are capitals.
    """

    def __missing__(self, code: int) -> str:
        character = chr(code)
        category = unicodedata.category(character)
        replacement = " "
        if category[0] in "LMN" or category in ("Co", "Cn"):
            replacement = character.lower()
        self[code] = replacement
        return replacement


def _make_character_table() -> _CharacterTable:
    replacements = _CharacterTable(dict.fromkeys(_INVISIBLE_CODES, ""))
    replacements[ord("\u0640")] = ""  # Arabic's tatweel, which lengthens a word
    replacements[ord("ς")] = "σ"
    replacements[ord("ß")] = "ss"
    replacements[ord("ẞ")] = "ss"
    # Letters whose marks `unicode61` keeps, and both of the Turkish i.
    for letter, plain_letter in zip("łŁøØđĐħĦıİ", "llooddhhii", strict=True):
        replacements[ord(letter)] = plain_letter
    # Combining diacritics that are not composed with a letter.
    for code in range(0x300, 0x370):
        replacements[code] = ""
    # Points and vowel marks of Hebrew and Arabic.
    for code in range(0x590, 0x700):
        if unicodedata.category(chr(code)) == "Mn":
            replacements[code] = ""
    # Greek and Cyrillic letters without accents; a mark that makes another letter, as й's, stays.
    for code in (*range(0x370, 0x400), *range(0x1F00, 0x2000), *map(ord, "ЁёЀѐЍѝ")):
        base_letter = unicodedata.normalize("NFD", chr(code))[0]
        if unicodedata.category(base_letter).startswith("L"):
            replacements.setdefault(code, base_letter.lower())
    return replacements


_CHARACTER_TABLE = _make_character_table()
# Kana, Bopomofo, Han, Hangul; Thai, Lao, Burmese and Khmer.
_UNSPACED_RUN = re.compile(
    "[\u3005\u3007\u3041-\u30fa\u30fc-\u312f\u31a0-\u31bf\u31f0-\u31ff"
    "\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff\U00020000-\U000323af"
    "\u0e01-\u0e4e\u0e81-\u0ece\u1000-\u103f\u1780-\u17d3]+"
)
_LATIN_WORD = re.compile("[a-z\u00df-\u024f]+")
# Words that are frequent only in English.
_ENGLISH_WORD = re.compile(r"\b(?:the|of|and|to|with|from|that|this|are|which|by|or)\b")
_ENGLISH_SHARE = 0.03
# With fewer words, the language cannot be told; English is assumed, as the commonest.
_MIN_WORDS = 50


def language_of(texts: Iterable[str]) -> str:
    """ENGLISH if words in Latin letters are few, or often English; else OTHER.

    Args:
        texts: A sample of the documents.

    Example:
        >>> language_of(["The cat sleeps."]), language_of(["Die Katze schläft auf dem Sofa."] * 9)
        ('English', 'other')
    """
    word_count = 0
    english_count = 0
    for text in texts:
        lower_text = text.lower()
        word_count += len(_LATIN_WORD.findall(lower_text))
        english_count += len(_ENGLISH_WORD.findall(lower_text))
    if word_count < _MIN_WORDS:
        return ENGLISH
    if english_count < _ENGLISH_SHARE * word_count:
        return OTHER
    return ENGLISH


def separated(text: str) -> str:
    """A document as FTS5 gets it: runs of scripts without spaces as pairs and as single characters.

    Example:
        >>> separated("猫在睡觉 in Köln")
        ' 猫在 在睡 睡觉 猫 在 睡 觉  in köln'
    """
    if text.isascii():
        return text.replace("\0", " ")
    return _UNSPACED_RUN.sub(_pairs_and_characters, _normalized(text))


def separated_query(query: str) -> tuple[str, str]:
    """A query for FTS5: words and pairs of characters, and single characters of longer runs.

    Example:
        >>> separated_query("猫在睡觉 in Köln"), separated_query("猫")
        ((' 猫在 在睡 睡觉  in köln', '猫 在 睡 觉'), (' 猫 ', ''))
    """
    normalized_query = _normalized(query)
    unspaced_runs = _UNSPACED_RUN.findall(normalized_query)
    words = _UNSPACED_RUN.sub(_only_pairs, normalized_query)
    single_characters = " ".join(map(_characters, unspaced_runs))
    return words, single_characters


def _normalized(text: str) -> str:
    """Letters, marks and digits in one way of writing, without marks that search ignores; spaces for all else.

    Example:
        >>> _normalized("Ещё ἐλπίς Łódź Straße שָׁלוֹם ⚠️Warning")
        'еще ελπισ lódź strasse שלום  warning'
    """
    return unicodedata.normalize("NFKC", text).translate(_CHARACTER_TABLE)


def _pairs_and_characters(run_match: re.Match[str]) -> str:
    unspaced_run = run_match.group()
    return f" {_pairs(unspaced_run)} {_characters(unspaced_run)} "


def _only_pairs(run_match: re.Match[str]) -> str:
    return f" {_pairs(run_match.group())} "


def _pairs(unspaced_run: str) -> str:
    """Overlapping pairs; of a single character itself."""
    if len(unspaced_run) == 1:
        return unspaced_run
    next_characters = unspaced_run[1:]
    return " ".join(map("".join, zip(unspaced_run, next_characters, strict=False)))


def _characters(unspaced_run: str) -> str:
    """Single characters; none of a run that is a single character."""
    if len(unspaced_run) == 1:
        return ""
    return " ".join(unspaced_run)
