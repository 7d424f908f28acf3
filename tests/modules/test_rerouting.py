"""Layers that show a text's last token to all tokens; what every kind of layer does is in test_layers."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from itertools import product
from typing import Any, get_args

import numpy as np
import pytest
import reference
import reference_nosink
import torch
from architectures import SLIDING
from marks import slow_but
from oracle import TEXTS, assert_close, loaded
from reference import Layout
from reference_nosink import hooked, plan, run
from torch import Tensor

import st_reba
from st_reba import LayerPlan
from st_reba.hub.card_text import KINDS
from st_reba.modules.masks import LayerMasks
from st_reba.modules.plan import LayerKind
from st_reba.selfcheck import expected

Base = Callable[..., str]
SIDES = ("left", "right")
PROMPT = ["Say ", None, " again"]


def written(mask: Tensor) -> list[str]:
    return ["".join("x" if seen else "." for seen in row) for row in mask.tolist()]


@pytest.mark.parametrize("form", ["none", "boolean", "additive"])
def test_mask(form: str) -> None:
    causal = torch.ones(4, 4, dtype=torch.bool).tril()[None, None]
    own = {"none": None, "boolean": causal, "additive": torch.zeros(1, 1, 4, 4).masked_fill(~causal, -torch.inf)}[form]
    masks = LayerMasks(torch.ones(1, 4, dtype=torch.bool), 1)
    for make in (masks.mask, masks.dense):
        mask = make("rerouted", own, causal=True)
        assert mask is not None and written(mask[0, 0]) == ["x..x", "xx.x", "xxxx", "xxxx"]
    # A base that looks both ways by itself hides nothing.
    assert masks.dense("rerouted", None, causal=False).all()


def test_mask_of_a_window() -> None:
    own = torch.ones(5, 5, dtype=torch.bool).tril().triu(-1)[None, None]
    mask = LayerMasks(torch.ones(1, 5, dtype=torch.bool), 1).dense("rerouted", own, causal=True)
    assert written(mask[0, 0]) == ["x...x", "xx..x", ".xx.x", "..xxx", "...xx"]


@pytest.mark.parametrize("side", SIDES)
def test_mask_of_padding(side: str) -> None:
    """The last real token, whatever its column; padding is a key for nobody but itself."""
    real = torch.ones(2, 4, dtype=torch.bool)
    real[1, 0 if side == "left" else 3] = False
    for own in (None, torch.ones(4, 4, dtype=torch.bool).tril()[None, None] & real[:, None, None]):
        mask = LayerMasks(real, 1).dense("rerouted", own, causal=True)[:, 0]
        place = slice(1, 4) if side == "left" else slice(0, 3)
        assert written(mask[0]) == ["x..x", "xx.x", "xxxx", "xxxx"]
        assert written(mask[1, place, place]) == ["x.x", "xxx", "xxx"]
        assert not (mask[1] & ~real[1] & ~torch.eye(4, dtype=torch.bool)).any()
        assert mask.any(dim=-1).all()


def test_definition() -> None:
    """The self-check's own."""
    window = torch.ones(5, 5, dtype=torch.bool).tril().triu(-1)
    assert written(expected(window, "rerouted", 1)) == ["x...x", "xx..x", ".xx.x", "..xxx", "...xx"]


@lru_cache(maxsize=64)
def states(base: str, name: str, text: str, copies: int, k: int, prompt: bool = False) -> tuple[Layout, Tensor, Tensor]:
    model, tokenizer = loaded(base)
    placed = reference.layout(tokenizer, text, PROMPT if prompt else [None] * copies)
    depth = model.config.num_hidden_layers
    wanted = plan(depth, kind="rerouted", k=k)
    if name in ("gpt2", "llama"):
        return placed, *run(model, placed.ids, wanted)
    width, layers = SLIDING.get(name, (0, ()))
    return placed, *hooked(model, placed.ids, wanted, [width if at in layers else None for at in range(depth)])


@pytest.mark.parametrize("name", slow_but(["gpt2", "llama", "mistral", "qwen2", "gemma2", "gpt_oss"], "mistral"))
def test_exact(base: Base, name: str) -> None:
    path, texts = base(name, "bos_eos"), TEXTS[:4]
    for k, side in product((1, 2), SIDES):
        common: dict[str, Any] = {"layers": {"kind": "rerouted", "k": k}, "padding_side": side, "normalize": False}
        classical = st_reba.build(path, "classical", pooling="mean", **common)
        for text, got in zip(texts, classical.encode(list(texts), batch_size=4), strict=True):
            placed, hidden, _ = states(path, name, text, 1, k)
            assert_close(got, reference.classical(hidden, placed, "mean"))
        alone, (placed, hidden, _) = classical.encode(texts[1]), states(path, name, texts[1], 1, k)
        assert_close(alone, reference.classical(hidden, placed, "mean"))
        echo = st_reba.build(path, "echo", pooling="mean", **common)
        reba = st_reba.build(path, "reba", pooling="mean", **common)
        found = zip(texts, echo.encode(list(texts)), reba.encode(list(texts), batch_size=4), strict=True)
        for text, echoed, weighted in found:
            placed, hidden, maps = states(path, name, text, 2, k)
            assert_close(echoed, reference.echo(hidden, placed, "mean"))
            assert_close(weighted, reference.reba(hidden, reference.symmetrized_max(maps), placed, "mean"))


