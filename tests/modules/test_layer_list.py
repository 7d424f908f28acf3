"""A backbone's list of layers: where it is found, and how a pass cuts it short."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from pipelines import pipeline
from stubs import new_pass
from torch import nn
from transformers import AutoModel

from st_reba import ReadLayers
from st_reba.modules.backbone import Backbone
from st_reba.modules.layer_list import AfterLayer, LayerList, cut_short, layers_of
from st_reba.modules.stages import Bound, running

Base = Callable[..., str]


def test_a_pass_is_shown_as_many_as_it_needs() -> None:
    """Everybody else sees all of them, by number also the pass; hooks are put on once."""
    layers = nn.ModuleList(nn.Linear(2, 2) for _ in range(4))
    cut_short(layers)
    cut_short(layers)
    state = new_pass([(0, 2, 2)])
    for state.runs, shown in ((None, 4), (3, 3), (9, 4)):
        with running(state):
            assert len(layers) == len(list(layers)) == shown and layers[3] is list(nn.ModuleList.__iter__(layers))[3]
            assert type(layers[:2]) is LayerList and len(list(layers[1:])) == 3
    assert len(layers) == len(list(layers)) == 4


def test_what_stages_do_behind_each_layer(base: Base) -> None:
    """In their order, each with what the one before gave; what is not ours runs as ever."""
    model = AutoModel.from_pretrained(base("llama")).eval()
    assert list(layers_of(Backbone(model))) == list(layers_of(Backbone(model))) == list(model.layers)
    assert [[*layer._forward_hooks.values()] for layer in model.layers] == [[AfterLayer(0)], [AfterLayer(1)]]
    seen: list[tuple[str, int]] = []

    class Changed(Bound):
        def __init__(self, name: str, what: Callable[[Any], Any]) -> None:
            self.name, self.what = name, what

        def after_layer(self, run: Any, call: Any) -> Any:
            seen.append((self.name, call.index))
            return self.what(call.hidden)

    def passed(*bound: Bound) -> Any:
        with torch.no_grad(), running(new_pass([(0, 3, 3)], *bound)):
            return model(torch.tensor([[5, 6, 7]])).last_hidden_state

    both = passed(Changed("a", lambda hidden: hidden + 1), Changed("b", lambda hidden: hidden * torch.arange(32)))
    assert seen == [("a", 0), ("b", 0), ("a", 1), ("b", 1)]
    assert torch.equal(both, passed(Changed("c", lambda hidden: (hidden + 1) * torch.arange(32))))
    with torch.no_grad():
        outside = model(torch.tensor([[5, 6, 7]])).last_hidden_state
    assert torch.equal(outside, passed()) and not torch.equal(outside, both)


def test_layers_that_are_not_found(base: Base) -> None:
    with pytest.raises(ValueError, match=r"layers=\[1\]: GPTNeoModel has no list of 2 layers that say.*Drop the stage"):
        pipeline(base("gpt_neo"), "classical", [ReadLayers(1)])

    class Odd(nn.ModuleList):
        pass

    with pytest.raises(ValueError, match=r"keeps its layers in a Odd, which cannot be cut short"):
        cut_short(Odd())


def test_a_backbone_that_finds_its_layers_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    """A layer that should not run says so, and so does one that did not."""
    model = pipeline("mini", "classical", [ReadLayers(3, final_norm=False)])
    monkeypatch.setattr(LayerList, "__iter__", lambda self: iter([self[index] for index in range(6)]))
    with pytest.raises(ValueError, match=r"ran as layer 4 of 6, though only 3 are needed.*Drop the stage"):
        model.encode("天")
    monkeypatch.setattr(LayerList, "__iter__", lambda self: iter([self[0], self[1]]))
    with pytest.raises(ValueError, match="layer 3 of the backbone was not seen to run"):
        model.encode("天")
