"""Layer plans: what they resolve to, how they are written down, and what they refuse."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import FrozenInstanceError
from typing import Any

import pytest

from st_reba import SETTINGS, LayerPlan, named_plan

F, B, BI, NF, NB = "forward", "backward", "bidirectional", "nosink-forward", "nosink-bidirectional"

PLANS: dict[str, tuple[LayerPlan, str]] = {
    "plain": (LayerPlan(), "<LayerPlan INPLACE: L forward>"),
    "k": (LayerPlan(k=2), "<LayerPlan INPLACE: L-2 forward → 2 bidirectional>"),
    "all": (LayerPlan(k="all", k0=1), "<LayerPlan INPLACE: L-1 bidirectional → 1 nosink-bidirectional>"),
    "k0": (LayerPlan(k=3, k0=2, m=4), "<LayerPlan INPLACE: L-3 forward → 1 bidirectional → 2 nosink-bidirectional(4)>"),
    "others": (LayerPlan(kind=NB, k=1, others=NF), "<LayerPlan INPLACE: L-1 nosink-forward → 1 nosink-bidirectional>"),
    "lists": (
        LayerPlan(layers={BI: [0, 1], B: (-1,)}),
        "<LayerPlan INPLACE: forward; backward [-1], bidirectional [0, 1]>",
    ),
    "inter": (
        LayerPlan("inter", B, 2, variant="published"),
        "<LayerPlan INTER, published reading: L forward + in parallel, on top: 2 backward>",
    ),
    "extra": (LayerPlan("extra", k=2), "<LayerPlan EXTRA: L forward + from the embeddings: 2 bidirectional>"),
    "extend": (
        LayerPlan("extend", k=2, k0=1),
        "<LayerPlan EXTEND: L forward → 1 bidirectional → 1 nosink-bidirectional>",
    ),
}


@pytest.mark.parametrize("name", PLANS)
def test_round_trip_and_repr(name: str) -> None:
    plan, shown = PLANS[name]
    assert repr(plan) == shown
    read = LayerPlan.from_dict(json.loads(json.dumps(plan.to_dict())))
    assert read == plan and hash(read) == hash(plan) and read.resolve(5) == plan.resolve(5)


def test_frozen() -> None:
    given = {BI: [0, 1]}
    plan = LayerPlan(layers=given)
    given[BI].append(2)
    assert plan.resolve(3).kinds == (BI, BI, F)
    with pytest.raises(FrozenInstanceError):
        plan.k = 2


@pytest.mark.parametrize(
    ("plan", "kinds", "second"),
    [
        (LayerPlan(), (F, F, F, F), ()),
        (LayerPlan(k=1), (F, F, F, BI), ()),
        (LayerPlan(k="all"), (BI, BI, BI, BI), ()),
        (LayerPlan(k=4, k0=4), (NB, NB, NB, NB), ()),
        (LayerPlan(k=3, k0=1), (F, BI, BI, NB), ()),
        (LayerPlan(kind=NB, k=2, others=NF), (NF, NF, NB, NB), ()),
        (LayerPlan(others=NF), (NF, NF, NF, NF), ()),
        (LayerPlan(layers={B: [0, -1], NF: [2]}), (B, F, NF, B), ()),
        (LayerPlan("inter", B, 2), (F, F, F, F), ((2, B), (3, B))),
        (LayerPlan("inter", layers={B: [1]}), (F, F, F, F), ((1, B),)),
        (LayerPlan("inter", layers={B: [1]}, variant="published"), (F, F, F, F), ((1, B), (2, F), (3, F))),
        (LayerPlan("extra", k=3, k0=1), (F, F, F, F), ((1, BI), (2, BI), (3, NB))),
        (LayerPlan("extra", layers={BI: [3, 0]}), (F, F, F, F), ((0, BI), (3, BI))),
        (LayerPlan("extend", k=5, k0=2), (F, F, F, F), ((3, BI),) * 3 + ((3, NB),) * 2),
    ],
)
def test_resolve(plan: LayerPlan, kinds: tuple[str, ...], second: tuple[tuple[int, str], ...]) -> None:
    stack = plan.resolve(4)
    assert (stack.kinds, stack.second, stack.m) == (kinds, second, plan.m)
    assert stack.calls == (*enumerate(kinds), *second)
    assert stack.is_plain == (set(kinds) == {F} and not second)


SHOWN = {
    LayerPlan(k=2, k0=1): "2 forward → 1 bidirectional → 1 nosink-bidirectional",
    LayerPlan("inter", k=1): "3 forward → 1 forward + bidirectional",
    LayerPlan("inter", B, 2, variant="published"): "4 forward; beside it, from the input of layer 2: 2 backward "
    "(layers 2, 3), summed before the norm",
    LayerPlan(
        "extra", B, 2
    ): "4 forward; beside it, from the embeddings: 2 backward (layers 2, 3), summed after the norm",
    LayerPlan("extend", B, 3): "4 forward → 3 backward (the last layer again)",
}


@pytest.mark.parametrize("plan", SHOWN)
def test_stack_is_shown(plan: LayerPlan) -> None:
    assert str(plan.resolve(4)) == SHOWN[plan]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"architecture": "outer"}, "architecture='outer'.*inplace.*extend"),
        ({"kind": "sideways"}, "kind='sideways'.*backward"),
        ({"others": "backward"}, "others='backward'.*nosink-forward"),
        ({"variant": "code"}, "variant='code'.*published"),
        ({"k": -1}, "k=-1 must be a whole number from 0 on, or 'all'"),
        ({"k": True}, "k=True"),
        ({"k": 1.0}, r"k=1\.0"),
        ({"k": "most"}, "k='most'"),
        ({"k": 2, "k0": 3}, "k0=3 is more than k=2"),
        ({"k": 2, "k0": -3}, "k0=-3"),
        ({"m": -1}, "m=-1"),
        ({"kind": B, "k": 2, "k0": 1}, "k0=1 with kind='backward'"),
        ({"architecture": "extend", "k": "all"}, "k='all'.*'extend' adds new ones"),
        ({"architecture": "extend", "layers": {B: [1]}}, "'extend' adds new ones"),
        ({"layers": [1, 2]}, r"layers=\[1, 2\] must be a mapping"),
        ({"layers": {}}, r"layers=\{\} must be a mapping"),
        ({"layers": {"sideways": [1]}}, "'sideways' is not known"),
        ({"layers": {B: 1}}, "1 must be a list"),
        ({"layers": {B: ["top"]}}, "the layer 'top' must be a whole number"),
        ({"layers": {B: [True]}}, "the layer True"),
        ({"layers": {B: [1], BI: [1]}}, "names layer 1 twice, as backward and as bidirectional"),
        ({"layers": {B: [-2, -2]}}, "names layer -2 twice"),
        ({"layers": {B: [1]}, "k": 1}, "k=1 and k0=0 must be 0"),
        ({"depth": 3}, "a plan has no 'depth'.*architecture"),
    ],
)
def test_refusals(fields: Mapping[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        LayerPlan.from_dict(fields)


def test_no_mapping() -> None:
    with pytest.raises(ValueError, match="layers=3 must be a LayerPlan or a mapping"):
        LayerPlan.from_dict(3)


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        (LayerPlan(k=4), "k=4, but the backbone has 3 layers"),
        (LayerPlan("extra", k=9), "k=9, but the backbone has 3 layers"),
        (LayerPlan(k="all", k0=4), "k0=4 is more than the 3 layers"),
        (LayerPlan(layers={B: [3]}), "names layer 3, but the backbone has 3 layers. Give -3 to 2"),
        (LayerPlan(layers={B: [-4]}), "names layer -4, but"),
        (LayerPlan(layers={B: [2], BI: [-1]}), "names layer 2 twice, as backward and as bidirectional"),
    ],
)
def test_what_does_not_fit(plan: LayerPlan, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        plan.resolve(3)
    plan.resolve(4) if "twice" not in message and plan.k != 9 else None


NAMED = {
    "inplace-back": LayerPlan("inplace", B, 4),
    "inplace-bidir": LayerPlan("inplace", BI, 4),
    "inter-back": LayerPlan("inter", B, 4),
    "inter-bidir": LayerPlan("inter", BI, 4),
    "extra-back": LayerPlan("extra", B, 4),
    "extra-bidir": LayerPlan("extra", BI, 4),
    "extend-back": LayerPlan("extend", B, 4),
    "extend-bidir": LayerPlan("extend", BI, 4),
    "mask0-for": LayerPlan(kind=NF, k=4),
    "mask0-bidir": LayerPlan(kind=NB, k=4),
    "mask0-all": LayerPlan(kind=NB, k=4, others=NF),
    "mask0-1": LayerPlan(k=4, k0=1),
    "mask0-2": LayerPlan(k=4, k0=2),
    "mask0-3": LayerPlan(k=4, k0=3),
}
WITH_K0 = {"mask0&bidir": 3, "mask0-last": 3, "mask0-mid": 1}


def test_every_setting_is_tested() -> None:
    assert {"baseline", *NAMED, *WITH_K0} == set(SETTINGS)


@pytest.mark.parametrize("setting", NAMED)
def test_settings(setting: str) -> None:
    assert named_plan(setting, k=4) == named_plan(setting.upper(), k=4) == NAMED[setting]
    with pytest.raises(ValueError, match=f"k0=1: setting='{setting}' takes no k0"):
        named_plan(setting, k=4, k0=1)


@pytest.mark.parametrize("setting", WITH_K0)
def test_settings_with_k0(setting: str) -> None:
    assert named_plan(setting, k=4, k0=3) == LayerPlan(k=4, k0=WITH_K0[setting])
    with pytest.raises(ValueError, match=f"setting='{setting}' needs k0"):
        named_plan(setting, k=4)


def test_half_of_one_layer_is_one() -> None:
    assert named_plan("mask0-mid", k=4, k0=1).k0 == 1
    assert named_plan("mask0-mid", k=4, k0=0).k0 == 0


@pytest.mark.parametrize("setting", ["mask1-bidir", "", None, 3])
def test_unknown_setting(setting: Any) -> None:
    with pytest.raises(ValueError, match=f"setting={re.escape(repr(setting))} is not known.*mask0&bidir"):
        named_plan(setting, k=1)


@pytest.mark.parametrize(
    ("setting", "options", "message"),
    [
        ("baseline", {"m": 2}, "m=2: setting='baseline' hides no tokens"),
        ("inplace-back", {"k": 1, "m": 2}, "hides no tokens"),
        ("extend-bidir", {"k": 1, "m": -5}, "m=-5 must be a whole number"),
        ("baseline", {"m": "x"}, "m='x' must be a whole number"),
        ("mask0-bidir", {"k": 1, "variant": "published"}, "variant='published': setting='mask0-bidir' has one reading"),
        ("inter-back", {"k": 1, "variant": "code"}, "variant='code' is not known"),
        ("mask0-mid", {"k": 1, "k0": True}, "k0=True must be a whole number"),
    ],
)
def test_numbers_that_a_setting_does_not_take(setting: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        named_plan(setting, **options)


def test_layers_from_an_iterator() -> None:
    assert LayerPlan(layers={B: iter([0, 1])}) == LayerPlan(layers={B: [0, 1]})


def test_baseline_takes_no_number() -> None:
    assert named_plan("BASELINE") == LayerPlan()
    with pytest.raises(ValueError, match="k=2: setting='baseline' takes no k"):
        named_plan("baseline", k=2)
    with pytest.raises(ValueError, match="setting='inter-back' needs k"):
        named_plan("inter-back")
