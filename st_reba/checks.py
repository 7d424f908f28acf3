"""What ``build`` checks of its options: before anything is loaded, and of a tokenizer and a template after it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, cast

import torch
from transformers import AutoTokenizer

from .bases import EMBEDDED
from .modules.chunked import ChunkedReBAPooling
from .modules.repeat import RepeatTransformer


def check_prompts(prompts: object) -> None:
    """Refuse prompts that are no mapping of names to texts."""
    if prompts is None:
        return
    if not isinstance(prompts, Mapping):
        raise ValueError(f"prompts={prompts!r} must be a mapping of names to texts, as {{'query': 'query: '}}.")
    for name, text in prompts.items():
        if not isinstance(name, str) or not isinstance(text, str):
            raise ValueError(f"prompts={dict(prompts)!r}: the name {name!r} and the text {text!r} must be strings.")


def check_device(device: str | None) -> None:
    """Refuse a device that torch does not know."""
    try:
        torch.device(device or "cpu")
    except (RuntimeError, TypeError) as error:
        raise ValueError(f"device={device!r} is not known ({error}): give cpu, cuda, cuda:1, mps.") from error


def locate_tokenizer(tokenizer: object, hub: Mapping[str, Any]) -> str:
    """Where the tokenizer is that takes the place of the base's own.

    Args:
        tokenizer: A folder, a Hub id, or the name of an embedded model.
        hub: ``token``, ``cache_dir``, ``local_files_only`` and ``trust_remote_code``, as transformers takes them.

    Returns:
        Folder or Hub id.

    Raises:
        ValueError: It is neither.
        OSError: None can be loaded from there.
    """
    if not isinstance(tokenizer, (str, os.PathLike)):
        raise ValueError(
            f"tokenizer={type(tokenizer).__name__} must be a folder or Hub id. Save the tokenizer and name its folder."
        )
    text = os.fspath(tokenizer)
    if os.path.isfile(text):
        raise ValueError(f"tokenizer={text!r} is a file: name the folder that holds the tokenizer.")
    path = str(EMBEDDED[text]) if text in EMBEDDED else text
    try:
        # Before the weights, which may take long.
        AutoTokenizer.from_pretrained(path, **hub)
    except Exception as error:
        # transformers raises errors of many kinds, of packages that are missing too.
        raise OSError(
            f"tokenizer={text!r} could not be loaded: {error} Name the folder or Hub id of the model that the base's "
            "tokens are those of."
        ) from error
    return path


def check_vocabulary(transformer: RepeatTransformer, base: str, tokenizer: str) -> None:
    """Refuse a tokenizer that has ids beyond the base's embeddings.

    Args:
        transformer: The module that holds both.
        base: What to call the base.
        tokenizer: What to call the tokenizer.
    """
    tokens = max(transformer.text_tokenizer.get_vocab().values()) + 1
    embeddings = len(cast(torch.Tensor, transformer.model.get_input_embeddings().weight))
    if tokens > embeddings:
        raise ValueError(
            f"tokenizer={tokenizer!r} has {tokens} token ids, but base={base!r} has {embeddings} embeddings, so some "
            "tokens would have none. Name the tokenizer that the base was trained with."
        )


def check_length(transformer: RepeatTransformer, pooling: torch.nn.Module) -> None:
    """Whether both templates leave room for a text, or for the copies of a piece, within the base model's positions."""
    # Fields may get their values with the text; any will do to see that the template fits.
    for task in ("query", "document"):
        fields = dict.fromkeys(transformer.fields(task), "-")
        transformer.budget(task=task, **fields)
        if isinstance(pooling, ChunkedReBAPooling):
            pooling.check_room(transformer.frames(task=task, **fields)[0].overhead)
