"""Options: a value has its field's type and bounds, or the error says what may; all else derives from the fields."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import FrozenInstanceError, dataclass
from typing import Any, ClassVar, Literal

import pytest

from st_reba import Echo
from st_reba.modules import Method, Stage
from st_reba.modules.options import MOST_CHARACTERS, MOST_LAYERS, Options, option, shown


@dataclass(frozen=True)
class Brew(Options):
    name: ClassVar[str] = "brew"
    leaf: str = option("green", "what is brewed", choices=("green", "black"))
    minutes: float | None = option(3.0, "how long", least=0.5, most=60)
    cups: int | Literal["all"] = option(1, "how many", least=1, most=2000)
    steps: tuple[int, ...] = option((), "one after another", least=-1, most=9)
    sweet: bool = option(False, "whether with sugar")
    more: Mapping[str, Any] | None = option(None, "all else")


def test_equal_whatever_they_were_given_as() -> None:
    brew = Brew("black", 2, "all", [1, -1], more={"milk": [1, 2]})  # type: ignore[arg-type]
    assert brew.steps == (1, -1) and brew == Brew.of(brew.to_dict())
    stored = {"leaf": "black", "minutes": 2, "cups": "all", "steps": [1, -1], "more": {"milk": [1, 2]}}
    assert brew.to_dict() == stored and Brew(sweet=False, minutes=3).to_dict() == {}
    with pytest.raises(FrozenInstanceError):
        brew.leaf = "green"  # type: ignore[misc]


@pytest.mark.parametrize(
    ("name", "allowed", "wrong"),
    [
        ("leaf", "'green' or 'black'", ("Green", "", None, 3, ["green"])),
        ("minutes", "a number from 0.5 to 60 or None", (0.4, 61, float("nan"), float("inf"), True, "3", [3])),
        ("cups", "a whole number from 1 to 2,000 or 'all'", (0, 2001, 2.0, True, "most", None, 10**400)),
        ("steps", "a list of whole numbers from -1 to 9", (3, "12", [10], [-2], [1.0], [True], [[1]], {1: 2})),
        ("sweet", "True or False", (1, 0, "yes", None)),
        ("more", "a mapping or None", (3, "x", ["x"])),
    ],
)
def test_what_an_option_may_be(name: str, allowed: str, wrong: tuple[Any, ...]) -> None:
    assert {each: words for each, words, _, _ in Brew.described()}[name] == allowed
    for value in wrong:
        with pytest.raises(ValueError) as error:
            Brew(**{name: value})
        assert str(error.value).startswith(f"brew: {name}=") and f"is not allowed: give {allowed}." in str(error.value)


def test_bounds_are_within() -> None:
    assert (Brew(minutes=0.5).minutes, Brew(minutes=60).minutes, Brew(cups=2000).cups) == (0.5, 60, 2000)
    assert len(Brew(steps=(1,) * MOST_LAYERS).steps) == MOST_LAYERS
    with pytest.raises(ValueError, match="brew: steps="):
        Brew(steps=(1,) * (MOST_LAYERS + 1))
    longest = "x" * MOST_CHARACTERS
    assert Echo(instruction=longest).instruction == longest
    with pytest.raises(ValueError, match="instruction has 65,537 characters: the most is 65,536"):
        Echo(instruction=longest + "x")


def test_names_that_do_not_exist() -> None:
    with pytest.raises(ValueError, match=r"brew: leave \(='black'\) is not known: choose.*Did you mean 'leaf'\?"):
        Brew.of({"leave": "black"})
    with pytest.raises(ValueError, match=r"brew: leaf='blak' is not allowed.*Did you mean 'black'\?"):
        Brew("blak")
    with pytest.raises(ValueError, match="brew: 3 must be a mapping of"):
        Brew.of(3)  # type: ignore[arg-type]


@pytest.mark.parametrize("value", ["x" * 100_000, [[["deep"] * 20] * 50] * 50, 10**400, {"a": {"b": {"c": "d"}}}])
def test_errors_stay_short_whatever_the_value(value: object) -> None:
    assert len(shown(value)) <= 200 and shown(2**256) == "(a number of 257 bits)"
    with pytest.raises(ValueError) as error:
        Echo(repeats=value)  # type: ignore[arg-type]
    assert len(str(error.value)) < 600


def test_every_field_has_a_line_of_help() -> None:
    for kind in {*Method.registry.values(), *Stage.registry.values()}:
        for name, allowed, _, text in kind.described():
            assert allowed and text and "\n" not in text, (kind, name)
