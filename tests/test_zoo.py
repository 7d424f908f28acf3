"""The model zoo: every model's recipe is well formed and builds; what cannot be built is refused with its reason."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import st_reba
from st_reba.recipe import Recipe, find_recipe, parse_recipe, zoo_recipe

NAMES = st_reba.zoo()
UNREADY_NAMES = [name for name in NAMES if zoo_recipe(name).status != "ready"]
# Numbers of layers that some settings lack, for mini.
LAYERS_OF_SETTING = {"mask0-bidir": {"k": 4}, "mask0&bidir": {"k": 4, "k0": 2}}
MAX_IN_MINI = {"max_seq_length": 1024, "k": 4}
FACT_PATTERNS = {
    "licence": r"[a-z0-9][a-z0-9.+-]*",
    "licence_link": "https://.*",
    "parameters": r"\d+(\.\d+)?[MB]",
    "note": r"[A-Z0-9k].*\.",
}
# The average of C-MTEB, and after it its tasks.
CMTEB_SCORES = 32


def options_for_mini(method: Mapping[str, Any]) -> str:
    """A recipe's method as JSON, with the layers and positions that mini has."""
    options = {**LAYERS_OF_SETTING.get(method.get("setting", ""), {}), **method}
    if "layer" in options:
        options["layer"] = 6
    for name, most in MAX_IN_MINI.items():
        if isinstance(options.get(name), int):
            options[name] = min(options[name], most)
    options["method"] = options.pop("name")
    return json.dumps(options, sort_keys=True)


NAME_OF_OPTIONS = {options_for_mini(zoo_recipe(name).method): name for name in NAMES}


def test_names_are_sorted_and_different() -> None:
    assert sorted(set(NAMES)) == NAMES
    assert {"llama2-chinese-reba", "mini-reba"} <= set(NAMES)
    for name in NAMES:
        assert re.fullmatch(r"[a-z0-9]+([.-][a-z0-9]+)*", name)


def test_a_wheel_holds_the_zoo() -> None:
    setup = Path(__file__).parents[1] / "setup.cfg"
    assert "\n    zoo.yaml\n" in setup.read_text(encoding="utf-8")


@pytest.mark.parametrize("name", ["no/such", "../zoo.yaml", "gone.yaml", ""])
def test_unknown_names_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match="is not known"):
        st_reba.build(f"zoo:{name}")


@pytest.mark.parametrize("name", NAMES)
def test_the_method_of_a_recipe_is_that_of_its_name(name: str) -> None:
    named_recipe = zoo_recipe(name)
    assert named_recipe.name == name
    assert named_recipe.method["name"] in name.split("-")
    assert re.fullmatch(r"mini|[\w.-]+/[\w.-]+", named_recipe.base)
    if named_recipe.status == "ready":
        check_no_default_is_written(named_recipe)
    if named_recipe.status == "tune":
        assert named_recipe.method["name"] == "nosink"
        assert "k0" not in named_recipe.method


def check_no_default_is_written(named_recipe: Recipe) -> None:
    needed_options = st_reba.Method(**named_recipe.method).to_dict()
    assert named_recipe.method.keys() - {"pooling"} == needed_options.keys() - {"pooling"}


@pytest.mark.parametrize("name", NAMES)
def test_the_facts_of_a_recipe_are_well_formed(name: str) -> None:
    facts = zoo_recipe(name).about
    assert {"licence", "parameters"} <= facts.keys()
    assert facts["language"]
    for language in facts["language"]:
        assert re.fullmatch("[a-z]{2,3}", language)
    for fact, pattern in FACT_PATTERNS.items():
        if fact in facts:
            assert re.fullmatch(pattern, facts[fact])


@pytest.mark.parametrize("name", NAMES)
def test_a_recipe_is_the_same_as_a_file(name: str) -> None:
    named_recipe = zoo_recipe(name)
    assert parse_recipe(named_recipe.to_dict(), "again.yaml", name=name) == named_recipe


@pytest.mark.parametrize("name", NAMES)
def test_scores_are_percents_of_a_table(name: str) -> None:
    for score in zoo_recipe(name).about.get("scores", []):
        assert 0 < score["value"] < 100
        assert re.match(r"Table \d+$", score["table"])


def test_averages_of_the_papers_are_those_of_their_tasks() -> None:
    """A slip of the pen in the tables would show."""
    rows: list[list[float]] = []
    for name in NAMES:
        scores = zoo_recipe(name).about.get("scores", [])
        if len(scores) == CMTEB_SCORES:
            rows.append([score["value"] for score in scores])
    averages, values = np.split(np.array(rows), [1], axis=1)
    assert len(rows) == 8
    assert np.abs(values.mean(axis=1) - averages[:, 0]).max() < 1.5e-4


@pytest.mark.slow
@pytest.mark.parametrize("options", NAME_OF_OPTIONS, ids=NAME_OF_OPTIONS.values())
def test_every_set_of_options_builds(options: str) -> None:
    model = st_reba.build("mini", **json.loads(options))
    vectors = model.encode(["银行今天关门了。", "A cat sleeps."])
    assert vectors.shape == (2, 192)
    assert np.isfinite(vectors).all()


@pytest.mark.parametrize("name", UNREADY_NAMES)
def test_a_recipe_that_is_not_ready_is_refused_with_its_note(name: str) -> None:
    with pytest.raises(ValueError) as raised:
        st_reba.build(f"zoo:{name}")
    assert zoo_recipe(name).about["note"] in str(raised.value)


@pytest.mark.parametrize("name", UNREADY_NAMES)
def test_a_recipe_is_ready_with_what_it_needs(name: str) -> None:
    needed_options: dict[str, dict[str, Any]] = {
        "remote-code": {"trust_remote_code": True},
        "tune": {"k": 3},
    }
    options = needed_options.get(zoo_recipe(name).status)
    if options is not None:
        assert find_recipe(f"zoo:{name}", options) == zoo_recipe(name)
