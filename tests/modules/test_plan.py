"""Layer plans: what they resolve to, how they are written down, and what they refuse."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import FrozenInstanceError
from typing import Any

import pytest

from st_reba import LayerPlan, NoSink
from st_reba.modules.plan import SETTINGS

F, B, BI, NF, NB = "forward", "backward", "bidirectional", "nosink-forward", "nosink-bidirectional"

PLANS = [
    LayerPlan(),
    LayerPlan(k="all", k0=1),
    LayerPlan(kind=NB, k=3, m=4, others=NF),
    LayerPlan(layers={BI: [0, 1], B: (-1,)}),
    LayerPlan("inter", B, 2, variant="published"),
    LayerPlan("extend", k=2, k0=1),
]


@pytest.mark.parametrize("plan", PLANS, ids=repr)
def test_round_trip(plan: LayerPlan) -> None:
    read = LayerPlan.of(json.loads(json.dumps(plan.to_dict())))
    assert read == plan == eval(repr(plan)) and read.resolve(5) == plan.resolve(5)


def test_frozen() -> None:
    given = {BI: [0, 1]}
    plan = LayerPlan(layers=given)
    given[BI].append(2)
    assert plan.resolve(3).kinds == (BI, BI, F)
    with pytest.raises(FrozenInstanceError):
        plan.k = 2  # type: ignore[misc]


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
    ids=repr,
)
def test_resolve(plan: LayerPlan, kinds: tuple[str, ...], second: tuple[tuple[int, str], ...]) -> None:
    stack = plan.resolve(4)
    assert (stack.kinds, stack.second, stack.m) == (kinds, second, plan.m)
    assert stack.calls == (*enumerate(kinds), *second)
    assert stack.is_plain == (set(kinds) == {F} and not second)


@pytest.mark.parametrize(
    ("plan", "shown"),
    [
        (LayerPlan(k=2, k0=1), "2 forward → 1 bidirectional → 1 nosink-bidirectional"),
        (LayerPlan(kind=NB, k=1, m=4, others=NF), "3 nosink-forward(4) → 1 nosink-bidirectional(4)"),
        (LayerPlan("inter", k=1), "3 forward → 1 forward + bidirectional"),
        (LayerPlan("inter", NF, 2, m=2), "2 forward → 2 forward + nosink-forward(2)"),
        (
            LayerPlan("inter", B, 2, variant="published"),
            "4 forward; beside it, from the input of layer 2: 2 backward (layers 2, 3), summed before the norm",
        ),
        (
            LayerPlan("extra", B, 2),
            "4 forward; beside it, from the embeddings: 2 backward (layers 2, 3), summed after the norm",
        ),
        (LayerPlan("extra", variant="published"), "4 forward"),
        (
            LayerPlan("extra", k=1, variant="published"),
            "4 forward; beside it, from the embeddings: 1 bidirectional (layers 3), summed before the norm",
        ),
        (LayerPlan("extend", B, 3), "4 forward → 3 backward (the last layer again)"),
        (LayerPlan("extend", B, 1, variant="published"), "4 forward → 1 backward (the last layer again)"),
    ],
    ids=repr,
)
def test_stack_is_shown(plan: LayerPlan, shown: str) -> None:
    assert str(plan.resolve(4)) == shown


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"architecture": "outer"}, "architecture='outer'.*inplace.*extend"),
        ({"kind": "sideways"}, "kind='sideways'.*backward"),
        ({"others": "backward"}, "others='backward'.*nosink-forward"),
        ({"variant": "code"}, "variant='code'.*published"),
        ({"k": -1}, "k=-1 .*a whole number from 0 to 1,024 or 'all'"),
        ({"k": 1025}, "k=1025 .*to 1,024"),
        ({"k": True}, "k=True"),
        ({"k": 1.0}, r"k=1\.0"),
        ({"k": "most"}, "k='most'"),
        ({"k": 2, "k0": 3}, "k0=3 is more than k=2"),
        ({"k": 2, "k0": -3}, "k0=-3"),
        ({"m": -1}, "m=-1"),
        ({"m": 10**6}, "m=1000000"),
        ({"kind": B, "k": 2, "k0": 1}, "k0=1 needs kind='bidirectional', not 'backward'"),
        ({"architecture": "extend", "k": "all"}, "k='all'.*'extend' adds new ones"),
        ({"architecture": "extend", "layers": {B: [1]}}, "give layers, or one of .* and 'extend', not both"),
        ({"layers": [1, 2]}, r"layers=\(1, 2\)|layers=\[1, 2\]"),
        ({"layers": {}}, r"layers=\{\} names no layer"),
        ({"layers": {"sideways": [1]}}, "'sideways'.* is not known"),
        ({"layers": {B: 1}}, "backward=1 must be a list"),
        ({"layers": {B: ["top"]}}, r"backward=\['top'\]"),
        ({"layers": {B: [True]}}, r"backward=\[True\]"),
        ({"layers": {B: [10**9]}}, r"backward=\[1000000000\]"),
        ({"layers": {B: [0] * 10**5}}, "must be a list of up to 1024"),
        ({"layers": {B: [1]}, "k": 1}, "give layers, or one of k=1, k0=0"),
        ({"depth": 3}, "depth.* is not known.*architecture"),
    ],
)
def test_refusals(fields: Mapping[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message) as error:
        LayerPlan.of(fields)
    assert "\n" not in str(error.value) and len(str(error.value)) < 600


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        (LayerPlan(k=4), "k=4, but 3 layers"),
        (LayerPlan("extra", k=9), "k=9, but 3 layers"),
        (LayerPlan(k="all", k0=4), "k0=4, but 3 layers"),
        (LayerPlan(layers={B: [3]}), "names layer 3, but 3 layers.*Give -3 to 2"),
        (LayerPlan(layers={B: [-4]}), "names layer -4, but"),
        (LayerPlan(layers={B: [2], BI: [-1]}), "names layer 2 twice, as backward and as bidirectional"),
        (LayerPlan(layers={B: [-2, -2]}), "names layer 1 twice"),
    ],
    ids=repr,
)
def test_what_does_not_fit(plan: LayerPlan, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        plan.resolve(3)


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
# Of k0 = 3.
WITH_K0 = {"mask0&bidir": 3, "mask0-last": 3, "mask0-mid": 1}


def test_every_setting_is_tested() -> None:
    assert {"baseline", *NAMED, *WITH_K0} == set(SETTINGS)


@pytest.mark.parametrize("setting", NAMED)
def test_settings(setting: Any) -> None:
    assert NoSink(setting, k=4).plan == NoSink(setting.upper(), k=4).plan == NAMED[setting]
    if "mask0" in setting:
        assert NoSink(setting, k=4, m=2).plan.m == 2
    if setting.startswith(("inter", "extra")):
        assert NoSink(setting, k=4, variant="published").plan.variant == "published"
    with pytest.raises(ValueError, match=f"k0=1: setting='{setting}' takes no k0"):
        NoSink(setting, k=4, k0=1)
    with pytest.raises(ValueError, match=f"setting='{setting}' needs k"):
        NoSink(setting)


@pytest.mark.parametrize("setting", WITH_K0)
def test_settings_with_k0(setting: Any) -> None:
    assert NoSink(setting, k=4, k0=3).plan == LayerPlan(k=4, k0=WITH_K0[setting])
    with pytest.raises(ValueError, match=f"setting='{setting}' needs k0"):
        NoSink(setting, k=4)


def test_half_of_one_layer_is_one() -> None:
    assert NoSink("mask0-mid", k=4, k0=1).plan.k0 == 1
    assert NoSink("mask0-mid", k=4, k0=0).plan.k0 == 0


@pytest.mark.parametrize("setting", ["mask1-bidir", "", None, 3])
def test_unknown_setting(setting: Any) -> None:
    with pytest.raises(ValueError, match=f"setting={re.escape(repr(setting))} is not allowed.*mask0&bidir"):
        NoSink(setting, k=1)


@pytest.mark.parametrize(
    ("setting", "options", "message"),
    [
        ("baseline", {"m": 2}, "m=2: setting='baseline' takes no m"),
        ("baseline", {"k": 2}, "k=2: setting='baseline' takes no k"),
        ("inplace-back", {"k": 1, "m": 2}, "m=2: setting='inplace-back' takes no m"),
        ("extend-bidir", {"k": 1, "m": -5}, "m=-5 is not allowed"),
        ("extend-bidir", {"k": "all"}, "k='all'.*'extend' adds new ones"),
        (
            "mask0-bidir",
            {"k": 1, "variant": "published"},
            "variant='published': setting='mask0-bidir' takes no variant",
        ),
        ("inter-back", {"k": 1, "variant": "code"}, "variant='code' is not allowed"),
        ("mask0-mid", {"k": 1, "k0": True}, "k0=True is not allowed"),
        ("mask0&bidir", {"k": 1, "k0": 2}, "k0=2 is more than k=1"),
    ],
)
def test_numbers_that_a_setting_does_not_take(setting: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        NoSink(setting, **options)
