"""The first module by itself: what holds where nothing is said, weights that do not fit, and its own code."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from marks import Base
from pipelines import build
from sentence_transformers.sentence_transformer.modules import Transformer

from st_reba.modules import RepeatTransformer, transformer
from st_reba.modules.attention import ATTENTION_NAME
from st_reba.modules.layout import PARTS


def test_by_hand(base: Base) -> None:
    """Soft caps need the package's attention; no model keeps keys and values."""
    made = RepeatTransformer(base("gemma2"))
    assert made.repeats == 2 and not made.compute_matched and not made.config.use_cache
    assert made.model.config._attn_implementation == ATTENTION_NAME == "st_reba"
    assert made.get_embedding_dimension() == 32
    with pytest.raises(ValueError, match="repeats=65"):
        RepeatTransformer(base("llama"), repeats=65)


def test_the_task_follows_from_what_is_given(base: Base) -> None:
    first: Any = build(base("llama"), "echo", template="echo-instruct")[0]
    query, document = first.frames("Find", "query"), first.frames(task="document")
    assert first.frames("Find") == first.frames(instruction="Find") == query != document == first.frames()


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


def test_weights_of_four_bits_are_saved_as_they_are(base: Base, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.nn.Embedding, "support_avx512bf16_for_cpu", True, raising=False)
    assert not RepeatTransformer(base("llama")).model.embed_tokens.support_avx512bf16_for_cpu


def test_a_copy_of_the_code_copies_itself(base: Base, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("code", "stored_as"):
        monkeypatch.delitem(PARTS, name)
    RepeatTransformer(base("llama")).save(str(tmp_path / "model"))
    assert (tmp_path / "model" / "st_reba.py").read_bytes() == Path(transformer.__file__).read_bytes()
