"""Run an exported folder as a stranger would, with onnxruntime, tokenizers and numpy, and verify it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray
from sentence_transformers.util import pairwise_cos_sim

from ..optional import required
from ..safety import Repository, panics_as_errors
from .golden import Report, compare_vectors

if TYPE_CHECKING:
    import torch

# transformers.js knows both graphs by these names.
GRAPH, QUANTIZED = "onnx/model.onnx", "onnx/model_quantized.onnx"
# Cosines to float32 that a graph of 8 bits must reach, over all texts.
MIN_COSINES = {"min": 0.98, "mean": 0.99}


class Runner:
    """One graph of an exported folder, loaded."""

    def __init__(self, folder: str | Path, graph: str = GRAPH) -> None:
        from tokenizers import Tokenizer

        onnxruntime = required("onnxruntime", "onnx", "running a graph needs onnxruntime")
        settings = onnxruntime.SessionOptions()
        settings.log_severity_level = 3  # it warns of initializers that it folds
        self._name = f"{str(folder)!r}: {graph}"
        graph_path = str(Path(folder, graph))
        try:
            self._session = onnxruntime.InferenceSession(
                graph_path, settings, providers=["CPUExecutionProvider"]
            )
        except Exception as error:  # onnxruntime's own classes share no other base
            raise ValueError(
                f"{str(folder)!r}: onnxruntime does not read {graph}: {error}"
            ) from error
        tokenizer_path = Path(folder) / "tokenizer.json"
        try:
            with panics_as_errors():
                self.tokenizer = Tokenizer.from_file(str(tokenizer_path))
        except Exception as error:  # its errors have no class of their own
            raise ValueError(
                f"{str(folder)!r}: tokenizer.json is missing or damaged ({error}). Export the model again."
            ) from error
        self._padding = dict(self.tokenizer.padding or {})
        if not self._padding:
            raise ValueError(
                f"{str(folder)!r}: tokenizer.json names no padding token. Export the model again."
            )

    def encode(
        self,
        texts: Sequence[str],
        batch_size: int = 1,
        padding_side: Literal["left", "right"] = "right",
    ) -> NDArray[np.float32]:
        """Sentence vectors [n, d] of texts, padded on the given side of a batch."""
        self.tokenizer.enable_padding(
            pad_id=self._padding["pad_id"],
            pad_token=self._padding["pad_token"],
            direction=padding_side,
        )
        vector_batches: list[NDArray[np.float32]] = []
        try:
            for batch_start in range(0, len(texts), batch_size):
                batch_texts = texts[batch_start : batch_start + batch_size]
                vector_batches.append(self._encode_batch(batch_texts))
            return np.concatenate(vector_batches)
        except Exception as error:  # of graphs and tokenizers that are not those of an export
            problem = " ".join(str(error).split())[:300]
            raise ValueError(
                f"{self._name} gives no vectors ({problem}). Export the model again."
            ) from error

    def _encode_batch(self, texts: Sequence[str]) -> NDArray[np.float32]:
        encodings = self.tokenizer.encode_batch(texts)
        token_ids = np.array([encoding.ids for encoding in encodings], dtype=np.int64)
        attention_mask = np.array(
            [encoding.attention_mask for encoding in encodings], dtype=np.int64
        )
        graph_inputs = {"input_ids": token_ids, "attention_mask": attention_mask}
        (hidden_states,) = self._session.run(["last_hidden_state"], graph_inputs)
        position_weights = attention_mask[:, :, None].astype(np.float32)
        weighted_sum = (hidden_states * position_weights).sum(axis=1)
        sentence_vectors: NDArray[np.float32] = weighted_sum / position_weights.sum(axis=1)
        return sentence_vectors


def versions() -> dict[str, str]:
    """Versions of the packages that a graph's vectors depend on."""
    return {package: version(package) for package in ("onnxruntime", "tokenizers")}


def verify_graph(
    folder: str,
    stored: Mapping[str, Any],
    *,
    device: str | None = None,
    dtype: str | torch.dtype | None = None,
    hub: Mapping[str, Any],
) -> Report:
    """Compare vectors of an exported graph, run by onnxruntime, with the golden ones in ``stored``.

    For an 8-bit graph beside it, the report gives cosines. Other arguments are those of
    :func:`st_reba.hub.verify`.

    Raises:
        ImportError: onnxruntime is missing.
        ValueError: Another device or dtype is asked for, or the folder holds no graph.
    """
    dtype_name = str(dtype).removeprefix("torch.")
    if device not in (None, "cpu") or dtype_name not in ("None", "float32", "auto"):
        options = {"device": device, "dtype": dtype}
        given = [f"{name}={value!r}" for name, value in options.items() if value is not None]
        raise ValueError(f"{folder!r} is a graph, in float32 for a CPU: drop {', '.join(given)}.")
    if not os.path.isdir(folder):
        folder = _download_graphs(folder, hub)
    texts = [text["text"] for text in stored["texts"]]
    environment = {"dtype": "float32", "device": "cpu", **versions()}
    graph_vectors = Runner(folder).encode(texts)
    report = compare_vectors(stored, graph_vectors, stored["tolerance"], environment)
    rounded = None
    if (Path(folder) / QUANTIZED).is_file():
        golden_vectors = np.array([text["vector"] for text in stored["texts"]])
        quantized_vectors = Runner(folder, QUANTIZED).encode(texts)
        quantized_cosines = summarize_cosines(quantized_vectors, golden_vectors)
        rounded = {"graph": QUANTIZED, "least": MIN_COSINES, **quantized_cosines}
    return replace(report, graph=GRAPH, rounded=rounded)


def _download_graphs(repository: str, hub: Mapping[str, Any]) -> str:
    from huggingface_hub import snapshot_download

    file_names = ["tokenizer.json"]
    for graph in (GRAPH, QUANTIZED):
        file_names += [graph, f"{graph}_data"]
    hub_options = Repository(repository, hub).transformers_options
    return str(snapshot_download(repository, allow_patterns=file_names, **hub_options))


def summarize_cosines(
    first_vectors: NDArray[np.floating], second_vectors: NDArray[np.floating]
) -> dict[str, float | bool]:
    """The lowest and the mean cosine between rows of [n, d] vectors, and whether they reach ``MIN_COSINES``."""
    row_cosines = pairwise_cos_sim(
        first_vectors.astype(np.float64), second_vectors.astype(np.float64)
    )
    lowest_cosine = round(float(row_cosines.min()), 6)
    mean_cosine = round(float(row_cosines.mean()), 6)
    is_close = lowest_cosine >= MIN_COSINES["min"] and mean_cosine >= MIN_COSINES["mean"]
    return {"min": lowest_cosine, "mean": mean_cosine, "ok": is_close}
