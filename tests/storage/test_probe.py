"""The probe tells models apart, and knows where they came from."""

from __future__ import annotations

import json
import shutil
from copy import deepcopy
from dataclasses import replace
from itertools import permutations
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from tiny import tiny_model

import st_reba
from st_reba.storage.probe import (
    TEXTS,
    Probe,
    check,
    encoding_rate,
    load,
    located,
    probe,
    remembered,
    version_of,
    worst,
)

MODEL = tiny_model()


def test_models_are_told_apart() -> None:
    """By their vectors alone, in the same dtype and in another."""
    mark, other, half = probe(MODEL), probe(tiny_model(1)), deepcopy(MODEL).to(torch.bfloat16)
    assert (mark.dtype, mark.dimension, probe(half).dtype) == ("float32", 16, "bfloat16")
    near = replace(mark, vectors=mark.vectors * 1.006)
    for same in (probe(tiny_model()), half, replace(near, dtype="float16"), replace(other, vectors=mark.vectors)):
        check(mark, same)
    methods = [probe(st_reba.build("mini", name, pooling="mean")) for name in ("reba", "echo", "classical")]
    for stored, now in ((mark, other), (mark, near), *permutations(methods, 2)):
        with pytest.raises(ValueError, match="^the corpus was built with"):
            check(stored, now, "the corpus")
    assert str(methods[0]) == "mini (reba:pooling=mean, float32, 192 dimensions)"


def test_worst() -> None:
    a = np.array([[1.0, 0], [0, 1]])
    assert worst(a, a) == 0 and worst(a, a * 1.1) == pytest.approx(0.1 * np.sqrt(2))
    bad = np.array([[1.0, np.nan], [0, 1]])
    assert worst(a, a[:1]) == worst(a, bad) == worst(bad, a) == np.inf
    assert worst(a * 0, a * 0) == 0 and worst(a * 0 + 100, a * 0 + 100.1) == pytest.approx(1)


def test_json() -> None:
    stored = probe(MODEL).to_json()
    again = Probe.from_json(json.loads(json.dumps(stored)))
    assert again == probe(MODEL) and np.array_equal(again.vectors, probe(MODEL).vectors)
    changes = ({"vectors": stored["vectors"] + "!"}, {"dimension": 15}, {"more": 1})
    for bad in ([], *({**stored, **change} for change in changes)):
        with pytest.raises(ValueError):
            Probe.from_json(bad)


def test_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_model()
    first, again = version_of(model), version_of(model)
    with torch.no_grad():
        next(model.parameters()).add_(1)
    second = version_of(model)
    model.prompts = {"document": "a"}
    assert first == again and len({first, second, version_of(model)}) == 3
    vectors = np.eye(len(TEXTS))
    monkeypatch.setattr(model, "encode_document", lambda *_, **__: vectors)
    monkeypatch.setattr("st_reba.storage.probe.time", SimpleNamespace(perf_counter=iter([5, 7, 0, 0, 0, 0]).__next__))
    assert encoding_rate(model) == 4
    model.prompts = {}
    for value in (np.nan, 0):
        vectors[0, 0] = value
        with pytest.raises(ValueError, match="NaN"):
            probe(model)


def test_where_a_model_is(tmp_path: Path) -> None:
    mine, folder = tmp_path / "models" / "mine", tmp_path / "index"
    assert probe(built := st_reba.build("mini", "reba", pooling="mean")).source is None
    built.save_pretrained(str(mine))
    mark = probe(model := st_reba.load(mine))
    assert mark.source == str(mine) and mark.name == "mine"
    stored = Probe.from_json(remembered(model, mark, folder))
    assert stored.source == "../models/mine" and located(stored, folder)[0] == mark.source
    stored = Probe.from_json(remembered("x", mark, folder))
    assert (stored.source, located(stored, folder)) == ("x", ("x", {}))
    assert located(replace(mark, source="me/it", revision="abc"), folder) == ("me/it", {"revision": "abc"})
    model.model_card_data.base_model = "me/it"  # as sentence-transformers keeps what it asked for
    model.prompts = {"document": "a"}  # so that the probe is taken again
    assert probe(model).source == "me/it"
    cached = shutil.copytree(mine, tmp_path / "models--me--it--2" / "snapshots" / ("a" * 40))
    mark = probe(load(cached, {"dtype": "bfloat16"}))
    assert (mark.source, mark.revision, mark.name, mark.dtype) == ("me/it--2", "a" * 40, "it--2", "bfloat16")
    assert load(MODEL, {"dtype": None, "trust_remote_code": False}) is MODEL


def test_the_probe_tells_of_no_cut_text(caplog: pytest.LogCaptureFixture) -> None:
    """Its texts are not the user's, whose own cut is still told."""
    model = st_reba.build("mini", "prompteol", max_seq_length=40)
    caplog.clear()
    probe(model)
    assert caplog.text == ""
    model.encode("long " * 90)
    assert "was cut" in caplog.text
