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
from st_reba.recipe import recipe, recipe_for, recipe_of

NAMES = st_reba.zoo()


def for_mini(method: Mapping[str, Any]) -> str:
    """A recipe's method as JSON, with the layers and positions that mini has."""
    missing = {"mask0-bidir": {"k": 4}, "mask0&bidir": {"k": 4, "k0": 2}}.get(method.get("setting", ""), {})
    values = {**missing, **method, "layer": 6} if "layer" in method else {**missing, **method}
    for name, most in (("max_seq_length", 1024), ("k", 4)):
        if isinstance(values.get(name), int):
            values[name] = min(values[name], most)
    values["method"] = values.pop("name")
    return json.dumps(values, sort_keys=True)


DISTINCT = {for_mini(recipe(name).method): name for name in NAMES}


def test_names() -> None:
    assert sorted(set(NAMES)) == NAMES and {"llama2-chinese-reba", "mini-reba"} <= set(NAMES)
    # A wheel holds its file.
    assert "\n    zoo.yaml\n" in (Path(__file__).parents[1] / "setup.cfg").read_text(encoding="utf-8")
    for name in ("no/such", "../zoo.yaml", "gone.yaml", ""):
        with pytest.raises(ValueError, match="is not known"):
            st_reba.build(f"zoo:{name}")


@pytest.mark.parametrize("name", NAMES)
def test_every_recipe(name: str) -> None:
    found = recipe(name)
    about = found.about
    assert found.name == name and re.fullmatch(r"[a-z0-9]+([.-][a-z0-9]+)*", name)
    # What a name says is what is built.
    assert found.method["name"] in name.split("-")
    assert re.fullmatch(r"mini|[\w.-]+/[\w.-]+", found.base)
    if found.status == "ready":
        # Nothing that a default says already.
        assert found.method.keys() - {"pooling"} == st_reba.Method(**found.method).to_dict().keys() - {"pooling"}
    if found.status == "tune":
        assert found.method["name"] == "nosink" and "k0" not in found.method
    assert all(re.fullmatch("[a-z]{2,3}", each) for each in about["language"]) and about["language"]
    patterns = {"licence": r"[a-z0-9][a-z0-9.+-]*", "parameters": r"\d+(\.\d+)?[MB]", "note": r"[A-Z0-9k].*\."}
    patterns["licence_link"] = "https://.*"
    assert {"licence", "parameters"} <= about.keys()
    assert all(re.fullmatch(pattern, about[name]) for name, pattern in patterns.items() if name in about)
    # As a file it says the same.
    assert recipe_of(found.to_dict(), "again.yaml", name=name) == found


def test_scores() -> None:
    """The averages that the papers print are those of their tasks: a slip of the pen in the tables would show."""
    tables = [recipe(name).about.get("scores", []) for name in NAMES]
    for scores in tables:
        assert all(0 < each["value"] < 100 and re.match(r"Table \d+$", each["table"]) for each in scores)
    # The 31 tasks of C-MTEB, behind their average.
    values = np.array([[each["value"] for each in scores] for scores in tables if len(scores) == 32])
    assert len(values) == 8 and np.abs(values[:, 1:].mean(axis=1) - values[:, 0]).max() < 1.5e-4


@pytest.mark.slow
@pytest.mark.parametrize("values", DISTINCT, ids=DISTINCT.values())
def test_every_set_of_options_builds(values: str) -> None:
    vectors = st_reba.build("mini", **json.loads(values)).encode(["银行今天关门了。", "A cat sleeps."])
    assert vectors.shape == (2, 192) and np.isfinite(vectors).all()


@pytest.mark.parametrize("name", [name for name in NAMES if recipe(name).status != "ready"])
def test_status(name: str) -> None:
    with pytest.raises(ValueError) as error:
        st_reba.build(f"zoo:{name}")
    assert recipe(name).about["note"] in str(error.value)
    if (given := {"remote-code": {"trust_remote_code": True}, "tune": {"k": 3}}.get(recipe(name).status)) is not None:
        assert recipe_for(f"zoo:{name}", given) == recipe(name)
