"""Recipes: a file of build's options, which is data from elsewhere."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

import st_reba
from st_reba import Filter, Method
from st_reba.bases import EMBEDDED
from st_reba.methods import method_of
from st_reba.recipe import read_recipe, recipe_for, save_recipe

NOSINK = "# best of 10\nbase: mini\nmethod: nosink\nsetting: mask0&bidir\nk: 4\nk0: 2\npooling: last\n"


def written(folder: Path, text: str, name: str = "other.yaml") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def test_what_is_given_wins(tmp_path: Path) -> None:
    path = written(tmp_path, NOSINK + "prompts: {query: 'Q: '}\ntokenizer: mini\n")
    model = st_reba.build(
        str(path), k0=1, normalize=False, prompts={"document": "D: "}, tokenizer=str(EMBEDDED["mini"])
    )
    assert str(method_of(model)) == "nosink:pooling=last,normalize=false,setting=mask0&bidir,k=4,k0=1"
    assert model.prompts["document"] == "D: " and not model.prompts.get("query")
    # Another method drops the recipe's options.
    assert str(method_of(st_reba.build(path, "echo"))) == "echo"
    assert str(method_of(st_reba.build(path, Method("reba", layer=3)))) == "reba:layer=3"
    assert str(method_of(st_reba.build(path, "nosink", k=3))).endswith("k=3,k0=2")


def test_saved(tmp_path: Path) -> None:
    """What is written is read, from another folder too; a filter's file stays where it is."""
    sample = np.random.default_rng(0).normal(size=(200, 192)) + 1
    (tmp_path / "filters").mkdir()
    Filter.fit(sample, "center").save(tmp_path / "filters" / "center.safetensors")
    method = Method("echo", template=["a {text}", "b {text}"], weights=(1, 0.5), layer=-1)
    method = Method(**{**method.to_dict(), "filter": str(tmp_path / "filters" / "center.safetensors")})
    facts = {"language": ["zh"], "licence": "mit", "note": "搜索而得。"}
    file = tmp_path / "recipe.yaml"
    save_recipe(file, "mini", method, about=facts, prompts={"query": "Q: "}, revision=None)
    lines = file.read_text(encoding="utf-8").splitlines()
    assert "filter: filters/center.safetensors" in lines and "  note: 搜索而得。" in lines
    found = read_recipe(file)
    assert Method(**found.method) == method and found.about == facts and found.loading == {"prompts": {"query": "Q: "}}
    (tmp_path / "moved").mkdir()
    for each in ("recipe.yaml", "filters"):
        (tmp_path / each).rename(tmp_path / "moved" / each)
    model = st_reba.build(tmp_path / "moved" / "recipe.yaml")
    assert [type(each).__name__ for each in model][-3:] == ["Normalize", "Dense", "Normalize"]
    with pytest.raises(ValueError, match="notes"):
        save_recipe(file, "mini", method, about={"notes": "No."})
    assert not file.exists()


def test_what_is_no_recipe(tmp_path: Path) -> None:
    assert recipe_for("mini", {}) is None and recipe_for(tmp_path, {}) is None
    with pytest.raises(FileNotFoundError):
        recipe_for(tmp_path / "gone.yaml", {})


@pytest.mark.parametrize(
    "text",
    [
        "", "- mini\n", "k: 3\n", "base: [mini]\n", "base: mini\npoolin: mean\n", "base: mini\nlayer: 2\nlayer: 3\n",
        "base: mini\nabout: {status: ready, status: tune}\n", "base: mini\nrepeats: '2'\n",
        "base: mini\nmethod: nosink\n", "base: mini\nrevision: 3\n", "base: mini\nchunk: 3\nmethod: echo\n",
        "base: mini\nmethod: {name: echo}\n", "base: {", f"base: mini\n# {'a' * 65536}\n",
        "base: mini\nmethod: !!python/object/apply:os.getcwd []\n", "base: mini\nmethod: sink\n",
        "base: mini\nabout: [language]\n", "base: mini\nabout: {notes: No.}\n", "base: mini\nabout: {status: tune}\n",
        # What only the caller may say.
        "base: mini\ntrust_remote_code: true\n",
        "base: mini\ntoken: hf_x\n",
        "base: mini\nmodel_kwargs: {attn_implementation: org/kernel}\n",
        "base: mini\nconfig_kwargs: {trust_remote_code: true}\n",
        "base: mini\ncache_folder: /tmp\n",
    ],
)  # fmt: skip
def test_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(ValueError):
        read_recipe(written(tmp_path, text))


def test_a_base_s_own_code(tmp_path: Path) -> None:
    """It runs where the caller says so."""
    base, marker = tmp_path / "base", tmp_path / "ran"
    shutil.copytree(EMBEDDED["mini"], base)
    (base / "evil.py").write_text(f"open({str(marker)!r}, 'w').close()\n")
    config = json.loads((base / "config.json").read_text())
    config |= {"model_type": "evil", "auto_map": {"AutoConfig": "evil.EvilConfig"}}
    (base / "config.json").write_text(json.dumps(config))
    for trusted in (False, True):
        with pytest.raises((ValueError, OSError, AttributeError)):
            st_reba.build(written(tmp_path, f"base: {base}\n"), trust_remote_code=trusted)
        assert marker.exists() is trusted


LETTERS = "abcdefghi"
BOMBS = {
    "holds an alias": "a: &a [x,x,x,x,x,x,x,x,x]\n"
    + "".join(f"{y}: &{y} [{','.join([f'*{x}'] * 9)}]\n" for x, y in zip(LETTERS, LETTERS[1:], strict=False)),
    "not YAML": "base: mini\nabout: " + "[" * 20_000 + "]" * 20_000 + "\n",
}


@pytest.mark.parametrize("reason", BOMBS)
def test_bombs(tmp_path: Path, reason: str) -> None:
    with pytest.raises(ValueError, match=reason) as error:
        read_recipe(written(tmp_path, BOMBS[reason]))
    assert len(str(error.value)) < 3000
