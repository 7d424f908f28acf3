"""Load a saved model after its files are checked."""

from __future__ import annotations

import os

import torch
from sentence_transformers import SentenceTransformer

from ..bases import BUNDLED, check_device, choose_hub_options, split_dtype, weights_dtype
from ..near_names import describe_failure, suggest_models
from .module_types import check_modules
from .numbers import limit_numbers
from .repository import (
    COPY_AGAIN,
    Configuration,
    JsonObject,
    JsonValue,
    Repository,
    RepositoryRefused,
    panics_as_errors,
)

_MODULES = "modules.json"
# Of the files of a base and of an adapter.
_ENDS_OF_BASES = ("config.json", ".gguf")
_MAX_DIMENSIONS = 1 << 20


def load(
    model: str | os.PathLike[str],
    *,
    device: str | None = None,
    dtype: str | torch.dtype | None = None,
    trust_remote_code: bool = False,
    **kwargs: JsonValue,
) -> SentenceTransformer:
    """Load a saved model as ``SentenceTransformer(model)`` does, after :func:`check_repository`.

    Args:
        model: A folder written by ``save_pretrained``, or a Hub id.
        device: Where to run.
        dtype: Number type of the weights; None: float32 on a CPU, as stored on a GPU.
        trust_remote_code: Allow code from the repository.
        **kwargs: All else that SentenceTransformer takes.

    Returns:
        The model.

    Raises:
        RepositoryRefused: It asks for what it may not have.
        ValueError: It holds no model that sentence-transformers can load.
    """
    path = os.fspath(model)
    check_device(device)
    is_here = path in BUNDLED or os.path.isdir(path)
    if is_here and not os.path.isfile(os.path.join(path, _MODULES)):
        raise ValueError(
            f"{path!r} holds no {_MODULES}: it is not a saved model. {_remedy_for(path)}"
        )
    dtype, kwargs = split_dtype(dtype, kwargs)
    model_kwargs: JsonObject = {"dtype": weights_dtype(dtype, device)}
    if kwargs.get("backend", "torch") == "torch":
        model_kwargs["use_safetensors"] = True
    kwargs["model_kwargs"] = {**model_kwargs, **(kwargs.get("model_kwargs") or {})}
    try:
        hub_options = choose_hub_options(path, kwargs)
        kwargs.update(hub_options)
        folders = check_repository(path, trust_remote_code=trust_remote_code, **hub_options)
        with limit_numbers(*folders), panics_as_errors():
            return SentenceTransformer(
                path, device=device, trust_remote_code=trust_remote_code, **kwargs
            )
    except RepositoryRefused:
        raise
    except Exception as error:
        reason = suggest_models(path) + describe_failure(path, str(error))
        raise ValueError(f"{path!r} could not be loaded: {reason}") from error


def _remedy_for(folder: str) -> str:
    """What to do with a folder that is not a saved model."""
    names = [] if folder in BUNDLED else sorted(os.listdir(folder))
    if folder in BUNDLED or any(name.endswith(_ENDS_OF_BASES) for name in names):
        return f"Run: st-reba build {folder} FOLDER"
    for name in names:  # as tune's folder holds its model
        if os.path.isfile(os.path.join(folder, name, _MODULES)):
            return f"Name {os.path.join(folder, name)!r}, which is one."
    return "Name a folder that st-reba build wrote."


def check_repository(
    model: str | os.PathLike[str], *, trust_remote_code: bool = False, **hub_options: JsonValue
) -> list[Repository]:
    """Refuse a sentence-transformers repository that asks for code or for more than it holds.

    Refused before anything is loaded: files that are pipes or devices, module types that are not in
    the list of those allowed, pickled weights, options that are the caller's alone, kernels by
    name, configurations that lead elsewhere, and weights that are missing, cut, of another number
    type, or smaller than their configuration says.

    Args:
        model: A folder or Hub id.
        trust_remote_code: Allow module types and model types of the repository's own code.
        **hub_options: How sentence-transformers finds it on the Hub.

    Returns:
        The folders of the modules.

    Raises:
        RepositoryRefused: It asks for what it may not have.
    """
    repository = Repository(os.fspath(model), hub_options)
    repository.check_files()
    _check_model_settings(repository.configuration("config_sentence_transformers.json"))
    return check_modules(repository, trusted=trust_remote_code)


def _check_model_settings(settings: Configuration) -> None:
    settings.check_size()
    model_type = settings.values.get("model_type", "SentenceTransformer")
    if model_type != "SentenceTransformer":
        # sentence-transformers would load something other than what modules.json lists.
        raise settings.refusal(f"it is a {model_type!r:.80}. Use another model.")
    truncate_dim = settings.values.get("truncate_dim")
    if truncate_dim is None:
        return
    # A boolean is a number to Python.
    is_number = type(truncate_dim) is int
    if not is_number or not 1 <= truncate_dim <= _MAX_DIMENSIONS:
        reason = f"must be a whole number of at least 1. {COPY_AGAIN}"
        raise settings.refusal_of("truncate_dim", truncate_dim, reason)
