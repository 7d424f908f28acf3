"""Runs an exported folder as a stranger would, with onnxruntime, tokenizers and numpy, and verifies it so."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from tqdm.auto import tqdm

from ...optional import required
from ..golden import GRAPH, QUANTIZED, Report, Rounded, held


class Runner:
    """An exported folder, loaded.

    Args:
        folder: The folder.
        graph: The graph in it.

    Example:
        >>> Runner("no folder")
        Traceback (most recent call last):
        ...
        ValueError: FOLDER='no folder' holds no onnx/model.onnx. Make one with: st-reba onnx MODEL FOLDER
    """

    def __init__(self, folder: str | Path, graph: str = GRAPH) -> None:
        from tokenizers import Tokenizer

        file = Path(folder) / graph
        if not file.is_file():
            raise ValueError(f"FOLDER={str(folder)!r} holds no {graph}. Make one with: st-reba onnx MODEL FOLDER")
        onnxruntime = required("onnxruntime", "onnx", "running a graph needs onnxruntime")
        settings = onnxruntime.SessionOptions()
        settings.log_severity_level = 3  # it warns of initializers that it folds
        try:
            self._session = onnxruntime.InferenceSession(str(file), settings, providers=["CPUExecutionProvider"])
        except Exception as error:
            # Its own classes share no base but this one.
            raise ValueError(f"FOLDER={str(folder)!r}: onnxruntime does not read {graph}: {error}") from error
        self.tokenizer: Any = Tokenizer.from_file(str(Path(folder) / "tokenizer.json"))
        if self.tokenizer.padding is None:
            raise ValueError(
                f"FOLDER={str(folder)!r}: tokenizer.json names no padding, so st-reba onnx did not write it."
            )
        modules = json.loads((Path(folder) / "modules.json").read_text(encoding="utf-8"))
        self._normalized = any(module["type"].endswith("Normalize") for module in modules)

    def encode(self, texts: Sequence[str], *, side: Literal["left", "right"] = "right") -> NDArray[np.float32]:
        """Sentence vectors [B, d] of texts that run as one batch, padded on the given side."""
        padding = self.tokenizer.padding
        self.tokenizer.enable_padding(pad_id=padding["pad_id"], pad_token=padding["pad_token"], direction=side)
        encoded = self.tokenizer.encode_batch(list(texts))
        ids = np.array([each.ids for each in encoded], dtype=np.int64)
        mask = np.array([each.attention_mask for each in encoded], dtype=np.int64)
        (hidden,) = self._session.run(["last_hidden_state"], {"input_ids": ids, "attention_mask": mask})
        weights = mask[:, :, None].astype(np.float32)
        vectors = (hidden * weights).sum(axis=1) / weights.sum(axis=1)
        if self._normalized:
            vectors = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
        return np.asarray(vectors, dtype=np.float32)

    def encode_in_batches(self, texts: Sequence[str], size: int, what: str) -> NDArray[np.float32]:
        """Sentence vectors [n, d], under a bar that says ``what`` is done."""
        bar = tqdm(range(0, len(texts), size), desc=what, leave=False, disable=None)
        return np.concatenate([self.encode(texts[start : start + size]) for start in bar])


def versions() -> dict[str, str]:
    """What a graph's vectors depend on; torch and the rest only made it."""
    return {package: version(package) for package in ("onnxruntime", "tokenizers")}


def verify_graph(
    model: str, stored: Mapping[str, Any], *, device: Any = None, dtype: Any = None, hub: Mapping[str, Any]
) -> Report:
    """Compare what an exported model's graph gives in onnxruntime with its golden vectors, as they are ``stored``.

    Other arguments as for :func:`st_reba.hub.verify.verify`; ``hub`` says how to fetch the folder.

    Raises:
        ImportError: onnxruntime is missing.
        ValueError: Another device or dtype is asked for, or the folder holds no graph.
    """
    if device not in (None, "cpu") or str(dtype).removeprefix("torch.") not in ("None", "float32", "auto"):
        raise ValueError(
            f"MODEL={model!r} is an exported graph, which runs in float32 on a CPU: drop device={device!r}, "
            f"dtype={dtype!r}."
        )
    folder = model
    if not os.path.isdir(model):
        from huggingface_hub import snapshot_download

        options = {"cache_dir" if name == "cache_folder" else name: value for name, value in hub.items()}
        graphs = [f"{graph}{end}" for graph in (GRAPH, QUANTIZED) for end in ("", "_data")]
        needed = ["modules.json", "tokenizer.json", *graphs]
        folder = snapshot_download(model, allow_patterns=needed, **options)
    texts = [each["text"] for each in stored["texts"]]
    found = Runner(folder).encode_in_batches(texts, 1, "Golden vectors")
    now = {"dtype": "float32", "device": "cpu", **versions()}
    report = replace(held(stored, found, stored["tolerance"], now), graph=GRAPH)
    if not (Path(folder) / QUANTIZED).is_file():
        return report
    wanted = np.array([each["vector"] for each in stored["texts"]])
    given = Runner(folder, QUANTIZED).encode_in_batches(texts, 1, "Golden vectors in 8 bits")
    return replace(report, rounded=Rounded(QUANTIZED, **cosines(given, wanted)))


def cosines(some: NDArray[Any], others: NDArray[Any]) -> dict[str, float]:
    """The lowest and the mean cosine between rows of [n, d] vectors."""
    a, b = some.astype(np.float64), others.astype(np.float64)
    each = (a * b).sum(axis=1) / (np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1))
    return {"min": round(float(each.min()), 6), "mean": round(float(each.mean()), 6)}
