"""Vectors of the tokens of a text: the mean of their embeddings, rare tokens counting more.

What a model says of a text in one word misses its names and numbers; the embeddings of its tokens
have them. Beside the model's vectors, in a part of their own, they find more.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import embedding_bag, normalize

from ..filter_options import FEWEST_FOR_DIRECTIONS, FEWEST_FOR_MEAN, SEARCH_POWER
from ..linear_filter import Filter
from ..modules import RepeatTransformer
from .scoring import Matrix, prepare_vectors

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

    from ..encode import Task

# Chosen on Cranfield, CISI, STARD and XQuAD.
TOKEN_DIMENSIONS = 256
_TEXTS_AT_A_TIME = 256

TokenIds = list[list[int]]


class TokenMeans:
    """Turns texts into unit vectors of their tokens.

    Args:
        token_weights: Of each token, [V] float32: log((N + 1) / (n + ½)) for a token that n of N
            documents have.
        linear_filter: Half-whitens mean embeddings [e] and keeps the main directions, [k, e].
    """

    def __init__(self, token_weights: NDArray[np.float32], linear_filter: Filter) -> None:
        self.token_weights = token_weights
        self.linear_filter = linear_filter

    @classmethod
    def fit(
        cls,
        model: SentenceTransformer,
        documents: Sequence[str],
        query_sentences: Sequence[str],
    ) -> Self | None:
        """Fit on documents, and on sentences of them that stand for queries.

        Returns:
            None: fewer than 100 documents or 20 sentences, or a model that is not of ours.
        """
        dimension = cls.dimension_for(model)
        are_enough = len(documents) >= FEWEST_FOR_DIRECTIONS
        are_enough &= len(query_sentences) >= FEWEST_FOR_MEAN
        if dimension == 0 or not are_enough:
            return None
        reader = _TokenReader(model)
        document_tokens = reader.token_ids(documents)
        token_weights = _inverse_document_frequency(document_tokens, reader.vocabulary_size)
        document_means = reader.mean_embeddings(document_tokens, token_weights)
        query_tokens = reader.token_ids(query_sentences)
        query_means = reader.mean_embeddings(query_tokens, token_weights)
        linear_filter = Filter.fit(
            document_means,
            "whiten",
            dimensions=dimension,
            power=SEARCH_POWER,
            query_vectors=query_means,
        )
        return cls(token_weights, linear_filter)

    @staticmethod
    def dimension_for(model: SentenceTransformer) -> int:
        """Dimension k that a fit for a model gives; 0: it is not of ours."""
        if not isinstance(model[0], RepeatTransformer):
            return 0
        return min(TOKEN_DIMENSIONS, _TokenReader(model).embedding_width)

    @property
    def dimension(self) -> int:
        """Dimension k of the vectors."""
        return len(self.linear_filter.weight)

    def encode(self, model: SentenceTransformer, texts: Sequence[str], task: Task) -> Matrix:
        """Vectors [n, k] of texts, of length one, by the embeddings of the index's model."""
        reader = _TokenReader(model)
        token_ids = reader.token_ids(texts)
        mean_embeddings = reader.mean_embeddings(token_ids, self.token_weights)
        return prepare_vectors(self.linear_filter.apply(mean_embeddings, task), "cosine")

    def to_bytes(self) -> bytes:
        """All of it as the content of a .safetensors file."""
        from safetensors.numpy import save

        arrays: dict[str, NDArray[Any]] = {
            "token_weights": self.token_weights,
            "linear_filter": np.frombuffer(self.linear_filter.to_bytes(), np.uint8),
        }
        return save(arrays)

    @classmethod
    def from_bytes(cls, content: bytes) -> Self:
        """Read what :meth:`to_bytes` gave."""
        from safetensors.numpy import load

        arrays = load(content)
        return cls(arrays["token_weights"], Filter.from_bytes(arrays["linear_filter"].tobytes()))


class _TokenReader:
    """Reads the tokens and the embeddings of a model."""

    def __init__(self, model: SentenceTransformer) -> None:
        transformer = model[0]
        assert isinstance(transformer, RepeatTransformer)  # of others, nothing is fitted
        self._transformer = transformer
        self._embeddings: torch.nn.Module = transformer.model.get_input_embeddings()

    @property
    def vocabulary_size(self) -> int:
        """Number V of tokens."""
        return len(self._transformer.text_tokenizer)

    @property
    def embedding_width(self) -> int:
        """Dimension e of the embeddings."""
        return self._embed(np.zeros(1, np.int64)).shape[1]

    def token_ids(self, texts: Sequence[str]) -> TokenIds:
        """All tokens of each text, also those beyond what the model reads."""
        token_ids: TokenIds = self._transformer.content(texts)["input_ids"]
        return token_ids

    def mean_embeddings(self, token_ids: TokenIds, token_weights: NDArray[np.float32]) -> Matrix:
        """Weighted means of unit embeddings, [n, e], scaled to length one; zero for no tokens."""
        blocks = [self._mean_of_block(block, token_weights) for block in _blocks_of(token_ids)]
        return prepare_vectors(np.concatenate(blocks), "cosine")

    @torch.inference_mode()
    def _embed(self, tokens: NDArray[np.int64]) -> Tensor:
        """Embeddings [n, e] of tokens, float32."""
        device = next(self._embeddings.parameters()).device
        embeddings: Tensor = self._embeddings(torch.from_numpy(tokens).to(device))
        return embeddings.float().cpu()

    @torch.inference_mode()
    def _mean_of_block(self, token_ids: TokenIds, token_weights: NDArray[np.float32]) -> Matrix:
        token_counts = [len(text_tokens) for text_tokens in token_ids]
        all_tokens = np.array([token for text in token_ids for token in text], np.int64)
        distinct_tokens, rows = np.unique(all_tokens, return_inverse=True)
        unit_embeddings = normalize(self._embed(distinct_tokens), dim=-1)
        offsets = np.cumsum([0, *token_counts[:-1]])
        weighted_sums = embedding_bag(
            torch.from_numpy(rows),
            unit_embeddings,
            torch.from_numpy(offsets),
            mode="sum",
            per_sample_weights=torch.from_numpy(token_weights[all_tokens]),
        )
        return weighted_sums.numpy()


def _blocks_of(token_ids: TokenIds) -> Iterator[TokenIds]:
    for start in range(0, len(token_ids), _TEXTS_AT_A_TIME):
        yield token_ids[start : start + _TEXTS_AT_A_TIME]


def _inverse_document_frequency(
    document_tokens: TokenIds, vocabulary_size: int
) -> NDArray[np.float32]:
    document_counts = np.zeros(vocabulary_size)
    for text_tokens in document_tokens:
        document_counts[np.unique(text_tokens)] += 1
    frequencies = (document_counts + 0.5) / (len(document_tokens) + 1)
    return np.asarray(-np.log(frequencies), np.float32)
