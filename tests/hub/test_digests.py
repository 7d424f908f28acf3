"""Digests find a change that no golden text shows, and stay equal for a model that was only saved in another way."""

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

Change = Callable[[Any], Any]


def change_json(file: Path, change: Change) -> None:
    value = json.loads(file.read_text(encoding="utf-8"))
    change(value)
    file.write_text(json.dumps(value), encoding="utf-8")


def change_weights(folder: Path, change: Change) -> None:
    file = folder / "model.safetensors"
    weights = load_file(file)
    change(weights)
    save_file(weights, file, metadata={"format": "pt"})


def damage_of(folder: Path, saved_digests: dict[str, str]) -> list[str]:
    return compare_digests(saved_digests, digests_of(folder), has_same_writers=True).damage


def tokens_of_golden_texts(folder: Path) -> set[int]:
    token_ids: set[int] = set()
    for text_ids in AutoTokenizer.from_pretrained(folder)(list(GOLDEN_TEXTS))["input_ids"]:
        token_ids.update(text_ids)
    return token_ids


@pytest.fixture
def noisy_folder(copied_folder: Path) -> Path:
    """A model with noise in tokens that no golden text uses."""
    used_tokens = tokens_of_golden_texts(copied_folder)

    def add_noise(weights: dict[str, torch.Tensor]) -> None:
        (name,) = [name for name in weights if "embed_tokens" in name]
        embeddings = weights[name]
        unused_tokens = [token for token in range(len(embeddings)) if token not in used_tokens]
        noise = torch.randn(50, embeddings.shape[1])
        embeddings[unused_tokens[-50:]] = noise.to(embeddings.dtype)

    assert verify(copied_folder, device="cpu").ok
    change_weights(copied_folder, add_noise)
    return copied_folder


def test_verify_finds_noise_that_no_golden_text_meets(
    noisy_folder: Path,
) -> None:
    report = verify(noisy_folder, device="cpu")
    assert report.distance <= report.tolerance, "the golden texts see nothing of it"
    assert not report.ok
    assert "embed_tokens.weight" in str(report)


def test_push_refuses_noise_that_no_golden_text_meets(
    noisy_folder: Path,
) -> None:
    with pytest.raises(ValueError, match=r"embed_tokens\.weight.*Save it again"):
        push(noisy_folder, "org/model", dry_run=True)


@pytest.mark.parametrize(
    ("file_name", "change", "message"),
    [
        (
            "tokenizer.json",
            lambda value: value["model"]["merges"].pop(),
            "tokenizer.json: .*merges",
        ),
        (
            "tokenizer.json",
            lambda value: value.update(normalizer={"type": "Lowercase"}),
            "normalizer",
        ),
        (
            "tokenizer_config.json",
            lambda value: value.update(model_max_length=50),
            "model_max_length",
        ),
        (
            "config.json",
            lambda value: value.update(max_position_embeddings=64),
            "max_position_embeddings",
        ),
        (
            "config.json",
            lambda value: value.update(sliding_window=8),
            "sliding_window",
        ),
        (
            "1_Pooling/config.json",
            lambda value: value.update(include_prompt=False),
            "1_Pooling/config.json",
        ),
        (
            "config_sentence_transformers.json",
            lambda value: value["prompts"].clear(),
            "prompts",
        ),
        ("modules.json", lambda value: value.pop(), "modules.json"),
    ],
)
def test_a_changed_setting_is_named(
    copied_folder: Path, file_name: str, change: Change, message: str
) -> None:
    saved_digests = digests_of(copied_folder)
    change_json(copied_folder / file_name, change)
    assert re.search(message, "\n".join(damage_of(copied_folder, saved_digests)))


def test_a_setting_that_said_no_and_is_gone_is_named(copied_folder: Path) -> None:
    """Where nothing is said, a prompt is pooled too."""
    config_file = copied_folder / "1_Pooling" / "config.json"
    change_json(config_file, lambda value: value.update(include_prompt=False))
    saved_digests = digests_of(copied_folder)
    change_json(config_file, lambda value: value.pop("include_prompt"))
    assert "include_prompt" in damage_of(copied_folder, saved_digests)[0]


def test_settings_that_another_version_adds_are_no_damage(
    copied_folder: Path,
) -> None:
    saved_digests = digests_of(copied_folder)
    change_json(
        copied_folder / "config.json",
        lambda value: value.update(a_new_setting=7, a_new_no=False, another=None),
    )
    comparison = compare_digests(saved_digests, digests_of(copied_folder), has_same_writers=False)
    assert comparison.damage == []
    assert "a_new_setting" in comparison.harmless[0]
    assert "another" not in comparison.harmless[0]


def test_a_setting_that_another_version_changes_is_damage(
    copied_folder: Path,
) -> None:
    saved_digests = digests_of(copied_folder)
    change_json(
        copied_folder / "config.json",
        lambda value: value.update(rms_norm_eps=0.5),
    )
    comparison = compare_digests(saved_digests, digests_of(copied_folder), has_same_writers=False)
    assert "rms_norm_eps" in comparison.damage[0]


