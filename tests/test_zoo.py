"""The model zoo: every recipe is well formed and builds; what cannot be built is refused with its reason."""

from __future__ import annotations

import configparser
import functools
import inspect
import json
import re
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from marks import slow_but
from sentence_transformers import SentenceTransformer
from transformers import BertConfig, BertModel

import st_reba
from st_reba import cli, zoo
from st_reba.cli import zoo as commands
from st_reba.recipe import About, located

NAMES = zoo.names()
TEXTS = ["银行今天关门了。", "A cat sleeps on the roof."]
MINI = ["mini-classical", "mini-echo", "mini-nosink", "mini-reba"]
# Found by a search, and named for what they are good for.
COMPOSED = ["mini-quality", "mini-speed"]


def on_mini(recipe: zoo.Recipe) -> dict[str, Any]:
    """A recipe's arguments, for a base of 6 layers and 1,024 positions that is here."""
    arguments = located(recipe.arguments, recipe.path)
    arguments.pop("revision", None)
    arguments["base"] = "mini"
    if "tokenizer" in arguments:
        arguments["tokenizer"] = "mini"
    if "max_seq_length" in arguments:
        arguments["max_seq_length"] = min(arguments["max_seq_length"], 1024)
    if "setting" in arguments:
        k = arguments.get("k", 4)
        arguments["k"] = k if k == "all" else min(k, 4)
        if arguments["setting"] == "mask0&bidir":
            arguments["k0"] = arguments.get("k0", 2)
    return arguments


DISTINCT = {json.dumps(on_mini(zoo.load(name)), sort_keys=True): name for name in NAMES}


# The files


def test_names() -> None:
    folder = Path(zoo.__file__).parent / "recipes"
    assert sorted(NAMES) == NAMES == sorted(path.stem for path in folder.glob("*.yaml"))
    assert {"llama2-chinese-reba", "mistral-7b-instruct-echo", "tinyllama-1.1b-nosink", *MINI, *COMPOSED} <= set(NAMES)
    filters = {zoo.load(name).arguments["postfilter"] for name in COMPOSED}
    assert {path.name for path in folder.iterdir() if path.suffix != ".yaml"} == filters
    setup = configparser.ConfigParser()
    setup.read(Path(__file__).parents[1] / "setup.cfg")
    packed = {
        path for each in setup["options.package_data"]["st_reba"].split() for path in folder.parents[1].glob(each)
    }
    assert set(folder.iterdir()) <= packed


@pytest.mark.parametrize("name", NAMES)
def test_every_recipe(name: str) -> None:
    recipe = zoo.load(name)
    arguments, about = recipe.arguments, recipe.about
    assert recipe.name == name == recipe.path.stem
    assert re.fullmatch(r"[a-z0-9]+([.-][a-z0-9]+)*", name)
    # What a name says is what is built.
    assert name in COMPOSED or arguments["method"] in name.split("-")
    # Nothing that belongs to a machine or a person, nothing that a default says already.
    signature = inspect.signature(st_reba.build).parameters
    assert not {"device", "token", "cache_folder", "local_files_only", "dtype", "trust_remote_code"} & set(arguments)
    stated = {"base", "method", "repeats", "pooling", "revision"}
    assert all(value != signature[key].default for key, value in arguments.items() if key not in stated)
    assert ("repeats" in arguments) == (arguments["method"] in ("reba", "echo") and "template" not in arguments)
    if arguments["base"] != "mini":
        assert re.fullmatch(r"[\w.-]+/[\w.-]+", arguments["base"]) and arguments["revision"] is None
    # Facts.
    assert about.language and about.licence and about.parameters
    assert about.note is None or re.fullmatch(r"[A-Z0-9k].*\.", about.note)
    if about.status == "tune":
        assert arguments["method"] == "nosink" and "k0" not in arguments
    # One order of keys, in the text itself.
    text = recipe.path.read_text(encoding="utf-8")
    keys = list(yaml.safe_load(text))
    assert keys == [*sorted(arguments, key=list(signature).index), "about"]
    order = [field.name for field in fields(About)]
    given = list(yaml.safe_load(text)["about"])
    assert given == [key for key in order if key in given] and set(order) - set(given) <= {"licence_link", "measured"}
    assert bool(about.measured) == (name in COMPOSED)
    assert all(line == line.rstrip() for line in text.splitlines()) and text.endswith("\n")


def test_one_base_has_one_set_of_facts() -> None:
    facts: dict[str, set[Any]] = {}
    for name in NAMES:
        recipe = zoo.load(name)
        about = recipe.about
        facts.setdefault(recipe.arguments["base"], set()).add(
            (about.language, about.licence, about.licence_link, about.parameters)
        )
    assert {base: each for base, each in facts.items() if len(each) > 1} == {}
    built = [json.dumps(zoo.load(name).arguments, sort_keys=True) for name in NAMES]
    assert len(set(built)) == len(built)


