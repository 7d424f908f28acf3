"""Recipes: a file of build's arguments."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import st_reba
from st_reba import cli
from st_reba.recipe import About, Score, read_recipe


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
        ("base: mini\nlayres: 3\n", "recipe.yml': the recipe has 'layres'; build takes \\['base', 'method'"),
        ("base: mini\nk: 2\nk: 3\n", "the key 'k' stands twice"),
        ("base: mini\nabout: {status: ready, status: tune}\n", "the key 'status' stands twice"),
        ("base: mini\nrepeats: '2'\n", "recipe.yml': repeats='2' must be int"),
        ("base: mini\nrepeats: true\n", "repeats=True must be int"),
        ("base: mini\nk: most\n", r"k='most' must be int \| Literal\['all'\] \| None"),
        ("base: mini\ntrust_remote_code: 'no'\n", "trust_remote_code='no' must be bool"),
        ("base: mini\nmax_seq_length: 1_0.5\n", r"max_seq_length=10.5 must be int \| None"),
        ("base: mini\nprompts: [query]\n", r"prompts=\['query'\] must be dict"),
        ("base: {", "is not YAML"),
        ("base: mini\nmethod: sink\n", "method='sink' is not known"),
    ],
)
def test_refusals(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "recipe.yml"
    path.write_text(text)
    with pytest.raises(ValueError, match=message):
        st_reba.build(path)


ABOUT = """\
language: [zh, en]
licence: llama3.2
licence_link: https://example.org/licence
parameters: 0.6B
paper: echo
scores: [{task: STS12, metric: cos_sim_spearman, value: 71, table: Table 2}]
measured: [{task: mine, metric: recall, value: 0.5, table: mine.md}]
status: tune
note: k is to be tuned.
"""


def about(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "recipe.yaml"
    path.write_text("base: mini\nmethod: echo\nabout:\n" + "".join(f"  {line}\n" for line in text.splitlines()))
    return path


def test_facts_are_read_and_change_no_vector(tmp_path: Path) -> None:
    path = about(tmp_path, ABOUT)
    arguments, facts = read_recipe(path, st_reba.build)
    assert arguments == {"base": "mini", "method": "echo"}
    assert facts == About(
        language=("zh", "en"),
        licence="llama3.2",
        licence_link="https://example.org/licence",
        parameters="0.6B",
        paper="echo",
        scores=(Score("STS12", "cos_sim_spearman", 71.0, "Table 2"),),
        measured=(Score("mine", "recall", 0.5, "mine.md"),),
        status="tune",
        note="k is to be tuned.",
    )
    np.testing.assert_array_equal(st_reba.build(path).encode("你好"), st_reba.build("mini", "echo").encode("你好"))


def test_facts_by_default(recipe: Path, tmp_path: Path) -> None:
    assert read_recipe(recipe, st_reba.build)[1] == About()
    assert read_recipe(about(tmp_path, "status: ready"), st_reba.build)[1] == About()


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("language: [zh, en]", "language: zh", r"about, language='zh' must be a list of ISO 639 codes"),
        ("[zh, en]", "[no, en]", r"language=\[False, 'en'\] must be"),
        ("[zh, en]", "[Chinese]", "must be a list of ISO 639"),
        ("llama3.2", "Apache 2.0", "licence='Apache 2.0' must be a licence as the Hub's card metadata spells it"),
        ("https://example.org/licence", "LICENSE", "licence_link='LICENSE' must be an address"),
        ("0.6B", "600", "parameters=600 must be a number of parameters, as 7B"),
        (
            "paper: echo",
            "paper: repetition",
            r"paper='repetition' must be one of \['reba', 'echo', 'nosink'\], or null",
        ),
        ("paper: echo", "paper: null", "about.scores needs about.paper"),
        ("status: tune", "status: done", r"status='done' must be one of \['ready', 'remote-code'"),
        ("note: k is to be tuned.", "note: null", "status='tune' needs about.note"),
        ("note: k is to be tuned.", "note: ''", "note='' must be a sentence"),
        ("note:", "notes:", r"about has the key 'notes'; it may have \['language', 'licence'"),
        ("value: 71", "value: '71'", "about.scores, number 1, value='71' must be a number"),
        ("value: 71", "value: true", "value=True must be a number"),
        ("value: 71", "value: .nan", "value=nan must be a number"),
        (", table: Table 2", "", "about.scores, number 1 has no 'table'; it needs"),
        ("table: Table 2", "tables: Table 2", "about.scores, number 1 has the key 'tables'"),
        ("table: Table 2", "table: 2", "table=2 must be a text"),
        ("measured: [{task: mine, ", "measured: [{", "about.measured, number 1 has no 'task'; it needs"),
        ("value: 0.5", "value: half", "about.measured, number 1, value='half' must be a number"),
    ],
)
def test_facts_that_are_refused(tmp_path: Path, old: str, new: str, message: str) -> None:
    assert old in ABOUT
    path = about(tmp_path, ABOUT.replace(old, new))
    with pytest.raises(ValueError, match=message) as error:
        st_reba.build(path)
    assert str(path) in str(error.value)


@pytest.mark.parametrize("given", ["about: facts\n", "about:\n", "about: []\n"])
def test_facts_are_a_mapping(tmp_path: Path, given: str) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_text("base: mini\n" + given)
    with pytest.raises(ValueError, match="about=.* must be a mapping with keys of"):
        st_reba.build(path)


def test_recipe_of_a_recipe(recipe: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.yaml"
    other.write_text(f"base: {recipe}\n")
    with pytest.raises(ValueError, match="is a recipe itself"):
        st_reba.build(other)
