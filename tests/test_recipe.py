"""Recipes: a file of build's options, which is data from elsewhere."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path

import numpy as np
import pytest
from transformers import AutoConfig

import st_reba
from st_reba import cli
from st_reba.bases import EMBEDDED
from st_reba.recipe import About, read_recipe

TEXT = "你好"


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    path = tmp_path / "recipe.yaml"
    path.write_text("# best of 10\nbase: mini\nmethod: nosink\nsetting: mask0&bidir\nk: 4\nk0: 2\npooling: last\n")
    return path


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "other.yaml"
    path.write_text(text, encoding="utf-8")
    return path


# Building


def test_build(recipe: Path, tmp_path: Path) -> None:
    wanted = st_reba.build("mini", "nosink", setting="mask0&bidir", k=4, k0=2, pooling="last").encode(TEXT)
    np.testing.assert_array_equal(st_reba.build(recipe).encode(TEXT), wanted)
    # The same as stages.
    stages = "base: mini\nmethod: classical\nstages:\n  - nosink: {setting: mask0&bidir, k: 4, k0: 2}\n"
    np.testing.assert_array_equal(st_reba.build(written(tmp_path, stages)).encode(TEXT), wanted)


def test_what_is_given_wins(recipe: Path, tmp_path: Path) -> None:
    model = st_reba.build(str(recipe), k0=1, normalize=False)
    assert str(model[0].stack) == "2 forward → 3 bidirectional → 1 nosink-bidirectional"
    assert len(model) == 2
    # Also where it is the default of another call.
    echo = written(tmp_path, "base: mini\nmethod: echo\npooling: mean\nstages: [{read: {layers: 3}}]\n")
    assert str(st_reba.spec_of(st_reba.build(echo, "reba", pooling="last"))) == "reba+read:layers=3"
    assert str(st_reba.spec_of(st_reba.build(echo, st_reba.Echo()))) == "echo+read:layers=3"
    assert str(st_reba.spec_of(st_reba.build(echo, stages=[]))) == "echo:pooling=mean"
    with pytest.raises(ValueError, match="reba: setting"):
        st_reba.build(recipe, "reba")


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
        ("base: mini\npoolin: mean\n", "other.yaml': poolin is not known: .*Did you mean 'pooling'"),
        ("base: mini\nk: 2\nk: 3\n", "the key 'k' stands twice"),
        ("base: mini\nabout: {status: ready, status: tune}\n", "the key 'status' stands twice"),
        ("base: mini\nrepeats: '2'\n", "other.yaml': reba: repeats='2' is not allowed"),
        ("base: mini\nrepeats: true\n", "repeats=True is not allowed"),
        ("base: mini\nrepeats: .nan\n", "repeats=nan is not allowed"),
        ("base: mini\nstages: [{ensemble: {weights: [1, .inf]}}]\n", "weights=.*inf.* is not allowed"),
        ("base: mini\nmethod: nosink\nsetting: mask0-bidir\nk: most\n", "k='most' is not allowed"),
        ("base: mini\nprompts: [query]\n", r"prompts=\['query'\] must be a mapping"),
        ("base: mini\nrevision: 3\n", "revision=3 must be a text"),
        ("base: mini\nchunk: 3\nmethod: echo\n", "echo: chunk"),
        ("base: {", "is not YAML"),
        ("base: mini\nmethod: !!python/object/apply:os.getcwd []\n", "is not YAML"),
        ("base: mini\nmethod: sink\n", "method.*'sink'.* is not known"),
        ("base: other.yaml\n", "is a recipe itself"),
    ],
)
def test_refusals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, message: str) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=message):
        st_reba.build(written(tmp_path, text))


# A recipe reaches no further than the caller's own flags

REACHING = [
    "trust_remote_code: true",
    "token: hf_x",
    "model_kwargs: {attn_implementation: org/kernel}",
    "model_kwargs: {use_safetensors: false}",
    "config_kwargs: {trust_remote_code: true}",
    "processor_kwargs: {trust_remote_code: true}",
    "cache_folder: /tmp",
    "local_files_only: false",
    "backend: onnx",
    "device: cpu",
    "check: false",
]


@pytest.mark.parametrize("line", REACHING)
def test_what_only_the_caller_may_say(tmp_path: Path, line: str) -> None:
    for text in (f"base: mini\n{line}\n", f"base: mini\nstages: [{{read: {{layers: 2, {line}}}}}]\n"):
        with pytest.raises(ValueError, match=f"{line.partition(':')[0]}.* is not known"):
            st_reba.build(written(tmp_path, text))


@pytest.fixture
def hostile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """A base with Python of its own, and the file that this would write."""
    base, marker = tmp_path / "base", tmp_path / "ran"
    monkeypatch.setenv("PLANTED_MARKER", str(marker))
    base.mkdir()
    for file in EMBEDDED["mini"].iterdir():
        if file.is_file():
            (base / file.name).write_bytes(file.read_bytes())
    code = "import os, pathlib\npathlib.Path(os.environ['PLANTED_MARKER']).write_text('ran')\n"
    code += (
        "from transformers import LlamaConfig, LlamaModel\nclass EvilConfig(LlamaConfig):\n    model_type = 'evil'\n"
    )
    code += "class EvilModel(LlamaModel):\n    config_class = EvilConfig\n"
    (base / "evil.py").write_text(code)
    config = json.loads((base / "config.json").read_text())
    config |= {"model_type": "evil", "auto_map": {"AutoConfig": "evil.EvilConfig", "AutoModel": "evil.EvilModel"}}
    (base / "config.json").write_text(json.dumps(config))
    return base, marker


def test_a_base_s_own_code(
    hostile: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    base, marker = hostile
    monkeypatch.setenv("HF_MODULES_CACHE", str(tmp_path / "cache"))
    for text in ("", "trust_remote_code: true\n", "model_kwargs: {trust_remote_code: true}\n"):
        evil = written(tmp_path, f"base: {base}\n{text}")
        assert cli.main(["build", str(evil), str(tmp_path / "out")]) == 2
        assert "--trust-remote-code" in capsys.readouterr().err or text
        assert not marker.exists() and not (tmp_path / "out").exists()
    # It does run where the caller says so: the lines above would see it.
    AutoConfig.from_pretrained(base, trust_remote_code=True)
    assert marker.exists()


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"attn_implementation": "evil/kernel"}, "evil/kernel"),
        ({"num_hidden_layers": 10**6}, "num_hidden_layers=1000000"),
        ({"hidden_size": 192 * 10**5}, "config.json"),
    ],
)
def test_a_base_s_configuration(
    hostile: tuple[Path, Path], tmp_path: Path, changes: dict[str, object], word: str
) -> None:
    """transformers would fetch the kernel and run it, and take the memory."""
    base, _ = hostile
    config = json.loads((EMBEDDED["mini"] / "config.json").read_text())
    (base / "config.json").write_text(json.dumps({**config, **changes}))
    with pytest.raises(ValueError, match=re.escape(word)):
        st_reba.build(written(tmp_path, f"base: {base}\n"))


BOMBS = {
    "aliases": "a: &a [x,x,x,x,x,x,x,x,x]\n"
    + "".join(
        f"{y}: &{y} [{','.join(f'*{x}' for _ in range(9))}]\n" for x, y in zip("abcdefgh", "bcdefghi", strict=True)
    ),
    "nesting": "base: mini\nabout: " + "[" * 100_000 + "]" * 100_000 + "\n",
    "nested mappings": "base: mini\nabout: " + "{a: " * 20_000 + "1" + "}" * 20_000 + "\n",
    "size": "base: mini\nnote: " + "x" * (1 << 21) + "\n",
    "digits": "base: mini\nrepeats: " + "9" * 100_000 + "\n",
    "keys": "base: mini\n" + "".join(f"k{number}: 1\n" for number in range(50_000)),
}


@pytest.mark.parametrize("name", BOMBS)
def test_bombs(tmp_path: Path, name: str) -> None:
    path, began = written(tmp_path, BOMBS[name]), time.monotonic()
    with pytest.raises(ValueError) as error:
        read_recipe(path)
    assert len(str(error.value)) < 3000 and time.monotonic() - began < 2


# Facts

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
    return written(
        tmp_path, "base: mini\nmethod: echo\nabout:\n" + "".join(f"  {line}\n" for line in text.splitlines())
    )


def test_facts_are_read_and_change_no_vector(tmp_path: Path) -> None:
    path = about(tmp_path, ABOUT)
    found = read_recipe(path)
    assert (found.name, found.base, found.values) == ("other", "mini", {"method": "echo"})
    assert found.about == About(
        language=("zh", "en"),
        licence="llama3.2",
        licence_link="https://example.org/licence",
        parameters="0.6B",
        paper="echo",
        scores=({"task": "STS12", "metric": "cos_sim_spearman", "value": 71, "table": "Table 2"},),
        measured=({"task": "mine", "metric": "recall", "value": 0.5, "table": "mine.md"},),
        status="tune",
        note="k is to be tuned.",
    )
    np.testing.assert_array_equal(st_reba.build(path).encode(TEXT), st_reba.build("mini", "echo").encode(TEXT))
    assert read_recipe(about(tmp_path, "status: ready")).about == About()


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("language: [zh, en]", "language: zh", "language='zh' is not allowed"),
        ("[zh, en]", "[Chinese]", "must be an ISO 639 code"),
        ("paper: echo", "paper: repetition", "paper='repetition' is not allowed"),
        ("paper: echo", "paper: null", "scores need paper"),
        ("status: tune", "status: done", "status='done' is not allowed"),
        ("note: k is to be tuned.", "note: null", "status='tune' needs note"),
        ("note:", "notes:", "notes .*Did you mean 'note'"),
        ("value: 71", "value: '71'", "value='71' is not allowed"),
        ("value: 71", "value: .nan", "value=nan is not allowed"),
        (", table: Table 2", "", "table is missing"),
        ("value: 0.5", "value: half", "value='half' is not allowed"),
        (ABOUT, "[]", "must be a mapping"),
    ],
)
def test_facts_that_are_refused(tmp_path: Path, old: str, new: str, message: str) -> None:
    path = about(tmp_path, ABOUT.replace(old, new))
    with pytest.raises(ValueError, match=message) as error:
        st_reba.build(path)
    assert str(path) in str(error.value)