def test_scores() -> None:
    averages = {}
    for name in NAMES:
        about = zoo.load(name).about
        tasks = [score.task if score.metric != "average" else f"{score.task} average" for score in about.scores]
        assert len(set(zip(tasks, (score.metric for score in about.scores), strict=True))) == len(tasks)
        for score in about.scores:
            assert 0 < score.value < (1 if about.paper == "reba" else 100) and re.match(r"Table \d+$", score.table)
        if len(about.scores) == 32:
            # The 31 tasks of C-MTEB, behind the average that the paper prints.
            first, *rest = about.scores
            assert (first.task, first.metric) == ("C-MTEB", "average")
            assert abs(np.mean([score.value for score in rest]) - first.value) < 1.5e-4
            averages[name] = first.value
        # Averages of kinds of tasks, weighted by their numbers.
        for benchmark, sizes, error in [
            ("MTEB", [12, 11, 3, 4, 15, 10, 1], 0.02),
            ("C-MTEB", [6, 2, 4, 8, 7, 4], 2e-4),
            ("Medicine", [1] * 4, 0.1),
            ("Finance", [1] * 3, 0.1),
            ("Law", [1] * 3, 0.1),
        ]:
            if about.scores and about.scores[0].task == benchmark and len(about.scores) == len(sizes) + 1:
                first, *rest = about.scores
                mean = np.average([score.value for score in rest], weights=sizes)
                assert abs(mean - first.value) < error, (name, mean)
    assert averages == {
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


@pytest.mark.parametrize("arguments", slow_but(DISTINCT, *list(DISTINCT)[:4]), ids=DISTINCT.values())
def test_every_set_of_options_builds(arguments: str) -> None:
    given = json.loads(arguments)
    vectors = st_reba.build(**given).encode(TEXTS)
    assert vectors.shape == (2, 383 if "postfilter" in given else 192) and np.isfinite(vectors).all()


def test_build_takes_the_arguments() -> None:
    wanted = st_reba.build("mini", "nosink", setting="mask0&bidir", k=4, k0=2, pooling="mean").encode(TEXTS)
    np.testing.assert_array_equal(zoo.load("mini-nosink").build().encode(TEXTS), wanted)
    other = st_reba.build("mini", "nosink", setting="mask0&bidir", k=4, k0=1, pooling="mean").encode(TEXTS)
    np.testing.assert_array_equal(zoo.load("mini-nosink").build(k0=1).encode(TEXTS), other)
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
    layers = {"k": 1} if name.endswith("nosink") else {}
    model = zoo.load(name).build(base=base(architecture), max_seq_length=64, trust_remote_code=True, **layers)
    assert np.isfinite(model.encode(TEXTS)).all()


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
    vector = zoo.load(name).build(base=str(tmp_path), device="cpu").encode(TEXTS[0])
    np.testing.assert_allclose(vector, (wanted / wanted.norm()).numpy(), atol=1e-5)


# What cannot be built


@pytest.fixture
def builds(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    calls: list[dict[str, Any]] = []

    @functools.wraps(st_reba.build)
    def record(**arguments: Any) -> None:
        calls.append(arguments)

    monkeypatch.setattr(zoo, "build_model", record)
    return calls


def test_status(builds: list[dict[str, Any]]) -> None:
    for name in NAMES:
        recipe = zoo.load(name)
        if recipe.about.status == "ready":
            recipe.build()
            assert builds.pop() == located(recipe.arguments, recipe.path)
            continue
        with pytest.raises(ValueError, match=re.escape(f"recipe {name!r}")) as error:
            recipe.build()
        assert recipe.about.note and recipe.about.note in str(error.value) and not builds


def test_remote_code(builds: list[dict[str, Any]]) -> None:
    recipe = zoo.load("minicpm4-8b-reba")
    with pytest.raises(ValueError, match=r"remote-code.*If you trust 'openbmb/MiniCPM4-8B', give trust_remote_code=Tr"):
        recipe.build(trust_remote_code=False)
    recipe.build(trust_remote_code=True)
    assert builds == [{**recipe.arguments, "trust_remote_code": True}]
    with pytest.raises(ValueError, match="cannot be built .old-transformers.: The base's own code was written for"):
        zoo.load("qwen-7b-reba").build(trust_remote_code=True)


def test_tune(builds: list[dict[str, Any]]) -> None:
    recipe = zoo.load("llama3.2-3b-nosink")
    for nothing in ({}, {"k": None}, {"trust_remote_code": True}):
        with pytest.raises(ValueError, match="is to be tuned: .*Run: st-reba tune meta-llama/Llama-3.2-3B FILE OUT"):
            recipe.build(**nothing)
    recipe.build(k=8)
    assert builds == [{**recipe.arguments, "k": 8}]


# Loading


def test_load_a_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("base: mini\nmethod: classical\npooling: mean\n")
    recipe = zoo.load(path)
    assert recipe == zoo.Recipe("mine", path, {"base": "mini", "method": "classical", "pooling": "mean"}, About())
    assert zoo.load(str(path)) == recipe
    np.testing.assert_array_equal(recipe.build().encode(TEXTS), zoo.load("mini-classical").build().encode(TEXTS))


@pytest.mark.parametrize("name", ["mini-rebba", "no/such", "../recipes/mini-reba", "gone.yaml", ""])
def test_unknown(name: str) -> None:
    with pytest.raises(ValueError, match=re.escape(f"recipe {name!r} is not known")) as error:
        zoo.load(name)
    assert "st-reba zoo list" in str(error.value)
    if name == "mini-rebba":
        assert "'mini-reba'" in str(error.value)


# The commands


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert cli.main(["zoo", *arguments]) == 0
    return capsys.readouterr().out


@pytest.mark.slow
def test_list(capsys: pytest.CaptureFixture[str]) -> None:
    lines = run(capsys, "list").splitlines()
    assert lines[0].split()[:2] == ["NAME", "BASE"] and [line.split()[0] for line in lines[1:]] == NAMES
    chosen = json.loads(run(capsys, "list", "--language", "zh", "--method", "reba", "--status", "ready", "--json"))
    assert {"llama2-chinese-reba", "gpt2-chinese-reba", "mini-reba"} <= {each["name"] for each in chosen}
    for each in chosen:
        assert "zh" in each["about"]["language"] and each["about"]["status"] == "ready"
        assert each["arguments"]["method"] == "reba"
    left = len(json.loads(run(capsys, "list", "--json"))) - len(chosen)
    assert left == sum(
        not ("zh" in about.language and about.status == "ready" and arguments["method"] == "reba")
        for about, arguments in ((zoo.load(name).about, zoo.load(name).arguments) for name in NAMES)
    )
    assert run(capsys, "list", "--language", "xx").splitlines()[1:] == []
    assert commands.STATUSES == zoo.STATUSES


def test_show(capsys: pytest.CaptureFixture[str]) -> None:
    recipe = zoo.load("llama2-chinese-reba")
    assert run(capsys, "show", "llama2-chinese-reba") == recipe.path.read_text(encoding="utf-8")
    shown = json.loads(run(capsys, "show", "llama2-chinese-reba", "--json"))
    assert shown["arguments"] == recipe.arguments and shown["name"] == recipe.name
    assert shown["about"]["scores"][0] == {"task": "C-MTEB", "metric": "average", "value": 0.4801, "table": "Table 5"}


@pytest.mark.slow
def test_build(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = str(tmp_path / "out")
    assert json.loads(run(capsys, "build", "mini-nosink", out, "--k0", "1", "--json"))["setting"] == "mask0&bidir"
    wanted = zoo.load("mini-nosink").build(k0=1).encode(TEXTS)
    np.testing.assert_allclose(SentenceTransformer(out, device="cpu").encode(TEXTS), wanted, atol=1e-6)
    # A recipe that reads the lowest layers: the others are stored only where nobody asks.
    whole, short = str(tmp_path / "whole"), str(tmp_path / "short")
    run(capsys, "build", "mini-speed", whole)
    run(capsys, "build", "mini-speed", short, "--truncate-layers")
    sizes = [Path(folder, "model.safetensors").stat().st_size for folder in (whole, short)]
    assert sizes[1] < 0.6 * sizes[0]
    vectors = [SentenceTransformer(folder, device="cpu").encode(TEXTS) for folder in (whole, short)]
    np.testing.assert_array_equal(*vectors)
    assert cli.main(["zoo", "build", "mini-reba", out]) == 2
    assert "already there" in capsys.readouterr().err
    assert "nosink" in (tmp_path / "out" / "modules.json").read_text().lower()
    run(capsys, "build", "mini-reba", out, "--overwrite", "--dtype", "bfloat16")
    assert next(SentenceTransformer(out, device="cpu").parameters()).dtype == torch.bfloat16
    for name, reason in [("qwen-7b-reba", "old-transformers"), ("gpt2-nosink", "--k"), ("minicpm4-8b-echo", "--trust")]:
        assert cli.main(["zoo", "build", name, str(tmp_path / name)]) == 2
        assert reason in capsys.readouterr().err and not (tmp_path / name).exists()


def test_help(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in ([], ["list"], ["show"], ["build"]):
        with pytest.raises(SystemExit) as done:
            cli.main(["zoo", *arguments, "--help"])
        assert done.value.code == 0 and "example:\n  st-reba zoo" in capsys.readouterr().out
    with pytest.raises(SystemExit) as done:
        cli.main(["zoo"])
    assert done.value.code == 2
