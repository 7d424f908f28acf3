"""The oracle for a base and a text: reference.py run on the base as transformers itself loads it."""

from __future__ import annotations

import re
from functools import lru_cache

import torch
from reference import Layout, as_double, hidden_and_attention, layout, symmetrized_max
from torch import Tensor
from transformers import AutoModel, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from st_reba.bases import EMBEDDED

# Lengths from one character on, in both languages; mistral's window of 5 is shorter than most.
TEXTS = (
    "天", "今天天气很好，我们去公园散步吧。", "The bank of the river is steep.", "hi",
    "他在银行取了钱，then went home.",
)  # fmt: skip
# A text, and where a word of it begins and ends.
Placed = tuple[str, tuple[int, int]]
Pieces = tuple[str | None, ...]


def folder(base: str) -> str:
    return str(EMBEDDED.get(base, base))


@lru_cache(maxsize=4)
def double(base: str) -> PreTrainedModel:
    return as_double(AutoModel.from_pretrained(folder(base), attn_implementation="eager", dtype=torch.float32).eval())


@lru_cache(maxsize=4)
def tokenizer_of(base: str) -> PreTrainedTokenizerBase:
    return AutoTokenizer.from_pretrained(folder(base))


@lru_cache(maxsize=256)
def oracle(base: str, text: str, pieces: Pieces, limit: int | None = None) -> tuple[Layout, Tensor, Tensor]:
    """Layout, hidden states V [T, d] and A^new [T, T], float64."""
    placed = layout(tokenizer_of(base), text, pieces, limit=limit)
    hidden, attention = hidden_and_attention(double(base), placed.ids)
    return placed, hidden, symmetrized_max(attention)


def assert_close(got: object, wanted: Tensor, tolerance: float = 1e-5) -> None:
    """Largest difference, relative to the scale (largest entry) of the wanted vector."""
    difference = (torch.as_tensor(got).double() - wanted).abs().max().item()
    scale = wanted.abs().max().item()
    assert difference <= tolerance * scale, f"difference {difference:.2e} exceeds {tolerance} of the scale {scale:.2e}"


def item(text: str, word: str, occurrence: int = 0) -> Placed:
    """That occurrence of the word in the text."""
    return text, [match.span() for match in re.finditer(re.escape(word), text)][occurrence]


def oracle_of(
    base: str, one: Placed, pieces: Pieces, limit: int | None = None
) -> tuple[Layout, Tensor, Tensor, list[int]]:
    """The oracle of a text, and the content tokens that share a character with the span, found on its side."""
    text = re.sub("[\ud800-\udfff]", "\ufffd", one[0])
    found = tokenizer_of(base)(text, add_special_tokens=False, split_special_tokens=True, return_offsets_mapping=True)
    shared = [{*range(*span)} & {*range(*one[1])} for span in found["offset_mapping"]]
    return *oracle(base, text, pieces, limit), [index for index, both in enumerate(shared) if both]
