"""The probe tells models apart, and knows where they came from."""

from __future__ import annotations

import json
import shutil
from copy import deepcopy
from dataclasses import replace
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


def same(stored: Probe, now: Probe) -> bool:
    try:
        check(stored, now, "the corpus")
    except ValueError as error:
        assert str(error).startswith("the corpus was built with")
        return False
    return True


def test_the_same_model_in_another_dtype() -> None:
    mark = probe(MODEL)
    assert same(mark, probe(tiny_model())) and mark.dtype == "float32" and mark.dimension == 16
    half = deepcopy(MODEL).to(torch.bfloat16)
    assert probe(half).dtype == "bfloat16" and same(mark, probe(half))
    check(mark, half)


def test_other_models() -> None:
    mark = probe(MODEL)
    other = probe(tiny_model(1))
    assert not same(mark, other) and same(mark, replace(other, vectors=mark.vectors))
    assert not same(mark, replace(mark, vectors=mark.vectors[:, :8]))
    near = replace(mark, vectors=mark.vectors * 1.006)
    assert not same(mark, near) and same(mark, replace(near, dtype="float16"))
    assert not same(mark, replace(mark, vectors=mark.vectors * np.nan))


def test_methods_of_one_base_differ() -> None:
    models = [st_reba.build("mini", name, pooling="mean") for name in ("reba", "echo", "classical")]
    marks = [probe(model) for model in models]
    for first in marks:
        assert [same(first, second) for second in marks].count(True) == 1
    assert str(marks[0]) == "mini (reba:pooling=mean, float32, 192 dimensions)"


def test_worst() -> None:
    a = np.array([[1.0, 0], [0, 1]])
    assert worst(a, a) == 0 and worst(a, a * 1.1) == pytest.approx(0.1 * np.sqrt(2))
    bad = np.array([[1.0, np.nan], [0, 1]])
    assert worst(a, a[:1]) == worst(a, bad) == worst(bad, a) == np.inf
    assert worst(a * 0, a * 0) == 0 and worst(a * 0 + 100, a * 0 + 100.1) == pytest.approx(1)


def test_json() -> None:
    mark = probe(MODEL)
    again = Probe.from_json(json.loads(json.dumps(mark.to_json())))
    assert again == mark and np.array_equal(again.vectors, mark.vectors)
    for change in ({"vectors": mark.to_json()["vectors"] + "!"}, {"dimension": 15}, {"more": 1}):
        with pytest.raises(ValueError):
            Probe.from_json({**mark.to_json(), **change})
    with pytest.raises(ValueError):
        Probe.from_json([])


def test_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_model()
    first = version_of(model)
    assert version_of(model) == first
    with torch.no_grad():
        next(model.parameters()).add_(1)
    second = version_of(model)
    model.prompts = {"document": "a"}
    assert len({first, second, version_of(model)}) == 3
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
    st_reba.build("mini", "reba", pooling="mean").save_pretrained(str(tmp_path / "models" / "mine"))
    mark = probe(st_reba.load(tmp_path / "models" / "mine"))
    assert mark.source == str(tmp_path / "models" / "mine") and mark.name == "mine"
    assert probe(st_reba.build("mini", "reba", pooling="mean")).source is None
    from_the_hub = st_reba.load(tmp_path / "models" / "mine")
    from_the_hub.model_card_data.base_model = "me/it"  # as sentence-transformers keeps what it asked for
    assert probe(from_the_hub).source == "me/it"
    stored = Probe.from_json(remembered("x", mark, tmp_path / "index"))
    assert (stored.source, located(stored, tmp_path / "index")) == ("x", ("x", {}))
    model = st_reba.load(tmp_path / "models" / "mine")
    stored = Probe.from_json(remembered(model, mark, tmp_path / "index"))
    assert stored.source == "../models/mine" and located(stored, tmp_path / "index")[0] == mark.source
    cached = tmp_path / "models--me--it--2" / "snapshots" / ("a" * 40)
    mark_of_it = probe(st_reba.load(shutil.copytree(mark.source, cached)))
    assert (mark_of_it.source, mark_of_it.revision, mark_of_it.name) == ("me/it--2", "a" * 40, "it--2")
    with pytest.raises(ValueError, match="gone"):
        located(stored, tmp_path / "elsewhere" / "index")
    with pytest.raises(ValueError, match="not known"):
        located(probe(MODEL), tmp_path)
    assert load(mark.source, {"dtype": "bfloat16"}).dtype == torch.bfloat16
    assert load(MODEL, {"dtype": None, "trust_remote_code": False}) is MODEL
    with pytest.raises(TypeError, match="bfloat16"):
        load(MODEL, {"dtype": "bfloat16"})
    assert located(replace(mark, source="me/it", revision="abc"), tmp_path) == ("me/it", {"revision": "abc"})
