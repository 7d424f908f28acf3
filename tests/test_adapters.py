"""Adapters over a longer vocabulary than their base's: merged as peft does, or refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from architectures import save_adapter
from oracle import assert_close
from pipelines import build, encoded
from transformers import AutoTokenizer, PreTrainedTokenizerBase

NEW_TOKENS = [f"<|new{number}|>" for number in range(700)]
TEXTS = ["<|new1|> is a letter.", "The cat sat.", "<|new698|><|new699|>"]


def extended_tokenizer(base_folder: Path) -> PreTrainedTokenizerBase:
    """The tokenizer of a base, with more tokens than the base has."""
    tokenizer = AutoTokenizer.from_pretrained(base_folder)
    tokenizer.add_tokens(NEW_TOKENS)
    return tokenizer


def extended_adapter(base_folder: Path, folder: Path, **options: Any) -> tuple[Path, Path]:
    """An adapter with that tokenizer, and the same merged by peft."""
    tokenizer = extended_tokenizer(base_folder)
    return save_adapter(base_folder, folder, tokenizer=tokenizer, **options)


def new_ids(base_folder: Path) -> list[int]:
    tokenizer = extended_tokenizer(base_folder)
    return list(tokenizer.convert_tokens_to_ids(NEW_TOKENS))


@pytest.mark.parametrize(
    "options",
    [
        {"save_embeddings": True},
        {"modules_to_save": ["embed_tokens"]},
        {"modules_to_save": ["embed_tokens", "lm_head"]},
        {"target_modules": ["q_proj", "embed_tokens"], "save_embeddings": True},
        {"target_modules": ["embed_tokens"], "save_embeddings": True, "use_dora": True},
    ],
    ids=str,
)
def test_an_adapter_with_its_own_embeddings_lengthens_its_base(
    llama: Path, options: dict[str, Any], tmp_path: Path
) -> None:
    adapter, merged = extended_adapter(llama, tmp_path, **options)
    model: Any = build(adapter, "classical", pooling="mean")
    assert_close(
        encoded(model, TEXTS), encoded(build(merged, "classical", pooling="mean"), TEXTS).double()
    )
    assert model[0].model.config.vocab_size == len(model[0].model.get_input_embeddings().weight)


@pytest.mark.parametrize("is_named", [False, True], ids=["tokens", "tokens of a module"])
def test_trained_tokens_lengthen_their_base(llama: Path, tmp_path: Path, is_named: bool) -> None:
    token_ids: Any = new_ids(llama)
    if is_named:
        token_ids = {"embed_tokens": token_ids}
    options = {"trainable_token_indices": token_ids, "save_embeddings": False}
    adapter, merged = extended_adapter(llama, tmp_path, **options)
    model = build(adapter, "classical", pooling="mean")
    assert_close(
        encoded(model, TEXTS), encoded(build(merged, "classical", pooling="mean"), TEXTS).double()
    )


@pytest.mark.parametrize("target_modules", [["q_proj"], ["q_proj", "embed_tokens"]], ids=str)
def test_new_tokens_without_embeddings_are_refused(
    llama: Path, target_modules: list[str], tmp_path: Path
) -> None:
    """An adapter may hold what is added to them, but not what it is added to."""
    options = {"target_modules": target_modules, "save_embeddings": False}
    adapter, _ = extended_adapter(llama, tmp_path, **options)
    with pytest.raises(ValueError, match="save_embedding_layers=True") as raised:
        build(adapter)
    assert "\n" not in str(raised.value)


def test_a_longer_adapter_without_its_tokenizer_is_refused(llama: Path, tmp_path: Path) -> None:
    """The base's own tokenizer would cut the new tokens into others."""
    adapter, merged = extended_adapter(llama, tmp_path, save_embeddings=True)
    for file in adapter.glob("*token*"):
        file.unlink()
    with pytest.raises(ValueError, match="saved without the tokenizer .* tokenizer="):
        build(adapter, "echo")
    model = build(adapter, "echo", tokenizer=str(merged))
    assert_close(encoded(model, TEXTS), encoded(build(merged, "echo"), TEXTS).double())


def test_a_tokenizer_longer_than_the_embeddings_of_an_adapter_is_refused(
    llama: Path, tmp_path: Path
) -> None:
    adapter, merged = extended_adapter(llama, tmp_path, save_embeddings=True)
    tokenizer = AutoTokenizer.from_pretrained(merged)
    tokenizer.add_tokens("<|one more|>")
    tokenizer.save_pretrained(tmp_path / "longer")
    with pytest.raises(ValueError, match="its tokenizer has .* ids, its embeddings are"):
        build(adapter, tokenizer=tmp_path / "longer")
