"""Sentences of texts, which stand for queries where there are none."""

from __future__ import annotations

import re
from collections.abc import Sequence
from random import Random

# A line break; the space after a mark that ends a sentence; or such a mark in Chinese or Japanese,
# which no space follows.
_SENTENCE_END = re.compile(r"\s*\n\s*|(?<=[.!?…])\s+|(?<=[。！？；])\s*")
# How many sentences of the documents stand in for queries when the queries' mean is measured.
QUERY_SAMPLE = 200
# Shorter ones are headings, numbers and cut abbreviations; of longer ones the beginning is as long
# as a long query.
_MIN_LETTERS = 4
_MAX_CHARACTERS = 200


def split_sentences(text: str) -> list[str]:
    """Split a text into sentences by punctuation and line breaks, dropping ones with few letters.

    Example:
        >>> split_sentences("The ship left. 船开走了。我们留下！ 3.")
        ['The ship left.', '船开走了。', '我们留下！']
    """
    sentences: list[str] = []
    for piece in _SENTENCE_END.split(text):
        sentence = piece.strip()
        letter_count = sum(map(str.isalpha, sentence))
        if letter_count >= _MIN_LETTERS:
            sentences.append(sentence)
    return sentences


def as_query(sentence: str) -> str:
    """A sentence that stands for a query: of a long one the beginning."""
    return sentence[:_MAX_CHARACTERS]


def sample_sentences(
    texts: Sequence[str],
    count: int,
    seed: int = 0,
) -> list[str]:
    """Draw different sentences, from as many texts as possible, so that long texts do not dominate.

    Args:
        texts: The texts.
        count: Sentences to draw at most; there are fewer if the texts hold fewer.
        seed: The same seed draws the same sentences.

    Returns:
        The sentences, in random order.

    Example:
        >>> sorted(sample_sentences(["The ship left. It rained.", "A cat sleeps."], 3))
        ['A cat sleeps.', 'It rained.', 'The ship left.']
    """
    random_state = Random(seed)
    sentences_by_text: list[list[str]] = []
    for text in random_state.sample(texts, len(texts)):
        sentences = list(map(as_query, split_sentences(text)))
        random_state.shuffle(sentences)
        sentences_by_text.append(sentences)
    # One of each text, then a second one of each, and so on. A dict keeps the order, and each
    # sentence once.
    drawn_sentences: dict[str, None] = {}
    while sentences_by_text:
        for sentences in sentences_by_text:
            if len(drawn_sentences) == count:
                return list(drawn_sentences)
            if sentences:
                drawn_sentences[sentences.pop()] = None
        sentences_by_text = list(filter(None, sentences_by_text))
    return list(drawn_sentences)
