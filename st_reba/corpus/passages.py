"""Long texts cut into overlapping passages, by the model's own tokens."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

Spans = Sequence[int]
"""Bounds of a text's passages in characters: start, end, start, end, …; empty: not cut."""

Cutter = Callable[[Sequence[str]], list[Spans]]


def cut_text(text: str, spans: Spans) -> list[str]:
    """The passages of a text, or the text itself if it is not cut.

    Example:
        >>> cut_text("Cats sleep.", [0, 5, 5, 11]), cut_text("Cats sleep.", [])
        (['Cats ', 'sleep.'], ['Cats sleep.'])
    """
    if not spans:
        return [text]
    bounds = zip(spans[::2], spans[1::2], strict=True)
    return [text[start:end] for start, end in bounds]


@dataclass(frozen=True)
class PassageSize:
    """Tokens of a passage, and tokens that it shares with the one before."""

    size: int
    overlap: int = 0

    @classmethod
    def parse(cls, passages: str) -> PassageSize:
        """Parse ``"256:32"``; without a colon, passages do not overlap."""
        match = None
        if isinstance(passages, str):
            match = re.fullmatch(r"(\d{1,7})(?::(\d{1,7}))?", passages)
        if match is not None:
            size, overlap = match.groups(default="0")
            parsed = cls(int(size), int(overlap))
            if parsed.overlap < parsed.size:
                return parsed
        raise ValueError(
            f"passages={passages!r}: give the tokens of a passage and fewer of the overlap, such as '256:32'"
        )

    def find_spans(self, token_spans: Sequence[tuple[int, int]], text_length: int) -> Spans:
        """Find passages.

        Every passage begins size − overlap tokens after the one before. The last begins earlier, so
        that it is as long as the others.

        Args:
            token_spans: Start and end of each token in characters.
            text_length: Characters of the text.
        """
        last_start = len(token_spans) - self.size
        if last_start <= 0:
            return []
        first_tokens = [*range(0, last_start, self.size - self.overlap), last_start]
        spans: list[int] = []
        for first_token in first_tokens:
            # Characters between tokens belong to the token before, so that none is lost.
            start = 0
            if first_token > 0:
                start = token_spans[first_token][0]
            end = text_length
            if first_token < last_start:
                end = token_spans[first_token + self.size][0]
            spans += [start, max(end, start + 1)]
        return spans


def make_cutter(model: SentenceTransformer, passages: str | None) -> Cutter:
    """A function that finds the passages of texts; None as the setting: no text is cut."""
    if passages is None:
        return lambda texts: [[]] * len(texts)
    passage_size = PassageSize.parse(passages)
    tokenizer = getattr(model, "tokenizer", None)
    if tokenizer is None or not getattr(tokenizer, "is_fast", False):
        kind = type(tokenizer).__name__
        raise ValueError(f"passages={passages!r} needs a fast tokenizer; this model's is a {kind}")

    def cut_texts(texts: Sequence[str]) -> list[Spans]:
        if not texts:
            return []
        encoding = tokenizer(
            list(texts),
            add_special_tokens=False,
            return_offsets_mapping=True,
            truncation=False,
            verbose=False,
        )
        token_spans = encoding["offset_mapping"]
        return [
            passage_size.find_spans(spans, len(text))
            for spans, text in zip(token_spans, texts, strict=True)
        ]

    return cut_texts
