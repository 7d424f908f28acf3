"""GGUF files as llama.cpp's own package writes them, of a tiny llama."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers.pre_tokenizers import ByteLevel
from transformers import LlamaConfig, LlamaForCausalLM

# Merges that GPT-2's splitting and others use differently: of digits, of a space and a digit, of an
# apostrophe.
MERGES = ["a b", "1 2", "Ġ 1", "Ġ Ġ", "' S", "Ċ Ċ", "A B", "a B"]
_MERGED_TOKENS = [merge.replace(" ", "") for merge in MERGES]
TOKENS = [
    *sorted(ByteLevel.alphabet()),
    *_MERGED_TOKENS,
    "<|endoftext|>",
    "<s>",
]
LAYERS = 2
# Metadata of a file, by the writer's method without ``add_``.
METADATA: dict[str, Any] = {
    "context_length": 128,
    "embedding_length": 64,
    "block_count": LAYERS,
    "feed_forward_length": 96,
    "head_count": 4,
    "head_count_kv": 2,
    "layer_norm_rms_eps": 1e-5,
    "rope_dimension_count": 16,
    "vocab_size": len(TOKENS),
    "tokenizer_model": "gpt2",
    "tokenizer_pre": "default",
    "bos_token_id": len(TOKENS) - 1,
    "eos_token_id": len(TOKENS) - 1,
    "token_list": TOKENS,
    "token_types": [1] * (len(TOKENS) - 2) + [3] * 2,
    "token_merges": MERGES,
}


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
        kind: Type of the matrices, such as Q8_0.
        name: Of the file; None: by its kind.
        without: What to leave out: metadata by the writer's method without ``add_``, tensors by the
            start of their names.
        **metadata: Other values, by the writer's method without ``add_``.
    """
    gguf = pytest.importorskip("gguf")
    file = folder / (name or f"tiny-{kind}.gguf")
    writer = gguf.GGUFWriter(file, "llama")
    if "architecture" in without:
        del writer.kv_data[0]["general.architecture"]
    for key, value in (METADATA | metadata).items():
        if key not in without:
            add_value = getattr(writer, f"add_{key}")
            add_value(value)
    tensor_names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, LAYERS)
    for weight_name, weight in _tiny_llama().state_dict().items():
        tensor_name = tensor_names.get_name(weight_name, (".weight",))
        if tensor_name.startswith(tuple(without)):
            continue
        weight_type = kind if weight.ndim > 1 else "F32"
        dtype = gguf.GGMLQuantizationType[weight_type]
        # The gguf package cannot quantize to Q8_1, so the plain numbers are written, which take more
        # bytes.
        values = weight.numpy()
        if kind != "Q8_1":
            values = gguf.quants.quantize(values, dtype)
        writer.add_tensor(tensor_name, values, raw_dtype=dtype)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return Path(file)


def _tiny_llama() -> LlamaForCausalLM:
    config = LlamaConfig(
        vocab_size=len(TOKENS),
        hidden_size=64,
        num_hidden_layers=LAYERS,
        intermediate_size=96,
        num_attention_heads=4,
        num_key_value_heads=2,
        initializer_range=0.2,
    )
    torch.manual_seed(0)
    return LlamaForCausalLM(config)
