"""Chunked ReBA in plain float64 loops, beside reference.py and in its notation; independent of the package.

Reading chosen where the definition leaves it open: a text of n tokens is cut into as few pieces as hold at most L0
tokens each, P = ceil(n / L0), and piece p (counted from 0) begins at token floor(p n / P), so that sizes differ by one
at most and the last piece is among the largest. All that stands around the text in its first pass (special tokens,
prompt, template words) stands around each piece's copies.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from reference import Layout, Pooling, mean, reba_weights, weighted_sum
from torch import Tensor

# Token ids of a sequence → its hidden states V [T, d] and A_new [T, T].
Run = Callable[[tuple[int, ...]], tuple[Tensor, Tensor]]


def cut(n: int, limit: int) -> list[range]:
    """The pieces: which of the text's tokens (from 0) each holds."""
    count = -(-n // limit)
    return [range(p * n // count, (p + 1) * n // count) for p in range(count)]


def piece_layout(placed: Layout, piece: Sequence[int], k: int) -> Layout:
    """Copies of a piece, k times, in place of the text in a sequence that holds it once."""
    positions = placed.positions(1)
    before, after = placed.ids[: positions[0]], placed.ids[positions[-1] + 1 :]
    content = [placed.ids[positions[token]] for token in piece]
    copies = [c for c in range(1, k + 1) for _ in content]
    copy_of = [0] * len(before) + copies + [0] * len(after)
    return Layout(before + content * k + after, copy_of, n=len(content), k=k, suffix=placed.suffix)


def chunked_tokens(run: Run, placed: Layout, limit: int, k: int = 2, **options: bool) -> Tensor:
    """E [n, d]: e_i = v_i A_new[i, i] + sum over t > i in the piece's repeat of A_new[i, t] v'_t.

    v of the text, run once (``placed`` holds it once); A_new and v' of the piece that holds token i, run k times.
    """
    assert placed.k == 1
    V, _ = run(tuple(placed.ids))
    tokens = []
    for piece in cut(placed.n, limit):
        repeated = piece_layout(placed, piece, k)
        V_piece, A_new = run(tuple(repeated.ids))
        weights = reba_weights(A_new, repeated, **options).tolist()
        for row, i, here in zip(weights, piece, repeated.positions(1), strict=True):
            states = list(V_piece)
            states[here] = V[placed.positions(1)[i]]
            tokens.append(weighted_sum(row, states))
    return torch.stack(tokens)


def chunked_pooled(tokens: Tensor, pooling: Pooling) -> Tensor:
    """last: e_n; mean: (1/n) sum over i of e_i."""
    return tokens[-1] if pooling == "last" else mean(tokens, range(len(tokens)))
