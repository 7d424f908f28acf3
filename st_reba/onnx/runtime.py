"""Run an exported folder as a stranger would, with onnxruntime, tokenizers and numpy, and verify it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ..hub.golden import Report, report
from ..optional import required

# transformers.js knows both graphs by these names.
GRAPH, QUANTIZED = "onnx/model.onnx", "onnx/model_quantized.onnx"
# Cosines to float32 that a graph of 8 bits must reach, over all texts.
LEAST = {"min": 0.98, "mean": 0.99}


class Runner:
    """One graph of an exported folder, loaded."""

    def __init__(self, folder: str | Path, graph: str = GRAPH) -> None:
        from tokenizers import Tokenizer

        onnxruntime = required("onnxruntime", "onnx", "running a graph needs onnxruntime")
        settings = onnxruntime.SessionOptions()
        settings.log_severity_level = 3  # it warns of initializers that it folds
        try:
            path = str(Path(folder, graph))
            self._session = onnxruntime.InferenceSession(path, settings, providers=["CPUExecutionProvider"])
        except Exception as error:  # its own classes share no base but this one
            raise ValueError(f"{str(folder)!r}: onnxruntime does not read {graph}: {error}") from error
        self.tokenizer: Any = Tokenizer.from_file(str(Path(folder) / "tokenizer.json"))

    def encode(
        self, texts: Sequence[str], size: int = 1, side: Literal["left", "right"] = "right"
    ) -> NDArray[np.float32]:
        """Sentence vectors [n, d] of texts, ``size`` a batch, padded on the given side."""
        padding, rows = self.tokenizer.padding, []
        self.tokenizer.enable_padding(pad_id=padding["pad_id"], pad_token=padding["pad_token"], direction=side)
        for start in range(0, len(texts), size):
            encoded = self.tokenizer.encode_batch(texts[start : start + size])
            ids = np.array([each.ids for each in encoded], dtype=np.int64)
            mask = np.array([each.attention_mask for each in encoded], dtype=np.int64)
            (hidden,) = self._session.run(["last_hidden_state"], {"input_ids": ids, "attention_mask": mask})
            weights = mask[:, :, None].astype(np.float32)
            rows.append((hidden * weights).sum(axis=1) / weights.sum(axis=1))
        return np.concatenate(rows)


def versions() -> dict[str, str]:
    """Versions of the packages that a graph's vectors depend on."""
    return {package: version(package) for package in ("onnxruntime", "tokenizers")}


def verify_graph(
    folder: str, stored: Mapping[str, Any], *, device: Any = None, dtype: Any = None, hub: Mapping[str, Any]
) -> Report:
    """Compare the vectors of an exported model's graph in onnxruntime with its golden ones, which are ``stored``.

    Of a graph of 8 bits beside it the report has the cosines. Arguments as for :func:`st_reba.hub.verify`.

    Raises:
        ImportError: onnxruntime is missing.
        ValueError: Another device or dtype is asked for, or the folder holds no graph.
    """
    if device not in (None, "cpu") or str(dtype).removeprefix("torch.") not in ("None", "float32", "auto"):
        raise ValueError(f"{folder!r} is a graph, in float32 for a CPU: drop device={device!r}, dtype={dtype!r}.")
    if not os.path.isdir(folder):
        from huggingface_hub import snapshot_download

        options = {"cache_dir" if name == "cache_folder" else name: value for name, value in hub.items()}
        graphs = [f"{graph}{end}" for graph in (GRAPH, QUANTIZED) for end in ("", "_data")]
        folder = snapshot_download(folder, allow_patterns=["tokenizer.json", *graphs], **options)
    texts = [each["text"] for each in stored["texts"]]
    now = {"dtype": "float32", "device": "cpu", **versions()}
    found = report(stored, Runner(folder).encode(texts), stored["tolerance"], now)
    found = replace(found, graph=GRAPH)
    if not (Path(folder) / QUANTIZED).is_file():
        return found
    wanted = np.array([each["vector"] for each in stored["texts"]])
    near = cosines(Runner(folder, QUANTIZED).encode(texts), wanted)
    return replace(found, rounded={"graph": QUANTIZED, "least": LEAST, **near})


def cosines(some: NDArray[Any], others: NDArray[Any]) -> dict[str, Any]:
    """The lowest and the mean cosine between rows of [n, d] vectors, and whether they reach ``LEAST``."""
    a, b = some.astype(np.float64), others.astype(np.float64)
    each = (a * b).sum(axis=1) / (np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1))
    found = {"min": round(float(each.min()), 6), "mean": round(float(each.mean()), 6)}
    return {**found, "ok": all(found[name] >= least for name, least in LEAST.items())}