def test_a_model_that_sentence_transformers_saves_again_is_the_same(
    copied_folder: Path, tmp_path: Path
) -> None:
    saved_digests = digests_of(copied_folder)
    SentenceTransformer(str(copied_folder), device="cpu").save_pretrained(str(tmp_path / "again"))
    assert damage_of(tmp_path / "again", saved_digests) == []


def test_weights_in_shards_and_float32_with_a_head_are_the_same(
    copied_folder: Path,
) -> None:
    """Transformers drops the head."""
    saved_digests = digests_of(copied_folder)
    model = AutoModelForCausalLM.from_pretrained(copied_folder, dtype=torch.float32)
    (copied_folder / "model.safetensors").unlink()
    model.save_pretrained(copied_folder, max_shard_size="2MB")
    assert len(list(copied_folder.glob("model-*.safetensors"))) > 1
    damage = damage_of(copied_folder, saved_digests)
    assert [line for line in damage if not line.startswith("config.json")] == []
    report = verify(copied_folder, device="cpu")
    damage_of_weights = [line for line in report.damage or () if line.startswith("weights")]
    assert not damage_of_weights


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_weights_rounded_to_16_bits_are_the_same(copied_folder: Path, dtype: torch.dtype) -> None:
    def spread_over_32_bits(weights: dict[str, torch.Tensor]) -> None:
        for name, weight in weights.items():
            weights[name] = weight.float() * 1.0001

    def round_to_16_bits(weights: dict[str, torch.Tensor]) -> None:
        for name, weight in weights.items():
            weights[name] = weight.to(dtype)

    def enlarge(weights: dict[str, torch.Tensor]) -> None:
        for name, weight in weights.items():
            weights[name] = weight * 1.1

    change_weights(copied_folder, spread_over_32_bits)
    saved_digests = digests_of(copied_folder, with_rounded_weights=True)
    change_weights(copied_folder, round_to_16_bits)
    comparison = compare_digests(saved_digests, digests_of(copied_folder), has_same_writers=True)
    assert comparison.damage == []
    assert comparison.harmless[0].startswith("weights: ")
    change_weights(copied_folder, enlarge)
    assert damage_of(copied_folder, saved_digests)


def test_float16_rounded_to_bfloat16_is_the_same(copied_folder: Path) -> None:
    def spread_over_16_bits(weights: dict[str, torch.Tensor]) -> None:
        for name, weight in weights.items():
            weights[name] = (weight.float() * 1.01).to(torch.float16)

    def round_to_bfloat16(weights: dict[str, torch.Tensor]) -> None:
        for name, weight in weights.items():
            weights[name] = weight.to(torch.bfloat16)

    change_weights(copied_folder, spread_over_16_bits)
    saved_digests = digests_of(copied_folder, with_rounded_weights=True)
    change_weights(copied_folder, round_to_bfloat16)
    comparison = compare_digests(saved_digests, digests_of(copied_folder), has_same_writers=True)
    assert comparison.damage == []


def test_a_digest_is_of_values_not_of_their_type() -> None:
    torch.manual_seed(0)
    weight = torch.randn(7, 5).to(torch.bfloat16)
    assert tensor_digest(weight) == tensor_digest(weight.float()) == tensor_digest(weight.double())
    fractions = torch.tensor([1 / 3, -0.0, float("inf")])
    assert tensor_digest(fractions) == tensor_digest(fractions.double())


def test_other_values_or_another_shape_have_another_digest() -> None:
    weight = torch.randn(7, 5)
    fractions = torch.tensor([1 / 3, -0.0, float("inf")])
    assert tensor_digest(weight) != tensor_digest(weight.reshape(5, 7))
    assert tensor_digest(fractions) != tensor_digest(fractions.abs())
    # Integers, as quantized weights are stored in.
    assert tensor_digest(torch.tensor([1, 2])) != tensor_digest(torch.tensor([1, 3]))


def test_golden_vectors_without_digests_say_that_they_have_none(
    copied_folder: Path,
) -> None:
    change_json(copied_folder / "golden.json", lambda value: value.pop("digests"))
    report = verify(copied_folder, device="cpu")
    assert report.ok
    assert report.damage is None
    assert "no digests" in str(report)


@pytest.mark.parametrize(
    ("module", "message"),
    [
        ({"path": "/tmp", "type": "a.B"}, "leads out of"),
        ({"path": "../..", "type": "a.B"}, "leads out of"),
        ({"path": 5, "type": "a.B"}, "is not a name of a folder"),
        ({"path": ""}, "a value is missing"),
        (5, "a value is missing"),
    ],
)
def test_modules_that_lead_elsewhere_are_refused(
    copied_folder: Path, module: Any, message: str
) -> None:
    """Also in an exported folder, of which no module is loaded."""
    (copied_folder / "modules.json").write_text(json.dumps([module]), encoding="utf-8")
    with pytest.raises(ValueError, match=message):
        digests_of(copied_folder)


def test_files_that_are_not_the_models_do_not_matter(
    copied_folder: Path,
) -> None:
    saved_digests = digests_of(copied_folder)
    (copied_folder / "notes.json").write_text('{"mine": 1}')
    os.mkdir(copied_folder / "old")
    save_file({"a": torch.ones(2)}, copied_folder / "old" / "model.safetensors")
    assert damage_of(copied_folder, saved_digests) == []
