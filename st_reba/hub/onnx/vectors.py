"""Golden vectors of an exported model: written from torch's, computed again by onnxruntime."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sentence_transformers import SentenceTransformer
from tqdm.auto import tqdm

from ..golden import TEXTS, Report, header, held, write_file
from .method import Method, Task
from .runtime import GRAPH, Runner

# In parts of a vector's scale, between torch and onnxruntime, whose sums run in another order.
TOLERANCE = 1e-4
# What a graph's vectors depend on; torch and the rest only made it.
_PACKAGES = ("onnxruntime", "tokenizers")
_FILES = ("modules.json", "tokenizer.json", GRAPH.as_posix(), f"{GRAPH.as_posix()}_data")


def write_vectors(model: SentenceTransformer, method: Method, task: Task | None, folder: Path) -> list[str]:
    """Write an exported folder's golden.json: the vectors that the model gives in torch, as the task asks.

    Args:
        model: The model.
        method: What the graph computes.
        task: Whose template and prompt it holds.
        folder: The folder.

    Returns:
        The texts.
    """
    # The stock tokenizer may make no token of an empty text, so that nothing would reach the graph.
    empty = method.stand_in is not None and method.before + method.after > 0
    texts = [text for text in TEXTS if text or empty]
    vectors = encode(model, task, texts)
    about = header(model, vectors.shape[1], {})
    versions = {**about["versions"], **_versions()}
    about |= {"graph": GRAPH.as_posix(), "task": task, "tolerance": TOLERANCE, "versions": versions}
    write_file(folder, about, texts, vectors.tolist())
    return texts


def encode(model: SentenceTransformer, task: Task | None, texts: Sequence[str]) -> NDArray[np.float32]:
    """What the model itself gives, with the call that the graph stands for."""
    calls: dict[Task | None, Any] = {"query": model.encode_query, "document": model.encode_document}
    first: Any = model[0]
    warned, first._warned_of_cut = first._warned_of_cut, True  # These texts are no one's to be warned about.
    try:
        return np.asarray(calls.get(task, model.encode)(list(texts), show_progress_bar=False), dtype=np.float32)
    finally:
        first._warned_of_cut = warned


def verify_graph(
    model: str,
    stored: Mapping[str, Any],
    *,
    device: str | None = None,
    dtype: str | torch.dtype | None = None,
    hub: Mapping[str, Any],
) -> Report:
    """Hold an exported model's graph against its golden vectors, in onnxruntime.

    Args:
        model: The exported folder, or its Hub id.
        stored: What :func:`~st_reba.hub.golden.read_golden` read.
        device: None or ``"cpu"``.
        dtype: None, ``"float32"`` or ``"auto"``.
        hub: Where and how to fetch it, as ``SentenceTransformer`` takes it.

    Raises:
        ImportError: onnxruntime is missing.
        ValueError: Another device or dtype is asked for, or the folder holds no graph.
    """
    if device not in (None, "cpu") or str(dtype).removeprefix("torch.") not in ("None", "float32", "auto"):
        raise ValueError(
            f"MODEL={model!r} is an exported graph, which is held against its vectors in float32 on a CPU: drop "
            f"device={device!r}, dtype={dtype!r}"
        )
    runner = Runner(_fetched(model, hub))
    texts = [each["text"] for each in stored["texts"]]
    bar = tqdm(texts, desc="Golden vectors", unit=" texts", leave=False, disable=None)
    found = np.concatenate([runner.encode([text]) for text in bar])
    now = {"dtype": "float32", "device": "cpu", **_versions()}
    return replace(held(stored, found, stored["tolerance"], now), graph=GRAPH.as_posix())


def _fetched(model: str, hub: Mapping[str, Any]) -> Path:
    """The folder itself, or what is needed of a repository."""
    if os.path.isdir(model):
        return Path(model)
    from huggingface_hub import snapshot_download

    options = {"cache_dir" if name == "cache_folder" else name: value for name, value in hub.items()}
    return Path(snapshot_download(model, allow_patterns=list(_FILES), **options))


def _versions() -> dict[str, str]:
    return {package: version(package) for package in _PACKAGES}
