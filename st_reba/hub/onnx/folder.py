"""The stock folder around a graph: what sentence-transformers, tokenizers and text-embeddings-inference read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import sentence_transformers
import torch
import transformers
from sentence_transformers import SentenceTransformer
from tokenizers import Tokenizer
from transformers import AutoTokenizer

from ...modules.layout import TokenLayout
from .method import Method

_PROBES = ("hello", "The bank, 1984!", "银行 的利率", " two  spaces ")
_SPECIAL = ("pad", "eos", "sep", "bos", "cls", "unk")
# How text-embeddings-inference and older sentence-transformers read the pooling.
_LEGACY = ("cls_token", "mean_tokens", "max_tokens", "mean_sqrt_len_tokens", "weightedmean_tokens", "lasttoken")


def write_folder(model: SentenceTransformer, method: Method, folder: Path) -> None:
    """Write all files beside the graph.

    Raises:
        ValueError: The tokenizer cannot be written so that it gives the same ids everywhere.
    """
    first: Any = model[0]
    pad = _write_tokenizer(first.token_layout, method, folder)
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


def _write_tokenizer(layout: TokenLayout, method: Method, folder: Path) -> int:
    """Write the tokenizer's files; returns the padding's id."""
    tokenizer: Any = layout.tokenizer
    if not tokenizer.is_fast:
        raise ValueError(f"{type(tokenizer).__name__} has no tokenizer.json, which every consumer of a graph reads.")
    backend = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
    named = {f"{name}_token": getattr(tokenizer, f"{name}_token", None) for name in _SPECIAL}
    # Padding is masked, so any token will do.
    named["pad_token"] = next((token for token in named.values() if token is not None), backend.id_to_token(0))
    pad = int(backend.token_to_id(str(named["pad_token"])) or 0)
    backend.enable_padding(pad_id=pad, pad_token=str(named["pad_token"]), direction="right")
    if method.max_length is None:
        backend.no_truncation()
    else:
        backend.enable_truncation(method.max_length, direction="right")
    backend.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",  # known to both major versions of transformers
        "model_input_names": ["input_ids", "attention_mask"],
        "padding_side": "right",
        "truncation_side": "right",
        "clean_up_tokenization_spaces": False,
        "split_special_tokens": True,  # what spells a special token inside a text is ordinary text
        **{name: str(token) for name, token in named.items() if token is not None},
        **({} if method.max_length is None else {"model_max_length": method.max_length}),
    }
    _write_json(folder / "tokenizer_config.json", config)
    _check_tokenizer(layout, method, folder)
    return pad


def _check_tokenizer(layout: TokenLayout, method: Method, folder: Path) -> None:
    """Whether the files alone give what the model's own tokenizer gives."""
    before, after = layout.special
    raw = Tokenizer.from_file(str(folder / "tokenizer.json"))
    raw.encode_special_tokens = True
    again = AutoTokenizer.from_pretrained(str(folder))
    for text, ids in zip(_PROBES, layout.content(_PROBES)["input_ids"], strict=True):
        wanted = [*before, *ids[: method.budget], *after]
        stock = again(text, truncation=method.max_length is not None)["input_ids"]
        for reader, given in (("tokenizers", raw.encode(text).ids), ("transformers", list(stock))):
            if given != wanted:
                raise ValueError(
                    f"{type(layout.tokenizer).__name__}: read by {reader}, tokenizer.json gives {given[:8]}… for "
                    f"{text!r}, where the model's own tokenizer gives {wanted[:8]}…. Save the tokenizer as a plain "
                    "PreTrainedTokenizerFast and build anew."
                )


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