@pytest.mark.parametrize("side", SIDES)
def test_last_is_the_very_last(base: Base, side: Any) -> None:
    """Template words and the end token count: it is they that sum up the text."""
    path = base("llama", "bos_eos")
    common: dict[str, Any] = {"layers": {"kind": "rerouted", "k": 2}, "padding_side": side, "normalize": False}
    model = st_reba.build(path, "classical", template="Say {text} again", pooling="mean", **common)
    for text, got in zip(TEXTS, model.encode(list(TEXTS)), strict=True):
        placed, hidden, _ = states(path, "llama", text, 1, 2, prompt=True)
        assert placed.copy_of[-1] == 0
        assert_close(got, reference.classical(hidden, placed, "mean"))


def test_plan() -> None:
    converted = LayerPlan(kind="rerouted", k=2)
    assert repr(converted) == "<LayerPlan INPLACE: L-2 forward → 2 rerouted>"
    assert LayerPlan.from_dict(converted.to_dict()) == converted
    assert str(converted.resolve(6)) == "4 forward → 2 rerouted" and not converted.resolve(6).is_plain
    mixed = LayerPlan(layers={"rerouted": [0], "nosink-bidirectional": [-1]})
    assert mixed.resolve(3).kinds == ("rerouted", "forward", "nosink-bidirectional")
    with pytest.raises(ValueError, match="k0=1 with kind='rerouted'"):
        LayerPlan(kind="rerouted", k=2, k0=1)
    # The card has words for every kind.
    assert set(KINDS) == set(get_args(LayerKind)) == set(reference_nosink.KINDS)


def test_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    """A mask that does nothing is noticed when the model is built."""
    make = LayerMasks._make
    options: dict[str, Any] = {"layers": {"kind": "rerouted", "k": 1}}
    st_reba.build("mini", "classical", **options)

    def nothing(self: LayerMasks, kind: Any, own: Tensor | None, causal: bool) -> Tensor:
        return make(self, "forward", own, causal)

    monkeypatch.setattr(LayerMasks, "_make", nothing)
    with pytest.raises(ValueError, match="Layer 5 .* running as rerouted, its token 0 does not see token 3"):
        st_reba.build("mini", "classical", **options)


def test_a_common_beginning_is_not_shared() -> None:
    """Its tokens see the end of another text."""
    template = "The meaning of a word depends on the words around it: {text}"
    model = st_reba.build("mini", "classical", pooling="mean", template=template, layers={"kind": "rerouted", "k": 3})
    texts = [f"{number} {text}" for number in range(8) for text in TEXTS]
    for text, got in zip(texts, model.encode(texts, batch_size=len(texts)), strict=True):
        np.testing.assert_allclose(got, model.encode(text), atol=1e-5)


@pytest.mark.parametrize("options", [{"method": "classical", "pooling": "mean"}, {"method": "reba", "pooling": "mean"}])
def test_graph(base: Base, options: dict[str, Any]) -> None:
    """The module that becomes an ONNX graph gives the same vectors, padding behind a text included."""
    from st_reba.hub.onnx.attention import graph_attention
    from st_reba.hub.onnx.graph import EmbeddingGraph
    from st_reba.hub.onnx.method import method_of

    for name in ("llama", "mistral"):
        path = base(name, "bos_eos")
        model: Any = st_reba.build(path, device="cpu", normalize=False, layers={"kind": "rerouted", "k": 2}, **options)
        tokens = model.tokenizer(list(TEXTS))["input_ids"]
        ids = torch.zeros(len(tokens), max(map(len, tokens)), dtype=torch.long)
        mask = torch.zeros_like(ids)
        for row, each in enumerate(tokens):
            ids[row, : len(each)], mask[row, : len(each)] = torch.tensor(each), 1
        wanted = model.encode(list(TEXTS))
        with torch.no_grad(), graph_attention(model[0].model):
            hidden = EmbeddingGraph(model[0], method_of(model)).eval()(ids, mask)
        for states_of, real, each in zip(hidden, mask.bool(), wanted, strict=True):
            assert_close(states_of[real].mean(dim=0), torch.as_tensor(each).double())
