"""Weights that stay with the base: a repository may hold none of its own, and name a base and its revision instead."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from .vendoring import extra


@contextmanager
def left_at_base(module: Any, base: str, revision: str | None) -> Iterator[None]:
    """Inside the ``with`` block, saving ``module`` writes the name of the base that holds its weights, unchanged."""
    module.left_at = (base, revision)
    try:
        yield
    finally:
        module.left_at = None


def recorded(module: Any) -> dict[str, Any]:
    """What the configuration of such a module says in place of weights and tokenizer."""
    base, revision = module.left_at
    return {
        "from_base": True,
        "base_model": base,
        "base_revision": revision,
        "processor_kwargs": {"model_max_length": module.text_tokenizer.model_max_length},
    }


def base_of(folder: str, base: str | None, revision: str | None, kwargs: dict[str, Any]) -> str:
    """The base that a folder names; what is to find it is put into ``kwargs``."""
    if guards := extra("guards", needed=False):
        guards.check_base(base, revision, here=os.path.isdir(folder))
    for name in ("model_kwargs", "processor_kwargs", "config_kwargs"):
        # These were to find the repository; the base has its own revision, and stands in its root.
        kwargs[name] = {**(kwargs.get(name) or {}), "revision": revision, "subfolder": ""}
    weights = kwargs["model_kwargs"]
    # Another's name in a file shall not make a pickle be opened.
    weights["use_safetensors"] = True
    if "torch_dtype" in weights:
        # The older name comes from the caller, the newer one maybe from the file, which must not win.
        weights["dtype"] = weights.pop("torch_dtype")
    return str(base)


@contextmanager
def looked_for(base: str | None, revision: str | None) -> Iterator[None]:
    """Inside the ``with`` block, an error tells that the base is what could not be loaded."""
    try:
        yield
    except OSError as error:
        raise OSError(
            f"The model holds no weights but names those of {base!r} (revision {revision}), which could not be loaded. "
            f"Download that model first, or pass token=… where it asks for a login. {error}"
        ) from error
