"""Runs an exported folder as a stranger would: onnxruntime, tokenizers and numpy, without torch."""

from __future__ import annotations

import json
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

GRAPH = Path("onnx") / "model.onnx"


class Runner:
    """An exported folder, loaded.

    Args:
        folder: The folder.
        graph: The graph in it.
        threads: Threads that onnxruntime computes with; 0: as it likes.

    Example:
        >>> Runner("no folder")
        Traceback (most recent call last):
        ...
        ValueError: FOLDER='no folder' holds no onnx/model.onnx. Make one with: st-reba export-onnx MODEL FOLDER
    """

    def __init__(self, folder: str | Path, graph: str | Path = GRAPH, *, threads: int = 0) -> None:
        file = Path(folder) / graph
        if not file.is_file():
            raise ValueError(
                f"FOLDER={str(folder)!r} holds no {Path(graph).as_posix()}. Make one with: st-reba export-onnx MODEL "
                "FOLDER"
            )
        from tokenizers import Tokenizer

        try:
            onnxruntime = import_module("onnxruntime")
        except ImportError as error:
            raise ImportError(f"{error}. Running a graph needs onnxruntime: pip install '.[onnx]'") from error
        settings = onnxruntime.SessionOptions()
        settings.intra_op_num_threads = threads
        # It warns of initializers that it folds.
        settings.log_severity_level = 3
        self._session = onnxruntime.InferenceSession(str(file), settings, providers=["CPUExecutionProvider"])
        self.tokenizer: Any = Tokenizer.from_file(str(Path(folder) / "tokenizer.json"))
        if self.tokenizer.padding is None:
            raise ValueError(
                f"FOLDER={str(folder)!r}: tokenizer.json names no padding, so st-reba export-onnx did not write it"
            )
        # The file's list of special tokens does not say so, and a text that spells one is ordinary text.
        self.tokenizer.encode_special_tokens = True
        modules = json.loads((Path(folder) / "modules.json").read_text(encoding="utf-8"))
        self._normalized = any(module["type"].endswith("Normalize") for module in modules)

    def encode(self, texts: Sequence[str], *, side: Literal["left", "right"] = "right") -> NDArray[np.float32]:
        """Sentence vectors of texts that run as one batch.

        Args:
            texts: The texts.
            side: Where they are padded.

        Returns:
            [B, d].
        """
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
