"""Golden vectors: the same when they are computed again, and not by another model."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import st_reba
from st_reba.comparison import GOLDEN_TEXTS, machine_tolerance
from st_reba.hub import golden
from st_reba.hub.golden import compare, read_golden, write_golden


@pytest.fixture(scope="module")
def reba() -> Any:
    return st_reba.build("mini", "reba", pooling="mean", device="cpu")


def test_they_come_out_again_of_no_other_model(reba: Any, tmp_path: Path) -> None:
    write_golden(reba, tmp_path)
    stored = read_golden(tmp_path / golden.FILE)
    assert [each["text"] for each in stored["texts"]] == list(GOLDEN_TEXTS)
    assert '"猫"' in (tmp_path / golden.FILE).read_text(encoding="utf-8")
    report = compare(reba, stored)
    assert report.ok and report.distance < report.tolerance / 10 and not report.changes
    assert report.tolerance == machine_tolerance(reba) == float(f"{64 * 2**-23 * 6**0.5:.2g}")
    assert machine_tolerance(reba, "bfloat16") == float(f"{2.5 * 2**-7 * 6**0.5:.2g}")
    assert not compare(st_reba.build("mini", "reba", pooling="last", device="cpu"), stored).ok
    stored["texts"][3]["vector"] = list(np.array(stored["texts"][3]["vector"]) * 1.01)
    report = compare(reba, stored)
    assert not report.ok and max(report.texts, key=lambda text: report.texts[text]) == stored["texts"][3]["text"]
    assert max(report.texts.values()) == pytest.approx(0.01 / 1.01, abs=1e-5)
    with pytest.raises(ValueError, match="384 dimensions"):
        compare(st_reba.build("mini", layer=[1, 2], join="concat", method="echo", device="cpu"), stored)


def test_a_report_in_words() -> None:
    report = golden.Report(
        distance=2e-3,
        tolerance=1e-3,
        texts={"a": 0.5, "猫": 0.75},
        changes={"torch": ("1", "2")},
    )
    assert str(report).splitlines() == [
        "2 texts: distance 2.0e-03, allowed 1.0e-03",
        'furthest: "猫", by 7.5e-01 of its length',
        "changed since: torch 1 -> 2",
        "weights and tokenizer were not compared: golden.json has no digests of them",
        "FAIL",
    ]
    report = replace(report, distance=0, ran="our code", graph="g", rounded={"ok": True})
    report = replace(report, damage=[], resaved=["r"])
    assert str(report).splitlines()[2:] == [
        "run by our code",
        "run by onnxruntime: g",
        '8 bits: {"ok": true}',
        "changed since: torch 1 -> 2",
        "saved again since, unharmed: r",
        "ok",
    ]


def test_a_report_begins_with_what_is_not_to_be_trusted() -> None:
    report = golden.Report(0, 1, {"a": 0.0}, {}, code="Do not trust it", damage=["weights: x"])
    assert str(report).splitlines()[:3] == [
        "Do not trust it.",
        "not what was saved: weights: x",
        "1 texts: distance 0.0e+00, allowed 1.0e+00",
    ]


def test_templates_with_fields_and_settings_of_the_user(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    options: dict[str, Any] = {"template": "{instruction} {aim}: {text} {text}", "instruction": "Do.", "device": "cpu"}
    model = st_reba.build("mini", "echo", **options, max_seq_length=64, truncate_dim=8)
    write_golden(model, tmp_path)
    assert not caplog.records, "texts are cut without a word"
    stored = read_golden(tmp_path / golden.FILE)
    assert stored["fields"] == {"aim": "Find its meaning."} and len(stored["texts"][0]["vector"]) == 192
    assert model.truncate_dim == 8 and compare(model, stored).ok
    with pytest.raises(ValueError, match="golden vectors"):
        compare(model, {**stored, "fields": {"device": "meta"}})
    for name in ("bos", "eos", "unk", "pad"):  # none is left to stand for an empty text
        setattr(model.tokenizer, f"{name}_token", None)
    write_golden(model, tmp_path)
    assert [each["text"] for each in read_golden(tmp_path / golden.FILE)["texts"]] == list(GOLDEN_TEXTS[1:])


def test_refusals(reba: Any, saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for damage in (
        lambda value: value.pop("made"),
        lambda value: value.update(texts=[]),
        lambda value: value["texts"][0]["vector"].pop(),
        lambda value: value["texts"][0]["vector"].__setitem__(0, float("nan")),
        lambda value: value["made"].update(dtype="os"),
        lambda value: value.update(fields=None),
        lambda value: value.update(tolerance="x"),
        lambda value: value.update(digests={"config.json": 1}),
    ):
        value = json.loads((saved / golden.FILE).read_text(encoding="utf-8"))
        damage(value)
        (tmp_path / golden.FILE).write_text(json.dumps(value), encoding="utf-8")
        with pytest.raises(ValueError):
            read_golden(tmp_path / golden.FILE)
    # Of vectors that are not finite, one number of one text is enough.
    numbers = iter([1.0, torch.nan, *[1.0] * len(GOLDEN_TEXTS)])
    monkeypatch.setattr(type(reba), "encode", lambda *_, **__: torch.tensor([[1.0] * 191 + [next(numbers)]]))
    with pytest.raises(ValueError, match="NaN"):
        write_golden(reba, tmp_path)
