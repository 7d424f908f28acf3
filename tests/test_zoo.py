"""The model zoo: every model's recipe is well formed and builds; what cannot be built is refused with its reason."""

from __future__ import annotations

import configparser
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import BertConfig, BertModel

import st_reba
from st_reba.recipe import Recipe, recipe_of
from st_reba.zoo import recipe

ROOT = Path(__file__).parents[1]
NAMES = st_reba.zoo()
TEXTS = ["银行今天关门了。", "A cat sleeps on the roof."]


def options_of(found: Recipe, layers: int = 6, positions: int = 1024) -> dict[str, Any]:
    """A recipe's method, for a small base that is here."""
    values = {**found.method, "method": found.method["name"]}
    del values["name"]
    if "max_seq_length" in values:
        values["max_seq_length"] = min(values["max_seq_length"], positions)
    if "setting" in values:
        values["k"] = values.get("k", 4) if values.get("k") == "all" else min(values.get("k", 4), layers - 2)
        if values["setting"] == "mask0&bidir":
            values.setdefault("k0", 2)
    return values


DISTINCT = {json.dumps(options_of(recipe(name)), sort_keys=True): name for name in NAMES}


def test_names() -> None:
    assert sorted(set(NAMES)) == NAMES and len(NAMES) == 105
    assert {"llama2-chinese-reba", "mistral-7b-instruct-echo", "tinyllama-1.1b-nosink", "mini-reba"} <= set(NAMES)
    # A wheel holds its file.
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    assert "zoo.yaml" in setup["options.package_data"]["st_reba"].split()


@pytest.mark.parametrize("name", NAMES)
def test_every_recipe(name: str) -> None:
    found = recipe(name)
    about = found.about
    assert found.name == name and re.fullmatch(r"[a-z0-9]+([.-][a-z0-9]+)*", name)
    # What a name says is what is built.
    assert found.method["name"] in name.split("-")
    assert found.base == "mini" or re.fullmatch(r"[\w.-]+/[\w.-]+", found.base)
    if found.status == "ready":
        # Nothing that a default says already.
        assert set(found.method) == set(st_reba.Method(**found.method).to_dict()) | (
            {"pooling"} if "pooling" in found.method else set()
        )
    assert all(re.fullmatch("[a-z]{2,3}", each) for each in about["language"]) and about["language"]
    assert re.fullmatch(r"[a-z0-9][a-z0-9.+-]*", about["licence"])
    assert re.fullmatch(r"\d+(\.\d+)?[MB]", about["parameters"])
    assert about.get("licence_link", "https://").startswith("https://")
    assert re.fullmatch(r"[A-Z0-9k].*\.", about.get("note", "A."))
    if found.status == "tune":
        assert found.method["name"] == "nosink" and "k0" not in found.method
    # As a file it says the same.
    assert recipe_of(found.to_dict(), "again.yaml", name=name) == found


def test_no_two_are_one() -> None:
    built = [json.dumps({**recipe(name).to_dict(), "about": None}, sort_keys=True) for name in NAMES]
    assert len(set(built)) == len(built)


def test_scores() -> None:
    averages, count = {}, 0
    for name in NAMES:
        about = recipe(name).about
        scores = about.get("scores", [])
        count += len(scores)
        for score in scores:
            assert 0 < score["value"] < (1 if about["paper"] == "reba" else 100) and re.match(
                r"Table \d+$", score["table"]
            )
        if len(scores) == 32:
            # The 31 tasks of C-MTEB, behind the average that the paper prints.
            first, *rest = scores
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
            if scores and scores[0]["task"] == benchmark and len(scores) == len(sizes) + 1:
                first, *rest = scores
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
    vectors = st_reba.build("mini", **json.loads(values)).encode(TEXTS)
    assert vectors.shape == (2, 192) and np.isfinite(vectors).all()


def test_options_beside_a_recipe() -> None:
    for given, k0 in (({}, 2), ({"k0": 1}, 1)):
        wanted = st_reba.build("mini", "nosink", setting="mask0&bidir", k=4, k0=k0, pooling="mean").encode(TEXTS)
        np.testing.assert_array_equal(st_reba.build("zoo:mini-nosink", **given).encode(TEXTS), wanted)


@pytest.mark.parametrize(
    ("name", "architecture"),
    [
        ("llama2-chinese-reba", "llama"),
        ("falcon-chinese-echo", "falcon"),
        ("gpt2-nosink", "gpt2"),
        ("gemma3-270m-reba", "gemma3_text"),
    ],
)
def test_architectures(base: Callable[..., str], name: str, architecture: str) -> None:
    values = {**options_of(recipe(name), positions=64), **({"k": 1} if name.endswith("nosink") else {})}
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
    vector = st_reba.build(tmp_path, **options_of(recipe(name)), device="cpu").encode(TEXTS[0])
    np.testing.assert_allclose(vector, (wanted / wanted.norm()).numpy(), atol=1e-5)


# What cannot be built


@pytest.mark.parametrize("name", [name for name in NAMES if recipe(name).status != "ready"])
def test_status(name: str) -> None:
    with pytest.raises(ValueError) as error:
        st_reba.build(f"zoo:{name}")
    assert recipe(name).about["note"] in str(error.value)


def test_what_unblocks(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, given in (
        ("minicpm4-8b-reba", {"trust_remote_code": False}),
        ("qwen-7b-reba", {"trust_remote_code": True}),
        ("llama3.2-3b-nosink", {"trust_remote_code": True}),
    ):
        with pytest.raises(ValueError):
            st_reba.build(f"zoo:{name}", **given)
    made: list[Any] = []
    monkeypatch.setattr("st_reba.assembly.Assembly", lambda *given, **_: made.append(given))
    for name, given in (("minicpm4-8b-reba", {"trust_remote_code": True}), ("llama3.2-3b-nosink", {"k": 8})):
        with pytest.raises(AttributeError):
            st_reba.build(f"zoo:{name}", **given)
    assert made[0][0] == "openbmb/MiniCPM4-8B" and made[0][2] == {"trust_remote_code": True}
    assert made[1][:2] == ("meta-llama/Llama-3.2-3B", st_reba.Method(**recipe("llama3.2-3b-nosink").method, k=8))


@pytest.mark.parametrize("name", ["mini-rebba", "no/such", "../zoo.yaml", "gone.yaml", ""])
def test_unknown(name: str) -> None:
    with pytest.raises(ValueError) as error:
        st_reba.build(f"zoo:{name}")
    assert name != "mini-rebba" or "mini-reba" in str(error.value)
