"""The tensor form of `RowLayout.build_row` and `pad`, for a graph: no branch depends on the texts."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .layout import RowLayout


@dataclass(frozen=True)
class PlacedRows:
    """The rows of a batch of B texts; T is the length of the longest row that may come about."""

    token_ids: Tensor  # [B, T]; after a row, the token of an empty text
    copy_ids: Tensor  # [B, T]: c in copy c, 0 elsewhere
    positions: Tensor  # [1, T]: 0, 1, …
    real_tokens: Tensor  # [B, T] bool
    first_starts: Tensor  # [B, 1], where copy 1 begins
    text_lengths: Tensor  # [B, 1]
    row_lengths: Tensor  # [B, 1]
    max_text_length: int


def literal_ids(layout: RowLayout, empty_text_id: int) -> list[int]:
    """Token ids that `place_rows` puts beside texts: of the layout, then that of an empty text."""
    token_ids: list[int] = []
    for segment in layout.segments:
        token_ids += segment or ()
    return [*token_ids, empty_text_id]


def place_rows(
    layout: RowLayout,
    literals: Tensor,
    input_ids: Tensor,
    text_starts: Tensor,
    text_lengths: Tensor,
    max_text_length: int,
) -> PlacedRows:
    """Place the copies of texts, and the tokens around them.

    Args:
        layout: The layout of every row.
        literals: What `literal_ids` gives.
        input_ids: [B, L], in which each text is one run of tokens.
        text_starts: [B, 1], the first column of each text.
        text_lengths: [B, 1], its number of tokens; of an empty text 0 or less.
        max_text_length: The largest number of tokens that fits into L columns, 1 or more.
    """
    batch_size, column_count = input_ids.shape
    filled_lengths = text_lengths.clamp(min=1)  # an empty text is one token long
    longest_row = layout.overhead + layout.copies * max_text_length
    positions = torch.arange(longest_row, device=input_ids.device)[None]
    token_table = torch.cat([input_ids, literals[None].expand(batch_size, -1)], dim=1)
    empty_column = column_count + len(literals) - 1
    columns = torch.zeros_like(positions + filled_lengths) + empty_column
    copy_ids = torch.zeros_like(columns)
    copy_starts: list[Tensor] = []
    segment_start = filled_lengths * 0
    literal_column = column_count
    for segment in layout.segments:
        offsets = positions - segment_start
        segment_length = filled_lengths if segment is None else len(segment)
        is_inside = (offsets >= 0) & (offsets < segment_length)
        if segment is None:
            copy_starts.append(segment_start)
            text_columns = torch.where(text_lengths > 0, text_starts + offsets, empty_column)
            columns = torch.where(is_inside, text_columns, columns)
            copy_ids = torch.where(is_inside, len(copy_starts), copy_ids)
        elif segment:
            columns = torch.where(is_inside, literal_column + offsets, columns)
            literal_column += len(segment)
        segment_start = segment_start + segment_length
    row_lengths = layout.overhead + layout.copies * filled_lengths
    return PlacedRows(
        token_ids=token_table.gather(1, columns),
        copy_ids=copy_ids,
        positions=positions,
        real_tokens=positions < row_lengths,
        first_starts=copy_starts[0],
        text_lengths=filled_lengths,
        row_lengths=row_lengths,
        max_text_length=max_text_length,
    )
