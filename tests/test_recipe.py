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
from st_reba.recipe import read_recipe, save_recipe


def written(folder: Path, text: str) -> Path:
    path = folder / "other.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def test_what_is_given_wins(tmp_path: Path) -> None:
    nosink = "# best of 10\nbase: mini\nmethod: nosink\nsetting: mask0&bidir\nk: 4\nk0: 2\npooling: last\n"
    path = written(tmp_path, nosink + "prompts: {query: 'Q: '}\ntokenizer: mini\n")
    given = {"prompts": {"document": "D: "}, "tokenizer": str(EMBEDDED["mini"])}
    model = st_reba.build(str(path), k0=1, normalize=False, **given)
    assert str(method_of(model)) == "nosink:pooling=last,normalize=false,setting=mask0&bidir,k=4,k0=1"
    assert model.prompts["document"] == "D: " and not model.prompts.get("query")
    # Another method drops the recipe's options.
    assert str(method_of(st_reba.build(path, "echo"))) == "echo"
    assert str(method_of(st_reba.build(path, Method("reba", layer=3)))) == "reba:layer=3"
    assert str(method_of(st_reba.build(path, "nosink", k=3))).endswith("k=3,k0=2")


def test_saved(tmp_path: Path) -> None:
    """What is written is read, from another folder too; a filter's file stays where it is."""
    here = tmp_path / "here"
    (here / "filters").mkdir(parents=True)
    filter = str(here / "filters" / "center.safetensors")
    Filter.fit(np.random.default_rng(0).normal(size=(200, 192)), "center").save(filter)
    method = Method("echo", template=["a {text}", "b {text}"], weights=(1, 0.5), layer=-1, filter=filter)
    facts = {"language": ["zh"], "licence": "mit", "note": "搜索而得。"}
    save_recipe(here / "recipe.yaml", "mini", method, about=facts, prompts={"query": "Q: "}, revision=None)
    lines = (here / "recipe.yaml").read_text(encoding="utf-8").splitlines()
    assert "filter: filters/center.safetensors" in lines and "  note: 搜索而得。" in lines
    found = read_recipe(here / "recipe.yaml")
    assert Method(**found.method) == method and found.about == facts and found.loading == {"prompts": {"query": "Q: "}}
    model = st_reba.build(here.rename(tmp_path / "moved") / "recipe.yaml")
    assert [type(each).__name__ for each in model][-3:] == ["Normalize", "Dense", "Normalize"]
    with pytest.raises(ValueError, match="notes"):
        save_recipe(tmp_path / "recipe.yaml", "mini", method, about={"notes": "No."})
    assert not (tmp_path / "recipe.yaml").exists()


def test_refused(tmp_path: Path) -> None:
    texts = ("", "- mini", "k: 3", "base: [mini]", "base: {", "base: &a mini\ntokenizer: *a")
    others = (
        "poolin: mean", "layer: 2\nlayer: 3", "about: {status: ready, status: tune}", "repeats: '2'", "method: nosink",
        "revision: 3", "chunk: 3\nmethod: echo", "method: {name: echo}", f"# {'a' * 65536}", "about: {status: tune}",
        "method: sink", "method: !!python/object/apply:os.getcwd []", "about: [language]", "about: {notes: No.}",
        f"about: {'[' * 20_000}{']' * 20_000}",
        # What only the caller may say.
        "trust_remote_code: true", "token: hf_x", "model_kwargs: {attn_implementation: org/kernel}",
        "config_kwargs: {trust_remote_code: true}", "cache_folder: /tmp",
    )  # fmt: skip
    for text in (*texts, *(f"base: mini\n{other}" for other in others)):
        with pytest.raises(ValueError) as error:
            read_recipe(written(tmp_path, text))
        assert len(str(error.value)) < 3000


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
