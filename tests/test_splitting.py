"""The words of a text, without a tokenizer."""

from __future__ import annotations

import pytest

from st_reba.splitting import words_of


def test_the_words_of_a_text() -> None:
    """White space and punctuation part words, marks do not; Han and kana stand alone; a word is no part of another."""

    def found(text: str, word: str | None = None) -> list[str]:
        spans = [span for of, span in words_of(text, word) if of == text]
        assert spans == sorted(spans)
        return [text[start:end] for start, end in spans]

    assert found("It's a well-known bank, -isn't it? 3.5%") == [
        "It's",
        "a",
        "well-known",
        "bank",
        "isn't",
        "it",
        "3",
        "5",
    ]
    assert found("他在ATM取了100元。") == ["他", "在", "ATM", "取", "了", "100", "元"]
    assert found("cafe\u0301 हिन्दी 한국어 カナ・\ud800") == ["cafe\u0301", "हिन्दी", "한국어", "カ", "ナ"]
    assert found("") == found(" ,。\n") == found("abc", "b") == found("cafe\u0301", "cafe") == []
    assert words_of("party art, art.", "art") == [("party art, art.", (6, 9)), ("party art, art.", (11, 14))]
    assert found("意思意思，ATM机", "意思") == ["意思", "意思"] and found("意思意思，ATM机", "ATM") == ["ATM"]
    assert found("the river bank of the river", "the river") == ["the river", "the river"]
    with pytest.raises(ValueError, match="word='': give a word"):
        words_of("abc", "")
