"""NoSinkTransformer and plans in saved models: what is stored, what is loaded, what is refused."""

from __future__ import annotations

import copy
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from oracle import TEXTS
from sentence_transformers import SentenceTransformer

import st_reba
from st_reba import LayerPlan, NoSinkTransformer, RepeatTransformer, cli
from st_reba.build import EMBEDDED

MODULES = Path(st_reba.__file__).parent / "modules"
BUILDS: dict[str, dict[str, Any]] = {
    "setting": {"method": "nosink", "setting": "MASK0&BIDIR", "k": 4, "k0": 2, "m": 2},
    "all": {"method": "nosink", "setting": "mask0-all", "k": "all"},
    "published": {"method": "nosink", "setting": "extra-back", "k": 2, "variant": "published"},
    "plan": {"method": "nosink", "layers": LayerPlan("inter", layers={"backward": [-1], "bidirectional": [0]})},
    "echo": {"method": "echo", "setting": "inplace-back", "k": 1, "pooling": "mean"},
    "reba": {"method": "reba", "layers": {"k": 2, "k0": 1}, "pooling": "mean"},
}


@pytest.mark.parametrize("name", BUILDS)
def test_saved_and_loaded(tmp_path: Path, name: str) -> None:
    """Plain SentenceTransformer gives the same vectors from the folder, and from a copy it saved itself."""
    model = st_reba.build("mini", **BUILDS[name])
    vectors = model.encode(list(TEXTS))
    model.save_pretrained(str(tmp_path / "first"))
    loaded = SentenceTransformer(str(tmp_path / "first"), device="cpu")
    loaded.save_pretrained(str(tmp_path / "second"))
    again = SentenceTransformer(str(tmp_path / "second"), device="cpu")
    for each in (loaded, again):
        np.testing.assert_array_equal(each.encode(list(TEXTS)), vectors)
        assert type(each[0]) is type(model[0]) and each[0].stack == model[0].stack and each[0].layers == model[0].layers
        assert str(each[0].stack) in repr(each)
    # Weights and tokenizer are ST's to write; the configuration is ours.
    for file in ("modules.json", "sentence_bert_config.json"):
        assert (tmp_path / "first" / file).read_bytes() == (tmp_path / "second" / file).read_bytes()


@pytest.mark.slow
def test_vendored(tmp_path: Path) -> None:
    """The modules run from flat copies in the repository, without st_reba installed."""
    classes = {"nosink": "NoSinkTransformer", "repeat": "RepeatTransformer", "pooling": "ReBAPooling"}
    lines = [f"from .{module} import {each}\n" for module, each in classes.items()]
    # Every module by its name: older releases of transformers copy only what this file itself imports.
    lines += [f"from .{file.stem} import __doc__ as _\n" for file in MODULES.glob("[!_]*.py")]
    wanted = {}
    for name in ("setting", "plan", "reba"):
        model = st_reba.build("mini", **BUILDS[name])
        model.save_pretrained(str(tmp_path / name))
        for file in MODULES.glob("*.py"):
            if file.name != "__init__.py":
                shutil.copy(file, tmp_path / name)
        (tmp_path / name / "st_reba.py").write_text("".join(lines), encoding="utf-8")
        wanted[name] = str(model[0].stack), model.encode(list(TEXTS))
    script = (
        "import json, sys\n"
        "sys.modules['st_reba'] = None\n"
        "from sentence_transformers import SentenceTransformer\n"
        f"for name in {list(wanted)!r}:\n"
        "    model = SentenceTransformer(name, trust_remote_code=True, device='cpu')\n"
        f"    print(json.dumps([name, str(model[0].stack), model.encode({list(TEXTS)!r}).tolist()]))\n"
    )
    environment = {**os.environ, "HF_MODULES_CACHE": str(tmp_path / "cache")}
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=tmp_path, env=environment)
    assert done.returncode == 0, done.stderr[-3000:]
    loaded = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("[")]
    assert [name for name, _, _ in loaded] == list(wanted)
    for name, stack, vectors in loaded:
        assert stack == wanted[name][0]
        np.testing.assert_allclose(vectors, wanted[name][1], atol=1e-6, rtol=0)


@pytest.mark.parametrize("change", [{"k": 9}, {"layers": {"layers": {"backward": [-9]}}}])
def test_more_layers_than_the_base(tmp_path: Path, change: dict[str, Any]) -> None:
    """The error names both numbers, at load as when it is built."""
    name = "setting" if "k" in change else "plan"
    st_reba.build("mini", **BUILDS[name]).save_pretrained(str(tmp_path))
    file = tmp_path / "sentence_bert_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **change}))
    with pytest.raises(ValueError, match="9, but the backbone has 6 layers"):
        SentenceTransformer(str(tmp_path), device="cpu")
    with pytest.raises(ValueError, match="k=7, but the backbone has 6 layers"):
        st_reba.build("mini", "nosink", setting="inplace-back", k=7)


