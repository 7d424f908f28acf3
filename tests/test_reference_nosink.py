"""NoSink's oracle against masks written out, against transformers' own hidden states, and its two halves together."""

from __future__ import annotations

import types
from pathlib import Path

import pytest
import torch
from architectures import save
from marks import slow_but
from reference import as_double, hidden_and_attention
from reference_nosink import KINDS, Plan, hooked, plan, run, visible
from torch import Tensor
from transformers import AutoModel, PreTrainedModel
from transformers.models.llama import modeling_llama

DEPTH = 3
IDS = [7, 101, 33, 250, 33, 18, 400, 91, 5]
ARCHITECTURES = ["inplace", "inter", "extra", "extend"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save("llama", tmp_path_factory.mktemp("nosink"), "plain")


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch, folder: Path) -> PreTrainedModel:
    """Llama with norms, softmax and rotary angles in float64 where its own code asks for float32."""
    double = types.SimpleNamespace(**vars(torch))
    double.float32 = torch.float64
    monkeypatch.setattr(modeling_llama, "torch", double)

    def angles(x: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        half = x.shape[-1] // 4 // 2
        speeds = 10000.0 ** (-torch.arange(half, dtype=torch.float64) / half)
        both = (position_ids[..., None].double() * speeds).repeat(1, 1, 2)
        return both.cos(), both.sin()

    found = as_double(AutoModel.from_pretrained(folder, attn_implementation="eager", dtype=torch.float32).eval())
    monkeypatch.setattr(found.rotary_emb, "forward", angles)
    return found


def difference(a: Tensor, b: Tensor) -> float:
    return float((a - b).abs().max())


# ---------------------------------------------------------------------------------------------------------------------
# Masks

MASKS: dict[tuple[str, int, int, int | None], list[str]] = {
    ("forward", 4, 1, None): ["x...", "xx..", "xxx.", "xxxx"],
    ("backward", 4, 1, None): ["xxxx", ".xxx", "..xx", "...x"],
    ("bidirectional", 4, 1, None): ["xxxx", "xxxx", "xxxx", "xxxx"],
    ("nosink-forward", 4, 1, None): ["x...", ".x..", ".xx.", ".xxx"],
    ("nosink-forward", 4, 2, None): ["x...", "xx..", "..x.", "..xx"],
    ("nosink-bidirectional", 4, 1, None): ["xxxx", ".xxx", ".xxx", ".xxx"],
    ("nosink-bidirectional", 4, 2, None): ["xxxx", "xxxx", "..xx", "..xx"],
    # All tokens are among the first m: the rows keep what the kind gives without nosink.
    ("nosink-forward", 2, 5, None): ["x.", "xx"],
    ("nosink-bidirectional", 2, 5, None): ["xx", "xx"],
    ("forward", 4, 1, 2): ["x...", "xx..", ".xx.", "..xx"],
    ("backward", 4, 1, 2): ["xx..", ".xx.", "..xx", "...x"],
    ("bidirectional", 4, 1, 2): ["xx..", "xxx.", ".xxx", "..xx"],
    ("nosink-forward", 4, 1, 2): ["x...", ".x..", ".xx.", "..xx"],
    ("nosink-bidirectional", 4, 1, 2): ["xx..", ".xx.", ".xxx", "..xx"],
    ("nosink-bidirectional", 5, 2, 3): ["xxx..", "xxxx.", "..xxx", "..xxx", "..xxx"],
}


@pytest.mark.parametrize(("kind", "length", "m", "window"), MASKS)
def test_visible(kind: str, length: int, m: int, window: int | None) -> None:
    rows = [[cell == "x" for cell in row] for row in MASKS[kind, length, m, window]]
    assert visible(kind, length, m, window).tolist() == rows


# ---------------------------------------------------------------------------------------------------------------------
# Models


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_nothing_converted_is_the_model(model: PreTrainedModel, architecture: str) -> None:
    """To float64's precision, attention maps too."""
    for ids in (IDS, IDS[:1], IDS[:2]):
        hidden, attention = hidden_and_attention(model, ids)
        got, maps = run(model, ids, plan(DEPTH, architecture))
        assert difference(got, hidden) <= 1e-9
        assert difference(maps, attention) <= 1e-9


@pytest.mark.parametrize("kind", slow_but(KINDS, "bidirectional", "nosink-forward"))
def test_by_hand_and_by_hooks(model: PreTrainedModel, kind: str) -> None:
    for m in (1, 2, 5):
        for ids in (IDS, IDS[:1], IDS[:2]):
            plans = [plan(DEPTH, kind=kind, k=k, k0=k0, m=m) for k in range(DEPTH + 1) for k0 in {0, k // 2}]
            plans.append(plan(DEPTH, kind=kind, k=1, m=m, others="nosink-forward"))
            plans.append(Plan((kind, None, "backward"), m=m))
            for each in plans:
                by_hand, by_hooks = run(model, ids, each), hooked(model, ids, each)
                assert difference(by_hand[0], by_hooks[0]) <= 1e-9
                assert difference(by_hand[1], by_hooks[1]) <= 1e-9
