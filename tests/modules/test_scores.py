"""Scores in parts, and attention that is computed of them block by block: against the whole, every number by itself."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from st_reba.modules import scores
from st_reba.modules.scores import Scores, additive, blocked_attention, identity, pick, slices

BATCH, HEADS, GROUPS, LENGTH, WIDTH = 2, 4, 2, 40, 6


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


QUERY, KEY = normal(BATCH, HEADS, LENGTH, WIDTH), normal(BATCH, GROUPS, LENGTH, WIDTH, seed=1)
WINDOW = torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril().triu(-9)[None, None]
FORMS: dict[str, dict[str, Any]] = {
    "causal": {"causal": True},
    "all": {"scaling": 0.3},
    "window": {"mask": WINDOW, "softcap": 1.5},
    "of heads": {"mask": additive(WINDOW, torch.float64).expand(BATCH, HEADS, -1, -1)},
    "bias": {"causal": True, "bias": normal(1, HEADS, LENGTH, LENGTH, seed=2)},
}


def whole(mask: Any = None, causal: bool = False, scaling: Any = None, softcap: Any = None, bias: Any = 0.0) -> Tensor:
    """[B, H, T, T], with the lowest number where nothing is seen."""
    keys = KEY.repeat_interleave(HEADS // GROUPS, dim=1)
    found = torch.einsum("bhqd,bhkd->bhqk", QUERY, keys) * (WIDTH**-0.5 if scaling is None else scaling)
    found = found if softcap is None else softcap * torch.tanh(found / softcap)
    seen = torch.ones(1, 1, LENGTH, LENGTH).tril().bool() if causal else mask
    if seen is None:
        return found
    return (found + bias).masked_fill(
        ~(seen if seen.dtype == torch.bool else seen == 0), torch.finfo(torch.float64).min
    )


@pytest.mark.parametrize("form", FORMS)
def test_parts(form: str) -> None:
    """Slices and lists of positions, some heads, some texts, and less a row's total."""
    given, wanted = Scores(QUERY, KEY, **FORMS[form]), whole(**FORMS[form])
    places = torch.tensor([[3, 20, 39], [0, 7, 7]])
    for queries, keys, heads in (
        (slice(0, LENGTH), slice(0, LENGTH), slice(None)),
        (slice(5, 9), slice(2, 30), slice(2, 4)),
        (places, slice(0, LENGTH), slice(1, 2)),
        (slice(30, 40), places, slice(0, 2)),
    ):
        part = pick(pick(wanted[:, heads], queries, 2), keys, 3)
        found = given.of(queries, keys, heads)
        low = part < -1e300
        assert torch.equal(found < -1e300, low)
        torch.testing.assert_close(found.masked_fill(low, 0), part.masked_fill(low, 0), rtol=1e-12, atol=1e-12)
        if heads != slice(2, 4):
            continue
        # Of heads that share a key, less a number a row; of one text alone in another way.
        less = normal(BATCH, *part.shape[1:3], 1, seed=3)
        for texts in (slice(0, 2), slice(1, 2)):
            fewer = given.of_texts(texts).of(queries, keys, heads, less[texts])
            rest = (part[texts] - less[texts]).masked_fill(low[texts], 0)
            torch.testing.assert_close(fewer.masked_fill(low[texts], 0), rest, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("form", FORMS)
def test_blocks(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of sixteen rows at least; each is shown once, and the rows' sums hold a sink's share."""
    monkeypatch.setattr(scores, "BLOCK_NUMBERS", 1)
    value, sinks = normal(BATCH, GROUPS, LENGTH, 5, seed=4), normal(HEADS, seed=5)
    wanted = torch.cat([whole(**FORMS[form]), sinks.view(1, -1, 1, 1).expand(BATCH, -1, LENGTH, 1)], dim=3)
    seen: list[tuple[int, Tensor]] = []
    output, totals = blocked_attention(
        Scores(QUERY, KEY, **FORMS[form]), value, sinks=sinks, see=lambda rows, first: seen.append((first, rows))
    )
    torch.testing.assert_close(totals, wanted.logsumexp(-1))
    probabilities = wanted.softmax(-1)[..., :-1]
    repeated = value.repeat_interleave(HEADS // GROUPS, dim=1)
    torch.testing.assert_close(output, (probabilities @ repeated).transpose(1, 2))
    assert [(first, rows.shape[2]) for first, rows in seen] == [(0, 16), (16, 16), (32, 8)]
    for first, rows in seen:
        torch.testing.assert_close(rows, probabilities[:, :, first : first + rows.shape[2], : rows.shape[3]])
        # Keys behind the last query of a block have no weight, and are left out where there is no mask.
        assert rows.shape[3] == (min(first + 16, LENGTH) if "causal" in FORMS[form] else LENGTH)


def test_masks_as_numbers() -> None:
    lowest = torch.finfo(torch.float16).min
    for mask in (torch.tensor([[True, False]]), torch.tensor([[0.0, -1e9]]), torch.tensor([[0.0, -torch.inf]])):
        found = additive(mask[None, None], torch.float16)
        assert found.dtype == torch.float16 and found.tolist() == [[[[0.0, lowest]]]]


def test_small_parts() -> None:
    assert list(slices(3, 10, 4)) == [slice(3, 7), slice(7, 10)] and list(slices(2, 2, 4)) == []
    rows = normal(3, 4)
    assert identity(rows) == identity(rows.view(3, 4)) == identity(rows[:])
    assert len({identity(rows), identity(rows[:2]), identity(rows[1:]), identity(rows.clone()), identity(rows.mT)}) == 5
