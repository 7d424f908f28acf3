"""Load a saved model with the dtype rule of ``build``."""

from __future__ import annotations

import os
from typing import Any

import torch
from sentence_transformers import SentenceTransformer

from .build import EMBEDDED, weights_dtype


def load(
    model: str | os.PathLike[str],
    *,
    device: str | None = None,
    dtype: str | torch.dtype | None = None,
    trust_remote_code: bool = False,
    **kwargs: Any,
) -> SentenceTransformer:
    """Load a model as ``SentenceTransformer(model)`` does, with errors for what is no saved model.

    Args:
        model: A folder written by ``save_pretrained``, or a Hub id.
        device: Where to run.
        dtype: Of the weights; None: float32 on a CPU, as stored on a GPU.
        trust_remote_code: Allow code from the repository.
        **kwargs: All else that SentenceTransformer takes.

    Raises:
        ValueError: The folder holds no sentence-transformers model.
    """
    path = os.fspath(model)
    if path in EMBEDDED and not os.path.isdir(path):
        raise ValueError(f"MODEL={path!r} is a base model, not a saved embedder. Run: st-reba build {path} FOLDER")
    if os.path.isdir(path) and not os.path.isfile(os.path.join(path, "modules.json")):
        raise ValueError(
            f"MODEL={path!r} holds no modules.json: it is no saved embedder. Run: st-reba build {path} OUT"
        )
    model_kwargs = {"dtype": weights_dtype(dtype, device), **kwargs.pop("model_kwargs", {})}
    try:
        return SentenceTransformer(
            path, device=device, trust_remote_code=trust_remote_code, model_kwargs=model_kwargs, **kwargs
        )
    except Exception as error:
        raise ValueError(f"MODEL={path!r} could not be loaded: {error}") from error
