"""What the consumers of an exported folder share: where it is, and its golden vectors."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer

VARIABLE = "ST_REBA_ONNX"


def folder() -> Path:
    """The folder that ``st-reba onnx`` wrote; without one the test module is skipped."""
    if VARIABLE not in os.environ:
        pytest.skip(f"set {VARIABLE} to a folder that st-reba onnx wrote", allow_module_level=True)
    return Path(os.environ[VARIABLE]).resolve()


def golden(folder: Path) -> tuple[list[str], Any]:
    """Texts and what torch made of them."""
    stored = json.loads((folder / "golden.json").read_text(encoding="utf-8"))["texts"]
    assert len(stored) >= 19
    return [each["text"] for each in stored], np.array([each["vector"] for each in stored])


def check(model: Any, folder: Path) -> None:
    """Whether a loaded model gives the golden vectors, on both padding sides, alone and in batches."""
    texts, wanted = golden(folder)
    settings = json.loads((folder / "sentence_bert_config.json").read_text(encoding="utf-8"))
    assert model.max_seq_length == settings["max_seq_length"]
    scale = float(np.abs(wanted).max())
    for side in ("right", "left"):
        model.tokenizer.padding_side = side
        for size in (1, 4, len(texts)):
            found = model.encode(texts, batch_size=size)
            assert found.shape == wanted.shape
            assert float(np.abs(found - wanted).max()) < 1e-5 * scale, (side, size)
    # A text that spells a special token is ordinary text.
    raw = Tokenizer.from_file(str(folder / "tokenizer.json"))
    raw.no_padding()
    for text in ("<s>", "a</s>b", "The <pad> runs.", "银行<s><s> 关门"):
        assert list(model.tokenizer(text)["input_ids"]) == raw.encode(text).ids
    # What is too long is cut to the same tokens.
    limit = model.max_seq_length
    one, two = model.encode(["word and 字 " * limit, "word and 字 " * (limit + 100)])
    assert float(np.abs(one - two).max()) < 1e-5 * scale
