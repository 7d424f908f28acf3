"""The model zoo: every model's recipe is well formed and builds; what cannot be built is refused with its reason."""

from __future__ import annotations

import configparser
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import st_reba
from st_reba.recipe import Recipe, recipe, recipe_for, recipe_of

ROOT = Path(__file__).parents[1]
NAMES = st_reba.zoo()
TEXTS = ["银行今天关门了。", "A cat sleeps on the roof."]


def options_of(found: Recipe, layers: int = 6, positions: int = 1024) -> dict[str, Any]:
    """A recipe's method, for a small base that is here."""
    values = {**found.method, "method": found.method["name"]}
    del values["name"]
    if "max_seq_length" in values:
        values["max_seq_length"] = min(values["max_seq_length"], positions)
    if "layer" in values:
        values["layer"] = layers
    if "setting" in values:
        values["k"] = values.get("k", 4) if values.get("k") == "all" else min(values.get("k", 4), layers - 2)
        if values["setting"] == "mask0&bidir":
            values.setdefault("k0", 2)
    return values


DISTINCT = {json.dumps(options_of(recipe(name)), sort_keys=True): name for name in NAMES}


def test_names() -> None:
    assert sorted(set(NAMES)) == NAMES and {"llama2-chinese-reba", "mini-reba"} <= set(NAMES)
    # A wheel holds its file.
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    assert "zoo.yaml" in setup["options.package_data"]["st_reba"].split()


@pytest.mark.parametrize("name", NAMES)
def test_every_recipe(name: str) -> None:
    found = recipe(name)
    about = found.about
    assert found.name == name and re.fullmatch(r"[a-z0-9]+([.-][a-z0-9]+)*", name)
    # What a name says is what is built.
    assert found.method["name"] in name.split("-")
    assert found.base == "mini" or re.fullmatch(r"[\w.-]+/[\w.-]+", found.base)
    if found.status == "ready":
        # Nothing that a default says already.
        assert set(found.method) == set(st_reba.Method(**found.method).to_dict()) | (
            {"pooling"} if "pooling" in found.method else set()
        )
    assert all(re.fullmatch("[a-z]{2,3}", each) for each in about["language"]) and about["language"]
    assert re.fullmatch(r"[a-z0-9][a-z0-9.+-]*", about["licence"])
    assert re.fullmatch(r"\d+(\.\d+)?[MB]", about["parameters"])
    assert about.get("licence_link", "https://").startswith("https://")
    assert re.fullmatch(r"[A-Z0-9k].*\.", about.get("note", "A."))
    if found.status == "tune":
        assert found.method["name"] == "nosink" and "k0" not in found.method
    # As a file it says the same.
    assert recipe_of(found.to_dict(), "again.yaml", name=name) == found


def test_scores() -> None:
    """The averages that the papers print are those of their tasks: a slip of the pen in the tables would show."""
    averages = 0
    for name in NAMES:
        scores = recipe(name).about.get("scores", [])
        assert all(0 < each["value"] < 100 and re.match(r"Table \d+$", each["table"]) for each in scores)
        if len(scores) == 32:  # the 31 tasks of C-MTEB, behind their average
            first, *rest = scores
            assert abs(np.mean([each["value"] for each in rest]) - first["value"]) < 1.5e-4
            averages += 1
    assert averages == 8


# Building


@pytest.mark.slow
@pytest.mark.parametrize("values", DISTINCT, ids=DISTINCT.values())
def test_every_set_of_options_builds(values: str) -> None:
    vectors = st_reba.build("mini", **json.loads(values)).encode(TEXTS)
    assert vectors.shape == (2, 192) and np.isfinite(vectors).all()


def test_options_beside_a_recipe() -> None:
    for given, k0 in (({}, 2), ({"k0": 1}, 1)):
        wanted = st_reba.build("mini", "nosink", setting="mask0&bidir", k=4, k0=k0, pooling="mean").encode(TEXTS)
        np.testing.assert_array_equal(st_reba.build("zoo:mini-nosink", **given).encode(TEXTS), wanted)


# What cannot be built


@pytest.mark.parametrize("name", [name for name in NAMES if recipe(name).status != "ready"])
def test_status(name: str) -> None:
    with pytest.raises(ValueError) as error:
        st_reba.build(f"zoo:{name}")
    assert recipe(name).about["note"] in str(error.value)
    if (given := {"remote-code": {"trust_remote_code": True}, "tune": {"k": 3}}.get(recipe(name).status)) is not None:
        assert recipe_for(f"zoo:{name}", given) == recipe(name)


@pytest.mark.parametrize("name", ["mini-rebba", "no/such", "../zoo.yaml", "gone.yaml", ""])
def test_unknown(name: str) -> None:
    with pytest.raises(ValueError) as error:
        st_reba.build(f"zoo:{name}")
    assert name != "mini-rebba" or "mini-reba" in str(error.value)
