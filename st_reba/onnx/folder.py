"""Write the stock files around a graph, which sentence-transformers, tokenizers and text-embeddings-inference read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import sentence_transformers
import torch
import transformers
from sentence_transformers import SentenceTransformer
from tokenizers import Tokenizer

from ..hub.graph import GRAPH
from ..modules.layout import special_tokens
from .graph import EmbeddingGraph

# How text-embeddings-inference and older sentence-transformers read the pooling.
_LEGACY = ("cls_token", "mean_tokens", "max_tokens", "mean_sqrt_len_tokens", "weightedmean_tokens", "lasttoken")
_PROBES = ("hello", "The bank, 1984!", "银行 的利率", " two  spaces ")
_SPECIAL = ("pad", "eos", "sep", "bos", "cls", "unk")


def write_folder(model: SentenceTransformer, graph: EmbeddingGraph, folder: Path) -> None:
    """Write all files beside the graph."""
    pad = write_tokenizer(graph, folder)
    legacy = {f"pooling_mode_{name}": name == "mean_tokens" for name in _LEGACY}
    packages = {"sentence_transformers": sentence_transformers, "transformers": transformers, "pytorch": torch}
    pooling = {"embedding_dimension": graph.dimension, "pooling_mode": "mean", **legacy, "include_prompt": True}
    files: dict[str, Any] = {
        "config.json": _config(graph, pad),
        "modules.json": [
            {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
            {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
        ],
        "1_Pooling/config.json": pooling,
        "sentence_bert_config.json": {
            "max_seq_length": graph.max_length,
            "do_lower_case": False,
            # A loader that knows no graphs is handed arguments that it refuses.
            "model_args": {"file_name": GRAPH, "export": False},
        },
        "config_sentence_transformers.json": {
            "__version__": {name: str(package.__version__) for name, package in packages.items()},
            # Words around a text are in the graph: a prompt would be repeated with it.
            "prompts": {"query": "", "document": ""},
            "default_prompt_name": None,
            "similarity_fn_name": model.similarity_fn_name,
        },
    }
    for name, value in files.items():
        _write(folder / name, value)


def _config(graph: EmbeddingGraph, pad: int) -> dict[str, Any]:
    config = graph.model.config
    values: dict[str, Any] = json.loads(config.to_json_string(use_diff=False))
    values |= {
        "architectures": [f"{type(config).__name__.removesuffix('Config')}Model"],
        "pad_token_id": pad,
        "use_cache": False,
        "dtype": "float32",
        "torch_dtype": "float32",
    }
    positions = getattr(config, "max_position_embeddings", None)
    positions = positions // graph.layout.copies if isinstance(positions, int) else 0
    if longest := max(positions, graph.max_length or 0):
        names = {"max_position_embeddings", config.attribute_map.get("max_position_embeddings")} - {None}
        values |= dict.fromkeys(names, longest)
    return {
        key: each for key, each in values.items() if key not in ("_name_or_path", "auto_map", "quantization_config")
    }


def write_tokenizer(graph: EmbeddingGraph, folder: Path) -> int:
    """Write tokenizer.json and tokenizer_config.json; returns the padding's id.

    In this package a text that spells a special token is ordinary text. Readers of a tokenizer.json find special tokens
    in a text unless told not to, which transformers.js and text-embeddings-inference cannot be. A file that lists none
    leaves nothing to find: the tokens stay in the vocabulary, and the post-processor still puts them around a text.
    """
    tokenizer: Any = graph.first.tokenizer
    if not tokenizer.is_fast:
        raise ValueError(f"{type(tokenizer).__name__} has no tokenizer.json, which readers of a graph need.")
    values: dict[str, Any] = json.loads(tokenizer.backend_tokenizer.to_str())
    added, vocabulary = values["added_tokens"], values["model"]["vocab"]
    if isinstance(vocabulary, dict):
        # Added tokens beyond the vocabulary are numbered as they come: as a part of it they keep their numbers.
        for each in added:
            vocabulary.setdefault(each["content"], each["id"])
    values["added_tokens"], values["truncation"] = [each for each in added if not each["special"]], None
    backend: Any = Tokenizer.from_str(json.dumps(values))
    tokens = {f"{each}_token": getattr(tokenizer, f"{each}_token", None) for each in _SPECIAL}
    # Whatever is not in the vocabulary would be given an id of its own.
    named = {key: str(token) for key, token in tokens.items() if backend.token_to_id(str(token)) is not None}
    # Padding is masked, so any token will do.
    named["pad_token"] = next(iter(named.values()), str(backend.id_to_token(0)))
    pad: int = backend.token_to_id(named["pad_token"])
    backend.enable_padding(pad_id=pad, pad_token=named["pad_token"], direction="right")
    if graph.max_length is not None:
        named["model_max_length"] = graph.max_length
        backend.enable_truncation(graph.max_length, direction="right")
    backend.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",  # known to both major versions of transformers
        "model_input_names": ["input_ids", "attention_mask"],
        "padding_side": "right",
        "truncation_side": "right",
        "clean_up_tokenization_spaces": False,
        "split_special_tokens": True,  # transformers adds these tokens anew, and is to leave them alone in a text
    }
    _write(folder / "tokenizer_config.json", config | named)
    _check_tokenizer(graph, folder, [each["content"] for each in added])
    return pad


def _check_tokenizer(graph: EmbeddingGraph, folder: Path, added: list[str]) -> None:
    before, after = special_tokens(graph.first.tokenizer)
    texts = [*_PROBES, *(text for token in added for text in (token, f"a{token}b", f"a {token} b"))]
    raw = Tokenizer.from_file(str(folder / "tokenizer.json"))
    raw.no_padding()
    for text, ids, found in zip(texts, graph.first.content(texts)["input_ids"], raw.encode_batch(texts), strict=True):
        wanted = [*before, *ids[: graph.budget], *after]
        if found.ids != wanted:
            raise ValueError(
                f"{type(graph.first.tokenizer).__name__}: of {text!r} a tokenizer.json gives {found.ids[:8]}…, and the "
                f"model {wanted[:8]}…. Train it with its special tokens in its vocabulary."
            )


def _write(file: Path, value: Any) -> None:
    file.parent.mkdir(exist_ok=True)
    file.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
