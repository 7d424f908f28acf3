"""PromptEnsemble: the weighted sum of a text's vectors, and what has to stand in front of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from oracle import TEXTS, assert_close
from pipelines import encoded, features_of, pipeline, transformer
from reference_stages import ensemble
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer import losses
from torch import Tensor

from st_reba import Ensemble, PromptEnsemble

Base = Callable[..., str]

ONE = ["{text}", "Topic: {text}.", "“{text}” is: "]
TWO = ["{text} {text}", "Say {text}: {text}!"]


def build(base: str, **options: Any) -> Any:
    return pipeline(base, "prompteol", [Ensemble(ONE, [2, 0, -1])], **options)


def test_what_stays(base: Base) -> None:
    model: Any = build(base("llama"))
    features = features_of(model, TEXTS)
    with torch.inference_mode():
        found = model(features)
    assert [name for name, value in found.items() if isinstance(value, Tensor)] == ["sentence_embedding"]
    assert found["sentence_embedding"].shape == (len(TEXTS), 32) and len(features["input_ids"]) == 3 * len(TEXTS)
    with pytest.raises(ValueError, match="An ensemble of templates has sentence vectors only"):
        model.encode(list(TEXTS), output_value="token_embeddings")
    each = model.encode(list(TEXTS), output_value=None)
    np.testing.assert_allclose(each[1]["sentence_embedding"], model.encode(TEXTS[1]), atol=1e-5)
    with pytest.raises(ValueError, match=r"got 4 vectors, no multiple of its 3 weights.*multiples of 3 rows"):
        model[2]({"sentence_embedding": torch.ones(4, 8)})


def test_not_finite(base: Base) -> None:
    """A text is zero where one of its vectors is; its neighbours are not."""
    stages = [Ensemble(TWO)]
    model: Any = pipeline(base("llama"), "reba", stages, variant="published")
    before = encoded(model, ["hi", "a"])
    (token,) = set(model[0].content(["a"])["input_ids"][0])
    word = next(each for each in model[0].frames()[1].pieces[1] if each != token)
    with torch.no_grad():
        model[0].model.embed_tokens.weight[token] = torch.inf
    np.testing.assert_allclose(encoded(model, ["hi"]), before[:1], atol=1e-5)
    assert not model.encode(["a"]).any()
    with torch.no_grad():
        model[0].model.embed_tokens.weight[word] = torch.inf
    assert not model.encode(["hi", "a"]).any()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_number_types(dtype: torch.dtype) -> None:
    """The sum is not rounded in between."""
    vectors = torch.randn(6, 16, generator=torch.Generator().manual_seed(0)).to(dtype)
    weights = [0.3, -0.7, 0.1]
    module = PromptEnsemble()
    module.ensemble = Ensemble(ONE, weights)
    found = module({"sentence_embedding": vectors})["sentence_embedding"]
    assert found.dtype == dtype
    for row in range(2):
        exact = ensemble(list(vectors[3 * row : 3 * row + 3]), weights)
        assert_close(found[row], exact, 4e-3 if dtype == torch.bfloat16 else 1e-12)


def test_learns(base: Base) -> None:
    """Gradients reach the backbone through every prompt; a split at whole texts is no change."""
    model: Any = build(base("llama"), normalize=True)
    model[2].ensemble = Ensemble(ONE, [1, 1, 1])
    features = [features_of(model, TEXTS[:2]), features_of(model, TEXTS[2:4])]
    losses.MultipleNegativesRankingLoss(model)(features, torch.tensor([])).backward()
    rows = model[0].model.embed_tokens.weight.grad.abs().sum(dim=1)
    for frame in model[0].frames():
        for piece in frame.pieces[1:]:
            assert piece is None or bool((rows[list(piece)] > 0).all())
    whole = model(features[0])["sentence_embedding"]
    parts = [model({name: value[at : at + 3] for name, value in features[0].items()}) for at in (0, 3)]
    torch.testing.assert_close(torch.cat([each["sentence_embedding"] for each in parts]), whole, atol=1e-6, rtol=0)


def test_pipelines_that_do_not_fit(base: Base) -> None:
    path = base("llama")
    model: Any = build(path)
    with pytest.raises(ValueError, match=r"stands in 3 templates, so (st_reba.)?PromptEnsemble has to follow"):
        SentenceTransformer(modules=[model[0], model[1]], device="cpu")
    plain = transformer(path, "prompteol")
    with pytest.raises(ValueError, match="joins the vectors of several templates, but RepeatTransformer has none"):
        SentenceTransformer(modules=[plain, model[1], PromptEnsemble()], device="cpu")
    with pytest.raises(ValueError, match="PromptEnsemble knows no ensemble"):
        PromptEnsemble()({"sentence_embedding": torch.ones(2, 8)})
