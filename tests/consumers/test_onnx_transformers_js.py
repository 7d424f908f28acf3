"""An exported folder in transformers.js, under node: the same ids and vectors as here. ``scripts/test --onnx``."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from architectures import TOKENIZERS, save
from consumer_texts import exported_folder

import st_reba
from st_reba.hub.graph_runner import MIN_COSINES
from st_reba.modules.layout import special_tokens
from st_reba.onnx import tracing
from st_reba.onnx.folder import write_folder
from st_reba.onnx.graph import EmbeddingGraph

EXPORTED = exported_folder()
PLAIN_TEXTS = [
    "A small dog slept.",
    "银行今天关门了。",
    " two  spaces\nand a line ",
    "naïve 👍 Ærø",
]


def texts_that_spell_tokens(tokenizer: Any) -> list[str]:
    """Each token that was added to a tokenizer: alone, inside a word, among words."""
    texts: list[str] = []
    for token in sorted(map(str, tokenizer.get_added_vocab())):
        texts += [
            token,
            f"a{token}b",
            f"The river {token} runs.",
            f"银行{token} 关门",
        ]
    return texts


def run_in_node(tokenizers: dict[str, list[str]], models: list[dict[str, Any]]) -> dict[str, Any]:
    """Tokens of texts by the tokenizer of a folder, and vectors of batches by its model."""
    script = Path(__file__).with_name("transformers_js.mjs")
    completed = subprocess.run(
        ["node", str(script)],
        input=json.dumps({"tokenizers": tokenizers, "models": models}),
        capture_output=True,
        text=True,
        env=os.environ,
    )
    assert completed.returncode == 0, completed.stderr
    return dict(json.loads(completed.stdout))


def vectors_in_node(folder: Path, dtype: str, batches: list[list[str]]) -> np.ndarray:
    job = {"folder": str(folder), "dtype": dtype, "batches": batches}
    (vectors,) = run_in_node({}, [job])["models"]
    return np.array(vectors)


def one_text_a_batch(texts: list[str]) -> list[list[str]]:
    return [[text] for text in texts]


@pytest.fixture(scope="module")
def texts_and_vectors() -> tuple[list[str], np.ndarray]:
    """Golden texts, texts that spell tokens, and at the end one that is too long."""
    model = st_reba.load(EXPORTED.path.parent / "model", device="cpu", dtype="float32")
    more_texts = [
        *texts_that_spell_tokens(model.tokenizer),
        "word and 字 " * 600,
    ]
    vectors = np.concatenate([EXPORTED.vectors, model.encode(more_texts)])
    return [*EXPORTED.texts, *more_texts], vectors


def test_vectors_of_texts_alone(
    texts_and_vectors: tuple[list[str], np.ndarray],
) -> None:
    texts, expected = texts_and_vectors
    vectors = vectors_in_node(EXPORTED.path, "fp32", one_text_a_batch(texts))
    np.testing.assert_allclose(vectors, expected, atol=1e-5, rtol=0)


def test_vectors_of_a_batch(
    texts_and_vectors: tuple[list[str], np.ndarray],
) -> None:
    texts, expected = texts_and_vectors
    vectors = vectors_in_node(EXPORTED.path, "fp32", [texts[:-1]])
    np.testing.assert_allclose(vectors, expected[:-1], atol=1e-5, rtol=0)


def test_vectors_in_8_bits(
    texts_and_vectors: tuple[list[str], np.ndarray],
) -> None:
    """Alone, as dtype "q8" loads onnx/model_quantized.onnx."""
    texts, expected = texts_and_vectors
    vectors = vectors_in_node(EXPORTED.path, "q8", one_text_a_batch(texts))
    cosines = (vectors * expected).sum(axis=1)
    assert MIN_COSINES["min"] < cosines.min() < 1 - 1e-5
    assert cosines.mean() > MIN_COSINES["mean"]


def test_tokens_of_byte_level_bpe(tmp_path: Path) -> None:
    """Also where a text spells a special token or one beyond the vocabulary."""
    tokenizer = TOKENIZERS["bos_eos"]()
    tokenizer.add_tokens(["<tool_call>"])
    save("gpt2", tmp_path / "base", tokenizer)
    model: Any = st_reba.build(str(tmp_path / "base"), "echo", dtype="float32", device="cpu")
    graph = EmbeddingGraph(model)
    folder = tmp_path / "onnx"
    folder.mkdir()
    write_folder(model, graph, folder)
    texts = [*PLAIN_TEXTS, *texts_that_spell_tokens(model.tokenizer)]
    prefix, suffix = special_tokens(model.tokenizer)
    expected: list[list[int]] = []
    for content in model[0].tokenize_content(texts)["input_ids"]:
        expected.append([*prefix, *content[: graph.budget], *suffix])
    tokens_by_folder = run_in_node({str(folder): texts}, [])["tokenizers"]
    assert tokens_by_folder[str(folder)] == expected


def test_weights_beside_the_graph(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As those of a model beyond 2 GB are; of both graphs."""
    pytest.importorskip("onnxscript")
    from st_reba.onnx import export

    save("gpt2", tmp_path / "base", "bos_eos")
    model = st_reba.build(
        str(tmp_path / "base"),
        "classical",
        pooling="mean",
        dtype="float32",
        device="cpu",
    )
    monkeypatch.setattr(tracing, "MAX_BYTES", 0)
    folder = tmp_path / "onnx"
    export(model, folder, quantize="int8")
    texts = [*PLAIN_TEXTS[:3], "word " * 300]
    expected = model.encode(texts)
    assert np.abs(vectors_in_node(folder, "fp32", one_text_a_batch(texts)) - expected).max() < 1e-5
    cosines = (vectors_in_node(folder, "q8", one_text_a_batch(texts)) * expected).sum(axis=1)
    assert cosines.min() > MIN_COSINES["min"]
