"""QueryShift: moves the vectors of queries to where those of documents lie."""

from __future__ import annotations

from typing import Any

import torch
from sentence_transformers.base.modules import Module
from torch import Tensor

from .layout import published


@published
class QueryShift(Module):
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

    def __init__(
        self,
        in_features: int,
        shift: Tensor | None = None,
    ) -> None:
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
            task: ``"query"``, as ``encode_query`` says; whatever else it is, nothing is added.
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

    @classmethod
    def load(
        cls,
        model_name_or_path: str,
        subfolder: str = "",
        token: bool | str | None = None,
        cache_folder: str | None = None,
        revision: str | None = None,
        local_files_only: bool = False,
        init_defaults: dict[str, Any] | None = None,
        **kwargs: object,
    ) -> QueryShift:
        """Load the shift; an error where its weights are missing."""
        config = cls.load_config(
            model_name_or_path,
            subfolder=subfolder,
            token=token,
            cache_folder=cache_folder,
            revision=revision,
            local_files_only=local_files_only,
        )
        module = cls(**config)
        cls.load_torch_weights(
            model_name_or_path,
            subfolder=subfolder,
            token=token,
            cache_folder=cache_folder,
            revision=revision,
            local_files_only=local_files_only,
            model=module,
        )
        return module

    def save(
        self,
        output_path: str,
        *args: object,
        safe_serialization: bool = True,
        **kwargs: object,
    ) -> None:
        """Save the configuration and the shift."""
        self.save_config(output_path)
        self.save_torch_weights(output_path, safe_serialization=safe_serialization)
