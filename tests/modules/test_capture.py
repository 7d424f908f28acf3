"""Running maxima against a maximum over everything, whatever the blocks, the anchors and the padding."""

from __future__ import annotations

import pytest
import torch
from marks import slow_but
from reference import symmetrized_max

from st_reba.modules import capture as capturing
from st_reba.modules.capture import BackwardAttention, Blocks, CaptureSpec
from st_reba.modules.scores import Scores

LENGTH, LAYERS, HEADS = 11, 3, 4
# Three texts of 2, 4 and 3 content tokens, twice, with a special token before and after.
COPIES = ([0, 1, 1, 2, 2, 0], [0, 1, 1, 1, 1, 2, 2, 2, 2, 0], [0, 1, 1, 1, 2, 2, 2, 0])


def batch(side: str) -> tuple[torch.Tensor, torch.Tensor]:
    copy_ids = torch.zeros(len(COPIES), LENGTH, dtype=torch.long)
    real = torch.zeros_like(copy_ids)
    for row, copies in enumerate(COPIES):
        start = LENGTH - len(copies) if side == "left" else 0
        copy_ids[row, start : start + len(copies)] = torch.tensor(copies)
        real[row, start : start + len(copies)] = 1
    return copy_ids, real


def positions(rows: str, copies: torch.Tensor, real: torch.Tensor) -> list[int]:
    """The anchors, found the obvious way."""
    first = [int(t) for t in (copies == 1).nonzero()]
    every = [int(t) for t in real.nonzero()]
    return {"last": first[-1:], "copy": first, "end": every[-1:], "half": every[: len(every) // 2]}[rows]


@pytest.mark.parametrize("block", [1, 4, LENGTH])
@pytest.mark.parametrize("both", [False, True])
@pytest.mark.parametrize("rows", ["last", "copy", "end", "half"])
@pytest.mark.parametrize("side", ["left", "right"])
def test_matrix(side: str, rows: str, both: bool, block: int) -> None:
    copy_ids, real = batch(side)
    generator = torch.Generator().manual_seed(1)
    attention = torch.rand(LAYERS, len(COPIES), HEADS, LENGTH, LENGTH, generator=generator).tril()
    first, count = CaptureSpec(rows, both).anchors(copy_ids, real)
    capture = BackwardAttention(first, count, LENGTH, both=both)
    for layer in attention:
        for start in range(0, LENGTH, block):
            # Keys beyond the block's last query have no weight, and are not handed over.
            capture.update(layer[:, :, start : start + block, : start + block], start)
    got = capture.matrix()
    for row in range(len(COPIES)):
        wanted = symmetrized_max(attention[:, row].double())
        wanted = wanted if both else wanted.triu()
        anchors = positions(rows, copy_ids[row], real[row])
        torch.testing.assert_close(got[row, : len(anchors)].double(), wanted[anchors])
        assert not got[row, len(anchors) :].any()


@pytest.mark.parametrize("block", [1, 4, 1 << 18])
@pytest.mark.parametrize("ahead", [(), (0, 1, 2), (1,)])
@pytest.mark.parametrize("both", [False, True])
@pytest.mark.parametrize("rows", slow_but(["last", "copy", "end", "half"], "half"))
@pytest.mark.parametrize("side", ["left", "right"])
def test_layers(
    side: str, rows: str, both: bool, ahead: tuple[int, ...], block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same from scores and totals: a probability is the exponential of their difference."""
    # Texts one by one, then all together.
    monkeypatch.setattr(capturing, "CPU", Blocks(block, block, 20 * block, block, 3, block))
    copy_ids, real = batch(side)
    generator = torch.Generator().manual_seed(1)
    first, count = CaptureSpec(rows, both).anchors(copy_ids, real)
    capture = BackwardAttention(first, count, LENGTH, both=both)
    attention = []
    for number in range(LAYERS):
        both_ways = number in ahead
        visible = torch.ones(LENGTH, LENGTH, dtype=torch.bool)
        visible = visible if both_ways else visible.tril()
        query = torch.randn(len(COPIES), HEADS, LENGTH, 8, generator=generator, dtype=torch.float64)
        key = torch.randn(len(COPIES), HEADS // 2, LENGTH, 8, generator=generator, dtype=torch.float64)
        scores = query @ key.repeat_interleave(2, dim=1).mT
        # A layer with a window, where one is hidden from some; and a fused layer's totals.
        window = visible & (torch.arange(LENGTH)[:, None] - torch.arange(LENGTH) < 7 + number)
        window = window & window.mT if both_ways else window
        scores = scores.masked_fill(~window, -torch.inf)
        attention.append(scores.softmax(-1))
        capture.update_layer(
            Scores(query, key, window[None, None], scaling=1.0), scores.logsumexp(-1), both_ways=both_ways
        )
    got = capture.matrix()
    for row in range(len(COPIES)):
        fused = torch.stack([layer[row] for layer in attention])
        wanted = symmetrized_max(fused) if both else symmetrized_max(fused).triu()
        anchors = positions(rows, copy_ids[row], real[row])
        torch.testing.assert_close(got[row, : len(anchors)].double(), wanted[anchors], rtol=1e-5, atol=1e-7)
        assert not got[row, len(anchors) :].any()


def test_half_of_one_position_is_that_position() -> None:
    first, count = CaptureSpec("half").anchors(torch.tensor([[1, 0]]), torch.tensor([[1, 0]]))
    assert (first.tolist(), count.tolist()) == ([0], [1])


def test_unknown_rows() -> None:
    with pytest.raises(ValueError, match=r"rows='first'.*last"):
        CaptureSpec("first")
