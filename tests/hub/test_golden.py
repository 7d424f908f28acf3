"""golden.json: a model is known again, on other machines and in other number types."""

from __future__ import annotations

import json
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer

import st_reba
from st_reba.hub.golden import TEXTS, compare, read_golden, tolerance_of, write_golden
from st_reba.hub.saving import save
from st_reba.hub.verify import verify


def test_the_texts() -> None:
    chinese = [text for text in TEXTS if any("\u4e00" <= letter <= "\u9fff" for letter in text)]
    assert len(TEXTS) == len(set(TEXTS)) == 20 and len(chinese) == 10
    everything = "".join(TEXTS)
    assert "\n" in everything and "👍" in everything and "7.2%" in everything and "" in TEXTS


def test_the_file_and_that_it_is_known_again(echo_saved: Path) -> None:
    value = read_golden(echo_saved / "golden.json")
    assert (value["dtype"], value["device"], value["dimension"], value["prompt"]) == ("float32", "cpu", 192, None)
    assert value["versions"]["torch"] == version("torch") and value["versions"]["st-reba"] == st_reba.__version__
    assert tuple(each["text"] for each in value["texts"]) == TEXTS
    # The vectors are those of plain encode, without the default prompt.
    model = SentenceTransformer(str(echo_saved), device="cpu", truncate_dim=8)
    model.default_prompt_name = None
    vectors = np.array([each["vector"] for each in value["texts"]])
    np.testing.assert_allclose(model.encode(list(TEXTS), truncate_dim=192), vectors, atol=1e-6, rtol=0)
    report = verify(echo_saved, device="cpu")
    assert report.ok and report.changes == {} and report.code is None and len(report.texts) == 20
    assert all(each.cosine > 1 - 1e-10 and each.difference < 1e-6 for each in report.texts)
    assert verify(model, echo_saved / "golden.json").ok and model.truncate_dim == 8


def test_the_tolerance_follows_depth_and_number_type(base: Callable[..., str]) -> None:
    shallow, deep = st_reba.build(base("qwen3")), st_reba.build("mini")
    exact = tolerance_of(deep)
    assert exact == pytest.approx(64 * 2**-23 * 6**0.5, rel=0.05)
    assert tolerance_of(shallow) == pytest.approx(exact * (shallow[0].depth / 6) ** 0.5, rel=0.05)
    assert tolerance_of(deep, "float64") == exact < tolerance_of(deep, "float16") < tolerance_of(deep, "bfloat16") < 0.1


def test_half_precision_and_other_versions(base: Callable[..., str], tmp_path: Path) -> None:
    """The coarser of both types counts, then and now; a vector's length counts as much as its direction."""
    model = st_reba.build(base("qwen3"), "echo", pooling="mean", normalize=False, dtype="bfloat16", device="cpu")
    save(model, tmp_path / "model")
    stored = read_golden(tmp_path / "model" / "golden.json")
    assert stored["dtype"] == "bfloat16" and verify(tmp_path / "model", device="cpu").ok
    exact = verify(tmp_path / "model", dtype="float32", device="cpu")
    assert exact.ok and exact.changes == {"dtype": ("bfloat16", "float32")}
    assert exact.tolerance == stored["tolerance"] == tolerance_of(model) and exact.worst.difference > 1e-4
    stored["versions"]["torch"], stored["device"] = "2.4.0", "cuda (A100)"
    told = compare(model, stored)
    assert told.ok and told.changes == {"device": ("cuda (A100)", "cpu"), "torch": ("2.4.0", version("torch"))}
    assert f"changed since: torch 2.4.0 -> {version('torch')}" in str(told)
    for each in stored["texts"]:
        each["vector"] = [1.2 * number for number in each["vector"]]
    longer = compare(model, stored)
    assert all(each.cosine > 1 - 1e-3 and not each.ok for each in longer.texts)


def test_models_with_needs(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A template that wants an instruction, a tokenizer without a token for the empty text, texts that are cut."""
    asked = st_reba.build("mini", "echo", template="{instruction}: {text} / {text}", max_seq_length=24)
    write_golden(asked, tmp_path)
    stored = read_golden(tmp_path / "golden.json")
    assert set(stored["fields"]) == {"instruction"} and compare(asked, stored).ok
    assert "was cut" not in caplog.text
    asked.encode("long " * 100, instruction="A")
    assert "was cut" in caplog.text
    poor = st_reba.build("mini", "echo")
    for name in ("eos", "sep", "bos", "cls", "unk", "pad"):
        setattr(poor.tokenizer, f"{name}_token", None)
    write_golden(poor, tmp_path)
    assert len(read_golden(tmp_path / "golden.json")["texts"]) == 19


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ("[]", "names no format"),
        ('{"format": 2}', "format 2 is newer than 1.*Update st_reba"),
        ('{"format": 1}', "'dimension' is missing"),
        ({"dtype": "int8"}, "'dtype'"),
        ({"dimension": 191}, "'texts'"),
        ({"texts": []}, "'texts'"),
        ({"texts": [{"text": "a", "vector": ["x"] * 192}]}, "'texts'"),
        ({"texts": [{"text": "a", "vector": [float("nan")] * 192}]}, "'texts'"),
        ({"tolerance": 10.0}, "'tolerance'"),
        ({"fields": {"instruction": 1}}, "'fields'"),
        ({"versions": None}, "'versions'"),
        ({"graph": "../model.onnx"}, "'graph'"),
    ],
)
def test_a_malformed_file_is_refused(echo_saved: Path, tmp_path: Path, content: Any, message: str) -> None:
    path = tmp_path / "golden.json"
    if isinstance(content, dict):
        content = json.dumps({**read_golden(echo_saved / "golden.json"), **content})
    path.write_text(content, encoding="utf-8")
    with pytest.raises(ValueError, match=message):
        read_golden(path)
