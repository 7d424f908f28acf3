"""A model that is real, instant and exact: words are added up, so hundreds of builds and changes run in seconds."""

from __future__ import annotations

from typing import Any

import numpy as np
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import StaticEmbedding
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace

WORDS = [
    *("cat", "dog", "ship", "bank", "rain", "salt"),
    *("moon", "king", "road", "fish", "gold", "tree"),
    # Some words of each of `PROBE_TEXTS`.
    *("春天来了", "河边的柳树发了新芽", "The", "committee"),
    *("report", "bridge", "猫", "Dogs", "bark", "def", "return"),
    *("3", "14159", "42", "请问去火车站怎么走"),
    *("cold", "morning", "fog", "pier", "the", "a", ".", ","),
]


# Of the texts of small tasks: six animals, and six kinds of weather.
TASK_WORDS = [
    "cat",
    "tiger",
    "lion",
    "dog",
    "wolf",
    "fox",
    "rain",
    "snow",
    "hail",
    "storm",
    "fog",
    "sun",
]


def tiny_model(seed: int = 0, **options: Any) -> SentenceTransformer:
    """A model of `WORDS` with 16 dimensions; each seed gives other weights."""
    token_ids: dict[str, int] = {}
    for token_id, word in enumerate(["[UNK]", *WORDS]):
        token_ids[word] = token_id
    tokenizer = Tokenizer(WordLevel(token_ids, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = Whitespace()
    random_state = np.random.default_rng(seed)
    weights = random_state.normal(size=(len(token_ids), 16)).astype(np.float32)
    module = StaticEmbedding(tokenizer, embedding_weights=weights)
    return SentenceTransformer(
        modules=[module],
        device="cpu",
        similarity_fn_name="cosine",
        **options,
    )
