"""Pipelines of every kind, as ``build`` makes them, and what is asked of each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from oracle import TEXTS, base_path
from sentence_transformers import SentenceTransformer
from torch import Tensor

import st_reba

# Every method and option, for bases of two layers or more.
PIPELINES: dict[str, dict[str, Any]] = {
    "reba last": {"method": "reba"},
    "reba mean": {
        "method": "reba",
        "pooling": "mean",
        "repeats": 3,
        "include_special": True,
    },
    "reba template": {
        "method": "reba",
        "pooling": "mean",
        "template": "echo",
        "normalize_weights": True,
    },
    "authors last": {"method": "reba", "implementation": "authors"},
    "authors mean": {
        "method": "reba",
        "implementation": "authors",
        "pooling": "mean",
    },
    "chunk last": {"method": "reba", "chunk": 4},
    "chunk mean": {
        "method": "reba",
        "chunk": 5,
        "pooling": "mean",
        "normalize_weights": True,
    },
    "echo last": {"method": "echo", "repeats": 3},
    "classical cls": {"method": "classical", "pooling": "cls"},
    "echo end": {
        "method": "echo",
        "pooling": "mean",
        "pooled": "last_copy_and_end",
        "compute_matched": True,
    },
    "prompteol": {"method": "prompteol"},
    "outputs": {"method": "prompteol", "read": "attention"},
    "ensemble": {"method": "prompteol", "template": "contrastive"},
    "reversed": {"method": "prompteol", "template": "reverseol"},
    "inplace": {"method": "nosink", "setting": "inplace-back", "k": 1},
    "mask0": {
        "method": "nosink",
        "setting": "mask0&bidir",
        "k": 2,
        "k0": 1,
        "m": 2,
    },
    "inter": {"method": "nosink", "setting": "inter-bidir", "k": 1},
    "inter authors": {
        "method": "nosink",
        "setting": "inter-back",
        "k": 2,
        "implementation": "authors",
    },
    "extra": {"method": "nosink", "setting": "extra-bidir", "k": 1},
    "extra authors": {
        "method": "nosink",
        "setting": "extra-back",
        "k": 2,
        "implementation": "authors",
    },
    "extend": {
        "method": "nosink",
        "setting": "extend-bidir",
        "k": 2,
        "pooling": "last",
    },
    "rerouted": {"method": "echo", "setting": "rerouted", "k": "all"},
    "reba mask0": {
        "method": "reba",
        "setting": "mask0-bidir",
        "k": 2,
        "pooling": "mean",
    },
    "reba inter": {"method": "reba", "setting": "inter-bidir", "k": [1]},
    "chunk mask0": {
        "method": "reba",
        "chunk": 4,
        "setting": "mask0-bidir",
        "k": 1,
    },
    "layer": {"method": "reba", "layer": 1},
    "layers": {"method": "echo", "pooling": "mean", "layer": [0, 2]},
    "concat": {
        "method": "reba",
        "layer": [1, 2],
        "join": "concat",
        "final_norm": False,
    },
}


def build_pipeline(base: str, name: str, **options: Any) -> SentenceTransformer:
    """A pipeline of that name on a base."""
    return build(base, **(PIPELINES[name] | options))


def build(base: Any, method: Any = "reba", **options: Any) -> SentenceTransformer:
    """``st_reba.build`` on a CPU in float32, whose vectors keep their length."""
    if isinstance(base, str):
        base = base_path(base)
    defaults: dict[str, Any] = {"normalize": False, "device": "cpu"}
    return st_reba.build(base, method, **(defaults | options))


def save_and_load(model: SentenceTransformer, target: Path, **options: Any) -> SentenceTransformer:
    """The model as sentence-transformers loads it from the folder that it is saved to."""
    model.save_pretrained(str(target))
    return SentenceTransformer(str(target), device="cpu", **options)


def encoded(
    model: SentenceTransformer,
    texts: Sequence[str] = TEXTS,
    *,
    alone: bool = False,
    **options: Any,
) -> Tensor:
    """The texts' vectors, as one batch of mixed lengths, or each alone."""
    batch_size = 1 if alone else len(texts)
    return model.encode(list(texts), batch_size=batch_size, convert_to_tensor=True, **options)


def features_of(model: SentenceTransformer, texts: Sequence[str] = TEXTS) -> dict[str, Any]:
    """What the first module makes of texts."""
    return dict(model[0].preprocess(list(texts)))


def gradients(model: SentenceTransformer, features: dict[str, Any]) -> dict[str, Tensor]:
    """The gradients of all parameters, of a sum of the vectors' numbers with random weights."""
    model.zero_grad()
    torch.manual_seed(0)
    vectors = model(dict(features))["sentence_embedding"]
    random_weights = torch.randn(vectors.shape, dtype=vectors.dtype)
    (vectors * random_weights).sum().backward()
    weight_gradients: dict[str, Tensor] = {}
    for name, weight in model.named_parameters():
        if weight.grad is not None:
            weight_gradients[name] = weight.grad.clone()
    return weight_gradients


def assert_gradients(
    actual: dict[str, Tensor],
    expected: dict[str, Tensor],
    tolerance: float = 1e-4,
) -> None:
    """Assert that both have the same parameters, and differ by at most ``tolerance`` times the largest gradient."""
    assert set(actual) == set(expected) and expected
    largest = max(float(gradient.abs().max()) for gradient in expected.values())
    for name, gradient in expected.items():
        torch.testing.assert_close(
            actual[name], gradient, rtol=0, atol=tolerance * largest, msg=name
        )


@contextmanager
def counted_positions(model: Any) -> Iterator[list[int]]:
    """Positions of every pass of the decoder inside."""
    position_counts: list[int] = []

    def count(module: torch.nn.Module, inputs: Any, output: Tensor) -> None:
        position_counts.append(inputs[0].numel())

    embeddings = model[0].model.get_input_embeddings()
    hook = embeddings.register_forward_hook(count)
    try:
        yield position_counts
    finally:
        hook.remove()
