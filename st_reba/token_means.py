"""Vectors of the tokens of a text: the mean of their embeddings, rare tokens counting more.

A model that sums up a text in one word misses its names and numbers, which the embeddings of the
tokens hold. Appended to the model's vectors as a part of their own, they make a search find more.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .filter_options import (
    FEWEST_FOR_DIRECTIONS,
    FEWEST_FOR_MEAN,
    SEARCH_POWER,
    TOKEN_DIMENSIONS,
    TOKEN_SHARE,
)
from .linear_filter import Filter
from .modules import RepeatTransformer, TokenPart
from .modules.token_part import append_tokens, mean_embeddings

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

    from .encode import Role

_TEXTS_AT_A_TIME = 256

Matrix = NDArray[np.float32]
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
            None for fewer than 100 documents or 20 sentences, or for a model that is not ours.
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
        """Dimension k that fitting for a model would give; 0: the model is not ours."""
        if not isinstance(model[0], RepeatTransformer):
            return 0
        return min(TOKEN_DIMENSIONS, _TokenReader(model).embedding_width)

    @property
    def dimension(self) -> int:
        """Dimension k of the vectors."""
        return len(self.linear_filter.weight)

    def append_to(
        self,
        vectors: Matrix,
        model: SentenceTransformer,
        texts: Sequence[str],
        task: Role,
    ) -> Matrix:
        """Append the texts' token vectors to [n, d], as :class:`TokenPart` does: [n, d + k]."""
        reader = _TokenReader(model)
        token_ids = reader.token_ids(texts)
        means = reader.mean_embeddings(token_ids, self.token_weights)
        token_vectors = torch.from_numpy(self.linear_filter.apply(means, task))
        return append_tokens(torch.from_numpy(vectors), token_vectors, TOKEN_SHARE).numpy()

    def as_module(self, vector_width: int) -> TokenPart:
        """A module that appends such vectors to a model's [n, d], where d is ``vector_width``."""
        dimension, embedding_width = self.linear_filter.weight.shape
        query_mean = self.linear_filter.query_mean
        assert query_mean is not None  # as `fit` gives it one
        token_part = TokenPart(
            vector_width, len(self.token_weights), embedding_width, dimension, TOKEN_SHARE
        )
        fitted_arrays = {
            "token_weights": self.token_weights,
            "document_mean": self.linear_filter.mean,
            "query_mean": query_mean,
            "weight": self.linear_filter.weight,
        }
        state = {name: torch.from_numpy(array) for name, array in fitted_arrays.items()}
        token_part.load_state_dict(state)
        return token_part.eval()

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
        return int(self.mean_embeddings([[0]], np.ones(1, np.float32)).shape[1])

    def token_ids(self, texts: Sequence[str]) -> TokenIds:
        """All tokens of each text, including those beyond what the model reads."""
        token_ids: TokenIds = self._transformer.content(texts)["input_ids"]
        return token_ids

    def mean_embeddings(self, token_ids: TokenIds, token_weights: NDArray[np.float32]) -> Matrix:
        """Weighted means of unit embeddings, [n, e], scaled to length one; zero for no tokens."""
        weights = torch.from_numpy(token_weights)
        blocks: list[Matrix] = []
        for start in range(0, len(token_ids), _TEXTS_AT_A_TIME):
            block = token_ids[start : start + _TEXTS_AT_A_TIME]
            blocks.append(self._means_of_block(block, weights))
        return np.concatenate(blocks)

    @torch.inference_mode()
    def _means_of_block(self, token_ids: TokenIds, token_weights: Tensor) -> Matrix:
        device = next(self._embeddings.parameters()).device
        all_tokens = [token for text_tokens in token_ids for token in text_tokens]
        means = mean_embeddings(
            self._embeddings,
            torch.tensor(all_tokens, dtype=torch.long, device=device),
            torch.tensor([len(text_tokens) for text_tokens in token_ids], device=device),
            token_weights.to(device),
        )
        return means.cpu().numpy()


def _inverse_document_frequency(
    document_tokens: TokenIds, vocabulary_size: int
) -> NDArray[np.float32]:
    document_counts = np.zeros(vocabulary_size)
    for text_tokens in document_tokens:
        document_counts[np.unique(text_tokens)] += 1
    frequencies = (document_counts + 0.5) / (len(document_tokens) + 1)
    return np.asarray(-np.log(frequencies), np.float32)
