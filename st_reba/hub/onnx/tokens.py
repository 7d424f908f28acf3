"""The tokenizer's files: the same ids in every reader, also of a text that spells a special token.

In this package such a text is ordinary text. Readers of a tokenizer.json find special tokens in a text unless they are
told not to, which transformers.js and text-embeddings-inference cannot be. A file that lists no special tokens leaves
them nothing to find: the tokens stay in the vocabulary, and the post-processor still puts them around a text.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer
from transformers import AutoTokenizer  # type: ignore[attr-defined]

from ...modules.layout import TokenLayout
from .method import Method

_PROBES = ("hello", "The bank, 1984!", "银行 的利率", " two  spaces ")
_SPECIAL = ("pad", "eos", "sep", "bos", "cls", "unk")


def write_tokenizer(layout: TokenLayout, method: Method, folder: Path) -> int:
    """Write tokenizer.json and tokenizer_config.json; returns the padding's id.

    Raises:
        ValueError: The tokenizer cannot be written so that it gives the same ids everywhere.
    """
    tokenizer: Any = layout.tokenizer
    name = type(tokenizer).__name__
    if not tokenizer.is_fast:
        raise ValueError(f"{name} has no tokenizer.json, which every consumer of a graph reads.")
    own = tokenizer.backend_tokenizer
    values: dict[str, Any] = json.loads(own.to_str())
    special = _without_special(values)
    backend = Tokenizer.from_str(json.dumps(values))
    tokens = {f"{each}_token": getattr(tokenizer, f"{each}_token", None) for each in _SPECIAL}
    # Whatever is not in the vocabulary would be given an id of its own.
    named = {key: str(token) for key, token in tokens.items() if backend.token_to_id(str(token)) is not None}
    # Padding is masked, so any token will do.
    named["pad_token"] = next(iter(named.values()), str(backend.id_to_token(0)))
    pad = int(backend.token_to_id(named["pad_token"]) or 0)
    backend.enable_padding(pad_id=pad, pad_token=named["pad_token"], direction="right")
    if method.max_length is None:
        backend.no_truncation()
    else:
        backend.enable_truncation(method.max_length, direction="right")
    backend.save(str(folder / "tokenizer.json"))
    around = own.post_processor and own.encode("").tokens or []
    for token in dict.fromkeys([*around, *(each["content"] for each in values["added_tokens"])]):
        if backend.token_to_id(token) != own.token_to_id(token):
            raise ValueError(
                f"{name}: {token!r} is number {own.token_to_id(token)}, which is not its place in the vocabulary of a "
                f"{values['model']['type']} tokenizer.json without special tokens. Train the tokenizer with this token "
                "as a piece of its vocabulary."
            )
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",  # known to both major versions of transformers
        "model_input_names": ["input_ids", "attention_mask"],
        "padding_side": "right",
        "truncation_side": "right",
        "clean_up_tokenization_spaces": False,
        "split_special_tokens": True,  # transformers adds these tokens anew, and is to leave them alone in a text
        **named,
        **({} if method.max_length is None else {"model_max_length": method.max_length}),
    }
    (folder / "tokenizer_config.json").write_text(
        json.dumps(config, ensure_ascii=False, indent=2) + "\n", encoding="utf-8"
    )
    _check(layout, method, folder, special)
    return pad


def _without_special(values: dict[str, Any]) -> list[str]:
    """Take the special ones off the added tokens of a tokenizer.json; returns them."""
    added = values["added_tokens"]
    vocabulary = values["model"]["vocab"]
    if isinstance(vocabulary, dict):
        # Added tokens beyond the vocabulary are numbered as they come: as a part of it they keep their numbers.
        for each in added:
            vocabulary.setdefault(each["content"], each["id"])
    values["added_tokens"] = [each for each in added if not each["special"]]
    return [each["content"] for each in added if each["special"]]


def _check(layout: TokenLayout, method: Method, folder: Path, special: list[str]) -> None:
    """Whether the files alone give what the model's own tokenizer gives."""
    before, after = layout.special
    texts = [*_PROBES, *(text for token in special for text in (token, f"a{token}b", f"a {token} b"))]
    raw = Tokenizer.from_file(str(folder / "tokenizer.json"))
    raw.no_padding()
    again = AutoTokenizer.from_pretrained(str(folder))
    readers = {
        "tokenizers": [each.ids for each in raw.encode_batch(texts)],
        "transformers": again(texts, truncation=method.max_length is not None)["input_ids"],
    }
    for reader, found in readers.items():
        for text, ids, given in zip(texts, layout.content(texts)["input_ids"], found, strict=True):
            wanted = [*before, *ids[: method.budget], *after]
            if list(given) != wanted:
                raise ValueError(
                    f"{type(layout.tokenizer).__name__}: read by {reader}, tokenizer.json gives {given[:8]}… for "
                    f"{text!r}, where the model's own tokenizer gives {wanted[:8]}…. Save it as a plain "
                    "PreTrainedTokenizerFast, with its special tokens in its vocabulary, and build anew."
                )
