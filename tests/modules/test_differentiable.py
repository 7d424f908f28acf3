"""Gradients through every pipeline: against finite differences in float64, and the fast path's values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from marks import slow_but
from oracle import assert_close
from pipelines import (
    BASES,
    PIPELINES,
    TEXTS,
    Features,
    build,
    cases,
    enable_checkpointing,
    features_of,
    gradients,
    on,
    sentences,
)
from sentence_transformers import SentenceTransformer
from torch import Tensor

from st_reba.modules import capture as capturing
from st_reba.modules import differentiable

Base = Callable[..., str]


def tokens(model: SentenceTransformer, features: Features) -> Tensor:
    """The e_i."""
    vectors: Tensor = model[1](model[0](features))["token_embeddings"]
    return vectors


def words(model: SentenceTransformer, features: Features) -> Tensor:
    """The vector of each text's first two tokens, or of its only one."""
    pooling: Any = model[1]
    count = torch.tensor([number for _, number, _ in features["places"]])
    spans = torch.arange(int(count.max())) < count.clamp(max=2)[:, None]
    vectors: Tensor = pooling.span_embeddings(model[0](features, watch=[pooling.token_capture]), spans)
    return vectors


@pytest.fixture
def in_float64(monkeypatch: pytest.MonkeyPatch) -> None:
    """Backbones go through float32 in their norms and softmaxes, whose rounding no finite difference survives."""
    to, single, softmax = Tensor.to, Tensor.float, torch.nn.functional.softmax

    def kept(tensor: Tensor, *arguments: Any, **options: Any) -> Tensor:
        rounds = tensor.dtype == torch.float64 and torch.float32 in (*arguments, options.get("dtype"))
        return tensor if rounds else to(tensor, *arguments, **options)

    def weights(tensor: Tensor, *arguments: Any, **options: Any) -> Tensor:
        return softmax(tensor, *arguments, **{**options, "dtype": tensor.dtype})

    monkeypatch.setattr(Tensor, "to", kept)
    monkeypatch.setattr(Tensor, "float", lambda tensor: tensor if tensor.dtype == torch.float64 else single(tensor))
    monkeypatch.setattr(torch.nn.functional, "softmax", weights)


