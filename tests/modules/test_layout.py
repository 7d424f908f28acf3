"""What is around a text, as tokens."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from architectures import TOKENIZERS

from st_reba.modules.layout import Frame, empty_text_token, make_frame, special_tokens, tokenize


def test_names_of_special_tokens() -> None:
    """In a text they are text, in a template they are what they name; nothing is cut, padded or added."""
    tokenizer = TOKENIZERS["bos_eos"]()
    tokenizer.model_max_length = 2
    bos, eos = (tokenizer.bos_token_id,), (tokenizer.eos_token_id,)
    found = tokenize(tokenizer, ["<s>", "a"])
    assert set(found) == {"input_ids"} and [len(ids) for ids in found["input_ids"]] == [3, 1]
    assert special_tokens(tokenizer) == (bos, eos)
    template = (("", "instruction"), ("</s>", "text"))
    assert make_frame(tokenizer, template, (eos, bos), "b", {"instruction": "<s>"}) == Frame(
        (eos, bos + eos, None, bos)
    )


def test_a_text_without_a_token() -> None:
    assert empty_text_token(SimpleNamespace(eos_token_id=None, sep_token_id=0, pad_token_id=1)) == 0
    with pytest.raises(ValueError):
        empty_text_token(SimpleNamespace())
