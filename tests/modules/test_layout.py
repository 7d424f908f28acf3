"""The layout of rows."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any, get_args

import pytest
import torch
from architectures import TOKENIZERS
from hypothesis import given, settings
from hypothesis import strategies as st
from reference import Span as ReferencePositions

from st_reba.modules.layout import (
    POOLED,
    RowLayout,
    check_token_ids,
    copy_starts,
    pad,
    pooled_positions,
    spans_of,
    special_tokens,
    tokenize,
)
from st_reba.poolings import POSITIONS

LITERALS = st.lists(st.integers(1, 9), max_size=3).map(tuple)
LAYOUTS = st.lists(st.none() | LITERALS, min_size=1, max_size=6).filter(
    lambda segments: None in segments
)
# Bounded, and the same in every run.
FAST = settings(max_examples=40, deadline=None, derandomize=True)


@FAST
@given(LAYOUTS, st.lists(st.integers(1, 5), min_size=1, max_size=4))
def test_spans_and_copy_starts_are_read_from_tensors(
    segments: list[tuple[int, ...] | None], lengths: list[int]
) -> None:
    layout = RowLayout(tuple(segments))
    rows = [layout.build_row([100] * length) for length in lengths]
    features = pad(rows)
    for copy_number in range(1, layout.copies + 1):
        expected_starts = [[copy_ids.index(copy_number)] for _, copy_ids, _ in rows]
        assert copy_starts(features["copy_ids"], copy_number).tolist() == expected_starts
    spans = features.pop("spans")
    assert spans_of(features) == spans


@FAST
@given(LAYOUTS, st.lists(st.integers(1, 5), min_size=1, max_size=3))
def test_a_built_row_holds_its_segments_in_order(
    segments: list[tuple[int, ...] | None], content: list[int]
) -> None:
    layout = RowLayout(tuple(segments))
    token_ids, _, span = layout.build_row(content)
    expected_ids: list[int] = []
    for segment in segments:
        expected_ids += content if segment is None else segment
    assert token_ids == expected_ids
    assert span.row_length == layout.overhead + layout.copies * len(content)


@FAST
@given(LAYOUTS, st.integers(1, 4), st.integers(0, 2), st.integers(0, 3))
def test_each_pooled_choice_sees_its_own_positions(
    segments: list[tuple[int, ...] | None], length: int, suffix: int, padding: int
) -> None:
    layout = RowLayout((*segments, (7,) * suffix))
    _, copy_ids, span = layout.build_row([1] * length)
    copies = torch.tensor([copy_ids + [0] * padding])
    real_tokens = torch.arange(copies.shape[1])[None] < span.row_length
    row_lengths = torch.tensor([[span.row_length]])
    last_copy = [position for position, copy in enumerate(copy_ids) if copy == layout.copies]
    later_copies = [position for position, copy in enumerate(copy_ids) if copy > 1]
    suffix_positions = list(range(span.row_length - suffix, span.row_length))
    expected = {
        "last_copy": last_copy,
        "repeats": later_copies if layout.copies > 1 else last_copy,
        "last_copy_and_end": sorted({*last_copy, *suffix_positions}),
        "end": [span.row_length - 1],
        "all": list(range(span.row_length)),
    }
    assert expected.keys() == set(POOLED)
    for pooled, positions in expected.items():
        mask = pooled_positions(pooled, layout.copies, copies, real_tokens, row_lengths, suffix)
        assert mask[0].nonzero()[:, 0].tolist() == positions, pooled


def test_every_pooled_position_is_described() -> None:
    assert set(POSITIONS) == set(POOLED)
    assert set(get_args(ReferencePositions)) < set(POOLED)


def drop_letters(texts: str | list[str], **options: object) -> dict[str, Any]:
    """A tokenizer that knows only the word "the", which is 5, between 1 and twice 2."""
    if isinstance(texts, list):
        return {"input_ids": [[5] if text == "the" else [] for text in texts]}
    return {"input_ids": [1, 5, 2, 2] if texts == "the" else [1, 2, 2]}


def test_special_tokens_stand_around_a_word_that_the_tokenizer_knows() -> None:
    assert special_tokens(drop_letters) == ((1,), (2, 2))


def test_the_limit_of_a_tokenizer_neither_cuts_its_special_tokens_nor_warns_of_a_text(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(logging.getLogger("transformers"), "propagate", True)
    tokenizer = TOKENIZERS["bos_eos"]()
    tokenizer.model_max_length = 2
    tokenize(tokenizer, ["The river runs past the old mill."])
    assert special_tokens(tokenizer) == ((tokenizer.bos_token_id,), (tokenizer.eos_token_id,))
    assert not caplog.text


@pytest.mark.parametrize("token_ids", [[], [9]], ids=["no token", "a token"])
def test_tokens_are_not_compared_with_a_number_of_embeddings_that_is_not_known(
    token_ids: list[int],
) -> None:
    model: Any = SimpleNamespace(get_input_embeddings=object)
    check_token_ids(torch.tensor(token_ids), model)


def test_a_batch_without_a_token_holds_none_that_the_model_lacks() -> None:
    model: Any = SimpleNamespace(get_input_embeddings=lambda: torch.nn.Embedding(2, 1))
    check_token_ids(torch.tensor([]), model)
