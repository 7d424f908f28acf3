"""The settings as tables: what every layer sees, and which run twice."""

from __future__ import annotations

from typing import Any

import pytest

from st_reba.modules.settings import MASKS, SETTINGS, masks_of

SHORT = dict(zip(MASKS, "fbaFAr", strict=True))
# The masks of five layers with k = 3, and k0 where it stands beside the name; layers that run again, and their masks.
WANTED = {
    "baseline": "fffff", "inplace-back": "ffbbb", "inplace-bidir": "ffaaa", "rerouted": "ffrrr",
    "inter-back": "fffff 2b3b4b", "extra-back": "fffff 2b3b4b", "extend-back": "fffff 4b4b4b",
    "inter-bidir": "fffff 2a3a4a", "extra-bidir": "fffff 2a3a4a", "extend-bidir": "fffff 4a4a4a",
    "mask0-for": "ffFFF", "mask0-bidir": "ffAAA", "mask0-all": "FFAAA",
    "mask0-1": "ffaaA", "mask0-2": "ffaAA", "mask0-3": "ffAAA",
    "mask0&bidir 0": "ffaaa", "mask0&bidir 2": "ffaAA", "mask0-last 3": "ffAAA",
    "mask0-mid 0": "ffaaa", "mask0-mid 1": "ffaaA", "mask0-mid 2": "ffaaA", "mask0-mid 3": "ffaaA",
}  # fmt: skip


def test_every_setting() -> None:
    assert {setting.partition(" ")[0] for setting in WANTED} == {*SETTINGS}
    for setting, wanted in WANTED.items():
        name, _, k0 = setting.partition(" ")
        found = masks_of(name, 5, k=None if name == "baseline" else 3, k0=int(k0) if k0 else None)
        second = "".join(f"{layer}{SHORT[each]}" for layer, each in found["second"])
        assert f"{''.join(SHORT[each] for each in found['layer_masks'])} {second}".strip() == wanted, setting
        assert found["architecture"] == (name.partition("-")[0] if second else "inplace") and found["m"] == 1


@pytest.mark.parametrize(
    ("k", "masks"), [(0, "fff"), (3, "bbb"), ("all", "bbb"), ([0, -1], "bfb"), ([-3, 2], "bfb"), ([1], "fbf")]
)
def test_layers(k: Any, masks: str) -> None:
    assert "".join(SHORT[each] for each in masks_of("inplace-back", 3, k=k)["layer_masks"]) == masks
    second = masks_of("extra-back", 3, k=k, implementation="authors")["second"]
    assert second == [[number, "backward"] for number, mask in enumerate(masks) if mask == "b"]
    authors = masks_of("inter-back", 4, k=[1], implementation="authors")["second"]
    assert authors == [[1, "backward"], [2, "forward"], [3, "forward"]]
    for number in (0, 5):
        assert masks_of("extend-back", 3, k=number)["second"] == [[2, "backward"]] * number


def test_refused() -> None:
    for k in (5, -1, [4], [0, -4], [], "some"):
        with pytest.raises(ValueError):
            masks_of("inplace-back", 4, k=k)
    for k, says in (([1, True], "different"), ([1, 5], "5 layers"), (1, "k0=2 is more")):
        with pytest.raises(ValueError, match=says):
            masks_of("mask0-2", 5, k=k)
