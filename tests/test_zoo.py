"""The model zoo: every model's recipe is well formed and builds; what cannot be built is refused with its reason."""

from __future__ import annotations

import configparser
import importlib.util
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from transformers import BertConfig, BertModel

import st_reba
from st_reba import cli, zoo
from st_reba.recipe import Recipe, recipe_of
from st_reba.spec import Spec

ROOT = Path(__file__).parents[1]
NAMES = zoo.names()
TEXTS = ["银行今天关门了。", "A cat sleeps on the roof."]
MINI = ["mini-classical", "mini-echo", "mini-nosink", "mini-reba"]
# Found by a search, and named for what they are good for.
COMPOSED = ["mini-quality", "mini-speed"]


def on_mini(recipe: Recipe) -> dict[str, Any]:
    """A recipe's options, for a base of 6 layers and 1,024 positions that is here."""
    values = dict(recipe.values)
    if "max_seq_length" in values:
        values["max_seq_length"] = min(values["max_seq_length"], 1024)
    if "setting" in values:
        k = values.get("k", 4)
        values["k"] = k if k == "all" else min(k, 4)
        if values["setting"] == "mask0&bidir":
            values.setdefault("k0", 2)
    return values


DISTINCT = {json.dumps(on_mini(zoo.load(name)), sort_keys=True): name for name in NAMES}


# The recipes


def test_names() -> None:
    assert st_reba.zoo() == NAMES == sorted(NAMES) and len(NAMES) == len(set(NAMES)) == 84
    assert {"llama2-chinese-reba", "mistral-7b-instruct-echo", "tinyllama-1.1b-nosink", *MINI, *COMPOSED} <= set(NAMES)
    # A wheel holds all of it.
    package = Path(st_reba.__file__).parent
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    packed = {path for each in setup["options.package_data"]["st_reba"].split() for path in package.glob(each)}
    files = {path for path in (package / "zoo").rglob("*") if path.suffix in (".yaml", ".safetensors")}
    assert len(files) == 5 and files <= packed


@pytest.mark.parametrize("name", NAMES)
def test_every_recipe(name: str) -> None:
    recipe = zoo.load(name)
    about = recipe.about
    assert recipe.name == name and re.fullmatch(r"[a-z0-9]+([.-][a-z0-9]+)*", name)
    # What a name says is what is built.
    assert name in COMPOSED or recipe.values["method"] in name.split("-")
    assert recipe.base == "mini" or re.fullmatch(r"[\w.-]+/[\w.-]+", recipe.base)
    # Nothing that a default says already.
    if about.status == "ready":
        given = {key: value for key, value in recipe.values.items() if key not in ("method", "stages")}
        fields = recipe.spec.method.to_dict()
        assert set(given) - set(fields) <= {"setting", "k", "k0"}
    assert about.language and re.fullmatch(r"[a-z0-9][a-z0-9.+-]*", str(about.licence))
    assert re.fullmatch(r"\d+(\.\d+)?[MB]", str(about.parameters))
    assert about.licence_link is None or about.licence_link.startswith("https://")
    assert about.note is None or re.fullmatch(r"[A-Z0-9k].*\.", about.note)
    assert bool(about.measured) == (name in COMPOSED)
    if about.status == "tune":
        assert recipe.values["method"] == "nosink" and "k0" not in recipe.values
    # As a file it says the same.
    assert recipe_of(recipe.to_dict(), "again.yaml", name=name) == recipe


def test_no_two_are_one() -> None:
    built = [json.dumps({**zoo.load(name).to_dict(), "about": None}, sort_keys=True) for name in NAMES]
    assert len(set(built)) == len(built)


def test_scores() -> None:
    averages, count = {}, 0
    for name in NAMES:
        about = zoo.load(name).about
        count += len(about.scores)
        for score in about.scores:
            assert 0 < score["value"] < (1 if about.paper == "reba" else 100) and re.match(
                r"Table \d+$", score["table"]
            )
        if len(about.scores) == 32:
            # The 31 tasks of C-MTEB, behind the average that the paper prints.
            first, *rest = about.scores
            assert (first["task"], first["metric"]) == ("C-MTEB", "average")
            assert abs(np.mean([score["value"] for score in rest]) - first["value"]) < 1.5e-4
            averages[name] = first["value"]
        # Averages of kinds of tasks, weighted by their numbers.
        for benchmark, sizes, error in [
            ("MTEB", [12, 11, 3, 4, 15, 10, 1], 0.02),
            ("C-MTEB", [6, 2, 4, 8, 7, 4], 2e-4),
            ("Medicine", [1] * 4, 0.1),
            ("Finance", [1] * 3, 0.1),
            ("Law", [1] * 3, 0.1),
        ]:
            if about.scores and about.scores[0]["task"] == benchmark and len(about.scores) == len(sizes) + 1:
                first, *rest = about.scores
                mean = np.average([score["value"] for score in rest], weights=sizes)
                assert abs(mean - first["value"]) < error, (name, mean)
    assert count == 370 and averages == {
        "gpt2-chinese-classical": 0.3499,
        "gpt2-chinese-classical-last": 0.2591,
        "gpt2-chinese-echo": 0.3734,
        "gpt2-chinese-reba": 0.3977,
        "gpt2-chinese-reba-last": 0.3634,
        "llama2-chinese-classical": 0.3951,
        "llama2-chinese-echo": 0.4733,
        "llama2-chinese-reba": 0.4801,
    }