def test_info(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = str(tmp_path / "model")
    arguments = ["build", "mini", out, "--method", "nosink", "--setting", "mask0&bidir", "--k", "4", "--k0", "2"]
    assert cli.main(arguments) == 0
    capsys.readouterr()
    assert cli.main(["info", out]) == 0
    assert "layers           2 forward → 2 bidirectional → 2 nosink-bidirectional\n" in capsys.readouterr().out
    plan = '{"architecture": "inter", "layers": {"backward": [-1]}}'
    assert cli.main(["build", "mini", out, "--method", "echo", "--layers", plan, "--overwrite", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["layers"] == "5 forward → 1 forward + backward" and shown["method"] == "echo"


def test_layers_are_set_anew() -> None:
    """One load of the weights serves any number of plans; a named setting is fixed."""
    model = st_reba.build("mini", "nosink", layers=LayerPlan())
    plain = st_reba.build("mini", "classical", pooling="mean").encode(list(TEXTS))
    for plan in (LayerPlan(k=3), LayerPlan("extend", k=2), LayerPlan("extra", "backward", 1), None, {"k": 3}):
        model[0].layers = plan
        if plan is None:
            np.testing.assert_allclose(model.encode(list(TEXTS)), plain, atol=1e-6, rtol=0)
        else:
            wanted = st_reba.build("mini", "nosink", layers=plan).encode(list(TEXTS))
            np.testing.assert_array_equal(model.encode(list(TEXTS)), wanted)
    with pytest.raises(ValueError, match="k=7, but the backbone has 6 layers"):
        model[0].layers = LayerPlan(k=7)
    assert model[0].layers == LayerPlan(k=3)
    named = st_reba.build("mini", "nosink", setting="inplace-bidir", k=3)
    with pytest.raises(ValueError, match="follow from its setting='inplace-bidir'"):
        named[0].layers = LayerPlan()


def test_settings_are_read_only() -> None:
    model = st_reba.build("mini", "nosink", setting="mask0-bidir", k=2)
    for name in ("setting", "k", "k0", "m", "plan_variant"):
        with pytest.raises(AttributeError):
            setattr(model[0], name, 1)


def test_a_plan_that_was_switched_off() -> None:
    """Whoever changes the attention implementation afterwards gets an error, not another model's vectors."""
    for plan in (LayerPlan(k=2), LayerPlan("inter", k=2)):
        model = st_reba.build("mini", "nosink", layers=plan)
        wanted = model.encode(list(TEXTS))
        model[0].model = copy.deepcopy(model[0].model)
        np.testing.assert_array_equal(model.encode(list(TEXTS)), wanted)
        model[0].model.set_attn_implementation("sdpa")
        with pytest.raises(ValueError, match="LlamaModel did not run it: its attention implementation is 'sdpa'"):
            model.encode("天")
        model[0].layers = plan
        np.testing.assert_array_equal(model.encode(list(TEXTS)), wanted)


@pytest.mark.parametrize("setting", ["mask0-bidir", "inter-back"])
def test_gradient_checkpointing(setting: str) -> None:
    """Layers that run again for their gradient see what they saw; layers that run twice anyway cannot be run again."""
    model = st_reba.build("mini", "nosink", setting=setting, k=2)
    features = model[0].preprocess(["天气"])
    weight = model[0].model.layers[0].self_attn.q_proj.weight
    model(features)["sentence_embedding"].sum().backward()
    wanted, weight.grad = weight.grad.clone(), None
    enable = getattr(model[0].model, "activation_checkpointing_enable", model[0].model.gradient_checkpointing_enable)
    enable()
    model.train()
    if setting == "inter-back":
        with pytest.raises(ValueError, match="layers that run twice.*gradient_checkpointing_disable"):
            model(features)
        return
    model(features)["sentence_embedding"].sum().backward()
    assert wanted.abs().max() > 0
    np.testing.assert_allclose(weight.grad, wanted, atol=1e-6 * float(wanted.abs().max()), rtol=0)


def test_modules_by_hand() -> None:
    path = str(EMBEDDED["mini"])
    assert (
        NoSinkTransformer(path, "mask0&bidir", k=2, k0=1).stack
        == RepeatTransformer(path, layers={"k": 2, "k0": 1}).stack
    )
    assert NoSinkTransformer(path, "baseline").repeats == 1
    assert NoSinkTransformer(path, "baseline", template="{text} {text}").repeats == 2
    with pytest.raises(ValueError, match="NoSinkTransformer takes a setting"):
        NoSinkTransformer(path, "baseline", layers=LayerPlan())
    with pytest.raises(ValueError, match="layers=3 must be a LayerPlan"):
        RepeatTransformer(path, layers=3)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"method": "nosink"}, "needs setting=.*mask0&bidir.*layers="),
        ({"method": "nosink", "setting": "mask0-bidir"}, "needs k, the number of converted layers"),
        ({"method": "nosink", "setting": "x", "k": 1}, "setting='x' is not known"),
        ({"method": "nosink", "setting": "mask0-bidir", "k": 1, "layers": {}}, "exclude each other"),
        ({"method": "nosink", "layers": {}, "k": 1}, "k=1 belongs to setting"),
        ({"method": "reba", "k0": 1}, "k0=1 belongs to setting"),
        ({"method": "echo", "m": 2}, "m=2 belongs to setting"),
        ({"method": "nosink", "setting": "mask0-bidir", "k": 1, "repeats": 3}, "method='nosink' runs the text once"),
        ({"method": "nosink", "setting": "mask0-bidir", "k": 1, "template": "{text} {text}"}, "runs the text once"),
        ({"method": "nosink", "setting": "mask0-bidir", "k": 1, "include_special": True}, "belongs to method='reba'"),
        ({"method": "nosink", "layers": {"k": 1}, "variant": "published"}, "variant='published' belongs to"),
        ({"method": "nosink", "layers": {"depth": 1}}, "a plan has no 'depth'"),
    ],
)
def test_refusals(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        st_reba.build("mini", **options)
