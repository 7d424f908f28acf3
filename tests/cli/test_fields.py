"""Options made of the fields of dataclasses."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from typing import Any, Literal

from commanding import Run

from st_reba.cli.fields import options_of
from st_reba.modules import Stage
from st_reba.modules.options import Options, option
from st_reba.spec import METHODS


def test_build_offers_every_field_of_every_method(run: Run) -> None:
    shown = re.sub(r"[│\s]+", " ", run("build", "-h")[1])
    assert "The method's fields" in shown and "(last, mean, cls). [default: last]" in shown
    for kinds in METHODS.values():
        for kind in kinds:
            for name, _, default, _ in kind.described():
                assert f"--{'no-' if default is True else ''}{name.replace('_', '-')} " in shown
    assert [name for name in Stage.registry if name not in shown] == []


@dataclass(frozen=True)
class One(Options):
    """Of one."""

    size: int | None = option(None, "how many")
    mode: Literal["fast", "exact"] = option("exact", "how it runs")
    scaled: bool = option(True, "scale the vectors")


@dataclass(frozen=True)
class Other(Options):
    """Of another, with a field of the same name."""

    mode: Literal["fast", "slow"] = option("slow", "how it runs")
    words: str = option("", "any words")


def test_a_field_is_an_option() -> None:
    kind: Any = options_of("Panel", [("one", One), ("other", Other)])
    about = {each.name: each.default for each in fields(kind)}
    assert list(about) == ["size", "mode", "scaled", "no_scaled", "words"] and kind.panel == "Panel"
    assert about["size"].help == "Of one: how many." and about["size"].metavar == "N"
    # Of all that are there: nobody need be named.
    assert about["mode"].help == "How it runs (fast, exact, slow). [default: exact]"
    assert about["words"].help == "Of other: any words." and about["words"].metavar == "TEXT"
    assert (about["scaled"].hidden, about["no_scaled"].hidden) == (True, False)
    only: Any = options_of("Panel", [("one", One)], ("size",))
    assert [each.name for each in fields(only)] == ["size"]


def test_what_was_given_is_what_the_dataclass_takes() -> None:
    kind: Any = options_of("Panel", [("one", One), ("other", Other)])
    nothing = {"size": None, "mode": None, "scaled": False, "no_scaled": False, "words": None}
    assert kind(**nothing).given == {}
    given = kind(**{**nothing, "size": "3", "mode": "fast", "no_scaled": True}).given
    assert given == {"size": 3, "mode": "fast", "scaled": False}
    assert kind(**{**nothing, "scaled": True}).given == {"scaled": True}
