"""AuthorsReBAPooling: what the code of ReBA's authors computes, where that is not what the paper says."""

from __future__ import annotations

from torch import Tensor

from .capture import Capture
from .layout import Features, Span, published
from .pooling import ReBAPooling, divide_by_sum, weighted_sums


class AuthorsCapture(Capture):
    """Rows of A^new, also those of ``"end"``, the very last position, and of ``"half"``, the first half of all."""

    zeroes_nonfinite_texts = True

    def anchor_range(self, span: Span) -> tuple[int, int]:
        """First anchor of a text, and number of anchors, which follow one another."""
        if self.anchors == "end":
            return span.row_length - 1, 1
        if self.anchors == "half":
            return 0, max(1, span.row_length // 2)
        return super().anchor_range(span)


@published
class AuthorsReBAPooling(ReBAPooling):
    """ReBA as its authors' code has it.

    All sums run over all real positions, with weights that sum to 1. A text whose states are not
    finite gets zeros.

    Args:
        embedding_dimension: Dimension d of the hidden states.
        pooling: ``"last"``: weights are the row of A^new of the very last position; ``"mean"``: the
            sum over the first half of the rows of its upper triangle. (Those of a word are the sum
            of its tokens' rows.)

    Source:
        The code of ReBA's authors.

    Example:
        >>> import st_reba
        >>> type(st_reba.build("mini", "reba", implementation="authors")[1]).__name__
        'AuthorsReBAPooling'
    """

    config_keys = ["embedding_dimension", "pooling"]
    has_row_sums = True

    def __init__(self, embedding_dimension: int, pooling: str = "last") -> None:
        super().__init__(embedding_dimension, pooling, include_special=True)

    @property
    def capture(self) -> Capture:
        """The rows of A^new that the sentence vector needs."""
        if self.pooling == "last":
            return AuthorsCapture("end", earlier_columns=True, special_columns=True)
        return AuthorsCapture("half", special_columns=True)

    @property
    def token_capture(self) -> Capture:
        """The rows of A^new that words and tokens need."""
        return AuthorsCapture("copy", earlier_columns=True, special_columns=True)

    def forward(self, features: Features, **kwargs: object) -> Features:
        """Pool what RepeatTransformer gives: ``features`` with ``sentence_embedding`` [B, d]."""
        self._check(features)
        weights = divide_by_sum(self._weights(features, False).sum(dim=1, keepdim=True))
        return {**features, "sentence_embedding": weighted_sums(weights, features)[:, 0]}

    def token_vectors(self, features: Features, normalize: bool = False) -> Tensor:
        """The e_i of the captured rows, [B, R, d], with weights that sum to 1."""
        return super().token_vectors(features, True)

    def row_sums(self, features: Features) -> Tensor:
        """Sum of each captured row, [B, R]: how much a token counts in a word."""
        return self._weights(features, False).sum(dim=-1)
