"""The reference against numbers worked out by hand."""

from __future__ import annotations

import pytest
import reference
import torch
from reference import Layout
from torch import Tensor

# [BOS] x1 x2 : x1 x2 [EOS]: pos(1, .) = 1, 2 and pos(2, .) = 4, 5.
TWO_COPIES = Layout(
    ids=[0, 5, 6, 9, 5, 6, 1],
    copy_of=[0, 1, 1, 0, 2, 2, 0],
    n=2,
    k=2,
    suffix=1,
)
# With unit vectors as states, what is pooled is its weights.
HIDDEN_STATES = torch.eye(7, dtype=torch.float64)
# The weights of e_1 and e_2 in two copies, and their sums.
FIRST_TOKEN = [0, 0.22, 0.23, 0, 0.25, 0.26, 0]
SECOND_TOKEN = [0, 0, 0.33, 0, 0.35, 0.36, 0]
FIRST_SUM = 0.96
SECOND_SUM = 1.04


def symmetric_matrix() -> Tensor:
    """A_new[i, j] = (10 (i + 1) + (j + 1)) / 100 for i <= j, symmetric."""
    matrix = torch.zeros(7, 7, dtype=torch.float64)
    for i in range(7):
        for j in range(i, 7):
            matrix[i, j] = matrix[j, i] = (10 * (i + 1) + j + 1) / 100
    return matrix


FUSED_ATTENTION = symmetric_matrix()


def assert_equal(actual: Tensor, expected: object) -> None:
    """Equal but for rounding."""
    expected_tensor = torch.tensor(expected, dtype=torch.float64)
    torch.testing.assert_close(actual, expected_tensor, rtol=0, atol=1e-12)


def divided(weights: list[float], divisor: float) -> list[float]:
    return [weight / divisor for weight in weights]


def test_symmetrized_max_takes_the_largest_of_layers_and_heads() -> None:
    # Two layers of two heads over three tokens, in tenths; every row sums to 1.
    lower_layer = [
        [[10, 0, 0], [4, 6, 0], [2, 3, 5]],
        [[10, 0, 0], [1, 9, 0], [6, 2, 2]],
    ]
    upper_layer = [
        [[10, 0, 0], [8, 2, 0], [1, 1, 8]],
        [[10, 0, 0], [5, 5, 0], [3, 5, 2]],
    ]
    # Largest below the diagonal: [1,0] 8, [2,0] 6, [2,1] 5, each halved; on it: 10, 9, 8, in full.
    expected = [[10, 4, 3], [4, 9, 2.5], [3, 2.5, 8]]
    attention = torch.tensor([lower_layer, upper_layer])
    assert_equal(reference.symmetrized_max(attention), expected)


def test_reba_tokens_see_content_from_their_first_copy_on() -> None:
    token_vectors = reference.reba_tokens(HIDDEN_STATES, FUSED_ATTENTION, TWO_COPIES)
    assert_equal(token_vectors, [FIRST_TOKEN, SECOND_TOKEN])


def test_reba_pools_the_last_token() -> None:
    assert_equal(reference.reba(HIDDEN_STATES, FUSED_ATTENTION, TWO_COPIES), SECOND_TOKEN)


def test_reba_word_is_the_mean_of_its_tokens() -> None:
    word_vector = reference.reba_word(HIDDEN_STATES, FUSED_ATTENTION, TWO_COPIES, [1])
    assert_equal(word_vector, SECOND_TOKEN)


def test_reba_normalizes_weights_before_the_mean() -> None:
    expected: list[float] = []
    for first_weight, second_weight in zip(FIRST_TOKEN, SECOND_TOKEN, strict=True):
        expected.append((first_weight / FIRST_SUM + second_weight / SECOND_SUM) / 2)
    vector = reference.reba(
        HIDDEN_STATES,
        FUSED_ATTENTION,
        TWO_COPIES,
        "mean",
        normalize_weights=True,
    )
    assert_equal(vector, expected)


def test_special_tokens_count_from_the_first_copy_on() -> None:
    """The one at the start never does."""
    vector = reference.reba(HIDDEN_STATES, FUSED_ATTENTION, TWO_COPIES, include_special=True)
    assert_equal(vector, [0, 0, 0.33, 0.34, 0.35, 0.36, 0.37])


def test_published_last_is_the_last_row() -> None:
    last_row = [0.17, 0.27, 0.37, 0.47, 0.57, 0.67, 0.77]
    expected = divided(last_row, sum(last_row))
    assert_equal(reference.published_last(HIDDEN_STATES, FUSED_ATTENTION), expected)


def test_published_mean_sums_the_rows_of_the_first_half() -> None:
    # T = 7: rows 0, 1, 2.
    column_sums = [0.11, 0.34, 0.69, 0.72, 0.75, 0.78, 0.81]
    expected = divided(column_sums, sum(column_sums))
    assert_equal(reference.published_mean(HIDDEN_STATES, FUSED_ATTENTION), expected)


def test_published_word_takes_earlier_columns_too() -> None:
    # Row 2, read off the symmetric matrix.
    word_row = [0.13, 0.23, 0.33, 0.34, 0.35, 0.36, 0.37]
    vector = reference.published_word(HIDDEN_STATES, FUSED_ATTENTION, TWO_COPIES, [1])
    assert_equal(vector, divided(word_row, sum(word_row)))


@pytest.mark.parametrize(
    ("span", "expected"),
    [("repeats", [0, 1 / 2, 1 / 2]), ("last_copy", [0, 0, 1])],
)
def test_echo_averages_over_a_span_of_three_copies(
    span: reference.Span, expected: list[float]
) -> None:
    three_copies = Layout(ids=[5, 5, 5], copy_of=[1, 2, 3], n=1, k=3)
    vector = reference.echo(HIDDEN_STATES[:3, :3], three_copies, "mean", span)
    assert_equal(vector, expected)
