"""Digests: what changes a model is found though no golden text meets it; saved again in another way, it is the same."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from sentence_transformers import SentenceTransformer
from transformers import AutoModelForCausalLM, AutoTokenizer

from st_reba.comparison import GOLDEN_TEXTS
from st_reba.hub import push, verify
from st_reba.hub.digests import compare_digests, digests_of, tensor_digest


def change_json(file: Path, change: Callable[[Any], Any]) -> None:
    value = json.loads(file.read_text(encoding="utf-8"))
    change(value)
    file.write_text(json.dumps(value), encoding="utf-8")


def change_weights(folder: Path, change: Callable[[dict[str, torch.Tensor]], Any]) -> None:
    file = folder / "model.safetensors"
    weights = load_file(file)
    change(weights)
    save_file(weights, file, metadata={"format": "pt"})


def differing(folder: Path, before: dict[str, str]) -> list[str]:
    return compare_digests(before, digests_of(folder), has_same_writers=True).damage


def test_verify_and_push_find_noise_in_tokens_that_no_golden_text_uses(copied: Path) -> None:
    used = set(AutoTokenizer.from_pretrained(copied)(list(GOLDEN_TEXTS))["input_ids"][0])
    for ids in AutoTokenizer.from_pretrained(copied)(list(GOLDEN_TEXTS))["input_ids"]:
        used |= set(ids)

    def add_noise(weights: dict[str, torch.Tensor]) -> None:
        (name,) = [name for name in weights if "embed_tokens" in name]
        unused = [token for token in range(len(weights[name])) if token not in used]
        weights[name][unused[-50:]] = torch.randn(50, weights[name].shape[1]).to(weights[name].dtype)

    assert verify(copied, device="cpu").ok
    change_weights(copied, add_noise)
    report = verify(copied, device="cpu")
    assert report.distance <= report.tolerance, "the golden texts see nothing of it"
    assert not report.ok and "embed_tokens.weight" in str(report)
    with pytest.raises(ValueError, match=r"embed_tokens\.weight.*Save it again"):
        push(copied, "org/model", dry_run=True)


@pytest.mark.parametrize(
    ("file", "change", "says"),
    [
        ("tokenizer.json", lambda value: value["model"]["merges"].pop(), "tokenizer.json: .*merges"),
        ("tokenizer.json", lambda value: value.update(normalizer={"type": "Lowercase"}), "normalizer"),
        ("tokenizer_config.json", lambda value: value.update(model_max_length=50), "model_max_length"),
        ("config.json", lambda value: value.update(max_position_embeddings=64), "max_position_embeddings"),
        ("config.json", lambda value: value.update(sliding_window=8), "sliding_window"),
        ("1_Pooling/config.json", lambda value: value.update(include_prompt=False), "1_Pooling/config.json"),
        ("config_sentence_transformers.json", lambda value: value["prompts"].clear(), "prompts"),
        ("modules.json", lambda value: value.pop(), "modules.json"),
    ],
)
def test_a_changed_setting_is_named(copied: Path, file: str, change: Callable[[Any], Any], says: str) -> None:
    before = digests_of(copied)
    change_json(copied / file, change)
    assert re.search(says, "\n".join(differing(copied, before)))


def test_settings_that_another_version_adds_are_no_damage(copied: Path) -> None:
    before = digests_of(copied)
    change_json(copied / "config.json", lambda value: value.update(a_new_setting=7, another=None))
    comparison = compare_digests(before, digests_of(copied), has_same_writers=False)
    assert comparison.damage == []
    assert "a_new_setting" in comparison.harmless[0] and "another" not in comparison.harmless[0]
    change_json(copied / "config.json", lambda value: value.update(rms_norm_eps=0.5))
    comparison = compare_digests(before, digests_of(copied), has_same_writers=False)
    assert "rms_norm_eps" in comparison.damage[0]


def test_the_same_model_saved_again_is_the_same(copied: Path, tmp_path: Path) -> None:
    """By sentence-transformers, in shards, in float32, and with a head that transformers drops."""
    before = digests_of(copied)
    SentenceTransformer(str(copied), device="cpu").save_pretrained(str(tmp_path / "again"))
    assert differing(tmp_path / "again", before) == []
    model = AutoModelForCausalLM.from_pretrained(copied, dtype=torch.float32)
    (copied / "model.safetensors").unlink()
    model.save_pretrained(copied, max_shard_size="2MB")
    assert len(list(copied.glob("model-*.safetensors"))) > 1
    shown = [line for line in differing(copied, before) if not line.startswith("config.json")]
    assert shown == []
    report = verify(copied, device="cpu")
    assert report.ok or not [line for line in report.damage or () if line.startswith("weights")]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_weights_rounded_to_16_bits_are_the_same(copied: Path, dtype: torch.dtype) -> None:
    def spread(weights: dict[str, torch.Tensor]) -> None:
        for name, weight in weights.items():
            weights[name] = weight.float() * 1.0001

    def round_all(weights: dict[str, torch.Tensor]) -> None:
        for name, weight in weights.items():
            weights[name] = weight.to(dtype)

    change_weights(copied, spread)
    before = digests_of(copied, with_rounded_weights=True)
    change_weights(copied, round_all)
    comparison = compare_digests(before, digests_of(copied), has_same_writers=True)
    assert comparison.damage == [] and comparison.harmless[0].startswith("weights: ")
    change_weights(copied, lambda weights: weights.update({name: w * 1.1 for name, w in weights.items()}))
    assert differing(copied, before)


def test_a_digest_is_of_values_not_of_their_type() -> None:
    torch.manual_seed(0)
    half = torch.randn(7, 5).to(torch.bfloat16)
    assert tensor_digest(half) == tensor_digest(half.float()) == tensor_digest(half.double())
    assert tensor_digest(half) != tensor_digest(half.reshape(5, 7))
    fractions = torch.tensor([1 / 3, -0.0, float("inf")])
    assert tensor_digest(fractions) == tensor_digest(fractions.double())
    assert tensor_digest(fractions) != tensor_digest(fractions.abs())
    # Integers, as quantized weights are stored in.
    assert tensor_digest(torch.tensor([1, 2])) != tensor_digest(torch.tensor([1, 3]))


def test_golden_vectors_without_digests_say_that_they_have_none(copied: Path) -> None:
    change_json(copied / "golden.json", lambda value: value.pop("digests"))
    report = verify(copied, device="cpu")
    assert report.ok and report.damage is None and "no digests" in str(report)


def test_files_that_are_not_the_models_do_not_matter(copied: Path) -> None:
    before = digests_of(copied)
    (copied / "notes.json").write_text('{"mine": 1}')
    os.mkdir(copied / "old")
    save_file({"a": torch.ones(2)}, copied / "old" / "model.safetensors")
    assert differing(copied, before) == []