# Building


@pytest.mark.parametrize("values", DISTINCT, ids=DISTINCT.values())
def test_every_set_of_options_builds(values: str) -> None:
    given = json.loads(values)
    vectors = st_reba.build("mini", **given).encode(TEXTS)
    # Two layers side by side, less the directions that the filters take away.
    width = next((width for name, width in {"mini-quality": 382, "mini-speed": 383}.items() if name in values), 192)
    assert vectors.shape == (2, width) and np.isfinite(vectors).all()


def test_options_beside_a_recipe() -> None:
    wanted = st_reba.build("mini", "nosink", setting="mask0&bidir", k=4, k0=2, pooling="mean").encode(TEXTS)
    np.testing.assert_array_equal(st_reba.build("zoo:mini-nosink").encode(TEXTS), wanted)
    other = st_reba.build("mini", "nosink", setting="mask0&bidir", k=4, k0=1, pooling="mean").encode(TEXTS)
    np.testing.assert_array_equal(st_reba.build("zoo:mini-nosink", k0=1).encode(TEXTS), other)
    assert not np.allclose(wanted, other)


@pytest.mark.parametrize(
    ("name", "architecture"),
    [
        ("llama2-chinese-reba", "llama"),
        ("falcon-chinese-echo", "falcon"),
        ("mistral-7b-instruct-prompteol", "mistral"),
        ("phi3.5-mini-instruct-nosink", "phi3"),
        ("olmo-1b-nosink", "olmo"),
        ("gpt2-nosink", "gpt2"),
        ("qwen3-0.6b-reba", "qwen3"),
        ("gemma3-270m-reba", "gemma3_text"),
    ],
)
def test_architectures(base: Callable[..., str], name: str, architecture: str) -> None:
    values = {**zoo.load(name).values, "max_seq_length": 64, **({"k": 1} if name.endswith("nosink") else {})}
    assert np.isfinite(st_reba.build(base(architecture), **values).encode(TEXTS)).all()


@pytest.mark.parametrize("name", ["bert-base-chinese-classical", "bert-base-chinese-classical-cls"])
def test_bert(name: str, tmp_path: Path) -> None:
    """An encoder, pooled as the paper's comparison pools it."""
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *dict.fromkeys(TEXTS[0])]
    (tmp_path / "vocab.txt").write_text("\n".join(words) + "\n", encoding="utf-8")
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "BertTokenizer"}')
    size = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
    torch.manual_seed(1)
    backbone = BertModel(BertConfig(vocab_size=len(words), **size)).eval()
    backbone.save_pretrained(tmp_path)
    ids = torch.tensor([[2, *range(5, len(words)), 3]])
    with torch.inference_mode():
        hidden = backbone(ids).last_hidden_state[0]
    wanted = hidden[0] if name.endswith("cls") else hidden[1:-1].mean(0)
    vector = st_reba.build(tmp_path, **zoo.load(name).values, device="cpu").encode(TEXTS[0])
    np.testing.assert_allclose(vector, (wanted / wanted.norm()).numpy(), atol=1e-5)


# What cannot be built


@pytest.mark.parametrize("name", [name for name in NAMES if zoo.load(name).about.status != "ready"])
def test_status(name: str) -> None:
    with pytest.raises(ValueError, match=re.escape(f"zoo:{name} ")) as error:
        st_reba.build(f"zoo:{name}")
    assert str(zoo.load(name).about.note) in str(error.value)


