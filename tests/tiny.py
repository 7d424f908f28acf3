"""A model that is real, instant and exact: words are added up, so hundreds of builds and changes run in seconds."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import StaticEmbedding
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace

DIM = 16
WORDS = [
    *("cat", "dog", "ship", "bank", "rain", "salt", "moon", "king", "road", "fish", "gold", "tree"),
    # Some of each of the fingerprint's probe texts.
    *("春天来了", "河边的柳树发了新芽", "The", "committee", "report", "bridge", "猫", "Dogs", "bark", "def", "return"),
    *("3", "14159", "42", "请问去火车站怎么走", "cold", "morning", "fog", "pier", "the", "a", ".", ","),
]


def tiny_model(seed: int = 0, **options: Any) -> SentenceTransformer:
    """A model of `WORDS`; each seed gives other weights."""
    vocabulary = {"[UNK]": 0, **{word: number for number, word in enumerate(WORDS, 1)}}
    tokenizer = Tokenizer(WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = Whitespace()
    weights = np.random.default_rng(seed).normal(size=(len(vocabulary), DIM)).astype(np.float32)
    module = StaticEmbedding(tokenizer, embedding_weights=weights)
    model = SentenceTransformer(modules=[module], device="cpu", similarity_fn_name="cosine", **options)
    return model


def cosines(model: SentenceTransformer, queries: list[str], texts: list[str]) -> NDArray[np.float64]:
    """Brute force in float64 [queries, texts]."""
    a = model.encode_query(queries, show_progress_bar=False).astype(np.float64)
    b = model.encode_document(texts, show_progress_bar=False).astype(np.float64)
    found: NDArray[np.float64] = (a / np.linalg.norm(a, axis=1)[:, None]) @ (b / np.linalg.norm(b, axis=1)[:, None]).T
    return found
