"""An exported folder in a backend of sentence-transformers, without st_reba, in an environment of its own.

    ST_REBA_ONNX=FOLDER ST_REBA_BACKEND=openvino python -m pytest --noconftest tests/consumers/test_onnx_backend.py

with what requirements-openvino.txt names; or ``optimum``, the onnx backend of sentence-transformers 5.7.
"""

from __future__ import annotations

import json
import os
from typing import Any

import numpy as np
import pytest
from given import exported
from sentence_transformers import SentenceTransformer
from tokenizers import Tokenizer

FOLDER, TEXTS, WANTED = exported()
BACKENDS: dict[str, tuple[str, dict[str, Any]]] = {
    # openvino's default on many processors is bfloat16, which is off by a hundredth.
    "openvino": ("OVModel", {"from_onnx": True, "ov_config": {"INFERENCE_PRECISION_HINT": "f32"}}),
    "optimum": ("ORTModel", {"provider": "CPUExecutionProvider"}),
}


@pytest.fixture(scope="module")
def model() -> SentenceTransformer:
    name = os.environ["ST_REBA_BACKEND"]
    kind, settings = BACKENDS[name]
    backend: Any = "onnx" if name == "optimum" else name
    model = SentenceTransformer(str(FOLDER), backend=backend, device="cpu", model_kwargs=settings)
    first: Any = model[0]
    assert type(getattr(first, "model", None) or first.auto_model).__name__.startswith(kind)
    return model


@pytest.mark.parametrize("side", ["right", "left"])
def test_vectors(model: SentenceTransformer, side: str) -> None:
    """Alone and in batches; what is too long is cut to the same tokens."""
    settings = json.loads((FOLDER / "sentence_bert_config.json").read_text(encoding="utf-8"))
    assert model.max_seq_length == settings["max_seq_length"]
    scale = float(np.abs(WANTED).max())
    model.tokenizer.padding_side = side
    for size in (1, 4, len(TEXTS)):
        np.testing.assert_allclose(model.encode(TEXTS, batch_size=size), WANTED, atol=1e-5 * scale, rtol=0)
    limit = model.max_seq_length
    one, two = model.encode(["word and 字 " * limit, "word and 字 " * (limit + 100)])
    np.testing.assert_allclose(one, two, atol=1e-5 * scale, rtol=0)


def test_a_text_that_spells_a_special_token(model: SentenceTransformer) -> None:
    raw = Tokenizer.from_file(str(FOLDER / "tokenizer.json"))
    raw.no_padding()
    for text in ("<s>", "a</s>b", "The <pad> runs.", "银行<s><s> 关门"):
        assert list(model.tokenizer(text)["input_ids"]) == raw.encode(text).ids
