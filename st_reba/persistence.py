"""Load a saved model with the dtype rule of ``build``, once it has been looked through."""

from __future__ import annotations

import os
from typing import Any

import torch
from sentence_transformers import SentenceTransformer

from .bases import EMBEDDED, hub_of, weights_dtype
from .inspection import RepositoryRefused, check_repository
from .modules.guards import limited


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
        **kwargs: All else that SentenceTransformer takes. Pickled weights are opened with
            ``model_kwargs={"use_safetensors": False}`` alone.

    Raises:
        RepositoryRefused: It asks for what it may not have; see :func:`st_reba.inspection.check_repository`.
        ValueError: The folder holds no sentence-transformers model.
    """
    path = os.fspath(model)
    if path in EMBEDDED and not os.path.isdir(path):
        raise ValueError(f"MODEL={path!r} is a base model, not a saved embedder. Run: st-reba build {path} FOLDER")
    if os.path.isdir(path) and not os.path.isfile(os.path.join(path, "modules.json")):
        raise ValueError(f"MODEL={path!r} holds no modules.json: it is no saved model. Run: st-reba build {path} OUT")
    weights: dict[str, Any] = {"dtype": weights_dtype(dtype, device)}
    if kwargs.get("backend", "torch") == "torch":
        # Where this is not said, weights in pickles are opened too.
        weights["use_safetensors"] = True
    kwargs["model_kwargs"] = {**weights, **(kwargs.get("model_kwargs") or {})}
    kwargs |= {"device": device, "trust_remote_code": trust_remote_code}
    try:
        with limited(check_repository(path, trust_remote_code=trust_remote_code, **hub_of(kwargs))):
            return SentenceTransformer(path, **kwargs)
    except RepositoryRefused:
        raise
    except Exception as error:
        raise ValueError(f"MODEL={path!r} could not be loaded: {error}") from error
