"""The graph in 8 bits: what it loses is measured, and too much is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from st_reba.cli import main
from st_reba.hub.golden import LEAST, TEXTS
from st_reba.hub.onnx.int8 import quantize
from st_reba.hub.onnx.runtime import Runner
from st_reba.hub.verify import verify

pytest.importorskip("onnxruntime")
onnx = pytest.importorskip("onnx")


def test_what_is_lost_is_measured(by_hand: Path) -> None:
    measured = quantize(by_hand, TEXTS)
    files = {name: by_hand / "onnx" / f"model{name}.onnx" for name in ("", "_quantized")}
    assert measured == json.loads(files["_quantized"].with_suffix(".json").read_text(encoding="utf-8"))
    sizes = {"float32": files[""].stat().st_size, "int8": files["_quantized"].stat().st_size}
    assert measured["bytes"] == sizes and sizes["int8"] < sizes["float32"] / 2 and measured["texts"] == len(TEXTS)
    exact, rounded = Runner(by_hand), Runner(by_hand, "onnx/model_quantized.onnx")
    for name, size in (("alone", 1), ("batched", 16)):
        cosines = []
        for start in range(0, len(TEXTS), size):
            given = rounded.encode(TEXTS[start : start + size]).astype(np.float64)
            for text, one in zip(TEXTS[start : start + size], given, strict=True):
                other = exact.encode([text])[0].astype(np.float64)
                cosines.append(sum(one * other) / np.sqrt(sum(one**2) * sum(other**2)))
        found = measured[f"{name}_against_float32"]
        assert found == {
            "min": pytest.approx(min(cosines), abs=1e-6),
            "mean": pytest.approx(sum(cosines) / len(cosines), abs=1e-6),
        }
        assert LEAST["min"] < found["min"] < 1 - 1e-5


@pytest.mark.parametrize("name", ["min", "mean"])
def test_a_graph_that_loses_too_much_is_refused(by_hand: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    before = sorted(by_hand.rglob("*"))
    monkeypatch.setitem(LEAST, name, 0.99999)
    with pytest.raises(ValueError, match=r"loses too much.*min 0\.99.*0.99999.*without --quantize"):
        quantize(by_hand, TEXTS)
    assert sorted(by_hand.rglob("*")) == before


def test_it_is_verified_too(by_hand: Path, capsys: pytest.CaptureFixture[str]) -> None:
    measured = quantize(by_hand, TEXTS)
    report = verify(by_hand)
    assert report.ok and report.rounded is not None
    assert report.rounded.min == pytest.approx(measured["alone_against_float32"]["min"], abs=1e-5)
    assert "onnx/model_quantized.onnx: ok, cosines min 0.99" in str(report)
    file = by_hand / "onnx" / "model_quantized.onnx"
    graph: Any = onnx.load(str(file))
    for each in graph.graph.initializer:
        if each.data_type == onnx.TensorProto.INT8 and len(each.dims) == 2:
            each.raw_data = bytes(byte if number % 3 else 0 for number, byte in enumerate(each.raw_data))
    onnx.save(graph, str(file))
    assert main(["verify", str(by_hand)]) == 1
    assert "onnx/model_quantized.onnx: FAIL, cosines min" in capsys.readouterr().out
    file.write_bytes(b"no graph")
    assert main(["verify", str(by_hand)]) == 2
    assert "onnxruntime does not read onnx/model_quantized.onnx" in capsys.readouterr().err
