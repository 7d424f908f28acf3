"""Attention as a graph holds it, against plain float64 loops: masks, caps, sinks, groups, and the maxima of A^new."""

from __future__ import annotations

import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from pipelines import checkpoint
from torch import Tensor, nn

from st_reba.hub.onnx.attention import GRAPH_ATTENTION, GraphState, attend, graph_attention
from st_reba.modules.plan import Stack
from st_reba.modules.stages import running

HEADS, GROUPS, LENGTH, WIDTH = 4, 2, 5, 8
# Of a layer with a cap, as its configuration may say.
SCALING = 0.5
# Of two texts; the second ends with two positions of padding.
REAL = [5, 3]


def layer(index: int, *, causal: bool = True) -> nn.Module:
    module = nn.Module()
    module.layer_idx, module.is_causal = index, causal  # type: ignore[assignment]
    return module


def drawn(seed: int) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    shapes = [(2, heads, LENGTH, WIDTH) for heads in (HEADS, GROUPS, GROUPS)]
    query, key, value = (torch.randn(shape, generator=generator) for shape in shapes)
    return query, key, value


def ran(state: GraphState, module: nn.Module, given: tuple[Tensor, Tensor, Tensor], **options: Any) -> Tensor:
    with running(SimpleNamespace(kinds=state)):  # type: ignore[arg-type]
        output, _ = attend(module, *given, None, **options)
    return output


def real() -> Tensor:
    return torch.arange(LENGTH) < torch.tensor(REAL)[:, None]


def by_hand(
    given: tuple[Tensor, Tensor, Tensor], sees: Callable[[int, int], bool], cap: float | None, sinks: list[float] | None
) -> tuple[Any, Any]:
    """Outputs and probabilities by text, head and position."""
    query, key, value = (each.double().tolist() for each in given)
    outputs, shares = {}, {}
    for text, length in enumerate(REAL):
        for head in range(HEADS):
            group = head * GROUPS // HEADS
            for i in range(length):
                scores = {}
                for j in (j for j in range(length) if sees(i, j)):
                    score = sum(a * b for a, b in zip(query[text][head][i], key[text][group][j], strict=True))
                    score *= WIDTH**-0.5 if cap is None else SCALING
                    scores[j] = score if cap is None else cap * math.tanh(score / cap)
                total = sum(map(math.exp, scores.values())) + (math.exp(sinks[head]) if sinks else 0.0)
                for j in range(length):
                    shares[text, head, i, j] = math.exp(scores[j]) / total if j in scores else 0.0
                outputs[text, head, i] = [
                    sum(shares[text, head, i, j] * value[text][group][j][d] for j in scores) for d in range(WIDTH)
                ]
    return outputs, shares


SEES: dict[str, Callable[[int, int], bool]] = {
    "forward": lambda i, j: j <= i,
    "backward": lambda i, j: j >= i,
    "bidirectional": lambda i, j: True,
    "nosink-bidirectional": lambda i, j: i < 1 or j >= 1,
}


@pytest.mark.parametrize("kind", SEES)
@pytest.mark.parametrize(("cap", "sinks"), [(None, None), (1.5, [0.3, -1.0, 2.0, 0.0])])
def test_a_layer(kind: str, cap: float | None, sinks: list[float] | None) -> None:
    given = drawn(0)
    state = GraphState(real(), Stack(("forward", kind), m=1), captures=False)
    options = {
        "softcap": cap,
        "scaling": None if cap is None else SCALING,
        "s_aux": None if sinks is None else torch.tensor(sinks),
    }
    found = ran(state, layer(1), given, **options)
    outputs, _ = by_hand(given, SEES[kind], cap, sinks)
    for (text, head, i), wanted in outputs.items():
        torch.testing.assert_close(found[text, i, head], torch.tensor(wanted, dtype=torch.float32))


@pytest.mark.parametrize("kinds", [("forward", "forward"), ("forward", "bidirectional")])
def test_the_maxima(kinds: tuple[str, str]) -> None:
    """A^new: of all layers and heads the largest (A + Aᵀ) / 2."""
    state = GraphState(real(), Stack(kinds), captures=True)
    largest: dict[tuple[int, int, int], float] = {}
    for index, kind in enumerate(kinds):
        given = drawn(index)
        ran(state, layer(index), given)
        _, shares = by_hand(given, SEES[kind], None, None)
        for text, head, i, j in shares:
            value = (shares[text, head, i, j] + shares[text, head, j, i]) / 2
            largest[text, i, j] = max(largest.get((text, i, j), 0.0), value)
    matrix = state.matrix()
    for (text, i, j), wanted in largest.items():
        assert float(matrix[text, i, j]) == pytest.approx(wanted, abs=1e-6)


def test_masks_are_made_once_and_biases_are_kept() -> None:
    state = GraphState(real(), Stack(("forward", "bidirectional")), captures=False)
    own = torch.ones(1, 1, LENGTH, LENGTH, dtype=torch.bool).tril()
    first = state.mask("forward", own, causal=True)
    assert state.mask("forward", own, causal=True) is first
    assert state.mask("bidirectional", own, causal=True) is not first
    bias = torch.tensor([0.5, float("-inf")]).expand(1, 1, 2, 2)
    assert state.mask("forward", bias, causal=True)[0, 0, 0].tolist() == [0.5, -1e9]
    with pytest.raises(ValueError, match="adds position biases to its mask"):
        state.mask("bidirectional", bias, causal=True)


def test_what_no_graph_can_hold() -> None:
    given = drawn(0)
    capturing = GraphState(real(), None, captures=True)
    with pytest.raises(ValueError, match="passes 'indices' to its attention, which no graph is made for"):
        ran(capturing, layer(0), given, indices=torch.tensor([0]))
    with pytest.raises(ValueError, match="looks both ways, and backward attention needs a causal decoder"):
        ran(capturing, layer(0, causal=False), given)
    with pytest.raises(ValueError, match="No layer handed out its attention"):
        capturing.matrix()


def test_a_backbone_gets_its_own_back(base: Callable[..., str]) -> None:
    for name, called in (("qwen3", True), ("bloom", False)):
        model: Any = checkpoint(base(name)).model
        before = model.config._attn_implementation
        with pytest.raises(RuntimeError, match="stopped"), graph_attention(model) as takes:
            assert takes is called and (model.config._attn_implementation == GRAPH_ATTENTION) is called
            raise RuntimeError("stopped")
        assert model.config._attn_implementation == before
