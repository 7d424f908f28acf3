"""Recipes: a file of build's arguments."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import st_reba
from st_reba import cli


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    path = tmp_path / "recipe.yaml"
    path.write_text("# best of 10\nbase: mini\nmethod: nosink\nsetting: mask0&bidir\nk: 4\nk0: 2\npooling: last\n")
    return path


def test_build(recipe: Path) -> None:
    model = st_reba.build(recipe)
    wanted = st_reba.build("mini", "nosink", setting="mask0&bidir", k=4, k0=2, pooling="last")
    np.testing.assert_array_equal(model.encode("你好"), wanted.encode("你好"))
    assert model[0].base_model == "mini"


def test_arguments_win(recipe: Path) -> None:
    model = st_reba.build(str(recipe), k0=1, normalize=False)
    assert str(model[0].stack) == "2 forward → 3 bidirectional → 1 nosink-bidirectional"
    assert len(model) == 2


def test_command(recipe: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["build", str(recipe), str(tmp_path / "out"), "--k", "3"]) == 0
    assert "3 forward → 1 bidirectional → 2 nosink-bidirectional" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is no recipe: it must be a mapping with a base"),
        ("- mini\n", "is no recipe"),
        ("k: 3\n", "is no recipe"),
        ("base: [mini]\n", "is no recipe"),
        ("base: mini\nlayer: 3\n", "the recipe has 'layer'; build takes"),
        ("base: {", "is not YAML"),
        ("base: mini\nmethod: sink\n", "method='sink' is not known"),
    ],
)
def test_refusals(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "recipe.yml"
    path.write_text(text)
    with pytest.raises(ValueError, match=message):
        st_reba.build(path)


def test_recipe_of_a_recipe(recipe: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.yaml"
    other.write_text(f"base: {recipe}\n")
    with pytest.raises(ValueError, match="is a recipe itself"):
        st_reba.build(other)
