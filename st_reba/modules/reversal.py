"""The slot ``{reversed}`` of a template."""

from __future__ import annotations

import re

from .extensions import extensions

CJK = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
_WORDS = re.compile(rf"[{CJK}]|[^\s{CJK}]+|\s+")


def reverse_words(text: str) -> str:
    """A text with its words, in Chinese and Japanese its characters, in reverse order.

    Source:
        ReverseEOL (2026).

    Example:
        >>> reverse_words("the cat sleeps"), reverse_words("猫在睡觉。")
        ('sleeps cat the', '。觉睡在猫')
    """
    return "".join(reversed(_WORDS.findall(text)))


extensions.reverse_words = reverse_words
