"""Chunked ReBA in plain float64 loops, beside reference.py and in its notation; independent of the package.

Reading chosen where the definition leaves it open: a text of n tokens is cut into as few pieces as
hold at most L0 tokens each, P = ceil(n / L0), and piece p (counted from 0) begins at token floor(p
n / P), so that sizes differ by one at most and the last piece is among the largest. All that stands
around the text in its first pass (special tokens, prompt, template words) stands around each
piece's copies.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from reference import Layout, Pooling, mean, reba_weights, weighted_sum
from torch import Tensor

# Token ids of a sequence → its hidden states V [T, d] and A_new [T, T].
RunModel = Callable[[tuple[int, ...]], tuple[Tensor, Tensor]]


def cut_into_pieces(token_count: int, limit: int) -> list[range]:
    """Which of the text's tokens (from 0) each piece holds."""
    piece_count = -(-token_count // limit)
    bounds = [p * token_count // piece_count for p in range(piece_count + 1)]
    return [range(start, end) for start, end in zip(bounds, bounds[1:], strict=False)]


def piece_layout(text_layout: Layout, piece: Sequence[int], copy_count: int) -> Layout:
    """Copies of a piece, k times, in place of the text in a sequence that holds it once."""
    positions = text_layout.positions(1)
    prefix_ids = text_layout.ids[: positions[0]]
    suffix_ids = text_layout.ids[positions[-1] + 1 :]
    content = [text_layout.ids[positions[token]] for token in piece]
    copy_of = [0] * len(prefix_ids)
    for copy_number in range(1, copy_count + 1):
        copy_of += [copy_number] * len(content)
    copy_of += [0] * len(suffix_ids)
    return Layout(
        ids=prefix_ids + content * copy_count + suffix_ids,
        copy_of=copy_of,
        n=len(content),
        k=copy_count,
        suffix=text_layout.suffix,
    )


def chunked_tokens(
    run_model: RunModel,
    text_layout: Layout,
    limit: int,
    copy_count: int = 2,
    **options: bool,
) -> Tensor:
    """E [n, d]: e_i = v_i A_new[i, i] + sum over t > i in the piece's repeat of A_new[i, t] v'_t.

    v of the text, run once (``text_layout`` holds it once); A_new and v' of the piece that holds
    token i, run k times.
    """
    assert text_layout.k == 1
    text_states, _ = run_model(tuple(text_layout.ids))
    text_positions = text_layout.positions(1)
    token_vectors: list[Tensor] = []
    for piece in cut_into_pieces(text_layout.n, limit):
        repeated = piece_layout(text_layout, piece, copy_count)
        piece_states, fused_attention = run_model(tuple(repeated.ids))
        weight_rows = reba_weights(fused_attention, repeated, **options).tolist()
        first_copy = repeated.positions(1)
        for weight_row, token, position in zip(weight_rows, piece, first_copy, strict=True):
            states = list(piece_states)
            states[position] = text_states[text_positions[token]]
            token_vectors.append(weighted_sum(weight_row, states))
    return torch.stack(token_vectors)


def chunked_pooled(token_vectors: Tensor, pooling: Pooling) -> Tensor:
    """last: e_n; mean: (1/n) sum over i of e_i."""
    if pooling == "last":
        return token_vectors[-1]
    return mean(token_vectors, range(len(token_vectors)))
