"""The backbones: made here, from configurations with random weights, since time does not depend on the weights."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

VOCABULARY = 1024


@dataclass(frozen=True)
class Architecture:
    """A model type and its size, as transformers' configuration takes it."""

    model_type: str
    description: str
    positions: str
    settings: Mapping[str, Any]
    weights: str = "random weights"


MODELS = {
    "gpt2": Architecture("gpt2", "12 × 768, 12 heads", "n_positions", {}),
    "llama": Architecture(
        "llama",
        "24 × 1024, 16 heads, 4 key/value heads",
        "max_position_embeddings",
        {
            "hidden_size": 1024,
            "intermediate_size": 2816,
            "num_hidden_layers": 24,
            "num_attention_heads": 16,
            "num_key_value_heads": 4,
        },
    ),
    "mini": Architecture(
        "llama",
        "6 × 192, 6 heads, 2 key/value heads",
        "max_position_embeddings",
        {},
        "the embedded model's weights, positions raised",
    ),
    "tiny": Architecture("gpt2", "3 × 64, 4 heads", "n_positions", {"n_embd": 64, "n_layer": 3, "n_head": 4}),
}


def describe(name: str) -> str:
    """One line on a model."""
    return f"{name} ({MODELS[name].description}), {MODELS[name].weights}"


def save_model(name: str, positions: int, folder: Path) -> None:
    """Write a model, and a tokenizer that transformers can load, into a folder.

    The tokenizer takes a word, a number or a Chinese character for one token each. It knows the numbers below
    ``VOCABULARY`` alone: a text of them has exactly as many tokens as numbers.
    """
    import torch
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.normalizers import BertNormalizer
    from tokenizers.pre_tokenizers import BertPreTokenizer
    from transformers import AutoConfig, AutoModel, PreTrainedTokenizerFast

    from st_reba.bases import EMBEDDED

    architecture = MODELS[name]
    torch.manual_seed(0)
    if name in EMBEDDED:
        config = AutoConfig.from_pretrained(EMBEDDED[name], **{architecture.positions: positions})
        AutoModel.from_pretrained(EMBEDDED[name], config=config, dtype=torch.float32).save_pretrained(folder)
    else:
        settings = {**architecture.settings, architecture.positions: positions, "vocab_size": VOCABULARY}
        config = AutoConfig.for_model(architecture.model_type, **settings, bos_token_id=0, eos_token_id=0)
        AutoModel.from_config(config).save_pretrained(folder)  # type: ignore[no-untyped-call]
    words = Tokenizer(WordLevel({str(number): number for number in range(VOCABULARY)}, unk_token="0"))
    words.normalizer = BertNormalizer(lowercase=False)
    words.pre_tokenizer = BertPreTokenizer()
    make: Any = PreTrainedTokenizerFast
    make(tokenizer_object=words, eos_token="0", model_max_length=positions).save_pretrained(folder)


@contextmanager
def saved_model(name: str, positions: int) -> Iterator[str]:
    """A model in a folder of its own, for as long as the block runs."""
    with TemporaryDirectory() as folder:
        save_model(name, positions, Path(folder))
        yield folder
