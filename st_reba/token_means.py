"""Vectors of the tokens of a text: the mean of their embeddings, rare tokens counting more.

A model that sums up a text in one word misses its names and numbers, which the embeddings of the
tokens hold. Appended to the model's vectors as a part of their own, they make a search find more.
A model appends them with a :class:`TokenPart` after its pooling, an index with the functions here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .encode import transformer_of
from .filter_options import (
    MIN_FOR_DIRECTIONS,
    MIN_FOR_MEAN,
    SEARCH_POWER,
    TOKEN_DIMENSIONS,
    TOKEN_SHARE,
)
from .linear_filter import Filter
from .modules import RepeatTransformer, TokenPart
from .modules.token_part import mean_embeddings

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

    from .encode import Role

_TEXTS_AT_A_TIME = 256

Matrix = NDArray[np.float32]
TokenIds = list[list[int]]


def token_dimension_for(model: SentenceTransformer) -> int:
    """Dimension k of the part that `fit_token_part` gives for a model; 0: the model is not ours."""
    if not isinstance(model[0], RepeatTransformer):
        return 0
    embedding_width = _mean_embeddings(model, [[0]], torch.ones(1)).shape[1]
    return min(TOKEN_DIMENSIONS, embedding_width)


def fit_token_part(
    model: SentenceTransformer,
    documents: Sequence[str],
    query_sentences: Sequence[str],
    vector_width: int,
) -> TokenPart | None:
    """Fit a token part on documents, and on sentences of them that stand for queries.

    A token's weight is log((N + 1) / (n + ½)) if n of N documents have it. The means of embeddings are
    half-whitened, and their main directions kept.

    Args:
        model: The model whose tokens and embeddings are used.
        documents: 100 texts or more.
        query_sentences: 20 or more.
        vector_width: Dimension d of the vectors that the part is appended to.

    Returns:
        None for fewer texts, or for a model that is not ours.
    """
    dimension = token_dimension_for(model)
    are_enough = len(documents) >= MIN_FOR_DIRECTIONS
    are_enough &= len(query_sentences) >= MIN_FOR_MEAN
    if dimension == 0 or not are_enough:
        return None
    transformer = transformer_of(model)
    document_tokens = _token_ids(model, documents)
    vocabulary_size = len(transformer.text_tokenizer)
    token_weights = _inverse_document_frequency(document_tokens, vocabulary_size)
    document_means = _mean_embeddings(model, document_tokens, token_weights)
    query_means = _mean_embeddings(model, _token_ids(model, query_sentences), token_weights)
    linear_filter = Filter.fit(
        document_means.numpy(),
        "whiten",
        dimensions=dimension,
        power=SEARCH_POWER,
        query_vectors=query_means.numpy(),
    )
    assert linear_filter.query_mean is not None  # as there are vectors of queries
    fitted_tensors = {
        "token_weights": token_weights,
        "document_mean": torch.from_numpy(linear_filter.mean),
        "query_mean": torch.from_numpy(linear_filter.query_mean),
        "weight": torch.from_numpy(linear_filter.weight),
    }
    return _make_token_part(fitted_tensors, vector_width)


def _make_token_part(fitted_tensors: Mapping[str, Tensor], vector_width: int) -> TokenPart:
    dimension, embedding_width = fitted_tensors["weight"].shape
    vocabulary_size = len(fitted_tensors["token_weights"])
    token_part = TokenPart(vector_width, vocabulary_size, embedding_width, dimension, TOKEN_SHARE)
    token_part.load_state_dict(fitted_tensors)
    return token_part.eval()


def append_tokens_of(
    token_part: TokenPart,
    vectors: Matrix,
    model: SentenceTransformer,
    texts: Sequence[str],
    task: Role,
) -> Matrix:
    """Append the vectors of the tokens of texts to [n, d], as a model with the part does: [n, d + k].

    All tokens of a text count, also those beyond what the model reads.
    """
    token_weights = token_part.get_buffer("token_weights")
    means = _mean_embeddings(model, _token_ids(model, texts), token_weights)
    return token_part.join(torch.from_numpy(vectors), means, task).numpy()


def token_part_to_bytes(token_part: TokenPart) -> bytes:
    """A token part as the content of a .safetensors file."""
    from safetensors.torch import save

    return save(token_part.state_dict())


def token_part_from_bytes(content: bytes, vector_width: int) -> TokenPart:
    """Read what `token_part_to_bytes` gave; the part is appended to vectors of that width."""
    from safetensors.torch import load

    return _make_token_part(load(content), vector_width)


def _token_ids(model: SentenceTransformer, texts: Sequence[str]) -> TokenIds:
    token_ids: TokenIds = transformer_of(model).tokenize_content(texts)["input_ids"]
    return token_ids


@torch.inference_mode()
def _mean_embeddings(
    model: SentenceTransformer, token_ids: TokenIds, token_weights: Tensor
) -> Tensor:
    """Weighted means of unit embeddings, [n, e], scaled to length one; zero for no tokens."""
    embeddings: torch.nn.Module = transformer_of(model).model.get_input_embeddings()
    device = next(embeddings.parameters()).device
    device_weights = token_weights.to(device)
    blocks: list[Tensor] = []
    for start in range(0, len(token_ids), _TEXTS_AT_A_TIME):
        block = token_ids[start : start + _TEXTS_AT_A_TIME]
        all_tokens = list(chain.from_iterable(block))
        means = mean_embeddings(
            embeddings,
            torch.tensor(all_tokens, dtype=torch.long, device=device),
            torch.tensor(list(map(len, block)), device=device),
            device_weights,
        )
        blocks.append(means.cpu())
    return torch.cat(blocks)


def _inverse_document_frequency(document_tokens: TokenIds, vocabulary_size: int) -> Tensor:
    document_counts = np.zeros(vocabulary_size)
    for text_tokens in document_tokens:
        document_counts[np.unique(text_tokens)] += 1
    frequencies = (document_counts + 0.5) / (len(document_tokens) + 1)
    return torch.from_numpy(-np.log(frequencies)).float()
