"""Write the stock files around a graph, which other libraries and servers read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import sentence_transformers
import torch
import transformers
from sentence_transformers import SentenceTransformer
from tokenizers import Tokenizer

from ..hub.graph_runner import GRAPH
from ..modules.layout import special_tokens
from .graph import EmbeddingGraph

# How text-embeddings-inference and older sentence-transformers read the pooling.
_LEGACY_POOLINGS = (
    "cls_token",
    "mean_tokens",
    "max_tokens",
    "mean_sqrt_len_tokens",
    "weightedmean_tokens",
    "lasttoken",
)
_PROBE_TEXTS = ("hello", "The bank, 1984!", "银行 的利率", " two  spaces ")
_SPECIAL_NAMES = ("pad", "eos", "sep", "bos", "cls", "unk")
# Settings that name the folder a model came from, or ask for code or weights that are not in the
# graph's folder.
_DROPPED_KEYS = ("_name_or_path", "auto_map", "quantization_config")


def write_folder(model: SentenceTransformer, graph: EmbeddingGraph, folder: Path) -> None:
    """Write all files beside the graph."""
    pad_id = write_tokenizer(graph, folder)
    pooling_config: dict[str, object] = {
        "embedding_dimension": graph.dimension,
        "pooling_mode": "mean",
    }
    for name in _LEGACY_POOLINGS:
        pooling_config[f"pooling_mode_{name}"] = name == "mean_tokens"
    pooling_config["include_prompt"] = True
    module_types = "sentence_transformers.models"
    versions = {
        "sentence_transformers": str(sentence_transformers.__version__),
        "transformers": str(transformers.__version__),
        "pytorch": str(torch.__version__),
    }
    files: dict[str, object] = {
        "config.json": _decoder_config(graph, pad_id),
        "modules.json": [
            {
                "idx": 0,
                "name": "0",
                "path": "",
                "type": f"{module_types}.Transformer",
            },
            {
                "idx": 1,
                "name": "1",
                "path": "1_Pooling",
                "type": f"{module_types}.Pooling",
            },
        ],
        "1_Pooling/config.json": pooling_config,
        "sentence_bert_config.json": {
            "max_seq_length": graph.max_length,
            "do_lower_case": False,
            # For loaders that know nothing of graphs: arguments that make them refuse the folder.
            "model_args": {"file_name": GRAPH, "export": False},
        },
        "config_sentence_transformers.json": {
            "__version__": versions,
            # The words around a text are in the graph: a prompt would be repeated with the text.
            "prompts": {"query": "", "document": ""},
            "default_prompt_name": None,
            "similarity_fn_name": model.similarity_fn_name,
        },
    }
    for name, value in files.items():
        write_json(folder / name, value)


def _decoder_config(graph: EmbeddingGraph, pad_id: int) -> dict[str, object]:
    config = graph.model.config
    values: dict[str, object] = json.loads(config.to_json_string(use_diff=False))
    values |= {
        "architectures": [f"{type(config).__name__.removesuffix('Config')}Model"],
        "pad_token_id": pad_id,
        "use_cache": False,
        "dtype": "float32",
        "torch_dtype": "float32",
    }
    position_count = getattr(config, "max_position_embeddings", None)
    max_text_length = graph.max_length or 0
    if isinstance(position_count, int):
        max_text_length = max(max_text_length, position_count // graph.layout.copies)
    if max_text_length:
        values["max_position_embeddings"] = max_text_length
        other_name = config.attribute_map.get("max_position_embeddings")
        if other_name is not None:
            values[other_name] = max_text_length
    for key in _DROPPED_KEYS:
        values.pop(key, None)
    return values


def write_tokenizer(graph: EmbeddingGraph, folder: Path) -> int:
    """Write tokenizer.json and tokenizer_config.json; returns the id of the padding token.

    In this package a text that spells a special token is ordinary text. Readers of a tokenizer.json
    find special tokens in a text unless they are told not to, and transformers.js and
    text-embeddings-inference cannot be told. A file that lists none leaves nothing to find: the
    tokens stay in the vocabulary, and the post-processor still puts them around a text.
    """
    tokenizer: Any = graph.transformer.text_tokenizer
    values: dict[str, Any] = json.loads(tokenizer.backend_tokenizer.to_str())
    added_tokens: list[dict[str, Any]] = values["added_tokens"]
    vocabulary = values["model"]["vocab"]
    if isinstance(vocabulary, dict):
        # Added tokens beyond the vocabulary are numbered in order: inside it they keep their
        # numbers.
        for token in added_tokens:
            vocabulary.setdefault(token["content"], token["id"])
    values["added_tokens"] = [token for token in added_tokens if not token["special"]]
    values["truncation"] = None
    backend = Tokenizer.from_str(json.dumps(values))
    config: dict[str, object] = {
        "tokenizer_class": "PreTrainedTokenizerFast",  # known to both major versions of transformers
        "model_input_names": ["input_ids", "attention_mask"],
        "padding_side": "right",
        "truncation_side": "right",
        "clean_up_tokenization_spaces": False,
        # transformers adds the special tokens again, and must not find them in a text.
        "split_special_tokens": True,
    }
    special_names: dict[str, str] = {}
    for name in _SPECIAL_NAMES:
        token_text = str(getattr(tokenizer, f"{name}_token", None))
        # A token outside the vocabulary would be given an id of its own.
        if backend.token_to_id(token_text) is not None:
            special_names[f"{name}_token"] = token_text
    # Padding is masked, so any token will do.
    pad_token = next(iter(special_names.values()), str(backend.id_to_token(0)))
    pad_id = backend.token_to_id(pad_token) or 0
    backend.enable_padding(pad_id=pad_id, pad_token=pad_token, direction="right")
    config |= special_names | {"pad_token": pad_token}
    if graph.max_length is not None:
        config["model_max_length"] = graph.max_length
        backend.enable_truncation(graph.max_length, direction="right")
    backend.save(str(folder / "tokenizer.json"))
    write_json(folder / "tokenizer_config.json", config)
    _check_tokenizer(graph, folder, [token["content"] for token in added_tokens])
    return pad_id


def _check_tokenizer(graph: EmbeddingGraph, folder: Path, added_tokens: list[str]) -> None:
    """Refuse a tokenizer whose file gives other ids than the model's own input."""
    transformer = graph.transformer
    texts = list(_PROBE_TEXTS)
    for token in added_tokens:
        texts += [token, f"a{token}b", f"a {token} b"]
    saved_tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    saved_tokenizer.no_padding()
    prefix, suffix = special_tokens(transformer.text_tokenizer)
    contents = transformer.tokenize_content(texts)["input_ids"]
    for text, content, encoding in zip(
        texts, contents, saved_tokenizer.encode_batch(texts), strict=True
    ):
        expected_ids = [*prefix, *content[: graph.budget], *suffix]
        if encoding.ids != expected_ids:
            raise ValueError(
                f"{type(transformer.text_tokenizer).__name__}: for {text!r}, a tokenizer.json gives "
                f"{encoding.ids[:8]}…, but the model {expected_ids[:8]}…. Train it with its special tokens in its "
                "vocabulary."
            )


def write_json(file: Path, value: object) -> None:
    """Write a JSON file, and its folder if that is missing."""
    file.parent.mkdir(exist_ok=True)
    file.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
