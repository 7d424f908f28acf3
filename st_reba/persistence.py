"""Load a saved model with the dtype rule of ``build``, once it has been looked through."""

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
    # Here, as what only keeps a model's place imports this file.
    from sentence_transformers import SentenceTransformer

    from .bases import EMBEDDED, hub_of, weights_dtype
    from .inspection import RepositoryRefused, check_repository
    from .modules.guards import limited

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


def loaded(
    model: SentenceTransformer | str | os.PathLike[str], source: str | os.PathLike[str] | None, **options: Any
) -> tuple[SentenceTransformer, str | os.PathLike[str] | None]:
    """A model, loaded if it is only named; and where it is, as far as is known."""
    if isinstance(model, (str, os.PathLike)):
        return load(model, **options), model if source is None else source
    return model, source


def place_of(source: str | os.PathLike[str] | None, folder: str | os.PathLike[str]) -> str | None:
    """A model's folder as seen from another, beginning with a dot; anything else, as a Hub id, as it is."""
    if source is None or not os.path.isdir(source):
        return None if source is None else os.fspath(source)
    path = os.path.relpath(os.path.realpath(source), os.path.realpath(folder))
    return path if path.startswith(".") else os.path.join(".", path)


def located(source: str | None, folder: str | os.PathLike[str], *, must: bool = True) -> str:
    """A Hub id, or the path of a model's folder, from what `place_of` gave.

    Args:
        source: What an index or a corpus remembers.
        folder: Its folder.
        must: The model's folder must be there.

    Raises:
        ValueError: It was not told, or the model is gone.
    """
    if source is None:
        raise ValueError("the index does not say where its model is; name it: --model FOLDER_OR_HUB_ID")
    if not source.startswith("."):
        return source
    path = os.path.normpath(os.path.join(os.path.realpath(folder), source))
    if must and not os.path.isdir(path):
        # Never handed on: a missing folder's name could be somebody's repository on the Hub.
        raise ValueError(f"the index was built with the model in {path!r}, which is gone; name it: --model FOLDER")
    return path
