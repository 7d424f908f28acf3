"""What a stored configuration may say, and where its weights may be: a repository is data from elsewhere."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from .options import shown, unknown
from .stages import stages_of

# What a saved module may say to transformers; anything else there was not written by a save, and could name files,
# servers or code.
_PASSED_ON = {
    "model_kwargs": frozenset(("dtype", "torch_dtype", "attn_implementation")),
    "processor_kwargs": frozenset(("model_max_length", "padding_side", "truncation_side")),
    "config_kwargs": frozenset[str](),
}
_OLD_NAMES = {"model_args": "model_kwargs", "tokenizer_args": "processor_kwargs", "config_args": "config_kwargs"}
_HUB_ID = re.compile(r"(?:\w[\w.-]*/)?\w[\w.-]*")
# A branch, tag or commit.
_REVISION = re.compile(r"\w[\w.-]*(?:/\w[\w.-]*)*")


def check_config(config: Mapping[str, Any], known: list[str], *, here: bool) -> None:
    """Raise unless a stored configuration holds only what a save writes.

    Args:
        config: The configuration.
        known: The settings that the module's class has.
        here: Whether it stands in a folder of this machine.

    Raises:
        ValueError: A setting that is missing or not known, one that transformers is not to be told, or a base that is
            not allowed.
    """
    file = "sentence_bert_config.json"
    # Without these the module would run, silently, by its defaults.
    for name in {"layout", "stages"} & set(known):
        if config.get(name) is None:
            raise ValueError(
                f"{file} is missing, or lacks {name!r}: the model was copied in part, or not saved by this version of "
                "st_reba. Copy all of its files, or build it again."
            )
    known = [*known, "from_base", "max_seq_length", "do_lower_case", *_PASSED_ON, *_OLD_NAMES]
    if extra := sorted(set(config) - set(known)):
        raise ValueError(unknown(f"{file}: {extra[0]}", extra[0], known, config[extra[0]]))
    stages_of(config["stages"])
    for name in (*_PASSED_ON, *_OLD_NAMES):
        given, allowed = config.get(name, {}), _PASSED_ON[_OLD_NAMES.get(name, name)]
        if not isinstance(given, dict):
            raise ValueError(f"{file}: {name}={shown(given)} must be a mapping. Save the model again.")
        if extra := sorted(set(given) - allowed):
            raise ValueError(
                f"{file}: {name}: {shown(extra[0])}={shown(given[extra[0]])} may not come from a stored configuration, "
                f"only {sorted(allowed) or 'nothing'}. Remove it there, and pass it when loading if it is needed."
            )
    attention = {**config.get("model_args", {}), **config.get("model_kwargs", {})}.get("attn_implementation")
    if attention is not None and (not isinstance(attention, str) or not attention.replace("_", "").isalnum()):
        # A name with a slash is downloaded and run.
        raise ValueError(
            f"{file}: attn_implementation={shown(attention)} is no kernel of transformers' own. Remove it."
        )
    if not isinstance(config.get("from_base", False), bool):
        raise ValueError(f"{file}: from_base={shown(config['from_base'])} must be true or false.")
    if config.get("from_base"):
        check_base(config.get("base_model"), config.get("base_revision"), here=here)


def check_base(base: object, revision: object, *, here: bool) -> None:
    """Raise unless weights may be taken from a base model that a stored configuration names.

    Args:
        base: Its Hub id; in a folder of this machine also the full path of a model's folder.
        revision: Its branch, tag or commit, or None.
        here: Whether the configuration stands in a folder of this machine.

    Raises:
        ValueError: It is neither, or the folder holds no model.
    """
    if not isinstance(base, str) or not base:
        raise ValueError(f"from_base=True needs the name of a base model, not base_model={shown(base)}.")
    if revision is not None and (
        not isinstance(revision, str) or not _REVISION.fullmatch(revision) or ".." in revision or len(revision) > 250
    ):
        raise ValueError(f"base_revision={shown(revision)} is no branch, tag or commit. Correct it, or use null.")
    if _HUB_ID.fullmatch(base) and ".." not in base:
        return
    local = here and os.path.isabs(base) and ".." not in re.split(r"[\\/]", base)
    # A folder that is gone is for loading to tell; one that is there and no model was never saved from.
    if not (local and (os.path.isfile(os.path.join(base, "config.json")) or not os.path.lexists(base))):
        raise ValueError(
            f"base_model={shown(base)} is no Hub id such as 'organization/name'"
            + (", and no full path of a model's folder on this machine" if here else "")
            + ". Download that base model and save the embedder again with base=…."
        )


def check_filled(model: object, info: Mapping[str, Any]) -> None:
    """Raise unless a saved model's weights are exactly those that its configuration asks for.

    Args:
        model: The backbone, for messages.
        info: What transformers says of loading it.

    Raises:
        ValueError: Weights are missing, too many, or of another shape; the first is named.
    """
    for key, problem in (
        ("missing_keys", "are missing, and would be random numbers"),
        ("unexpected_keys", "have no place in the model"),
        ("mismatched_keys", "have another shape than the model"),
    ):
        if names := sorted(map(str, info.get(key) or ())):
            raise ValueError(
                f"config.json and the weights do not fit: in {type(model).__name__} {len(names)} weights {problem}, as "
                f"{names[0]}. Copy all of the model's files, or build it again."
            )


@contextmanager
def stored_as(model: nn.Module, dtype: torch.dtype | None) -> Iterator[None]:
    """Inside the ``with`` block, a backbone's weights have the number type of its base, where that loses nothing.

    One tensor after another is changed, in its place, so that the model is never there twice. Weights that were
    trained since, and would be rounded, stay as they are.

    Args:
        model: The backbone.
        dtype: The number type in which its base stores its weights; None: not known.
    """
    running = {each.dtype for each in model.parameters() if each.is_floating_point()}
    kept = [each for each in model.parameters() if each.is_floating_point()]
    changes = dtype is not None and len(running) == 1 and running != {dtype} and all(_survives(w, dtype) for w in kept)
    before = next(iter(running)) if changes else None
    try:
        if changes:
            _change(kept, dtype)
        yield
    finally:
        if before is not None:
            _change(kept, before)


def _survives(weight: torch.Tensor, dtype: torch.dtype) -> bool:
    flat = weight.detach().flatten()
    parts = (flat[start : start + (1 << 22)] for start in range(0, flat.numel(), 1 << 22))
    return all(bool((part.to(dtype).to(part.dtype) == part).all()) for part in parts)


def _change(weights: list[nn.Parameter], dtype: torch.dtype | None) -> None:
    for weight in weights:
        weight.data = weight.data.to(dtype)


@contextmanager
def left_at_base(module: Any, base: str, revision: str | None) -> Iterator[None]:
    """Inside the ``with`` block, saving ``module`` writes where its weights are, not the weights.

    Args:
        module: The input module.
        base: Folder or Hub id of the base model, whose weights the module must hold unchanged.
        revision: Its revision.
    """
    module.left_at = (base, revision)
    try:
        yield
    finally:
        module.left_at = None