def test_what_unblocks(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match=r"remote-code.*If you trust 'openbmb/MiniCPM4-8B', give trust_remote_code=Tr"):
        st_reba.build("zoo:minicpm4-8b-reba", trust_remote_code=False)
    with pytest.raises(ValueError, match="cannot be built .old-transformers.: The base's own code was written for"):
        st_reba.build("zoo:qwen-7b-reba", trust_remote_code=True)
    with pytest.raises(
        ValueError, match="to be tuned: .*Run: st-reba compose meta-llama/Llama-3.2-3B FILE OUT --preset"
    ):
        st_reba.build("zoo:llama3.2-3b-nosink", trust_remote_code=True)
    specs: list[Any] = []
    made = "st_reba.assembly.Assembly"
    monkeypatch.setattr(made, lambda base, spec, loading, *_: specs.append((base, spec, loading)))
    for name, given in [("minicpm4-8b-reba", {"trust_remote_code": True}), ("llama3.2-3b-nosink", {"k": 8})]:
        with pytest.raises(AttributeError):
            st_reba.build(f"zoo:{name}", **given)
    values = {**zoo.load("llama3.2-3b-nosink").values, "k": 8}
    assert specs[0][0] == "openbmb/MiniCPM4-8B" and specs[0][2] == {"trust_remote_code": True}
    assert specs[1][:2] == ("meta-llama/Llama-3.2-3B", Spec.of(values))


@pytest.mark.parametrize("name", ["mini-rebba", "no/such", "../recipes/mini-quality", "gone.yaml", ""])
def test_unknown(name: str) -> None:
    with pytest.raises(ValueError, match=re.escape(f"zoo:{name} is not known")) as error:
        st_reba.build(f"zoo:{name}")
    assert "st-reba zoo" in str(error.value) and (name != "mini-rebba" or "'mini-reba'" in str(error.value))


# The commands and the cards


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert cli.main([*arguments]) == 0
    return capsys.readouterr().out


@pytest.mark.slow
def test_list(capsys: pytest.CaptureFixture[str]) -> None:
    lines = run(capsys, "zoo").splitlines()
    assert lines[0].split()[:2] == ["NAME", "BASE"] and [line.split()[0] for line in lines[1:]] == NAMES
    options = ("--language", "zh", "--method", "reba", "--status", "ready", "--json")
    chosen = {each["name"] for each in json.loads(run(capsys, "zoo", *options))}
    wanted = [zoo.load(name) for name in NAMES]
    assert chosen == {
        each.name
        for each in wanted
        if "zh" in each.about.language and each.about.status == "ready" and each.values["method"] == "reba"
    }
    assert {"llama2-chinese-reba", "gpt2-chinese-reba", "mini-reba"} <= chosen
    assert run(capsys, "zoo", "--language", "xx").splitlines()[1:] == []


def test_show(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    shown = json.loads(run(capsys, "zoo", "llama2-chinese-reba", "--json"))
    assert shown["about"]["scores"][0] == {"task": "C-MTEB", "metric": "average", "value": 0.4801, "table": "Table 5"}
    # What is printed is a recipe.
    file = tmp_path / "llama2-chinese-reba.yaml"
    file.write_text(run(capsys, "zoo", "llama2-chinese-reba"), encoding="utf-8")
    assert zoo.load(file) == zoo.load("llama2-chinese-reba")


@pytest.mark.slow
def test_build(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = str(tmp_path / "out")
    assert json.loads(run(capsys, "build", "zoo:mini-nosink", out, "--k0", "1", "--json"))["method"] == "nosink"
    wanted = st_reba.build("zoo:mini-nosink", k0=1).encode(TEXTS)
    np.testing.assert_allclose(SentenceTransformer(out, device="cpu").encode(TEXTS), wanted, atol=1e-6)
    # A recipe that reads the lowest layers: the others are stored only where nobody asks.
    whole, short = str(tmp_path / "whole"), str(tmp_path / "short")
    run(capsys, "build", "zoo:mini-speed", whole)
    run(capsys, "build", "zoo:mini-speed", short, "--truncate-layers")
    sizes = [Path(folder, "model.safetensors").stat().st_size for folder in (whole, short)]
    assert sizes[1] < 0.6 * sizes[0] and "0.5742" in Path(whole, "README.md").read_text(encoding="utf-8")
    vectors = [SentenceTransformer(folder, device="cpu").encode(TEXTS) for folder in (whole, short)]
    np.testing.assert_array_equal(*vectors)
    for name, reason in [("qwen-7b-reba", "old-transformers"), ("gpt2-nosink", "--k"), ("minicpm4-8b-echo", "--trust")]:
        assert cli.main(["build", f"zoo:{name}", str(tmp_path / "no")]) == 2
        assert reason in capsys.readouterr().err and not (tmp_path / "no").exists()


def test_cards_are_current() -> None:
    spec = importlib.util.spec_from_file_location("zoo_cards", ROOT / "scripts" / "zoo_cards.py")
    assert spec is not None and spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    assert script.stale() == {}, "run: python scripts/zoo_cards.py"
