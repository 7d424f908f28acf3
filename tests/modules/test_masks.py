"""Masks written out, and how often one is made."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from torch import Tensor

import st_reba
from st_reba import LayerPlan
from st_reba.modules import fused
from st_reba.modules.masks import LayerMasks


def written(mask: Tensor) -> list[str]:
    return ["".join("x" if seen else "." for seen in row) for row in mask.tolist()]


# Four tokens; the second row of the batch is one token shorter. Padding positions see themselves alone, or also what
# its causal rows see: nobody reads them.
CASES: dict[tuple[str, int], list[str]] = {
    ("backward", 1): ["xxxx", ".xxx", "..xx", "...x"],
    ("bidirectional", 1): ["xxxx", "xxxx", "xxxx", "xxxx"],
    ("nosink-forward", 0): ["x...", "xx..", "xxx.", "xxxx"],
    ("nosink-forward", 1): ["x...", ".x..", ".xx.", ".xxx"],
    ("nosink-forward", 2): ["x...", "xx..", "..x.", "..xx"],
    ("nosink-bidirectional", 1): ["xxxx", ".xxx", ".xxx", ".xxx"],
    ("nosink-bidirectional", 3): ["xxxx", "xxxx", "xxxx", "...x"],
    ("nosink-bidirectional", 5): ["xxxx", "xxxx", "xxxx", "xxxx"],
}


@pytest.mark.parametrize(("kind", "m"), CASES)
@pytest.mark.parametrize("form", ["none", "boolean", "additive"])
def test_full(kind: Any, m: int, form: str) -> None:
    causal = torch.ones(4, 4, dtype=torch.bool).tril()[None, None]
    own = {"none": None, "boolean": causal, "additive": torch.zeros(1, 1, 4, 4).masked_fill(~causal, -torch.inf)}[form]
    masks = LayerMasks(torch.ones(1, 4, dtype=torch.bool), m)
    assert written(masks.dense(kind, own, causal=True)[0, 0]) == CASES[kind, m]
    assert masks.mask(kind, None, causal=True) is None


def test_window() -> None:
    own = torch.ones(4, 4, dtype=torch.bool).tril().triu(-1)[None, None]
    masks = LayerMasks(torch.ones(1, 4, dtype=torch.bool), 1)
    assert written(masks.mask("bidirectional", own, causal=True)[0, 0]) == ["xx..", "xxx.", ".xxx", "..xx"]
    assert written(masks.mask("backward", own, causal=True)[0, 0]) == ["xx..", ".xx.", "..xx", "...x"]
    assert written(masks.mask("nosink-bidirectional", own, causal=True)[0, 0]) == ["xx..", ".xx.", ".xxx", "..xx"]
    assert masks.mask("forward", own, causal=True) is own


@pytest.mark.parametrize("side", ["left", "right"])
def test_padding(side: str) -> None:
    """The first real token is the sink, whatever its column; padding is a key for nobody but itself."""
    real = torch.ones(2, 4, dtype=torch.bool)
    real[1, 0 if side == "left" else 3] = False
    own = torch.ones(4, 4, dtype=torch.bool).tril()[None, None] & real[:, None, None]
    masks = LayerMasks(real, 1)
    place = slice(1, 4) if side == "left" else slice(0, 3)
    for kind, wanted in (
        ("backward", ["xxx", ".xx", "..x"]),
        ("bidirectional", ["xxx", "xxx", "xxx"]),
        ("nosink-forward", ["x..", ".x.", ".xx"]),
        ("nosink-bidirectional", ["xxx", ".xx", ".xx"]),
    ):
        mask = masks.mask(kind, own, causal=True)[:, 0]
        assert written(mask[0]) == CASES[kind, 1]
        assert written(mask[1, place, place]) == wanted
        assert not (mask[1] & ~real[1] & ~torch.eye(4, dtype=torch.bool)).any()
        assert mask.any(dim=-1).all()


def test_position_biases_in_the_mask() -> None:
    masks = LayerMasks(torch.ones(1, 3, dtype=torch.bool), 1)
    with pytest.raises(ValueError, match="adds position biases to its mask"):
        masks.mask("bidirectional", torch.full((1, 1, 3, 3), -0.5), causal=True)
    with pytest.raises(ValueError, match=r"\(1, 1, 3, 5\) for 3 tokens"):
        masks.mask("bidirectional", torch.ones(1, 1, 3, 5, dtype=torch.bool), causal=True)


@pytest.mark.parametrize(
    "plan", [LayerPlan(k=4, k0=2), LayerPlan(kind="backward", k="all"), LayerPlan("inter", "nosink-forward", 3)]
)
def test_made_once_a_forward_and_kind(monkeypatch: pytest.MonkeyPatch, plan: LayerPlan) -> None:
    """Padding forces masks: one for each kind that looks ahead. Without padding there is none at all."""
    made: Counter[str] = Counter()
    given: list[Tensor | None] = []
    make, attention = LayerMasks._make, fused._SDPA

    def counted(self: LayerMasks, kind: Any, own: Tensor | None, causal: bool) -> Tensor:
        made[kind] += 1
        return make(self, kind, own, causal)

    def recorded(module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, **keywords: Any) -> Any:
        given.append(mask)
        return attention(module, query, key, value, mask, **keywords)

    model = st_reba.build("mini", "nosink", layers=plan)
    monkeypatch.setattr(LayerMasks, "_make", counted)
    monkeypatch.setattr(fused, "_SDPA", recorded)
    model.encode(["今天天气很好", "你好"])
    assert made == dict.fromkeys({kind for _, kind in model[0].stack.calls} - {"forward"}, 1)
    masks = {mask.data_ptr(): mask for mask in given if mask is not None}
    assert len(masks) == len(made) and all(mask.dtype == torch.float32 for mask in masks.values())
    forward = sum(kind == "forward" for _, kind in model[0].stack.calls)
    assert sum(mask is None for mask in given) == forward
    made.clear()
    given.clear()
    model.encode("今天天气很好")
    assert not made and given and all(mask is None for mask in given)