def check_gradient(model: SentenceTransformer, output: Callable[[SentenceTransformer, Features], Tensor]) -> None:
    """With respect to what enters the backbone, and to all of its weights."""
    features = features_of(model)
    backbone: Any = model[0].model
    generator = torch.Generator().manual_seed(3)

    def added(shift: Tensor) -> Tensor:
        hook = backbone.get_input_embeddings().register_forward_hook(lambda module, given, out: out + shift)
        try:
            return output(model, features)
        finally:
            hook.remove()

    shift = torch.zeros(backbone.get_input_embeddings().weight.shape[1], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(added, (shift,), eps=1e-7, atol=1e-5, rtol=1e-5, fast_mode=True)

    weights = [each for each in model.parameters() if each.requires_grad]
    directions = [torch.randn(each.shape, generator=generator, dtype=each.dtype) for each in weights]
    with torch.no_grad():
        projection = torch.randn(output(model, features).shape, generator=generator, dtype=torch.float64)

    def value() -> Tensor:
        return (output(model, features) * projection).sum()

    found = torch.autograd.grad(value(), weights, allow_unused=True)
    along = sum(
        float((gradient * each).sum()) for gradient, each in zip(found, directions, strict=True) if gradient is not None
    )
    size, values = 1e-6, []
    for sign in (1, -2):
        with torch.no_grad():
            for weight, each in zip(weights, directions, strict=True):
                weight.add_(each, alpha=sign * size)
        # Without a gradient, maxima are kept in float32.
        values.append(float(value().detach()))
    assert abs(along) > 1e-3
    assert along == pytest.approx((values[0] - values[1]) / (2 * size), rel=2e-5)


@pytest.mark.parametrize("name", PIPELINES)
@pytest.mark.usefixtures("in_float64")
def test_pipelines(base: Base, name: str) -> None:
    check_gradient(build(base("llama"), name, dtype="float64"), sentences)


@pytest.mark.parametrize("name", ["reba-normalized", "reba-plan", "published-mean", "chunked-last"])
@pytest.mark.parametrize("output", [tokens, words])
@pytest.mark.usefixtures("in_float64")
def test_tokens_and_words(base: Base, name: str, output: Any) -> None:
    check_gradient(build(base("llama", "bos_eos"), name, dtype="float64"), output)


@pytest.mark.parametrize(
    ("architecture", "name"),
    slow_but(cases(("echo-last", "reba-mean", "published-last", "reba-plan"), BASES), "gemma2", "bloom", rows=True),
)
@pytest.mark.usefixtures("in_float64")
def test_bases(base: Base, architecture: str, name: str) -> None:
    model = on(base, architecture, name, dtype="float64")
    for weight in model.parameters():
        # Some versions of transformers keep gpt_oss's norms in float32 whatever the dtype.
        weight.data = weight.data.double()
    check_gradient(model, sentences)


@pytest.mark.parametrize("name", PIPELINES)
def test_values_of_both_paths(base: Base, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = build(base("llama"), name)
    features = features_of(model)
    with torch.no_grad():
        fast = sentences(model, features)
    monkeypatch.setattr(capturing.BackwardAttention, "matrix", lambda self: pytest.fail("this is the fast path"))
    learning = sentences(model, features)
    assert learning.requires_grad and not fast.requires_grad
    torch.testing.assert_close(learning.detach(), fast, rtol=0, atol=1e-6)


@pytest.mark.parametrize("architecture", BASES)
@pytest.mark.parametrize("name", ["reba-last", "published-mean"])
def test_values_of_bases(base: Base, architecture: str, name: str) -> None:
    model = on(base, architecture, name)
    features = features_of(model)
    with torch.no_grad():
        fast = sentences(model, features)
    assert_close(sentences(model, features).detach(), fast.double())


def test_nothing_to_learn(base: Base, monkeypatch: pytest.MonkeyPatch) -> None:
    """A frozen backbone runs as fast as without gradients; one weight that is not frozen is enough to learn."""
    model = build(base("llama"), "reba-last")
    model.requires_grad_(False)
    monkeypatch.setattr(
        differentiable, "DifferentiableAttention", lambda *arguments, **options: pytest.fail("the twin")
    )
    assert not sentences(model, features_of(model)).requires_grad
    next(model.parameters()).requires_grad_(True)
    with pytest.raises(pytest.fail.Exception, match="the twin"):
        sentences(model, features_of(model))


# Gradient checkpointing


def test_a_run_for_the_gradient_leaves_nothing(base: Base, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []
    kind = differentiable.DifferentiableAttention

    def recorded(*arguments: Any, **options: Any) -> Any:
        made.append(kind(*arguments, **options))
        return made[-1]

    monkeypatch.setattr(differentiable, "DifferentiableAttention", recorded)
    model = build(base("llama"), "reba-mean")
    enable_checkpointing(model)
    model.train()
    vectors = sentences(model, features_of(model))
    (capture,) = made
    matrix, layers = capture.matrix(), capture.layers
    vectors.sum().backward()
    assert capture.layers == 2 * layers and capture.matrix() is matrix and not capture._rows


# Mixed precision


@pytest.mark.parametrize("name", ["echo-last", "mask0", "reba-last", "reba-mean", "chunked-last", "reba-plan"])
def test_autocast(base: Base, name: str) -> None:
    model = build(base("llama"), name)
    features = features_of(model)
    aim = torch.randn(len(TEXTS), 32, generator=torch.Generator().manual_seed(1))

    def loss() -> Tensor:
        return (sentences(model, features).float() * aim).sum()

    wanted = gradients(model, loss)
    with torch.autocast("cpu", torch.bfloat16):
        found = gradients(model, loss)
    assert set(found) == set(wanted)
    flat, exact = (torch.cat([each[name].flatten() for name in wanted]) for each in (found, wanted))
    assert bool(torch.isfinite(flat).all())
    assert float(torch.cosine_similarity(flat, exact, dim=0)) > 0.97
