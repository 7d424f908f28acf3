"""An exported graph as OpenSearch and Vespa run it: one text per call, their inputs, and each of their poolings."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import numpy as np
import pytest
from numpy.typing import NDArray
from sentence_transformers import SentenceTransformer
from tokenizers import Tokenizer

import st_reba
import st_reba.onnx

onnxruntime = pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")

pytestmark = pytest.mark.slow

Array: TypeAlias = NDArray[np.float32]
Pooling: TypeAlias = Callable[[Array], Array]

TEXTS = ["The cat sleeps.", "银行今天关门了。", "x </s> <s> [SEP]"]
# Nothing is padded where one text is run, so each of these reads all positions.
OPENSEARCH_POOLINGS: dict[str, Pooling] = {
    "mean": lambda states: states.mean(axis=0),
    "mean_sqrt_len": lambda states: states.sum(axis=0) / np.sqrt(len(states)),
    "max": lambda states: states.max(axis=0),
    "weightedmean": lambda states: np.average(
        states, axis=0, weights=np.arange(1, len(states) + 1)
    ),
    "cls": lambda states: states[0],
    "lasttoken": lambda states: states[-1],
}
VESPA_POOLINGS = ("mean", "cls")


@pytest.fixture(scope="module")
def exported_model(tmp_path_factory: pytest.TempPathFactory) -> tuple[SentenceTransformer, Path]:
    model = st_reba.build("mini", "reba", pooling="mean", layer=2, dtype="float32", device="cpu")
    folder = tmp_path_factory.mktemp("servers") / "exported"
    st_reba.onnx.export(model, folder)
    return model, folder


def run_text(folder: Path, text: str, output_names: list[str] | None) -> Array:
    """The first output [n, d] for one text."""
    session = onnxruntime.InferenceSession(str(folder / "onnx" / "model.onnx"))
    encoding = Tokenizer.from_file(str(folder / "tokenizer.json")).encode(text)
    inputs = {
        "input_ids": np.array([encoding.ids], np.int64),
        "attention_mask": np.array([encoding.attention_mask], np.int64),
    }
    states: Array = session.run(output_names, inputs)[0][0]
    return states


@pytest.mark.parametrize("pooling", OPENSEARCH_POOLINGS)
def test_opensearch_gets_the_models_vectors(
    exported_model: tuple[SentenceTransformer, Path],
    pooling: str,
) -> None:
    model, folder = exported_model
    for text in TEXTS:
        pooled_vector = OPENSEARCH_POOLINGS[pooling](run_text(folder, text, None))
        unit_vector = pooled_vector / np.linalg.norm(pooled_vector)
        np.testing.assert_allclose(unit_vector, model.encode(text), atol=1e-5)


@pytest.mark.parametrize("pooling", VESPA_POOLINGS)
def test_vespa_gets_the_models_vectors(
    exported_model: tuple[SentenceTransformer, Path],
    pooling: str,
) -> None:
    model, folder = exported_model
    for text in TEXTS:
        pooled_vector = OPENSEARCH_POOLINGS[pooling](run_text(folder, text, ["last_hidden_state"]))
        np.testing.assert_allclose(pooled_vector, model.encode(text), atol=1e-5)


def test_the_graph_takes_two_inputs_in_the_servers_order(
    exported_model: tuple[SentenceTransformer, Path],
) -> None:
    _, folder = exported_model
    session = onnxruntime.InferenceSession(str(folder / "onnx" / "model.onnx"))
    assert [graph_input.name for graph_input in session.get_inputs()] == [
        "input_ids",
        "attention_mask",
    ]
    assert [graph_output.name for graph_output in session.get_outputs()] == ["last_hidden_state"]
