"""Plans set on a module again and again, NoSinkTransformer by hand, and what undoes a plan."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from oracle import folder
from pipelines import encoded, pipeline, transformer

from st_reba import LayerPlan, NoSink, NoSinkTransformer, ReadLayers, RepeatTransformer
from st_reba.modules.attention import ATTENTION_NAME

Base = Callable[..., str]
PLANS: dict[str, LayerPlan] = {
    "inplace": LayerPlan(k=3, k0=1),
    "inter": LayerPlan("inter", "backward", k=2),
    "inter published": LayerPlan("inter", k=2, k0=1, variant="published"),
    "extra": LayerPlan("extra", k=2),
    "extra published": LayerPlan("extra", "nosink-forward", k=2, variant="published"),
    "extend": LayerPlan("extend", "nosink-bidirectional", k=2),
}


def test_plans_in_turn(tmp_path: Any) -> None:
    """One load of the weights serves any number of plans; hooks do not pile up, and nothing of them is saved."""
    model: Any = pipeline("mini", "nosink", [LayerPlan()])
    wanted = {name: encoded(pipeline("mini", "nosink", [plan])) for name, plan in PLANS.items()}
    plain = encoded(model)
    for name in (*PLANS, None, *reversed(PLANS), None, "extra", "inplace"):
        model[0].rebind([] if name is None else [PLANS[name]])
        torch.testing.assert_close(encoded(model), plain if name is None else wanted[name], atol=1e-5, rtol=0)
        assert model[0].stack == (None if name is None else PLANS[name].resolve(6))
    assert [len(layer._forward_hooks) for layer in model[0].model.layers] == [1] * 6
    model.save_pretrained(str(tmp_path))
    # Plain transformers must be able to load it.
    assert ATTENTION_NAME not in (tmp_path / "config.json").read_text(encoding="utf-8")


def test_stages_stay_when_others_are_refused(base: Base) -> None:
    model: Any = pipeline("mini", "nosink", [LayerPlan(k=3)])
    wanted, stages = encoded(model), model[0].stages
    for refused, message in (
        ([LayerPlan(k=7)], "layers: k=7, but 6 layers"),
        ([ReadLayers(3), LayerPlan(k=4)], "layers: k=4, but 3 layers"),
        ([LayerPlan("inter", k=1), ReadLayers([1, 3])], r"layers=\[1, 2, 3\].*runs layers twice"),
        ([{"read": {"layers": 9}}], "no 9"),
    ):
        with pytest.raises(ValueError, match=message):
            model[0].rebind(refused)
        assert model[0].stages == stages
        assert torch.equal(encoded(model), wanted)


def test_layers_that_do_not_say_their_number_cannot_run_twice() -> None:
    model: Any = pipeline("mini", "nosink", [LayerPlan()])
    for layer in model[0].model.layers:
        layer.self_attn.layer_idx = None
    with pytest.raises(ValueError, match="no list of 6 layers that say their layer_idx, so none can run twice"):
        model[0].rebind([LayerPlan("inter", k=1)])


@pytest.mark.parametrize("plan", [LayerPlan(k=2), LayerPlan("inter", k=2)], ids=str)
def test_a_plan_that_was_switched_off(plan: LayerPlan) -> None:
    """Whoever changes the attention implementation afterwards gets an error, not another model's vectors."""
    model: Any = pipeline("mini", "nosink", [plan])
    wanted = encoded(model)
    model[0].model.set_attn_implementation("sdpa")
    with pytest.raises(ValueError, match="LlamaModel did not run it: its attention implementation is 'sdpa'"):
        model.encode("天")
    model[0].rebind([plan])
    assert torch.equal(encoded(model), wanted)


def test_by_hand() -> None:
    path = folder("mini")
    first = NoSinkTransformer(path, "MASK0&BIDIR", k=2, k0=1)
    assert (
        first.stack == RepeatTransformer(path, stages=[LayerPlan(k=2, k0=1)]).stack == LayerPlan(k=2, k0=1).resolve(6)
    )
    assert first.repeats == 1 and first.stages == (NoSink("mask0&bidir", k=2, k0=1),)
    given = dict(first.preprocess(["天", "Hello"]))
    other: Any = transformer("mini", "nosink", first.stages)
    with torch.inference_mode():
        assert torch.equal(first(given)["token_embeddings"], other(given)["token_embeddings"])
    assert NoSinkTransformer(path, "baseline", template="{text} {text}").repeats == 2
    with pytest.raises(ValueError, match="NoSinkTransformer needs setting"):
        NoSinkTransformer(path)
    with pytest.raises(ValueError, match="do the same thing"):
        NoSinkTransformer(path, "baseline", stages=[LayerPlan()])
    with pytest.raises(ValueError, match="needs k"):
        NoSinkTransformer(path, "mask0-bidir")
    with pytest.raises(ValueError, match="k=3: setting='baseline' takes no k"):
        NoSinkTransformer(path, k=3, stages=[NoSink("mask0-bidir", k=2)])
    for stages in (3, "layers", LayerPlan(), [3], [{"layers": {}, "read": {}}], [{"lairs": {}}]):
        with pytest.raises(ValueError, match="stages"):
            RepeatTransformer(path, stages=stages)  # type: ignore[arg-type]
