"""An exported folder, run as a stranger would, and held against its golden vectors."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from by_hand import vectors_by_hand

from st_reba.cli import main
from st_reba.hub.onnx.runtime import Runner, cosines
from st_reba.hub.verify import verify

pytest.importorskip("onnxruntime")
onnx = pytest.importorskip("onnx")

TEXTS = ["A cat sleeps on the roof.", "hi", "银行今天关门了。", "the old mill under the bridge " * 5]


def test_runner(by_hand: Path) -> None:
    wanted = vectors_by_hand(by_hand, TEXTS)
    runner = Runner(by_hand)
    for side in ("left", "right"):
        np.testing.assert_allclose(runner.encode(TEXTS, side=side), wanted, atol=1e-6)  # type: ignore[arg-type]
    np.testing.assert_allclose(runner.encode_in_batches(TEXTS, 3, "Texts"), wanted, atol=1e-6)
    # Without the module that scales, vectors are not scaled.
    modules = json.loads((by_hand / "modules.json").read_text(encoding="utf-8"))
    (by_hand / "modules.json").write_text(json.dumps(modules[:2]), encoding="utf-8")
    plain = Runner(by_hand).encode(TEXTS)
    lengths = np.linalg.norm(plain, axis=1, keepdims=True)
    assert np.abs(lengths - 1).min() > 0.1
    np.testing.assert_allclose(plain / lengths, wanted, atol=1e-6)


def test_a_tokenizer_without_padding_is_another_folder_s(by_hand: Path) -> None:
    value = json.loads((by_hand / "tokenizer.json").read_text(encoding="utf-8"))
    (by_hand / "tokenizer.json").write_text(json.dumps({**value, "padding": None}), encoding="utf-8")
    with pytest.raises(ValueError, match="tokenizer.json names no padding"):
        Runner(by_hand)


def test_cosines() -> None:
    one, other = np.array([[3.0, 4.0], [1.0, 0.0]]), np.array([[4.0, 3.0], [2.0, 0.0]])
    assert cosines(one, other) == {"min": 0.96, "mean": 0.98}


def test_verify(by_hand: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = verify(by_hand)
    assert report.ok and report.graph == "onnx/model.onnx" and report.code is None and report.changes == {}
    assert len(report.texts) >= 19 and max(each.difference for each in report.texts) < 1e-5
    assert report.tolerance == 1e-4
    assert main(["verify", str(by_hand)]) == 0
    assert "run by onnxruntime: onnx/model.onnx\n" in capsys.readouterr().out
    golden = json.loads((by_hand / "golden.json").read_text(encoding="utf-8"))
    golden["versions"]["onnxruntime"] = "1.0"
    golden["texts"][3]["vector"][0] += 0.01
    (by_hand / "golden.json").write_text(json.dumps(golden), encoding="utf-8")
    assert main(["verify", str(by_hand), "--json"]) == 1
    told = json.loads(capsys.readouterr().out)
    assert [each["ok"] for each in told["texts"]].count(False) == 1 and not told["texts"][3]["ok"]
    assert list(told["changes"]) == ["onnxruntime"] and told["graph"] == "onnx/model.onnx"


def test_verify_says_what_it_cannot(
    by_hand: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for option in (["--device", "cuda"], ["--dtype", "bfloat16"]):
        assert main(["verify", str(by_hand), *option]) == 2
        error = capsys.readouterr().err
        assert "exported graph" in error and option[1] in error
    assert main(["verify", str(by_hand), "--device", "cpu", "--dtype", "float32"]) == 0
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "onnxruntime", None)
        assert main(["verify", str(by_hand)]) == 2
        assert "pip install 'st-reba[onnx]'" in capsys.readouterr().err
    (by_hand / "onnx" / "model.onnx").unlink()
    assert main(["verify", str(by_hand)]) == 2
    assert "holds no onnx/model.onnx" in capsys.readouterr().err
