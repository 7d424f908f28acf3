"""The kernel that tells the rows' sums: that it is there, what it says, and that nothing depends on it but time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from oracle import TEXTS, assert_close
from torch import Tensor

import st_reba
from st_reba.modules import attention, fused, kernels
from st_reba.modules.blocked import blocked_attention
from st_reba.modules.scores import Scores

Base = Callable[..., str]
LENGTH = 70


def make(heads: int, groups: int, width: int, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(heads + width)
    query = torch.randn(2, LENGTH, heads, 16, generator=generator, dtype=torch.float64)
    key = torch.randn(2, LENGTH, groups, 16, generator=generator, dtype=torch.float64)
    value = torch.randn(2, LENGTH, groups, width, generator=generator, dtype=torch.float64)
    # As layers hand them over: transposed views.
    query, key, value = (each.to(dtype).transpose(1, 2).requires_grad_() for each in (3 * query, key, value))
    return query, key, value


def by_hand(
    query: Tensor, key: Tensor, value: Tensor, visible: Tensor, sinks: Tensor | None, scaling: float
) -> tuple[Tensor, Tensor]:
    """Output [B, T, H, D'] and totals [B, H, T], each head by itself."""
    outputs, totals = [], []
    for head in range(query.shape[1]):
        group = head // (query.shape[1] // key.shape[1])
        scores = scaling * query[:, head] @ key[:, group].mT
        scores = scores.masked_fill(~visible, -torch.inf)
        exponentials = scores.exp()
        total = exponentials.sum(-1) + (0 if sinks is None else sinks[head].exp())
        outputs.append(exponentials @ value[:, group] / total[..., None])
        totals.append(total.log())
    return torch.stack(outputs, dim=2), torch.stack(totals, dim=1)


@pytest.mark.parametrize("with_sinks", [False, True])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize(("heads", "groups", "width"), [(4, 4, 16), (4, 2, 16), (3, 1, 16), (4, 2, 8)])
def test_kernel(heads: int, groups: int, width: int, masked: bool, with_sinks: bool) -> None:
    """The kernel, and the blocks in its place: output, totals and gradients, grouped keys and narrow values too."""
    query, key, value = make(heads, groups, width)
    sinks = torch.linspace(-1, 2, heads, dtype=torch.float64) if with_sinks else None
    visible = torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril()
    mask = None
    if masked:
        visible = visible & ~torch.eye(LENGTH, dtype=torch.bool).roll(-1, 0)
        visible[0, 0] = True
        mask = torch.zeros(1, 1, LENGTH, LENGTH, dtype=torch.float64).masked_fill(
            ~visible, torch.finfo(query.dtype).min
        )
    wanted, wanted_totals = by_hand(query, key, value, visible, sinks, 0.3)
    computed = fused.fused_with_totals(query, key, value, mask, causal=True, scaling=0.3, sinks=sinks)
    assert (computed is None) == with_sinks  # a sink's share has no gradient there
    blocks = blocked_attention(Scores(query, key, mask, True, 0.3), value, sinks=sinks)
    weights = torch.linspace(-1, 1, wanted.numel(), dtype=torch.float64).view_as(wanted)
    slopes = torch.autograd.grad((wanted * weights).sum(), (query, key, value), retain_graph=True)
    for output, totals in filter(None, (computed, blocks)):
        torch.testing.assert_close(output, wanted, rtol=1e-10, atol=1e-10)
        torch.testing.assert_close(totals, wanted_totals.detach(), rtol=1e-10, atol=1e-10)
        got = torch.autograd.grad((output * weights).sum(), (query, key, value), retain_graph=True)
        for slope, expected in zip(got, slopes, strict=True):
            torch.testing.assert_close(slope, expected, rtol=1e-9, atol=1e-9)
    with torch.no_grad():
        computed = fused.fused_with_totals(query, key, value, mask, causal=True, scaling=0.3, sinks=sinks)
    assert computed is not None
    torch.testing.assert_close(computed, (wanted.detach(), wanted_totals.detach()), rtol=1e-10, atol=1e-10)


def test_where_the_kernel_does_not_fit() -> None:
    query, key, value = make(4, 4, 16, torch.float32)
    for given in (
        (query.to("meta"), key.to("meta"), value.to("meta")),
        (query, key, value.bfloat16()),
        (query, key, torch.cat([value, value], dim=-1)),
    ):
        assert fused.fused_with_totals(*given, None, causal=True, scaling=None) is None


@pytest.mark.parametrize("name", ["gpt2", "llama", "mistral", "gpt_oss", "mini"])
@pytest.mark.parametrize("pooling", ["last", "mean"])
def test_vectors_without_the_kernel(base: Base, name: str, pooling: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A torch without it gives the same vectors; one with it does use it, in every layer."""
    model = st_reba.build(base(name), pooling=pooling, normalize=False)
    ran: list[bool] = []
    kernel = attention.fused_with_totals

    def recorded(*arguments: Any, **keywords: Any) -> Any:
        computed = kernel(*arguments, **keywords)
        ran.append(computed is not None)
        return computed

    monkeypatch.setattr(attention, "fused_with_totals", recorded)
    with_kernel = model.encode(list(TEXTS), convert_to_tensor=True)
    assert ran == [True] * model[0].depth
    monkeypatch.setattr(kernels, "KERNELS", {})
    without = model.encode(list(TEXTS), convert_to_tensor=True)
    assert not any(ran[model[0].depth :])
    for got, wanted in zip(without, with_kernel, strict=True):
        assert_close(got, wanted.double())


def half_precision_flash(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, causal: bool, scaling: float | None
) -> tuple[Tensor, Tensor]:
    """What a GPU's kernel tells, by torch's plain functions: grouped keys, 32-bit sums."""
    repeated = key.repeat_interleave(query.shape[1] // key.shape[1], dim=1)
    scores = (query.float() @ repeated.float().mT) * (query.shape[-1] ** -0.5 if scaling is None else scaling)
    hidden = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
    scores = scores.masked_fill(hidden, -torch.inf) if causal else scores
    repeated = value.repeat_interleave(query.shape[1] // key.shape[1], dim=1)
    return (scores.softmax(-1) @ repeated.float()).to(query.dtype), scores.logsumexp(-1)


@pytest.mark.parametrize("name", ["gpt2", "llama", "mini"])
def test_a_gpu_s_kernel_takes_the_same_way(base: Base, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """bfloat16, no mask, as on a GPU: the function that runs is a stand-in, its caller and its trial are not."""
    model = st_reba.build(base(name), pooling="mean", normalize=False, dtype="bfloat16")
    ran: list[torch.dtype] = []

    def stand_in(*arguments: Any) -> tuple[Tensor, Tensor]:
        ran.append(arguments[0].dtype)
        return half_precision_flash(*arguments)

    wanted = model.encode(list(TEXTS), convert_to_tensor=True).float()
    monkeypatch.setattr(kernels, "flash_on_gpu", stand_in)
    monkeypatch.setattr(kernels, "KERNELS", {"cpu": stand_in})
    got = model.encode(list(TEXTS), convert_to_tensor=True).float()
    # Once for the trial.
    assert ran == [torch.bfloat16] * (model[0].depth + 1)
    assert float((1 - torch.cosine_similarity(got, wanted)).max()) < 1e-3
    model.encode(list(TEXTS))
    assert len(ran) == 2 * model[0].depth + 1


@pytest.mark.parametrize("fault", ["sums in base 2", "another layout", "gone", "output"])
def test_a_kernel_that_does_not_agree_is_not_used(
    base: Base, fault: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    model = st_reba.build(base("llama"), pooling="mean", normalize=False)
    wanted = model.encode(list(TEXTS), convert_to_tensor=True)

    def changed(*arguments: Any) -> tuple[Tensor, Tensor]:
        output, totals = kernels.flash_on_cpu(*arguments)
        if fault == "gone":
            raise AttributeError("no such operator")
        if fault == "output":
            output = output.flip(0)
        if fault == "sums in base 2":
            totals = totals / torch.log(torch.tensor(2.0))
        return output, totals.transpose(1, 2) if fault == "another layout" else totals

    monkeypatch.setattr(kernels, "KERNELS", {"cpu": changed})
    for _ in range(2):
        for vector, same in zip(model.encode(list(TEXTS), convert_to_tensor=True), wanted, strict=True):
            assert_close(vector, same.double())
    assert len([record for record in caplog.records if "runs in blocks" in record.message]) == 1


@pytest.mark.parametrize("groups", [8, 2])
def test_the_gpu_s_kernel_is_called_as_torch_declares_it(groups: int) -> None:
    """Its name, arguments and shapes, on tensors without numbers."""
    query = torch.empty(2, 8, 40, 64, device="meta", dtype=torch.bfloat16)
    key = torch.empty(2, groups, 40, 64, device="meta", dtype=torch.bfloat16)
    output, totals = kernels.flash_on_gpu(query, key, key, None, True, 0.1)
    assert (output.shape, output.dtype) == (query.shape, query.dtype)
    assert (totals.shape, totals.dtype) == (query.shape[:3], torch.float32)
