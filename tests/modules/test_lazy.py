"""Token vectors that are computed when they are asked for, and not before."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import reference
import torch
from accelerate.utils import convert_outputs_to_fp32
from oracle import assert_close, oracle
from pipelines import (
    TEXTS,
    build,
    encoded,
    features_of,
    pipeline,
    sentences,
)
from sentence_transformers import SentenceTransformer

from st_reba import ReBAPooling

Base = Callable[..., str]


@pytest.fixture(scope="module")
def model(base: Base) -> SentenceTransformer:
    return pipeline(base("llama", "bos_eos"), normalize=True)


def test_token_vectors_are_among_the_features(base: Base, model: SentenceTransformer) -> None:
    """By name, by ``in``, by ``get``, in listings and in copies of them."""
    wanted = [reference.reba_tokens(hidden, fused, placed) for placed, hidden, fused in (
        oracle(base("llama", "bos_eos"), text, (None, None)) for text in TEXTS[:2]
    )]  # fmt: skip
    ways: list[Callable[[Any], Any]] = [
        lambda found: found["token_embeddings"],
        lambda found: found.get("token_embeddings"),
        lambda found: dict(found)["token_embeddings"],
        lambda found: {**found}["token_embeddings"],
        lambda found: dict(found.items())["token_embeddings"],
        lambda found: {name: found[name] for name in found}["token_embeddings"],
        lambda found: {name: found[name] for name in found.keys()}["token_embeddings"],  # noqa: SIM118
        lambda found: list(found.values())[list(found).index("token_embeddings")],
    ]
    for way in ways:
        with torch.inference_mode():
            found = model(features_of(model, TEXTS[:2]))
            assert "token_embeddings" in found and "sentence_embedding" in found and "evil" not in found
            rows = way(found)
        mask = found["attention_mask"].bool()
        for got, real, one in zip(rows, mask, wanted, strict=True):
            assert_close(got[real], one)
    assert found.get("evil") is None and found.get("evil", 3) == 3
    with pytest.raises(KeyError, match="evil"):
        found["evil"]


def test_sentences_alone_compute_no_token_vectors(model: SentenceTransformer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor does mixed precision, which copies a model's output while it learns."""
    monkeypatch.setattr(ReBAPooling, "token_vectors", lambda *arguments: pytest.fail("computed"))
    encoded(model)
    found = model(features_of(model))
    assert found["sentence_embedding"].requires_grad
    assert "token_embeddings" not in dict(found.items()) and "token_embeddings" in found
    with pytest.raises(pytest.fail.Exception, match="computed"):
        found["token_embeddings"]


def test_copies_of_what_a_model_gives(base: Base) -> None:
    """accelerate makes dictionaries of the same class anew."""
    model = build(base("llama"), "reba-last")
    converted = convert_outputs_to_fp32(model.forward)(features_of(model))
    torch.testing.assert_close(converted["sentence_embedding"], sentences(model, features_of(model)))
    with pytest.raises(KeyError, match="token_embeddings"):
        converted["token_embeddings"]
