"""An exported folder in a backend of sentence-transformers, without st_reba, in an environment of its own.

    export ST_REBA_ONNX=FOLDER ST_REBA_BACKEND=openvino
    python -m pytest --noconftest tests/consumers/test_onnx_backend.py

with what requirements-openvino.txt names; or ``optimum``, the onnx backend of sentence-transformers
5.7.
"""

from __future__ import annotations

import json
import os
from typing import Any

import numpy as np
import pytest
from consumer_texts import exported_folder
from sentence_transformers import SentenceTransformer
from tokenizers import Tokenizer

EXPORTED = exported_folder()
BACKENDS: dict[str, tuple[str, dict[str, Any]]] = {
    # openvino's default on many processors is bfloat16, which is off by a hundredth.
    "openvino": (
        "OVModel",
        {"from_onnx": True, "ov_config": {"INFERENCE_PRECISION_HINT": "f32"}},
    ),
    "optimum": ("ORTModel", {"provider": "CPUExecutionProvider"}),
}


@pytest.fixture(scope="module")
def model() -> SentenceTransformer:
    backend: Any = os.environ["ST_REBA_BACKEND"]
    class_name, settings = BACKENDS[backend]
    if backend == "optimum":
        backend = "onnx"
    model = SentenceTransformer(
        str(EXPORTED.path),
        backend=backend,
        device="cpu",
        model_kwargs=settings,
    )
    transformer: Any = model[0]
    backend_model = getattr(transformer, "model", None) or transformer.auto_model
    assert type(backend_model).__name__.startswith(class_name)
    return model


def assert_vectors(actual: Any, expected: Any) -> None:
    """Equal by the scale of all vectors."""
    scale = float(np.abs(EXPORTED.vectors).max())
    np.testing.assert_allclose(actual, expected, atol=1e-5 * scale, rtol=0)


@pytest.mark.parametrize("padding_side", ["right", "left"])
@pytest.mark.parametrize("batch_size", [1, 4, len(EXPORTED.texts)])
def test_vectors_are_golden_alone_and_in_batches(
    model: SentenceTransformer,
    padding_side: str,
    batch_size: int,
) -> None:
    model.tokenizer.padding_side = padding_side
    assert_vectors(model.encode(EXPORTED.texts, batch_size=batch_size), EXPORTED.vectors)


@pytest.mark.parametrize("padding_side", ["right", "left"])
def test_what_is_too_long_is_cut_to_the_same_tokens(
    model: SentenceTransformer, padding_side: str
) -> None:
    settings_file = EXPORTED.path / "sentence_bert_config.json"
    settings = json.loads(settings_file.read_text(encoding="utf-8"))
    limit = settings["max_seq_length"]
    assert model.max_seq_length == limit
    model.tokenizer.padding_side = padding_side
    long_text = "word and 字 " * limit
    longer_text = "word and 字 " * (limit + 100)
    long_vector, longer_vector = model.encode([long_text, longer_text])
    assert_vectors(long_vector, longer_vector)


@pytest.mark.parametrize("text", ["<s>", "a</s>b", "The <pad> runs.", "银行<s><s> 关门"])
def test_a_text_that_spells_a_special_token_has_the_tokens_of_the_folder(
    model: SentenceTransformer,
    text: str,
) -> None:
    tokenizer = Tokenizer.from_file(str(EXPORTED.path / "tokenizer.json"))
    tokenizer.no_padding()
    assert list(model.tokenizer(text)["input_ids"]) == tokenizer.encode(text).ids
