"""The probe tells models apart, and knows where they came from."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from itertools import permutations
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from tiny import tiny_model

import st_reba
from st_reba import probe as probe_module
from st_reba.comparison import PROBE_TEXTS
from st_reba.probe import Probe, encoding_rate, resolve_model, take_probe, version_of

MODEL = tiny_model()


@pytest.fixture
def saved_model(tmp_path: Path) -> Path:
    folder = tmp_path / "models" / "mine"
    st_reba.build("mini", "reba", pooling="mean").save_pretrained(str(folder))
    return folder


def test_a_model_is_the_same_in_another_number_type() -> None:
    stored_probe = take_probe(MODEL)
    half_model = deepcopy(MODEL).to(torch.bfloat16)
    assert (stored_probe.dtype, stored_probe.dimension) == ("float32", 16)
    assert take_probe(half_model).dtype == "bfloat16"
    near_probe = replace(stored_probe, vectors=stored_probe.vectors * 1.006, dtype="float16")
    for same_model in (take_probe(tiny_model()), half_model, near_probe):
        stored_probe.check_same(same_model, "the index")


def test_vectors_alone_are_compared() -> None:
    stored_probe = take_probe(MODEL)
    same_probe = replace(take_probe(tiny_model(1)), vectors=stored_probe.vectors)
    stored_probe.check_same(same_probe, "the index")


def test_other_models_and_other_methods_are_told_apart() -> None:
    stored_probe = take_probe(MODEL)
    near_probe = replace(stored_probe, vectors=stored_probe.vectors * 1.006)
    method_probes: list[Probe] = []
    for name in ("reba", "echo", "classical"):
        method_probes.append(take_probe(st_reba.build("mini", name, pooling="mean")))
    pairs = [(stored_probe, take_probe(tiny_model(1))), (stored_probe, near_probe)]
    for stored, current in (*pairs, *permutations(method_probes, 2)):
        with pytest.raises(ValueError, match="^the corpus was built with .* Load that model, or"):
            stored.check_same(current, "the corpus")
    assert str(method_probes[0]) == "mini (reba:pooling=mean, float32, 192 dimensions)"


def test_a_model_in_another_number_type_is_told_the_type() -> None:
    """The default's vectors differ more between types than other methods' do."""
    stored_probe = replace(take_probe(MODEL), dtype="bfloat16")
    other_probe = replace(take_probe(MODEL), vectors=stored_probe.vectors * 1.1)
    with pytest.raises(ValueError, match="Load that model with dtype='bfloat16', or"):
        stored_probe.check_same(other_probe, "the index")


def test_a_model_that_computed_in_16_bits_does_so_again(tmp_path: Path) -> None:
    st_reba.build("mini", "echo").save_pretrained(str(tmp_path / "model"))
    model = st_reba.load(tmp_path / "model", dtype="bfloat16", device="cpu")
    probe = take_probe(model).seen_from(tmp_path, str(tmp_path / "model"))
    assert probe.load_model(tmp_path, {"device": "cpu", "dtype": None}).dtype == torch.bfloat16
    loaded_model = probe.load_model(tmp_path, {"device": "cpu", "dtype": "float32"})
    assert loaded_model.dtype == torch.float32


def test_a_probe_is_read_as_it_was_written() -> None:
    probe = take_probe(MODEL)
    read_again = Probe.from_json(json.loads(json.dumps(probe.to_json())))
    assert read_again == probe and np.array_equal(read_again.vectors, probe.vectors)


@pytest.mark.parametrize(
    "damage",
    [
        lambda stored: [],
        lambda stored: stored | {"vectors": stored["vectors"] + "!"},
        lambda stored: stored | {"dimension": 15},
        lambda stored: stored | {"more": 1},
    ],
)
def test_a_damaged_probe_is_refused(damage: Callable[[dict[str, Any]], Any]) -> None:
    with pytest.raises(ValueError, match="damaged"):
        Probe.from_json(damage(take_probe(MODEL).to_json()))


def test_the_version_changes_with_weights_and_settings() -> None:
    model = tiny_model()
    first_version = version_of(model)
    assert version_of(model) == first_version
    with torch.no_grad():
        next(model.parameters()).add_(1)
    second_version = version_of(model)
    model.prompts = {"document": "a"}
    assert len({first_version, second_version, version_of(model)}) == 3


def test_a_model_whose_weights_changed_is_measured_again() -> None:
    model = tiny_model()
    first_probe = take_probe(model)
    assert take_probe(model) is first_probe
    with torch.no_grad():
        next(model.parameters()).normal_(generator=torch.Generator().manual_seed(1))
    with pytest.raises(ValueError, match="cannot be used with"):
        first_probe.check_same(take_probe(model), "the index")


def test_the_rate_of_encoding_is_measured_with_the_probe(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_model()
    monkeypatch.setattr(model, "encode_document", lambda *_, **__: np.eye(len(PROBE_TEXTS)))
    clock = iter([5, 7])
    monkeypatch.setattr(probe_module, "time", SimpleNamespace(perf_counter=clock.__next__))
    assert encoding_rate(model) == 4
    assert encoding_rate(model) == 4, "it was measured again"


@pytest.mark.parametrize("value", [np.nan, np.inf, 0])
def test_a_model_without_usable_vectors_is_refused(
    value: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tiny_model()
    vectors = np.eye(len(PROBE_TEXTS))
    vectors[0, 0] = value
    monkeypatch.setattr(model, "encode_document", lambda *_, **__: vectors)
    with pytest.raises(ValueError, match="NaN"):
        take_probe(model)


def test_a_model_that_was_not_saved_has_no_source() -> None:
    assert take_probe(st_reba.build("mini", "reba", pooling="mean")).source is None


def test_a_folder_is_stored_relative_to_the_folder_of_the_probe(
    saved_model: Path, tmp_path: Path
) -> None:
    index_folder = tmp_path / "index"
    model = st_reba.load(saved_model)
    probe = take_probe(model)
    assert (probe.source, probe.name) == (str(saved_model), "mine")
    stored_probe = Probe.from_json(probe.seen_from(index_folder, model).to_json())
    assert stored_probe.source == "../models/mine"
    assert stored_probe.find_source(index_folder) == str(saved_model)
    inner_probe = probe.seen_from(tmp_path, saved_model)
    assert inner_probe.source == "./models/mine"
    assert inner_probe.load_model(tmp_path, {}).get_embedding_dimension() == 192
    shutil.rmtree(saved_model)
    with pytest.raises(ValueError, match="is gone"):
        inner_probe.find_source(tmp_path)


def test_the_name_that_the_caller_gave_is_the_source(tmp_path: Path) -> None:
    stored_probe = take_probe(MODEL).seen_from(tmp_path, "x")
    assert stored_probe.source == "x" and stored_probe.find_source(tmp_path) == "x"
    with pytest.raises(ValueError, match="name its folder or Hub id"):
        take_probe(MODEL).seen_from(tmp_path, MODEL).find_source(tmp_path)


def test_a_model_of_the_hub_is_loaded_at_its_revision(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[tuple[str, dict[str, Any]]] = []
    monkeypatch.setattr(
        probe_module, "load", lambda source, **options: calls.append((source, options))
    )
    stored_probe = replace(take_probe(MODEL), source="me/it", revision="abc")
    stored_probe.load_model(tmp_path, {"device": "cpu"})
    stored_probe.load_model(tmp_path, {"revision": "def"})
    replace(stored_probe, revision=None).load_model(tmp_path, {})
    # What is stored here may have been made from a revision of the Hub.
    replace(stored_probe, source=".").load_model(tmp_path, {})
    assert calls == [
        ("me/it", {"device": "cpu", "revision": "abc"}),
        ("me/it", {"revision": "def"}),
        ("me/it", {}),
        (str(tmp_path), {}),
    ]


def test_what_sentence_transformers_asked_for_is_the_source(saved_model: Path) -> None:
    model = st_reba.load(saved_model)
    model.model_card_data.base_model = "me/it"
    assert take_probe(model).source == "me/it"


def test_a_snapshot_in_the_cache_is_a_revision_of_the_hub(
    saved_model: Path, tmp_path: Path
) -> None:
    snapshot = tmp_path / "models--me--it--2" / "snapshots" / ("a" * 40)
    shutil.copytree(saved_model, snapshot)
    probe = take_probe(resolve_model(snapshot, {"dtype": "bfloat16"}))
    assert (probe.source, probe.name, probe.revision) == ("me/it--2", "it--2", "a" * 40)
    assert probe.dtype == "bfloat16"


def test_options_belong_to_a_model_that_is_named() -> None:
    assert resolve_model(MODEL, {"dtype": None, "trust_remote_code": False}) is MODEL
    with pytest.raises(TypeError, match="loaded already"):
        resolve_model(MODEL, {"dtype": "bfloat16"})
    with pytest.raises(TypeError, match="give a SentenceTransformer"):
        resolve_model(5)  # type: ignore[arg-type]


def test_the_probe_reports_no_cut_text(caplog: pytest.LogCaptureFixture) -> None:
    """Its texts are not the user's, whose own cut is still reported."""
    model = st_reba.build("mini", "prompteol", max_seq_length=40)
    caplog.clear()
    take_probe(model)
    assert caplog.text == ""
    model.encode("long " * 90)
    assert "was cut" in caplog.text
