"""QueryShift: moves the vectors of queries to where those of documents lie."""

from __future__ import annotations

import torch
from torch import Tensor

from .fitted import FittedModule
from .layout import published


@published
class QueryShift(FittedModule):
    """Adds one vector to what ``encode_query`` gives; other vectors stay as they are.

    Short queries and long documents have different means. What is common to all queries says
    nothing of any of them, so the difference of the two means is added to each query.

    Args:
        in_features: Dimension d of the vectors.
        shift: Mean of the documents' vectors minus mean of the queries', [d]; None: zeros, until
            weights are loaded.

    Example:
        >>> import torch
        >>> features = {"sentence_embedding": torch.zeros(1, 2)}
        >>> QueryShift(2, torch.ones(2))(features, task="query")["sentence_embedding"]
        tensor([[1., 1.]])
    """

    config_keys = ["in_features"]
    forward_kwargs = {"task"}

    def __init__(self, in_features: int, shift: Tensor | None = None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.in_features = in_features
        if shift is None:
            shift = torch.zeros(in_features)
        # A buffer and no parameter: what was measured is not trained.
        self.register_buffer("shift", shift)

    def forward(
        self,
        features: dict[str, Tensor],
        task: str | None = None,
        **kwargs: object,
    ) -> dict[str, Tensor]:
        """Shift queries.

        Args:
            features: ``sentence_embedding`` [B, d]; not changed.
            task: ``"query"``, as ``encode_query`` says; otherwise, nothing is added.
            **kwargs: Ignored.

        Returns:
            The features, with ``sentence_embedding`` [B, d].
        """
        if task != "query":
            return features
        shifted_vectors = features["sentence_embedding"] + self.get_buffer("shift")
        return {**features, "sentence_embedding": shifted_vectors}

    def get_embedding_dimension(self) -> int:
        """Dimension d of the vectors."""
        return self.in_features
