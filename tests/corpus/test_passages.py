"""How long a text is that stays whole, and how the last passage is placed."""

from __future__ import annotations

import pytest

from st_reba.corpus.passages import PassageSize


@pytest.mark.parametrize(
    ("token_count", "spans"),
    [
        (2, []),
        (3, []),
        (4, [0, 3, 1, 4]),
        (5, [0, 3, 2, 5]),
        (6, [0, 3, 2, 5, 3, 6]),
    ],
)
def test_texts_of_one_passage_are_not_cut(token_count: int, spans: list[int]) -> None:
    """The last passage is as long as the others, even if it repeats more than the overlap."""
    token_spans = [(token, token + 1) for token in range(token_count)]
    assert PassageSize(3, 1).find_spans(token_spans, token_count) == spans
