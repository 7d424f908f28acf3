"""Rows that are placed in tensors are those that are built in lists."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from st_reba.modules.layout import POOLED, RowLayout, pad, pooled_positions
from st_reba.modules.placement import PlacedRows, literal_ids, place_rows

PREFIX = (1, 2)
SUFFIX = (3,)
EMPTY_TEXT_ID = 4
PADDING_ID = 5
Segment = tuple[int, ...] | None
LITERALS = st.lists(st.integers(10, 19), max_size=3).map(tuple)
TEMPLATES = st.lists(st.none() | LITERALS, min_size=1, max_size=6).filter(
    lambda segments: None in segments
)
CONTENTS = st.lists(st.lists(st.integers(20, 99), max_size=5), min_size=1, max_size=4)
# Few examples, and the same in every run.
FAST = settings(max_examples=60, deadline=None, derandomize=True)


def place_padded_batch(
    layout: RowLayout, contents: list[list[int]], padding_side: str
) -> PlacedRows:
    """The contents as a tokenizer pads them, between its special tokens, and placed."""
    special_token_count = len(PREFIX) + len(SUFFIX)
    column_count = max(map(len, contents)) + special_token_count
    input_rows = []
    text_starts = []
    for content in contents:
        padding = [PADDING_ID] * (column_count - len(content) - special_token_count)
        token_ids = [*PREFIX, *content, *SUFFIX]
        is_left = padding_side == "left"
        input_rows.append(padding + token_ids if is_left else token_ids + padding)
        text_starts.append([len(PREFIX) + is_left * len(padding)])
    return place_rows(
        layout,
        torch.tensor(literal_ids(layout, EMPTY_TEXT_ID)),
        torch.tensor(input_rows),
        torch.tensor(text_starts),
        torch.tensor([[len(content)] for content in contents]),
        max(1, column_count - special_token_count),
    )


@FAST
@given(TEMPLATES, CONTENTS, st.sampled_from(["left", "right"]))
def test_placed_rows_are_the_built_rows(
    template: list[Segment], contents: list[list[int]], padding_side: str
) -> None:
    layout = RowLayout((PREFIX, *template, SUFFIX))
    built_rows = [layout.build_row(content or [EMPTY_TEXT_ID]) for content in contents]
    expected = pad(built_rows)
    rows = place_padded_batch(layout, contents, padding_side)
    expected_mask = expected["attention_mask"].bool()
    assert torch.equal(rows.real_tokens, expected_mask)
    assert torch.equal(rows.copy_ids, expected["copy_ids"])
    assert torch.equal(rows.token_ids[expected_mask], expected["input_ids"][expected_mask])
    assert rows.positions.tolist() == [list(range(expected_mask.shape[1]))]
    spans = expected["spans"]
    assert rows.first_starts.tolist() == [[span.start] for span in spans]
    assert rows.text_lengths.tolist() == [[span.text_length] for span in spans]
    assert rows.row_lengths.tolist() == [[span.row_length] for span in spans]
    assert rows.max_text_length == max(span.text_length for span in spans)


@FAST
@given(TEMPLATES, CONTENTS, st.sampled_from(POOLED))
def test_pooled_positions_are_the_same_in_both_forms(
    template: list[Segment], contents: list[list[int]], pooled: str
) -> None:
    layout = RowLayout((PREFIX, *template, SUFFIX))
    expected = pad([layout.build_row(content or [EMPTY_TEXT_ID]) for content in contents])
    real_tokens = expected["attention_mask"].bool()
    row_lengths = real_tokens.sum(dim=1, keepdim=True)
    rows = place_padded_batch(layout, contents, "right")
    placed_mask = pooled_positions(
        pooled, layout.copies, rows.copy_ids, rows.real_tokens, rows.row_lengths, len(SUFFIX)
    )
    built_mask = pooled_positions(
        pooled, layout.copies, expected["copy_ids"], real_tokens, row_lengths, len(SUFFIX)
    )
    assert torch.equal(placed_mask, built_mask)
