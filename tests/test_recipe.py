"""Recipes: a file of build's options, which is data from elsewhere."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

import st_reba
from st_reba import Filter, Method
from st_reba.bases import BUNDLED
from st_reba.methods import method_of
from st_reba.recipe import read_recipe, save_recipe

NOSINK_RECIPE = """
# best of 10
base: mini
method: nosink
setting: mask0&bidir
k: 4
k0: 2
pooling: last
prompts: {query: 'Q: '}
tokenizer: mini
"""


def write_recipe(folder: Path, text: str) -> Path:
    path = folder / "other.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def test_options_of_the_call_come_before_those_of_the_recipe(tmp_path: Path) -> None:
    recipe_path = write_recipe(tmp_path, NOSINK_RECIPE)
    loading = {"prompts": {"document": "D: "}, "tokenizer": str(BUNDLED["mini"])}
    model = st_reba.build(str(recipe_path), k0=1, normalize=False, **loading)
    assert (
        str(method_of(model)) == "nosink:pooling=last,normalize=false,setting=mask0&bidir,k=4,k0=1"
    )
    assert model.prompts["document"] == "D: "
    assert not model.prompts.get("query")


@pytest.mark.parametrize(
    ("method", "options", "expected_method"),
    [
        ("echo", {}, "echo"),
        (Method("reba", layer=3), {}, "reba:layer=3"),
        ("nosink", {"k": 3}, "nosink:pooling=last,setting=mask0&bidir,k=3,k0=2"),
    ],
    ids=str,
)
def test_another_method_drops_the_options_of_the_recipe(
    tmp_path: Path,
    method: str | Method,
    options: dict[str, int],
    expected_method: str,
) -> None:
    recipe_path = write_recipe(tmp_path, NOSINK_RECIPE)
    assert str(method_of(st_reba.build(recipe_path, method, **options))) == expected_method


def test_a_saved_recipe_builds_from_another_folder(tmp_path: Path) -> None:
    """A filter's file stays where it is, beside the recipe."""
    recipe_folder = tmp_path / "here"
    (recipe_folder / "filters").mkdir(parents=True)
    filter_path = str(recipe_folder / "filters" / "center.safetensors")
    vectors = np.random.default_rng(0).normal(size=(200, 192))
    Filter.fit(vectors, "center").save(filter_path)
    templates = ["a {text}", "b {text}"]
    method = Method("echo", template=templates, weights=(1, 0.5), layer=-1, filter=filter_path)
    facts = {"language": ["zh"], "licence": "mit", "note": "搜索而得。"}
    recipe_path = recipe_folder / "recipe.yaml"
    save_recipe(recipe_path, "mini", method, about=facts, prompts={"query": "Q: "}, revision=None)
    lines = recipe_path.read_text(encoding="utf-8").splitlines()
    assert "filter: filters/center.safetensors" in lines
    assert "  note: 搜索而得。" in lines
    recipe = read_recipe(recipe_path)
    assert Method(**recipe.method) == method
    assert recipe.about == facts
    assert recipe.loading == {"prompts": {"query": "Q: "}}
    moved_folder = recipe_folder.rename(tmp_path / "moved")
    model = st_reba.build(moved_folder / "recipe.yaml")
    module_names = [type(module).__name__ for module in model]
    assert module_names[-3:] == ["Normalize", "Dense", "Normalize"]


def test_the_description_of_a_filter_is_not_taken_for_a_file(tmp_path: Path) -> None:
    """It is what the method of a filtered model has."""
    texts = [f"{name} sells {number} books." for name in ("Ann", "王芳") for number in range(60)]
    model = st_reba.build("mini", "echo", pooling="mean", device="cpu")
    method = method_of(st_reba.fit_filter(model, texts, "whiten", power=0.25))
    assert method is not None
    message = "describes a fitted filter, and names no file. Fit it again with fit_filter, or drop"
    with pytest.raises(ValueError, match=message):
        st_reba.build("mini", method)
    recipe_path = tmp_path / "recipe.yaml"
    with pytest.raises(ValueError, match=message):
        save_recipe(recipe_path, "mini", method)
    assert not recipe_path.exists()
    write_recipe(tmp_path, f"base: mini\nmethod: echo\nfilter: '{method.filter}'")
    with pytest.raises(ValueError, match=message):
        st_reba.build(tmp_path / "other.yaml")


def test_a_recipe_that_cannot_be_read_is_not_written(tmp_path: Path) -> None:
    recipe_path = tmp_path / "recipe.yaml"
    with pytest.raises(ValueError, match="notes"):
        save_recipe(recipe_path, "mini", Method("echo"), about={"notes": "No."})
    assert not recipe_path.exists()


NO_RECIPES = ("", "- mini", "k: 3", "base: [mini]", "base: {", "base: &a mini\ntokenizer: *a")
REFUSED_LINES = (
    "poolin: mean",
    "layer: 2\nlayer: 3",
    "repeats: '2'",
    "revision: 3",
    "method: nosink",
    "method: sink",
    "method: {name: echo}",
    "method: !!python/object/apply:os.getcwd []",
    "chunk: 3\nmethod: echo",
    "about: [language]",
    "about: {notes: No.}",
    "about: {status: tune}",
    "about: {status: ready, status: tune}",
    f"about: {'[' * 20_000}{']' * 20_000}",
    f"# {'a' * 65536}",
    # What the caller alone may say.
    "trust_remote_code: true",
    "token: hf_x",
    "cache_folder: /tmp",
    "model_kwargs: {attn_implementation: org/kernel}",
    "config_kwargs: {trust_remote_code: true}",
)
REFUSED_RECIPES = [*NO_RECIPES, *(f"base: mini\n{line}" for line in REFUSED_LINES)]


@pytest.mark.parametrize("text", REFUSED_RECIPES, ids=lambda text: text[:40])
def test_wrong_recipes_are_refused(text: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError) as raised:
        read_recipe(write_recipe(tmp_path, text))
    assert len(str(raised.value)) < 3000 and "unhashable" not in str(raised.value)
    if text == "base: {":
        assert "other.yaml' is not YAML: while parsing" in str(raised.value)


@pytest.mark.parametrize("is_trusted", [False, True])
def test_code_of_a_base_runs_where_the_caller_says_so(is_trusted: bool, tmp_path: Path) -> None:
    base_folder, marker = tmp_path / "base", tmp_path / "ran"
    shutil.copytree(BUNDLED["mini"], base_folder)
    (base_folder / "evil.py").write_text(f"open({str(marker)!r}, 'w').close()\n")
    config_path = base_folder / "config.json"
    config = json.loads(config_path.read_text())
    config |= {"model_type": "evil", "auto_map": {"AutoConfig": "evil.EvilConfig"}}
    config_path.write_text(json.dumps(config))
    recipe_path = write_recipe(tmp_path, f"base: {base_folder}\n")
    with pytest.raises((ValueError, OSError, AttributeError)):
        st_reba.build(recipe_path, trust_remote_code=is_trusted)
    assert marker.exists() is is_trusted
