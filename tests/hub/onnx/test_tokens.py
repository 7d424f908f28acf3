"""Ids of an exported tokenizer.json: as the model's own, also where a text spells a special token, in every reader."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from architectures import save
from tokenizer_families import FAMILIES, spelling
from tokenizers import Tokenizer
from transformers import AutoTokenizer

import st_reba
from st_reba.hub.onnx.folder import write_folder
from st_reba.hub.onnx.method import method_of

PLAIN = ["", "A small dog slept.", "银行今天关门了。", " two  spaces\nand a line ", "naïve 👍 Ærø"]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Any, Path]]:
    made: dict[str, tuple[Any, Path]] = {}

    def get(name: str) -> tuple[Any, Path]:
        if name not in made:
            folder = tmp_path_factory.mktemp(name)
            save("gpt2", folder / "base", FAMILIES[name]())
            model = st_reba.build(str(folder / "base"), "echo", dtype="float32", device="cpu")
            (folder / "onnx").mkdir()
            write_folder(model, method_of(model), folder / "onnx")
            made[name] = model, folder / "onnx"
        return made[name]

    return get


@pytest.mark.parametrize("name", FAMILIES)
def test_same_ids_everywhere(written: Callable[[str], tuple[Any, Path]], name: str) -> None:
    """What a reader finds that does not know of split_special_tokens: transformers.js, text-embeddings-inference."""
    model, folder = written(name)
    layout = model[0].token_layout
    texts = [*PLAIN, *spelling(model.tokenizer)]
    before, after = layout.special
    wanted = [[*before, *ids, *after] for ids in layout.content(texts)["input_ids"]]
    raw = Tokenizer.from_file(str(folder / "tokenizer.json"))
    raw.no_padding()
    again = AutoTokenizer.from_pretrained(str(folder))
    for text, ids in zip(texts, wanted, strict=True):
        assert raw.encode(text).ids == ids, text
        assert list(again(text)["input_ids"]) == ids, text
    stored = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    assert not any(each["special"] for each in stored["added_tokens"])
    for each in stored["added_tokens"]:
        assert raw.token_to_id(each["content"]) == each["id"] == model.tokenizer.convert_tokens_to_ids(each["content"])


def test_a_token_that_no_file_can_hold(tmp_path: Path) -> None:
    """Pieces of a Unigram model are numbered by their place, so that a token beyond it cannot be made one of them."""
    tokenizer = FAMILIES["unigram"].__wrapped__()  # type: ignore[attr-defined]
    tokenizer.add_special_tokens({"sep_token": "<sep>"})
    tokenizer.backend_tokenizer.post_processor = type(tokenizer.backend_tokenizer.post_processor)(
        single="$A <sep>", special_tokens=[("<sep>", tokenizer.convert_tokens_to_ids("<sep>"))]
    )
    save("gpt2", tmp_path / "base", tokenizer)
    model = st_reba.build(str(tmp_path / "base"), "echo", dtype="float32", device="cpu")
    with pytest.raises(ValueError, match=r"'<sep>'.*its place in the vocabulary"):
        write_folder(model, method_of(model), tmp_path)
