"""The stock folder around a graph: what sentence-transformers, tokenizers and text-embeddings-inference read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import sentence_transformers
import torch
import transformers
from sentence_transformers import SentenceTransformer

from .method import Method
from .tokens import write_tokenizer

# How text-embeddings-inference and older sentence-transformers read the pooling.
_LEGACY = ("cls_token", "mean_tokens", "max_tokens", "mean_sqrt_len_tokens", "weightedmean_tokens", "lasttoken")


def write_folder(model: SentenceTransformer, method: Method, folder: Path) -> None:
    """Write all files beside the graph.

    Raises:
        ValueError: The tokenizer cannot be written so that it gives the same ids everywhere.
    """
    first: Any = model[0]
    pad = write_tokenizer(first.token_layout, method, folder)
    modules = [("Transformer", ""), ("Pooling", "1_Pooling")] + [("Normalize", "2_Normalize")] * method.normalized
    legacy = {f"pooling_mode_{name}": name == "mean_tokens" for name in _LEGACY}
    files: dict[str, Any] = {
        "config.json": _config(first.model.config, method, pad),
        "modules.json": [
            {"idx": index, "name": str(index), "path": path, "type": f"sentence_transformers.models.{name}"}
            for index, (name, path) in enumerate(modules)
        ],
        "sentence_bert_config.json": {
            "max_seq_length": method.max_length,
            "do_lower_case": False,
            # A loader that knows no graphs is handed arguments that it refuses.
            "model_args": {"file_name": "onnx/model.onnx", "export": False},
        },
        "1_Pooling/config.json": {
            "embedding_dimension": method.dimension,
            "pooling_mode": "mean",
            **legacy,
            "include_prompt": True,
        },
        **({"2_Normalize/config.json": {}} if method.normalized else {}),
        "config_sentence_transformers.json": {
            "__version__": {
                "sentence_transformers": sentence_transformers.__version__,
                "transformers": transformers.__version__,
                "pytorch": str(torch.__version__),
            },
            # Words around a text are in the graph: a prompt would be repeated with it.
            "prompts": {"query": "", "document": ""},
            "default_prompt_name": None,
            "similarity_fn_name": model.similarity_fn_name,
        },
    }
    for name, value in files.items():
        _write_json(folder / name, value)


def _config(config: Any, method: Method, pad: int) -> dict[str, Any]:
    """The backbone's configuration, its length that of one copy."""
    values: dict[str, Any] = json.loads(config.to_json_string(use_diff=False))
    eos = values.get("eos_token_id")
    eos = eos[0] if isinstance(eos, list) and eos else eos
    values.update(
        architectures=[f"{type(config).__name__.removesuffix('Config')}Model"],
        eos_token_id=eos if isinstance(eos, int) else pad,
        pad_token_id=pad,
        use_cache=False,
        dtype="float32",
        torch_dtype="float32",
    )
    positions = getattr(config, "max_position_embeddings", None)
    positions = positions // method.frame.copies if isinstance(positions, int) else 0
    if longest := max(positions, method.max_length or 0):
        values["max_position_embeddings"] = longest
        own = config.attribute_map.get("max_position_embeddings")
        if own is not None:
            values[own] = longest
    for name in ("_name_or_path", "auto_map", "quantization_config"):
        values.pop(name, None)
    return values


def _write_json(file: Path, value: Any) -> None:
    file.parent.mkdir(exist_ok=True)
    file.write_text(json.dumps(value, ensure_ascii=False, indent=2) + "\n", encoding="utf-8")
