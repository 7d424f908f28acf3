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
    *("cat", "dog", "ship", "bank", "rain", "salt", "moon", "king", "road", "fish", "gold", "tree"),
    # Some of each of the probe's texts.
    *("春天来了", "河边的柳树发了新芽", "The", "committee", "report", "bridge", "猫", "Dogs", "bark", "def", "return"),
    *("3", "14159", "42", "请问去火车站怎么走", "cold", "morning", "fog", "pier", "the", "a", ".", ","),
]


def tiny_model(seed: int = 0, **options: Any) -> SentenceTransformer:
    """A model of `WORDS` with 16 dimensions; each seed gives other weights."""
    vocabulary: dict[str, int] = {}
    for token in ("[UNK]", *WORDS):
        vocabulary[token] = len(vocabulary)
    tokenizer = Tokenizer(WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = Whitespace()
    random_state = np.random.default_rng(seed)
    embedding_weights = random_state.normal(size=(len(vocabulary), 16)).astype(np.float32)
    embedding = StaticEmbedding(tokenizer, embedding_weights=embedding_weights)
    options = {"device": "cpu", "similarity_fn_name": "cosine", **options}
    return SentenceTransformer(modules=[embedding], **options)
