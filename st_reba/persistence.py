"""Save a model whole or not at all; load one with the dtype rule of ``build``."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch
from sentence_transformers import SentenceTransformer

from .build import EMBEDDED, weights_dtype
from .files import check_folder, whole_folder


def save(model: SentenceTransformer, folder: str | os.PathLike[str], *, overwrite: bool = False) -> None:
    """Save a model as ``model.save_pretrained(folder)`` does, whole or not at all.

    Args:
        model: The model.
        folder: The folder to make; an empty one may be there.
        overwrite: Replace a saved model that is there, with all its files.

    Raises:
        FileExistsError: Something is there that may not be replaced.
    """
    with whole_folder(folder, overwrite=overwrite, kind="a saved model", is_kind=_is_model) as temporary:
        model.save_pretrained(str(temporary))


def check_out(folder: str | os.PathLike[str], *, overwrite: bool = False) -> None:
    """Raise what :func:`save` would raise, before the work of building is done."""
    check_folder(Path(folder), overwrite=overwrite, kind="a saved model", is_kind=_is_model)


def _is_model(folder: Path) -> bool:
    return (folder / "modules.json").is_file()


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
