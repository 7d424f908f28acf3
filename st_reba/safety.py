"""Load a model, once its files are seen to ask for nothing that they may not have."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    from sentence_transformers import SentenceTransformer


def load(
    model: str | os.PathLike[str],
    *,
    device: str | None = None,
    dtype: str | torch.dtype | None = None,
    trust_remote_code: bool = False,
    **kwargs: Any,
) -> SentenceTransformer:
    """Load a saved model."""
    from sentence_transformers import SentenceTransformer

    from .bases import weights_dtype

    weights = {"dtype": weights_dtype(dtype, device), "use_safetensors": True}
    kwargs["model_kwargs"] = {**weights, **(kwargs.get("model_kwargs") or {})}
    return SentenceTransformer(os.fspath(model), device=device, trust_remote_code=trust_remote_code, **kwargs)
