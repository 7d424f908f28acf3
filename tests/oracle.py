"""The oracle for a base and a text: reference.py run on the base as transformers itself loads it."""

from __future__ import annotations

import math
import re
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from reference import (
    Layout,
    as_double,
    hidden_and_attention,
    lay_out,
    symmetrized_max,
)
from torch import Tensor
from transformers import (
    AutoModel,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from st_reba.bases import BUNDLED

# Lengths from one character on, in both languages; mistral's window of 5 is shorter than most.
TEXTS = (
    "天",
    "今天天气很好，我们去公园散步吧。",
    "The bank of the river is steep.",
    "hi",
    "他在银行取了钱，then went home.",
)
# A text, and where a word of it begins and ends.
WordInText = tuple[str, tuple[int, int]]
# The texts of a template around its slots, which are None.
Pieces = tuple[str | None, ...]


def base_path(base: str) -> str:
    return str(BUNDLED.get(base, base))


@lru_cache(maxsize=4)
def float64_model(base: str) -> PreTrainedModel:
    """The base in float64."""
    model = AutoModel.from_pretrained(
        base_path(base), attn_implementation="eager", dtype=torch.float32
    )
    return as_double(model.eval())


@lru_cache(maxsize=4)
def tokenizer_of(base: str) -> PreTrainedTokenizerBase:
    return AutoTokenizer.from_pretrained(base_path(base))


@lru_cache(maxsize=256)
def oracle(
    base: str,
    text: str,
    pieces: Pieces,
    limit: int | None = None,
) -> tuple[Layout, Tensor, Tensor]:
    """Layout, hidden states V [T, d] and A^new [T, T], float64."""
    text_layout = lay_out(tokenizer_of(base), text, pieces, limit=limit)
    hidden_states, attention = hidden_and_attention(float64_model(base), text_layout.ids)
    return text_layout, hidden_states, symmetrized_max(attention)


def relative_error(actual: object, expected: object) -> float:
    """The largest difference, as a share of the largest expected number; of zeros, 0 or infinity."""
    actual_numbers = torch.as_tensor(actual).double()
    expected_numbers = torch.as_tensor(expected).double()
    assert actual_numbers.shape == expected_numbers.shape
    difference = (actual_numbers - expected_numbers).abs().max().item()
    scale = expected_numbers.abs().max().item()
    if scale == 0:
        return 0.0 if difference == 0 else math.inf
    return difference / scale


def assert_close(actual: object, expected: object, tolerance: float = 1e-5) -> None:
    """Assert that numbers differ by at most ``tolerance`` times the largest expected one."""
    error = relative_error(actual, expected)
    assert error <= tolerance, f"a difference of {error:.2e} of the scale, at most {tolerance}"


def unit_rows(vectors: ArrayLike) -> NDArray[np.float64]:
    """Vectors [n, d], each divided by its length."""
    rows = np.asarray(vectors, np.float64)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def word_in_text(text: str, word: str, occurrence: int = 0) -> WordInText:
    """That occurrence of the word in the text."""
    matches = list(re.finditer(re.escape(word), text))
    return text, matches[occurrence].span()


def oracle_of_word(
    base: str,
    word: WordInText,
    pieces: Pieces,
    limit: int | None = None,
) -> tuple[Layout, Tensor, Tensor, list[int]]:
    """The oracle of a text, and the indices of the content tokens that overlap the word."""
    text, word_span = word
    clean_text = re.sub("[\ud800-\udfff]", "\ufffd", text)
    tokens = tokenizer_of(base)(
        clean_text,
        add_special_tokens=False,
        split_special_tokens=True,
        return_offsets_mapping=True,
    )
    word_characters = set(range(*word_span))
    token_indices: list[int] = []
    for index, token_span in enumerate(tokens["offset_mapping"]):
        if word_characters & set(range(*token_span)):
            token_indices.append(index)
    return *oracle(base, clean_text, pieces, limit), token_indices
