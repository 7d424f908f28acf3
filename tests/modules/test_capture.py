"""Running maxima against a maximum over everything, whatever the blocks, the anchors and the padding."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from reference import symmetrized_max
from stubs import fake_gpu, new_pass
from torch import Tensor

from st_reba.modules import capture as capturing
from st_reba.modules.capture import BackwardAttention, Blocks, Capture
from st_reba.modules.differentiable import DifferentiableAttention
from st_reba.modules.scores import Scores

LENGTH, LAYERS, HEADS = 11, 3, 4
# Three texts of 2, 4 and 3 content tokens, twice, with a special token before (in the last two) and after.
PLACES = [(1, 2, 6), (1, 4, 10), (0, 3, 7)]
CPU = torch.device("cpu")
ROWS: list[Any] = ["last", "copy", "end", "half"]


def positions(rows: str, place: tuple[int, int, int]) -> list[int]:
    """The anchors, found the obvious way."""
    content = [t for t in range(place[2]) if place[0] <= t < place[0] + place[1]]
    every = list(range(place[2]))
    return {"last": content[-1:], "copy": content, "end": every[-1:], "half": every[: len(every) // 2]}[rows]


def assert_rows(got: Tensor, attention: Tensor, rows: str, both: bool) -> None:
    """The rows of A^new, of attention [layers, B, H, T, T]."""
    for row, place in enumerate(PLACES):
        wanted = symmetrized_max(attention[:, row].double())
        wanted = wanted if both else wanted.triu()
        wanted[:, place[2] :] = 0  # padding
        anchors = positions(rows, place)
        torch.testing.assert_close(got[row, : len(anchors)].double(), wanted[anchors], rtol=1e-5, atol=1e-7)
        assert not got[row, len(anchors) :].any()


@pytest.mark.parametrize("both", [False, True])
@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("kind", [BackwardAttention, DifferentiableAttention])
def test_probabilities(kind: Any, rows: Any, both: bool) -> None:
    """From whole layers, as hooks show them, and with a gradient from blocks."""
    generator = torch.Generator().manual_seed(1)
    attention = torch.rand(LAYERS, len(PLACES), HEADS, LENGTH, LENGTH, generator=generator).tril()
    observer = kind(Capture(rows, both), PLACES, LENGTH, CPU)
    block = LENGTH if kind is BackwardAttention else 4
    for layer in attention:
        observer.begin_layer()
        for start in range(0, LENGTH, block):
            # Keys beyond the block's last query have no weight, and are not handed over.
            observer.update(layer[:, :, start : start + block, : start + block], start)
        observer.end_layer()
    assert observer.layers == LAYERS
    assert_rows(observer.matrix(), attention, rows, both)


def shown(observer: BackwardAttention, ahead: tuple[int, ...]) -> list[Tensor]:
    """The attention of some layers, each with a window, that an observer was shown by scores and totals."""
    generator = torch.Generator().manual_seed(1)
    attention = []
    for number in range(LAYERS):
        visible = torch.ones(LENGTH, LENGTH, dtype=torch.bool)
        visible = visible.tril().triu(-6 - number) if number not in ahead else visible.tril(6).triu(-6)
        query = torch.randn(len(PLACES), HEADS, LENGTH, 8, generator=generator, dtype=torch.float64)
        key = torch.randn(len(PLACES), HEADS // 2, LENGTH, 8, generator=generator, dtype=torch.float64)
        scores = (query @ key.repeat_interleave(2, dim=1).mT).masked_fill(~visible, -torch.inf)
        attention.append(scores.softmax(-1))
        given = Scores(query, key, visible[None, None], scaling=1.0)
        observer.update_layer(given, scores.logsumexp(-1), both_ways=number in ahead)
    return attention


@pytest.mark.parametrize("block", [1, 4, 1 << 18])
@pytest.mark.parametrize("ahead", [(), (0, 1, 2), (1,)])
@pytest.mark.parametrize("both", [False, True])
@pytest.mark.parametrize("rows", ROWS)
def test_layers(rows: Any, both: bool, ahead: tuple[int, ...], block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """From scores and totals: a probability is the exponential of their difference."""
    # Texts one by one, then all together.
    monkeypatch.setattr(capturing, "CPU", Blocks(block, block, 20 * block, block, 3, block))
    observer = BackwardAttention(Capture(rows, both), PLACES, LENGTH, CPU)
    attention = torch.stack(shown(observer, ahead))
    so_far = observer.so_far()
    assert_rows(observer.matrix(), attention, rows, both)
    # Read in between, it goes on.
    torch.testing.assert_close(so_far, observer.matrix())


def test_so_far() -> None:
    observer = BackwardAttention(Capture("copy", both=True), PLACES, LENGTH, CPU)
    first = torch.stack(shown(observer, (1,)))
    assert_rows(observer.so_far(), first, "copy", True)
    second = torch.stack(shown(observer, (0,)))
    assert_rows(observer.matrix(), torch.cat([first, second]), "copy", True)


def test_specs() -> None:
    assert Capture("half").anchors([(0, 1, 1)]) == [(0, 1)]


def test_one_observer_a_pass() -> None:
    run = new_pass(PLACES, decoder=SimpleNamespace(model=None))
    run.observer = BackwardAttention(Capture("last"), PLACES, LENGTH, CPU)
    with pytest.raises(ValueError, match="both want to observe one pass"), torch.no_grad():
        BackwardAttention(Capture("copy"), PLACES, LENGTH, CPU).begin(run)


@pytest.mark.parametrize("both_ways", [False, True])
@pytest.mark.parametrize("rows", ROWS)
def test_without_numbers(rows: Any, both_ways: bool) -> None:
    """No number is read on the way, and all is made on the device."""
    dtype = torch.bfloat16
    with fake_gpu() as device:
        observer = BackwardAttention(Capture(rows, both=True), PLACES, LENGTH, torch.device(device))
        query = torch.randn(len(PLACES), HEADS, LENGTH, 8, device=device, dtype=dtype)
        mask = torch.zeros(1, 1, LENGTH, LENGTH, device=device, dtype=dtype)
        totals = torch.randn(len(PLACES), HEADS, LENGTH, device=device)
        observer.update_layer(Scores(query, query[:, :2], mask), totals, both_ways=both_ways)
        observer.update(torch.rand(len(PLACES), HEADS, LENGTH, LENGTH, device=device), 0)
        for matrix in (observer.so_far(), observer.matrix()):
            assert matrix.shape == (3, observer.rows, LENGTH) and str(matrix.device) == device
