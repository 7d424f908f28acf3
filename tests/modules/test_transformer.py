"""The first module by itself: what holds where nothing is said, tokens around a text, weights, and its own code."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from architectures import TOKENIZERS
from marks import Base
from pipelines import build
from sentence_transformers.sentence_transformer.modules import Transformer

from st_reba.modules import RepeatTransformer, transformer
from st_reba.modules.attention import ATTENTION_NAME
from st_reba.modules.layout import PARTS, Frame, empty_text_token, make_frame, special_tokens, tokenize


def test_by_hand(base: Base, monkeypatch: pytest.MonkeyPatch) -> None:
    """Soft caps need the package's attention; keys and values are not kept; weights of 4 bits are saved as they are."""
    monkeypatch.setattr(torch.nn.Linear, "support_avx512bf16_for_cpu", True, raising=False)
    made = RepeatTransformer(base("gemma2"))
    assert not any(getattr(each, "support_avx512bf16_for_cpu", False) for each in made.modules())
    assert made.repeats == 2 and not made.compute_matched and not made.config.use_cache
    assert made.model.config._attn_implementation == ATTENTION_NAME == "st_reba"
    assert made.get_embedding_dimension() == 32
    with pytest.raises(ValueError, match="repeats=65"):
        RepeatTransformer(base("llama"), repeats=65)


def test_the_task_follows_from_what_is_given(base: Base) -> None:
    first: Any = build(base("llama"), "echo", template="echo-instruct")[0]
    query, document = first.frames("Find", "query"), first.frames(task="document")
    assert first.frames("Find") == first.frames(instruction="Find") == query != document == first.frames()


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


def test_weights_of_an_adapter(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own may not be missing; those that it leaves to the base may."""
    loaded: Any = SimpleNamespace(model=SimpleNamespace(), loading={"missing_keys": ["q.lora_A", "k"]})
    monkeypatch.setattr(Transformer, "load", classmethod(lambda cls, path: loaded))
    for adapted, name in ((False, "k"), (True, "q.lora_A")):
        loaded.model._hf_peft_config_loaded = adapted
        with pytest.raises(ValueError, match=f"missing_keys: {name}"):
            RepeatTransformer.load("")
    loaded.loading["missing_keys"].remove("q.lora_A")
    assert RepeatTransformer.load("") is loaded


def test_a_copy_of_the_code_copies_itself(base: Base, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("code", "stored_as"):
        monkeypatch.delitem(PARTS, name)
    RepeatTransformer(base("llama")).save(str(tmp_path / "model"))
    assert (tmp_path / "model" / "st_reba.py").read_bytes() == Path(transformer.__file__).read_bytes()
