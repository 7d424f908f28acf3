"""Digests find a change that no golden text shows, in any file of the model, and in no other."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoTokenizer

from st_reba.comparison import GOLDEN_TEXTS
from st_reba.hub import push, verify
from st_reba.hub.digests import describe_damage, digests_of
from st_reba.safety import Repository

Change = Callable[[Any], Any]


def change_json(file: Path, change: Change) -> None:
    value = json.loads(file.read_text(encoding="utf-8"))
    change(value)
    file.write_text(json.dumps(value), encoding="utf-8")


def damage_of(folder: Path, saved_digests: dict[str, str]) -> list[str]:
    return describe_damage(saved_digests, Repository(str(folder)))


def tokens_of_golden_texts(folder: Path) -> set[int]:
    token_ids: set[int] = set()
    for text_ids in AutoTokenizer.from_pretrained(folder)(list(GOLDEN_TEXTS))["input_ids"]:
        token_ids.update(text_ids)
    return token_ids


@pytest.fixture
def noisy_folder(copied_folder: Path) -> Path:
    """A model with noise in tokens that no golden text uses."""
    assert verify(copied_folder, device="cpu").ok
    weights_file = copied_folder / "model.safetensors"
    weights = load_file(weights_file)
    (name,) = [name for name in weights if "embed_tokens" in name]
    embeddings = weights[name]
    unused_tokens = sorted(set(range(len(embeddings))) - tokens_of_golden_texts(copied_folder))
    noise = torch.randn(50, embeddings.shape[1])
    embeddings[unused_tokens[-50:]] = noise.to(embeddings.dtype)
    save_file(weights, weights_file, metadata={"format": "pt"})
    return copied_folder


def test_verify_finds_noise_that_no_golden_text_meets(
    noisy_folder: Path,
) -> None:
    report = verify(noisy_folder, device="cpu")
    assert report.distance <= report.tolerance, "the golden texts see nothing of it"
    assert not report.ok
    assert "not what was saved: model.safetensors differs" in str(report)


def test_push_refuses_noise_that_no_golden_text_meets(
    noisy_folder: Path,
) -> None:
    with pytest.raises(ValueError, match=r"model\.safetensors differs.*Save it again"):
        push(noisy_folder, "org/model", dry_run=True)


@pytest.mark.parametrize(
    ("file_name", "change"),
    [
        ("tokenizer.json", lambda value: value["model"]["merges"].pop()),
        ("tokenizer_config.json", lambda value: value.update(model_max_length=50)),
        ("config.json", lambda value: value.update(sliding_window=8)),
        ("1_Pooling/config.json", lambda value: value.update(include_prompt=False)),
        ("config_sentence_transformers.json", lambda value: value["prompts"].clear()),
        ("modules.json", lambda value: value.pop()),
    ],
)
def test_a_changed_file_is_named(copied_folder: Path, file_name: str, change: Change) -> None:
    saved_digests = digests_of(copied_folder)
    assert damage_of(copied_folder, saved_digests) == []
    change_json(copied_folder / file_name, change)
    assert damage_of(copied_folder, saved_digests) == [f"{file_name} differs"]


def test_a_missing_file_is_named(copied_folder: Path) -> None:
    saved_digests = digests_of(copied_folder)
    (copied_folder / "1_Pooling" / "config.json").unlink()
    assert damage_of(copied_folder, saved_digests) == ["1_Pooling/config.json is missing"]


def test_line_ends_do_not_matter(copied_folder: Path) -> None:
    """Git may write those of Windows."""
    saved_digests = digests_of(copied_folder)
    config_file = copied_folder / "config.json"
    config_file.write_bytes(config_file.read_bytes().replace(b"\n", b"\r\n"))
    assert damage_of(copied_folder, saved_digests) == []


def test_line_ends_in_weights_matter(tmp_path: Path) -> None:
    weights_file = tmp_path / "model.safetensors"
    weights_file.write_bytes(b"\r\n")
    saved_digests = digests_of(tmp_path)
    weights_file.write_bytes(b"\n")
    assert damage_of(tmp_path, saved_digests) == ["model.safetensors differs"]


def test_the_card_the_code_and_files_of_others_do_not_matter(copied_folder: Path) -> None:
    """The code is compared with the package's."""
    saved_digests = digests_of(copied_folder)
    (copied_folder / "README.md").write_text("# Mine\n", encoding="utf-8")
    (copied_folder / "st_reba.py").unlink()
    (copied_folder / "notes.json").write_text('{"mine": 1}', encoding="utf-8")
    os.mkdir(copied_folder / "old")
    save_file({"a": torch.ones(2)}, copied_folder / "old" / "model.safetensors")
    assert damage_of(copied_folder, saved_digests) == []


def test_golden_vectors_without_digests_say_that_they_have_none(
    copied_folder: Path,
) -> None:
    change_json(copied_folder / "golden.json", lambda value: value.pop("digests"))
    report = verify(copied_folder, device="cpu")
    assert report.ok
    assert report.damage is None
    assert "no digests" in str(report)


@pytest.mark.parametrize("name", ["/etc/hostname", "../config.json", "C:\\config.json"])
def test_names_that_lead_elsewhere_are_refused(copied_folder: Path, name: str) -> None:
    """golden.json may be a stranger's."""
    change_json(copied_folder / "golden.json", lambda value: value.update(digests={name: "0"}))
    with pytest.raises(ValueError, match="leads out of the model's folder"):
        verify(copied_folder, device="cpu")
