"""The reference against numbers worked out by hand."""

from __future__ import annotations

import reference
import torch
from reference import Layout
from torch import Tensor


def close(actual: Tensor, expected: object) -> None:
    """Equal but for rounding."""
    torch.testing.assert_close(actual, torch.tensor(expected, dtype=torch.float64), rtol=0, atol=1e-12)


# [BOS] x1 x2 : x1 x2 [EOS], with A_new[i, j] = (10 (i + 1) + (j + 1)) / 100 for i <= j, symmetric; with unit vectors as
# states, what is pooled is its weights.
TWO_COPIES = Layout(ids=[0, 5, 6, 9, 5, 6, 1], copy_of=[0, 1, 1, 0, 2, 2, 0], n=2, k=2, suffix=1)
A_NEW = torch.tensor([[10 * (min(i, j) + 1) + max(i, j) + 1 for j in range(7)] for i in range(7)]).double() / 100
HIDDEN = torch.eye(7, dtype=torch.float64)


def test_symmetrized_max() -> None:
    # Two layers of two heads over three tokens, in tenths; every row sums to 1.
    first = [[[10, 0, 0], [4, 6, 0], [2, 3, 5]], [[10, 0, 0], [1, 9, 0], [6, 2, 2]]]
    second = [[[10, 0, 0], [8, 2, 0], [1, 1, 8]], [[10, 0, 0], [5, 5, 0], [3, 5, 2]]]
    # Largest below the diagonal: [1,0] 8, [2,0] 6, [2,1] 5, each halved; on it: 10, 9, 8, in full.
    close(reference.symmetrized_max(torch.tensor([first, second])), [[10, 4, 3], [4, 9, 2.5], [3, 2.5, 8]])


def test_reba_of_two_copies() -> None:
    # pos(1, .) = 1, 2 and pos(2, .) = 4, 5.
    first, second = [0, 0.22, 0.23, 0, 0.25, 0.26, 0], [0, 0, 0.33, 0, 0.35, 0.36, 0]
    close(reference.reba_tokens(HIDDEN, A_NEW, TWO_COPIES), [first, second])
    close(reference.reba(HIDDEN, A_NEW, TWO_COPIES), second)
    close(reference.reba_word(HIDDEN, A_NEW, TWO_COPIES, [1]), second)
    # The sums of weights are 0.96 and 1.04.
    normalized = [(a / 0.96 + b / 1.04) / 2 for a, b in zip(first, second, strict=True)]
    close(reference.reba(HIDDEN, A_NEW, TWO_COPIES, "mean", normalize_weights=True), normalized)
    # Special and template tokens from pos(1, i) on join in; the one at the start never does.
    close(reference.reba(HIDDEN, A_NEW, TWO_COPIES, include_special=True), [0, 0, 0.33, 0.34, 0.35, 0.36, 0.37])


def test_published_variants() -> None:
    row = [0.17, 0.27, 0.37, 0.47, 0.57, 0.67, 0.77]
    # T = 7: rows 0, 1, 2.
    columns = [0.11, 0.34, 0.69, 0.72, 0.75, 0.78, 0.81]
    # Row 2 with the earlier columns, read off the symmetric matrix.
    word = [0.13, 0.23, 0.33, 0.34, 0.35, 0.36, 0.37]
    close(reference.published_last(HIDDEN, A_NEW), [w / sum(row) for w in row])
    close(reference.published_mean(HIDDEN, A_NEW), [w / sum(columns) for w in columns])
    close(reference.published_word(HIDDEN, A_NEW, TWO_COPIES, [1]), [w / sum(word) for w in word])


def test_echo_over_the_repeats_of_three_copies() -> None:
    three = Layout(ids=[5, 5, 5], copy_of=[1, 2, 3], n=1, k=3)
    for span, wanted in (("repeats", [0, 1 / 2, 1 / 2]), ("last_copy", [0, 0, 1])):
        close(reference.echo(HIDDEN[:3, :3], three, "mean", span), wanted)
