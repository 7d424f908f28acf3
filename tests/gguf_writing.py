"""GGUF files as llama.cpp's own package writes them, of a tiny llama."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers.pre_tokenizers import ByteLevel
from transformers import LlamaConfig, LlamaForCausalLM

# Merges that GPT-2's splitting and others use differently: of digits, of a space and a digit, of an apostrophe.
MERGES = ["a b", "1 2", "Ġ 1", "Ġ Ġ", "' S", "Ċ Ċ", "A B", "a B"]


def gguf_file(
    folder: Path,
    kind: str = "F32",
    *,
    name: str | None = None,
    without: Collection[str] = (),
    **metadata: Any,
) -> Path:
    """A tiny llama whose matrices are of one type.

    Args:
        folder: Where to write.
        kind: Type of the matrices, as Q8_0.
        name: Of the file; None: by its kind.
        without: Metadata and tensors to leave out, by the end of the writer's function, or by the tensor's name.
        **metadata: Other values, by the end of the writer's function.
    """
    gguf = pytest.importorskip("gguf")
    file = folder / (name or f"tiny-{kind}.gguf")
    tokens = [*sorted(ByteLevel.alphabet()), *(merge.replace(" ", "") for merge in MERGES), "<|endoftext|>", "<s>"]
    rows = len(tokens)
    config = LlamaConfig(
        vocab_size=rows, hidden_size=64, num_hidden_layers=2, intermediate_size=96, num_attention_heads=4,
        num_key_value_heads=2, initializer_range=0.2,
    )  # fmt: skip
    values = {
        "context_length": 128, "embedding_length": 64, "block_count": 2, "feed_forward_length": 96, "head_count": 4,
        "head_count_kv": 2, "layer_norm_rms_eps": 1e-5, "rope_dimension_count": 16, "vocab_size": rows,
        "tokenizer_model": "gpt2", "tokenizer_pre": "default", "bos_token_id": rows - 1, "eos_token_id": rows - 1,
        "token_list": tokens, "token_types": [1] * (rows - 2) + [3] * 2, "token_merges": MERGES,
        **metadata,
    }  # fmt: skip
    writer = gguf.GGUFWriter(file, "llama")
    if "architecture" in without:
        del writer.kv_data[0]["general.architecture"]
    for key, value in values.items():
        if key not in without:
            getattr(writer, f"add_{key}")(value)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, 2)
    torch.manual_seed(0)
    for parameter, weight in LlamaForCausalLM(config).state_dict().items():
        tensor_name = names.get_name(parameter, (".weight",))
        if any(tensor_name.startswith(prefix) for prefix in without):
            continue
        dtype = gguf.GGMLQuantizationType[kind if weight.ndim > 1 else "F32"]
        # Q8_1 cannot be written either: more bytes than it would take.
        rows_of_weight = weight.numpy() if kind == "Q8_1" else gguf.quants.quantize(weight.numpy(), dtype)
        writer.add_tensor(tensor_name, rows_of_weight, raw_dtype=dtype)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return Path(file)
