"""One layout of rows, in lists and in tensors."""

from __future__ import annotations

from typing import get_args

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from reference import Span as ReferencePositions

from st_reba.modules.layout import POOLED, RowLayout, copy_starts, pad, pooled_positions, spans_of
from st_reba.poolings import POSITIONS

LITERALS = st.lists(st.integers(1, 9), max_size=3).map(tuple)
LAYOUTS = st.lists(st.none() | LITERALS, min_size=1, max_size=6).filter(lambda segments: None in segments)
# Bounded, and the same in every run.
FAST = settings(max_examples=40, deadline=None, derandomize=True)


@FAST
@given(LAYOUTS, st.lists(st.integers(1, 5), min_size=1, max_size=4))
def test_lists_and_tensors_agree(segments: list[tuple[int, ...] | None], lengths: list[int]) -> None:
    layout = RowLayout(tuple(segments))
    contents = [list(range(100, 100 + length)) for length in lengths]
    features = pad([layout.build_row(content) for content in contents])
    text_lengths = torch.tensor(lengths)[:, None]
    row_lengths = features["attention_mask"].sum(dim=1, keepdim=True)
    assert torch.equal(row_lengths, layout.row_length(text_lengths))
    starts_of_copies = [start for segment, start in layout.segment_starts(text_lengths) if segment is None]
    assert len(starts_of_copies) == layout.copies
    for copy_number, starts in enumerate(starts_of_copies, start=1):
        assert torch.equal(copy_starts(features["copy_ids"], copy_number), starts)
    for row, content in enumerate(contents):
        token_ids = features["input_ids"][row].tolist()
        for segment, start in layout.segment_starts(len(content)):
            expected = content if segment is None else list(segment)
            assert token_ids[start : start + len(expected)] == expected
    spans = features.pop("spans")
    assert spans_of(features) == spans


@FAST
@given(LAYOUTS, st.integers(1, 4), st.integers(0, 2), st.integers(0, 3))
def test_pooled_positions(segments: list[tuple[int, ...] | None], length: int, suffix: int, padding: int) -> None:
    layout = RowLayout((*segments, (7,) * suffix))
    _, copy_ids, span = layout.build_row([1] * length)
    copies = torch.tensor([copy_ids + [0] * padding])
    real_tokens = torch.arange(copies.shape[1])[None] < span.total
    row_lengths = torch.tensor([[span.total]])
    last_copy = [position for position, copy in enumerate(copy_ids) if copy == layout.copies]
    later_copies = [position for position, copy in enumerate(copy_ids) if copy > 1]
    suffix_positions = list(range(span.total - suffix, span.total))
    expected = {
        "last_copy": last_copy,
        "repeats": later_copies if layout.copies > 1 else last_copy,
        "last_copy_and_end": sorted({*last_copy, *suffix_positions}),
        "end": [span.total - 1],
        "all": list(range(span.total)),
    }
    assert expected.keys() == set(POOLED)
    for pooled, positions in expected.items():
        mask = pooled_positions(pooled, layout.copies, copies, real_tokens, row_lengths, suffix)
        assert mask[0].nonzero()[:, 0].tolist() == positions, pooled


def test_every_pooled_position_is_described() -> None:
    assert set(POSITIONS) == set(POOLED)
    assert set(get_args(ReferencePositions)) < set(POOLED)
