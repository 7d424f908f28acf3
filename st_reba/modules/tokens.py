"""What a tokenizer says: a text's content ids, the special ids around it, and the limit on all."""

from __future__ import annotations

import re
import threading
from collections.abc import Sequence
from typing import Any

from transformers import PreTrainedTokenizerBase

from .templates import Frame

# A fast tokenizer's settings are state that calls with other arguments change: one call at a time.
_tokenizing = threading.Lock()
_SURROGATES = re.compile("[\ud800-\udfff]")
# A limit beyond this is transformers' way of saying that a tokenizer knows none.
_NO_LIMIT = 10**12
_PROBES = ("a", "0", "the", "\u4e2d")


def content(tokenizer: PreTrainedTokenizerBase, texts: Sequence[str], *, offsets: bool = False) -> dict[str, list[Any]]:
    """Tokenize texts as content: without special tokens, and with special-token strings taken as ordinary text.

    Args:
        tokenizer: The tokenizer.
        texts: The texts.
        offsets: Also return each token's character span.

    Returns:
        ``input_ids``: token ids a text, never cut, maybe none; with ``offsets``, ``offset_mapping``.

    Raises:
        ValueError: An input that is not a string, or offsets of a tokenizer that has none.
    """
    for text in texts:
        # Not by its number: sentence-transformers has sorted the texts by length.
        if not isinstance(text, str):
            raise ValueError(f"An input is no string but {type(text).__name__}: {text!r:.80}. Pass texts.")
    if offsets and not tokenizer.is_fast:
        raise ValueError(
            f"{type(tokenizer).__name__} knows no character offsets, so words cannot be found in a text. Use a fast "
            "tokenizer (tokenizer.json)."
        )
    return _tokenize(tokenizer, texts, special=False, offsets=offsets)


def frame(tokenizer: PreTrainedTokenizerBase, literals: Sequence[str | None]) -> Frame:
    """A filled template as token ids, the tokenizer's own special tokens around it.

    Args:
        tokenizer: The tokenizer.
        literals: Literal runs, each tokenized on its own, and None for each copy of the content.
    """
    before, after = special_ids(tokenizer)
    pieces: list[tuple[int, ...] | None] = [before]
    for literal in literals:
        ids = None if literal is None else _tokenize(tokenizer, [literal], special=True, offsets=False)["input_ids"][0]
        pieces.append(None if ids is None else tuple(ids))
    return Frame((*pieces, after))


def special_ids(tokenizer: PreTrainedTokenizerBase) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The ids that the tokenizer's own convention puts before and after a text.

    Raises:
        ValueError: It does something else than to put ids around a text.
    """
    for probe in _PROBES:
        with _tokenizing:
            whole, inner = (
                list(
                    tokenizer(probe, add_special_tokens=special, padding=False, truncation=False, verbose=False)[
                        "input_ids"
                    ]
                )
                for special in (True, False)
            )
        starts = [i for i in range(len(whole) - len(inner) + 1) if whole[i : i + len(inner)] == inner]
        if inner and starts:
            return tuple(whole[: starts[0]]), tuple(whole[starts[0] + len(inner) :])
    raise ValueError(
        f"{type(tokenizer).__name__} tokenizes a word otherwise with special tokens than without, so that they cannot "
        "be placed once around the copies. Use a tokenizer that adds them around the text."
    )


def empty_id(tokenizer: PreTrainedTokenizerBase) -> int | None:
    """The id that stands for a text without a single token; None where the tokenizer has no special token at all."""
    for name in ("eos", "sep", "bos", "cls", "unk", "pad"):
        token = getattr(tokenizer, f"{name}_token_id", None)
        if token is not None:
            return int(token)
    return None


def position_limit(tokenizer: PreTrainedTokenizerBase) -> int | None:
    """How many positions a sequence may have; None: no limit is known."""
    limit = tokenizer.model_max_length
    return None if limit is None or limit > _NO_LIMIT else int(limit)


def _tokenize(
    tokenizer: PreTrainedTokenizerBase, texts: Sequence[str], *, special: bool, offsets: bool
) -> dict[str, list[Any]]:
    # Half of a surrogate pair is no character and has no UTF-8 form; its length is kept for the offsets.
    characters = [_SURROGATES.sub("\ufffd", text) for text in texts]
    with _tokenizing:
        encoded = tokenizer(
            characters,
            add_special_tokens=False,
            split_special_tokens=not special,
            padding=False,
            truncation=False,
            return_attention_mask=False,
            return_token_type_ids=False,
            return_offsets_mapping=offsets,
            verbose=False,
        )
    return dict(encoded)
