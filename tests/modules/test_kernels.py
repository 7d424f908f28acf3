"""Kernels that tell the rows' sums: that they are there, what they say, and that nothing depends on them but time."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from pipelines import encoded, pipeline
from stubs import fake_gpu
from torch import Tensor

from st_reba import NoSink
from st_reba.modules import attention, kernels
from st_reba.modules.kernels import attention_with_totals
from st_reba.modules.scores import Scores, additive, blocked_attention

LENGTH = 37


def make(heads: int, groups: int, width: int, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor]:
    """Queries and keys of width 12 and values of another, as layers hand them over: transposed views."""
    generator = torch.Generator().manual_seed(heads + width)
    sizes = ((heads, 12, 3), (groups, 12, 1), (groups, width, 1))
    made = (scale * torch.randn(2, LENGTH, n, d, generator=generator, dtype=torch.float64) for n, d, scale in sizes)
    query, key, value = (each.to(dtype).transpose(1, 2).requires_grad_() for each in made)
    return query, key, value


def by_hand(query: Tensor, key: Tensor, value: Tensor, visible: Tensor, sinks: Tensor | None) -> tuple[Tensor, Tensor]:
    """Output [B, T, H, D'] and totals [B, H, T], each head by itself."""
    outputs, totals = [], []
    for head in range(query.shape[1]):
        group = head // (query.shape[1] // key.shape[1])
        scores = (0.3 * query[:, head] @ key[:, group].mT).masked_fill(~visible, -torch.inf)
        total = scores.exp().sum(-1) + (0 if sinks is None else sinks[head].exp())
        outputs.append(scores.exp() @ value[:, group] / total[..., None])
        totals.append(total.log())
    return torch.stack(outputs, dim=2), torch.stack(totals, dim=1)


def windowed(length: int = LENGTH) -> Tensor:
    return torch.ones(length, length, dtype=torch.bool).tril().triu(-9)


def efficient(
    query: Tensor, key: Tensor, value: Tensor, bias: Any, sums: bool, dropout: float, causal: bool, *, scale: float
) -> tuple[Tensor, ...]:
    """What a GPU's operator computes, by plain functions, and what it asks for."""
    length, keys = query.shape[2], key.shape[2]
    assert key.shape[:2] == value.shape[:2] == query.shape[:2] and sums and not dropout
    assert all(each.shape[-1] % 8 == 0 and each.stride(-1) == 1 for each in (query, key, value))
    scores = scale * query @ key.mT
    if bias is not None:
        assert bias.shape == (*query.shape[:3], keys) and bias.dtype == query.dtype and not causal
        assert bias.stride(-1) == 1 and all(step % 8 == 0 for step in bias.stride()[:3])
        scores = scores + bias
    hidden = torch.ones(length, keys, dtype=torch.bool).triu(1)
    scores = scores.masked_fill(hidden, -torch.inf) if causal else scores
    totals = torch.nn.functional.pad(scores.logsumexp(-1).float(), (0, -length % 32), value=torch.inf)
    return scores.softmax(-1) @ value, totals, torch.tensor(0), torch.tensor(0)


def flash(query: Tensor, key: Tensor, value: Tensor, dropout: float, causal: bool, shown: bool, *, scale: float) -> Any:
    """The other one: 16-bit numbers, keys in groups, no mask."""
    assert query.dtype in (torch.float16, torch.bfloat16) and not dropout and not shown
    assert query.shape[-1] == key.shape[-1] == value.shape[-1] <= 256
    key, value = (each.repeat_interleave(query.shape[1] // each.shape[1], dim=1) for each in (key, value))
    output, totals, *_ = efficient(query.float(), key.float(), value.float(), None, True, 0.0, causal, scale=scale)
    return output.to(query.dtype), totals[..., : query.shape[2]], *[None] * 7


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The ways of a GPU, taken on the CPU: its operators are stand-ins, their callers and their trial are not."""
    ran: list[str] = []

    def noted(name: str, operator: Any) -> Any:
        return lambda *arguments, **options: (ran.append(name), operator(*arguments, **options))[1]

    aten = torch.ops.aten
    monkeypatch.setattr(aten, "_scaled_dot_product_efficient_attention", noted("efficient", efficient))
    monkeypatch.setattr(aten, "_scaled_dot_product_flash_attention", noted("flash", flash))
    monkeypatch.setattr(kernels, "KERNELS", {"cpu": kernels.KERNELS["cuda"]})
    monkeypatch.setattr(kernels, "_trusted", {})
    return ran


SHAPES = [(4, 4, 12), (4, 2, 12), (3, 1, 12), (4, 2, 7), (4, 2, 20)]


@pytest.mark.parametrize("with_sinks", [False, True])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize(("heads", "groups", "width"), SHAPES)
def test_cpu(heads: int, groups: int, width: int, masked: bool, with_sinks: bool) -> None:
    """The kernel, and the blocks in its place: output, totals and gradients."""
    query, key, value = make(heads, groups, width)
    sinks = torch.linspace(-1, 2, heads, dtype=torch.float64) if with_sinks else None
    visible = windowed() if masked else torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril()
    mask = additive(visible[None, None], query.dtype) if masked else None
    wanted, wanted_totals = by_hand(query, key, value, visible, sinks)
    scores = Scores(query, key, mask, True, 0.3)
    computed = attention_with_totals(scores, value, sinks)
    assert (computed is None) == with_sinks  # a sink's share has no gradient there
    blocks = blocked_attention(scores, value, sinks=sinks)
    weights = torch.linspace(-1, 1, wanted.numel(), dtype=torch.float64).view_as(wanted)
    slopes = torch.autograd.grad((wanted * weights).sum(), (query, key, value), retain_graph=True)
    for output, totals in filter(None, (computed, blocks)):
        torch.testing.assert_close(output, wanted, rtol=1e-10, atol=1e-10)
        torch.testing.assert_close(totals, wanted_totals.detach(), rtol=1e-10, atol=1e-10)
        got = torch.autograd.grad((output * weights).sum(), (query, key, value), retain_graph=True)
        torch.testing.assert_close(got, slopes, rtol=1e-9, atol=1e-9)
    with torch.no_grad():
        computed = attention_with_totals(scores, value, sinks)
    assert computed is not None
    torch.testing.assert_close(computed, (wanted.detach(), wanted_totals.detach()), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("form", ["causal", "all", "mask", "mask of heads"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("heads", "groups", "width"), SHAPES)
@torch.no_grad()
def test_gpu(gpu: list[str], heads: int, groups: int, width: int, dtype: torch.dtype, form: str) -> None:
    """Flash where there is no mask to 16-bit numbers of one width, else the other; each tried once."""
    query, key, value = make(heads, groups, width, dtype)
    everything = torch.ones(LENGTH, LENGTH, dtype=torch.bool)
    visible = {"causal": everything.tril(), "all": everything}.get(form, windowed())
    mask = None
    if form.startswith("mask"):
        mask = additive(visible.expand(*((2, heads) if "heads" in form else (1, 1)), -1, -1), dtype)
    exact = [each.detach().double() for each in (query, key, value)]
    tolerance = 1e-5 if dtype == torch.float32 else 5e-2
    wanted = by_hand(*exact, visible, None)
    for _ in range(2):
        got = attention_with_totals(Scores(query, key, mask, form == "causal", 0.3), value)
        assert got is not None and got[1].dtype == torch.float32
        for one, other in zip(got, wanted, strict=True):
            torch.testing.assert_close(one.double(), other, rtol=tolerance, atol=tolerance)
    suits = mask is None and dtype == torch.bfloat16 and width == 12
    assert gpu == ["flash" if suits else "efficient"] * 3


@pytest.mark.parametrize(("groups", "width", "length"), [(8, 64, 64), (2, 20, 40), (1, 64, 40)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("masked", [False, True])
def test_as_torch_declares_them(groups: int, width: int, length: int, dtype: torch.dtype, masked: bool) -> None:
    """Names, arguments and shapes of a GPU's operators, on a GPU without numbers; no trial is made there."""
    with fake_gpu() as device:
        query = torch.empty(2, length, 8, width, device=device, dtype=dtype).transpose(1, 2)
        key = torch.empty(2, length, groups, width, device=device, dtype=dtype).transpose(1, 2)
        visible = torch.ones(1, 1, length, length, dtype=torch.bool, device=device)
        mask = additive(visible, dtype) if masked else None
        assert mask is None or mask.stride(-2) % 16 == 0
        before = dict(kernels._trusted)
        computed = attention_with_totals(Scores(query, key, mask, True), key, torch.randn(8, device=device))
        assert computed is not None and before == kernels._trusted
        output, totals = computed
        assert (output.shape, output.dtype, str(output.device)) == ((2, length, 8, width), dtype, device)
        assert (totals.shape, totals.dtype, str(totals.device)) == ((2, 8, length), torch.float32, device)


@torch.no_grad()
def test_numbers_of_a_head_are_side_by_side(gpu: list[str]) -> None:
    """As a GPU's operators ask for, however a layer lays them out."""
    query, key, value = (torch.randn(2, 4, LENGTH, 16) for _ in range(3))
    wanted = by_hand(query.double(), key.double(), value.double(), torch.ones(LENGTH, LENGTH).tril().bool(), None)
    aside = [each.mT.contiguous().mT for each in (query, key, value)]
    got = attention_with_totals(Scores(aside[0], aside[1], None, True, 0.3), aside[2])
    assert got is not None and set(gpu) == {"efficient"}
    torch.testing.assert_close(got[0].double(), wanted[0], rtol=1e-5, atol=1e-5)


def test_where_no_kernel_fits() -> None:
    query, key, value = make(4, 4, 12, torch.float32)
    assert attention_with_totals(Scores(query, key, None, True), value.bfloat16()) is None
    assert attention_with_totals(Scores(query.to("meta"), key.to("meta")), value.to("meta")) is None


@pytest.mark.parametrize("fault", ["sums in base 2", "another layout", "gone", "output"])
def test_one_that_does_not_agree(fault: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """It is tried once, said so once, and is not used."""

    def changed(*arguments: Any) -> tuple[Tensor, Tensor]:
        output, totals = kernels.flash_on_cpu(*arguments)
        if fault == "gone":
            raise AttributeError("no such operator")
        if fault == "output":
            output = output.flip(0)
        if fault == "sums in base 2":
            totals = totals / torch.log(torch.tensor(2.0))
        return output, totals.transpose(1, 2) if fault == "another layout" else totals

    monkeypatch.setattr(kernels, "KERNELS", {"cpu": (changed,)})
    query, key, value = make(4, 2, 12, torch.float32)
    for _ in range(2):
        assert attention_with_totals(Scores(query, key, None, True), value) is None
    assert len([record for record in caplog.records if "in blocks" in record.message]) == 1


def test_a_trial_is_made_in_its_own_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    """Autocast would multiply its blocks in 16 bits, which no kernel agrees with."""
    monkeypatch.setattr(kernels, "_trusted", {})
    with torch.autocast("cpu", dtype=torch.bfloat16):
        query, key, value = make(4, 2, 12, torch.float32)
        assert attention_with_totals(Scores(query, key, None, True), value) is not None


def test_repositories_that_carry_them(
    base: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a capture only those of bases with sinks, which run without kernels too, to equal effect."""
    for name in ("llama", "gpt_oss"):
        model = pipeline(base(name), "nosink", [NoSink("mask0-bidir", k=1)])
        model.save_pretrained(str(tmp_path / name))
        carried = {path.stem for path in (tmp_path / name).glob("st_reba_*.py")}
        assert "st_reba_attention" in carried and "st_reba_capture" not in carried
        assert ("st_reba_kernels" in carried) == (name == "gpt_oss")
    fused = encoded(model)
    monkeypatch.setattr(attention, "extra", lambda *arguments, **options: None)
    torch.testing.assert_close(encoded(model), fused, rtol=0, atol=1e-5)
