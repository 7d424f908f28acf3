"""What the models read: features of random ids for `layers`, texts of random lengths for all else."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .models import VOCABULARY

PADDINGS = ("none", "right")
MIXES = ("uniform", "realistic")
SHORTEST = 4
# Median and spread (standard deviation of the logarithm) of log-normal lengths, in tokens. Short: the sentences of the
# Chinese STS-B, counted in characters. Long: news articles, as in THUCNews; an assumption.
SHORT = (16.0, 0.56)
LONG = (800.0, 0.6)
REALISTIC = (
    f"half log-normal with median {SHORT[0]:.0f} and log-spread {SHORT[1]} (sentences), half with median {LONG[0]:.0f} "
    f"and {LONG[1]} (news), all between {SHORTEST} and n; the first is n long"
)


@dataclass(frozen=True)
class Batch:
    """Features of texts of some lengths; `length` tokens is the longest."""

    length: int
    padding: str
    rows: int
    tokens: int
    features: dict[str, Any]


def make_batch(length: int, padding: str, rows: int, fill: float, seed: int, device: str = "cpu") -> Batch:
    """Random ids; with padding, the lengths are spread evenly from `fill` · length to length, in random order."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    shape = (rows, length)
    ids = torch.randint(1, VOCABULARY, shape, generator=generator)
    lengths = torch.full((rows,), length)
    if padding != "none":
        # Spread and not drawn: a small batch is as full as a large one.
        spread = torch.linspace(length, max(1, math.ceil(fill * length)), rows).round().long()
        lengths = spread[torch.randperm(rows, generator=generator)]
    place = torch.arange(length).expand(shape)
    real = place < lengths[:, None]
    mask = real.long()
    # As st_reba's own layout has it: padding holds an id of the text's own, and belongs to no copy.
    features = {"input_ids": torch.where(real, ids, ids[:, :1]), "attention_mask": mask, "copy_ids": mask.clone()}
    moved: dict[str, Any] = {name: tensor.to(device) for name, tensor in features.items()}
    counts = lengths.tolist()
    return Batch(length, padding, rows, sum(counts), {**moved, "places": [(0, count, count) for count in counts]})


def draw_lengths(longest: int, mix: str, rows: int, seed: int) -> list[int]:
    """Content tokens of each text: all the longest, or the realistic mix, whose halves take turns."""
    if mix == "uniform":
        return [longest] * rows
    generator = np.random.default_rng(seed)
    medians, spreads = zip(*(SHORT if row % 2 else LONG for row in range(rows)), strict=True)
    drawn = np.exp(generator.normal(np.log(medians), spreads)).round().astype(int)
    lengths = [int(length) for length in drawn.clip(min(SHORTEST, longest), longest)]
    # So that a batch is always as wide as its case says.
    lengths[0] = longest
    return lengths


def make_texts(lengths: Sequence[int], seed: int) -> list[str]:
    """Texts of random numbers, each one token of the tokenizer of :mod:`models`."""
    generator = np.random.default_rng(seed)
    return [" ".join(map(str, generator.integers(1, VOCABULARY, length))) for length in lengths]
