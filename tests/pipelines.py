"""Every pipeline on a tiny base, and its gradients, for the tests of training."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from sentence_transformers import SentenceTransformer
from torch import Tensor

import st_reba

Features = dict[str, Any]

TEXTS = ["The river runs past the old mill.", "hi", "银行关门了, again"]
PLAN = {"layers": {"bidirectional": [0], "nosink-forward": [1]}}
PIPELINES: dict[str, dict[str, Any]] = {
    "classical-last": {"method": "classical"},
    "classical-mean": {"method": "classical", "pooling": "mean"},
    "classical-cls": {
        "method": "classical",
        "pooling": "cls",
        "separator": "",
        "layers": {"kind": "bidirectional", "k": 2},
    },
    "echo-last": {"method": "echo"},
    "echo-end": {"method": "echo", "span": "last_copy_and_end"},
    "echo-mean-plan": {"method": "echo", "pooling": "mean", "layers": PLAN},
    "prompteol": {"method": "prompteol"},
    "inplace": {"method": "nosink", "setting": "inplace-back", "k": 1},
    "mask0": {"method": "nosink", "setting": "mask0&bidir", "k": 2, "k0": 1, "pooling": "last"},
    "inter": {"method": "nosink", "setting": "inter-bidir", "k": 1},
    "inter-published": {"method": "nosink", "setting": "inter-back", "k": 2, "variant": "published"},
    "extra": {"method": "nosink", "setting": "extra-bidir", "k": 1},
    "extra-published": {"method": "nosink", "setting": "extra-back", "k": 2, "variant": "published"},
    "extend": {"method": "nosink", "setting": "extend-bidir", "k": 2},
    "reba-last": {"method": "reba"},
    "reba-mean": {"method": "reba", "pooling": "mean", "repeats": 3},
    "reba-special": {"method": "reba", "pooling": "mean", "include_special": True},
    "reba-normalized": {"method": "reba", "pooling": "mean", "normalize_weights": True},
    "published-last": {"method": "reba", "variant": "published"},
    "published-mean": {"method": "reba", "variant": "published", "pooling": "mean"},
    "chunked-last": {"method": "reba", "chunk": 4},
    "chunked-mean": {"method": "reba", "chunk": 4, "pooling": "mean", "normalize_weights": True},
    "reba-plan": {"method": "reba", "pooling": "mean", "layers": PLAN},
    "reba-inter": {"method": "reba", "setting": "inter-bidir", "k": 1},
    "chunked-plan": {"method": "reba", "chunk": 4, "setting": "mask0-bidir", "k": 1},
}
TWICE = [name for name, options in PIPELINES.items() if options.get("setting", "")[:4] in ("inte", "extr", "exte")]


def build(base: str, name: str, side: str = "right", **options: Any) -> SentenceTransformer:
    return st_reba.build(base, **PIPELINES[name], padding_side=side, check=False, **options)


def features_of(model: SentenceTransformer, texts: list[str] = TEXTS) -> Features:
    return dict(model[0].preprocess(texts))


def sentences(model: SentenceTransformer, features: Features) -> Tensor:
    vectors: Tensor = model(features)["sentence_embedding"]
    return vectors


def gradients(model: SentenceTransformer, loss: Callable[[], Tensor]) -> dict[str, Tensor]:
    """Of everything that has one, the model's random numbers the same each time."""
    model.zero_grad()
    torch.manual_seed(0)
    loss().backward()
    return {name: each.grad.clone() for name, each in model.named_parameters() if each.grad is not None}


def assert_close(found: dict[str, Tensor], wanted: dict[str, Tensor], tolerance: float = 1e-5) -> None:
    assert set(found) == set(wanted)
    largest = max(float(each.abs().max()) for each in wanted.values())
    for name, each in wanted.items():
        torch.testing.assert_close(found[name], each, rtol=0, atol=tolerance * largest, msg=name)
