"""Spaces of a search: what they are written as, what is refused, and which arms they hold."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from st_reba.evaluation.space import Space, read_space, write_space
from st_reba.evaluation.trials import PAPERS, Arm, Filter, Read, Trial


@pytest.mark.parametrize(
    "space",
    [
        Space(),
        Space(
            layers=((3, 3, "mean"), (0, 2, "concat")),
            filters=({"kind": "abtt", "r": 2}, {"kind": "whiten", "r": 1, "share": 0.5, "power": 0.9}),
        ),
        Space(
            templates=(None, "总结：{text}"),
            separators=("", "\n"),
            kinds=("forward",),
            norms=(False, True),
            sinks=False,
        ),
    ],
)
def test_a_space_is_read_as_it_was_written(space: Space, tmp_path: Path) -> None:
    path = tmp_path / "space.yaml"
    path.write_text(write_space(space), encoding="utf-8")
    assert read_space(path) == space and Filter() in space.postfilters


def test_the_filters_that_are_tried() -> None:
    removed = ["abtt-1", "abtt-2", "abtt-3", "abtt-8"]
    powers = ["whiten power 0.5", "whiten", "whiten power 0.9", "whiten power 0.75"]
    whitened = [f"{power}{less}" for power in powers for less in (" without the top 2", " without the top 1", "")]
    wanted = ["no filter", "center", *removed, "standardize", "whiten to 50%", *whitened]
    assert list(map(str, Space().postfilters)) == wanted


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[1]", r"space: \[1\] must be a mapping of"),
        ("repeat: [1]", "space: repeat .* is not known: choose from .*'repeats'.* Did you mean 'repeats'"),
        ("repeats: 2", "space: repeats=2 is not allowed: give a list of whole numbers from 1"),
        ("repeats: [true]", r"space: repeats=\(True,\) is not allowed"),
        ("repeats: []", r"space: repeats=\(\) is not allowed"),
        ("templates: [metaeol]", "space: templates: 'metaeol' must be one template's name or text"),
        ("templates: [ecko]", "space: templates: .*ecko"),
        ("templates: [echo-instruct]", "for all texts alike"),
        ("kinds: [foward]", "kind .*'foward'.* is not known: choose from .* Did you mean 'forward'"),
        ("sinks: 1", "space: sinks=1 is not allowed: give True or False"),
        ("pooled: [max]", r"space: pooled=\('max',\) is not allowed"),
        ("layers: [-1]", "space: layers: -1 must be a layer from 0"),
        ("layers: [[3, 1]]", r"space: layers: \[3, 1\] must be"),
        ("filters: [centre]", "filters: kind='centre' is not allowed: .* Did you mean 'center'"),
        ("filters: [{r: 1}]", "filters: r=1 does not belong to kind='none'"),
        ("filters: [{kind: abtt}]", "filters: r=0 of abtt must be a whole number from 1 on"),
        ("filters: [{kind: center, r: 1}]", "filters: r=1 does not belong to kind='center'"),
        ("filters: [{kind: whiten, share: 0}]", "filters: share=0 is not allowed: give a number from 0.001 to 1"),
        ("filters: [{kind: whiten, power: 2}]", "filters: power=2 is not allowed"),
    ],
)
def test_a_wrong_space_is_named(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "space.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=f"space.yaml.*{message}"):
        read_space(path)


def test_arms_are_different_passes_and_the_papers_are_among_them() -> None:
    arms = Space().arms(6)
    plans = {(arm.template, arm.repeats, json.dumps(arm.plan(6).to_dict(), sort_keys=True)) for arm in arms}
    # One input: unconverted, 6 + 6 conversions, and 15 that hide the sink above another layer.
    assert len(plans) == len(arms) == 4 * (1 + 12 + 15) and all(Arm.of(arm.to_json()) == arm for arm in arms)
    # However narrow a space is.
    narrow = Space(
        templates=("总：{text}",), kinds=("forward",), layers=((1, 1, "mean"),), pooled=("mean",), filters=("none",)
    )
    found: dict[str, set[Trial]] = {}
    for arm in narrow.arms(6):
        for read in narrow.reads(arm, 6):
            found.setdefault(Trial(arm, read).paper(6), set()).add(Trial(arm, read))
    assert set(found) == {*PAPERS, "composed"}
    assert Trial(Arm("总：{text}"), Read(1, 1, True, "mean")) in found["composed"]
    assert {trial.read.pooled for trial in found["classical"]} == {"mean", "last"} and len(found["nosink"]) == 12
    with pytest.raises(ValueError, match="there is no layer 7: the base has 0"):
        Space(layers=((7, 7, "mean"),)).arms(6)
