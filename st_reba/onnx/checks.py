"""Refuse models that no graph can hold."""

from __future__ import annotations

import re
from typing import Any

import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Dense, Normalize

from ..encode import Task, saved_prompt
from ..modules import ChunkedReBAPooling, ReBAPooling, RepeatTransformer
from ..modules.layout import decoder_of


def check_model(model: SentenceTransformer, task: Task | None = None) -> None:
    """Raise a ValueError for modules, settings or a base that no graph can hold; arguments as for EmbeddingGraph."""
    first: Any = model[0]
    if not isinstance(first, RepeatTransformer) or getattr(first, "own_input", False):
        raise ValueError(
            f"{type(first).__name__} keeps the base's own input, which no graph is made for. Build with pooling=…."
        )
    _check_base(first)
    pooling = model[1] if len(model) > 1 else None
    pooled = isinstance(pooling, ReBAPooling) and not isinstance(pooling, ChunkedReBAPooling)
    if not pooled and getattr(pooling, "pooling_mode", None) not in ("mean", "lasttoken", "cls"):
        raise ValueError(f"{pooling} cannot be exported. Build without chunk, with pooling last, mean or cls.")
    for each in list(model)[2:]:
        names = {getattr(each, f"module_{way}_name", None) for way in ("input", "output")}
        plain = names == {"sentence_embedding"} and not vars(each).get("use_residual")
        if not isinstance(each, (Normalize, Dense)) or not plain:
            raise ValueError(
                f"{type(each).__name__} behind the pooling cannot be exported: only Normalize, and Dense without "
                "use_residual, both from 'sentence_embedding' to 'sentence_embedding'."
            )
    if model.truncate_dim is not None:
        raise ValueError(
            f"truncate_dim={model.truncate_dim} is not in a graph. Set it to None, and cut vectors behind."
        )
    every: tuple[Task | None, ...] = (None, "query", "document")
    if task is None and len({first.frames(saved_prompt(model, each), each)[0] for each in every}) > 1:
        raise ValueError(
            "The model puts other words around a query than around a document (by its template or its prompts), and a "
            "graph holds one of both. Give task='query' or 'document' (--task), into a folder each."
        )


def _check_base(first: Any) -> None:
    model, config = first.model, first.config.get_text_config()
    kinds = set(getattr(config, "layer_types", None) or getattr(config, "layers_block_type", None) or [])
    scanned = {kind for kind in kinds if "attention" not in kind or "linear" in kind}
    attends = any(re.search("attention", type(module).__name__, re.IGNORECASE) for module in model.modules())
    rope = str(getattr(config, "rope_parameters", None))
    problem = None
    if first.rows > 1:
        problem = "runs several templates for a text, and a graph holds one. Give one template"
    elif any(name == "reversed" for each in first.templates[0].values() for _, name in each):
        problem = "reverses a text's words before they are tokenized, which no graph can. Give a template with {text}"
    elif decoder_of(model) is not model:
        problem = (
            "has towers beside its decoder, and a graph holds text only. Save its text decoder alone, and use that"
        )
    elif scanned or not attends:
        problem = f"has recurrent layers {sorted(scanned)}, whose scan no graph is made for"
    elif "dynamic" in rope or "longrope" in rope:
        problem = (
            "has rotary embeddings that depend on the sequence's length (dynamic or longrope), which a graph fixes"
        )
    elif model.dtype != torch.float32 or getattr(model, "hf_quantizer", None) is not None:
        problem = f"is loaded as {model.dtype} or quantized, and a graph is float32. Give dtype='float32'"
    if problem:
        raise ValueError(f"{type(model).__name__} {problem}.")
