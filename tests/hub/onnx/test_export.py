"""Exported folders: the traced graph in onnxruntime, and what is written or refused around it."""

from __future__ import annotations

import json
import logging
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from marks import slow_but
from sentence_transformers import SentenceTransformer

import st_reba
from st_reba.cli import main
from st_reba.hub import onnx as exporting
from st_reba.hub.golden import LEAST

pytest.importorskip("onnxruntime")
onnxscript = pytest.importorskip("onnxscript")
onnx = pytest.importorskip("onnx")

# pytest would keep every record of the tracer, which are many.
logging.getLogger("torch.__trace").propagate = False

LONG = "The old mill stands under the bridge, and 河的两行柳树 beside it. " * 12
TEXTS = ["A cat sleeps on the roof.", "银行今天关门了。", "hi", LONG, "x </s> <s> [SEP]"]
# Base, tokenizer, options of the model, options of the export.
CASES: dict[str, tuple[str, str, dict[str, Any], dict[str, Any]]] = {
    # mini itself is exported in test_published.py.
    "llama": ("llama", "bos", {"pooling": "mean", "max_seq_length": 220}, {}),
    "gpt2": ("gpt2", "plain", {"repeats": 3, "max_seq_length": 200}, {"int8": True}),
    "qwen3": (
        "qwen3",
        "bos_eos",
        {
            "method": "echo",
            "template": "echo-instruct",
            "pooling": "mean",
            "stages": [st_reba.NoSink("mask0&bidir", k=2, k0=1)],
        },
        {"task": "query"},
    ),
    "gemma2": (
        "gemma2",
        "cls_sep",
        {"pooling": "mean", "stages": [st_reba.NoSink("inplace-back", k=1)], "normalize": False},
        {"largest": 0},
    ),
}


@dataclass
class Exported:
    model: SentenceTransformer
    folder: Path
    report: dict[str, Any]
    options: dict[str, Any]

    def encode(self, texts: list[str]) -> Any:
        return self.model.encode_query(texts) if "task" in self.options else self.model.encode(texts)

    def json(self, name: str) -> Any:
        return json.loads((self.folder / name).read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def export(base: Callable[..., str], tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Exported]:
    made: dict[str, Exported] = {}

    def get(name: str) -> Exported:
        if name not in made:
            architecture, tokenizer, build, options = CASES[name]
            instruction = {"instruction": "Find it."} if name == "qwen3" else {}
            model = st_reba.build(base(architecture, tokenizer), dtype="float32", device="cpu", **build, **instruction)
            folder = tmp_path_factory.mktemp("onnx") / name
            made[name] = Exported(model, folder, exporting.export_onnx(model, folder, **options), options)
        return made[name]

    return get


@pytest.fixture(params=slow_but(CASES, "gpt2"))
def exported(request: pytest.FixtureRequest, export: Callable[[str], Exported]) -> Exported:
    return export(request.param)


@pytest.fixture
def traced(export: Callable[[str], Exported], monkeypatch: pytest.MonkeyPatch) -> Exported:
    """gpt2's export, whose graph every other one takes over, as tracing takes its time."""

    def copied(model: Any, method: Any, file: Path, **keywords: Any) -> None:
        file.parent.mkdir()
        shutil.copy(export("gpt2").folder / "onnx" / "model.onnx", file)

    case = export("gpt2")
    monkeypatch.setattr(exporting, "export_graph", copied)
    return case


def difference(found: Any, wanted: Any) -> float:
    return float(np.abs(found - wanted).max() / np.abs(wanted).max())


def test_same_vectors(exported: Exported) -> None:
    wanted = exported.encode(TEXTS)
    assert exported.report["difference"] < 1e-5
    runner = exporting.Runner(exported.folder)
    for side in ("right", "left"):
        assert difference(runner.encode(TEXTS, side=side), wanted) < 1e-5  # type: ignore[arg-type]
    alone = np.concatenate([runner.encode([text]) for text in TEXTS])
    assert difference(alone, wanted) < 1e-5
    # The long text was cut, and alike.
    assert len(runner.tokenizer.encode(LONG).ids) == exported.report["max_seq_length"]


def test_without_torch(exported: Exported, tmp_path: Path) -> None:
    script = Path(__file__).with_name("bare.py")
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [sys.executable, str(script), str(exported.folder)],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=environment,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found.pop("loaded") == []
    assert set(found) == {"left", "right", "alone", "backwards"} and max(found.values()) < 1e-5


def test_golden(exported: Exported) -> None:
    texts = exported.json("golden.json")["texts"]
    assert len(texts) >= 19
    vectors = np.array([each["vector"] for each in texts])
    assert difference(vectors, exported.encode([each["text"] for each in texts])) < 1e-6


def test_stock_operators(exported: Exported) -> None:
    assert not [file for file in exported.folder.rglob("*") if file.suffix in (".safetensors", ".bin", ".py")]
    graph = onnx.load(str(exported.folder / "onnx" / "model.onnx"), load_external_data=False)
    assert [(each.domain, each.version) for each in graph.opset_import] == [("", 18)]
    assert {node.domain for node in graph.graph.node} == {""} and not graph.functions
    shapes = {
        each.name: [size.dim_param or size.dim_value for size in each.type.tensor_type.shape.dim]
        for each in (*graph.graph.input, *graph.graph.output)
    }
    dimension = exported.model.get_embedding_dimension()
    assert shapes == {
        "input_ids": ["batch", "length"],
        "attention_mask": ["batch", "length"],
        "last_hidden_state": ["batch", "length", dimension],
    }


def test_loading_without_a_backend_fails(export: Callable[[str], Exported]) -> None:
    with pytest.raises((OSError, TypeError, ValueError)):
        SentenceTransformer(str(export("gpt2").folder), device="cpu")


@pytest.mark.slow
def test_external_weights(export: Callable[[str], Exported]) -> None:
    folder = export("gemma2").folder / "onnx"
    assert {file.name for file in folder.iterdir()} == {"model.onnx", "model.onnx_data"}
    graph = onnx.load(str(folder / "model.onnx"), load_external_data=False)
    outside = [each for each in graph.graph.initializer if each.data_location == onnx.TensorProto.EXTERNAL]
    locations = {entry.value for each in outside for entry in each.external_data if entry.key == "location"}
    assert locations == {"model.onnx_data"}
    inside = [each for each in graph.graph.initializer if each.data_location != onnx.TensorProto.EXTERNAL]
    assert all(len(each.raw_data) < 1024 for each in inside)
    assert not list((export("gpt2").folder / "onnx").glob("*_data"))


def test_int8(export: Callable[[str], Exported]) -> None:
    """Of what was traced, weights that all runtimes can add up; what is measured is tested in test_int8.py."""
    case = export("gpt2")
    measured = case.json("onnx/model_quantized.json")
    assert measured == case.report["int8"] and measured["texts"] == len(case.json("golden.json")["texts"])
    assert LEAST["min"] < measured["alone_against_float32"]["min"] < 1 - 1e-5
    # Of 8 bits, pairs of products overflow on a processor without VNNI: min 0.39, mean 0.78 with mini and NoSink.
    weights = [
        onnx.numpy_helper.to_array(each)
        for each in onnx.load(str(case.folder / "onnx" / "model_quantized.onnx")).graph.initializer
        if each.data_type == onnx.TensorProto.INT8
    ]
    assert len(weights) >= 8 and max(int(abs(each.astype(int)).max()) for each in weights) <= 64
    # Why it is measured: an 8-bit vector depends on its batch.
    assert measured["batched_against_alone"]["min"] < 1 - 1e-6


@pytest.mark.usefixtures("traced")
def test_another_model_is_refused(base: Callable[..., str], tmp_path: Path) -> None:
    """A graph that does not compute what torch does is not handed over."""
    _, _, options, _ = CASES["gpt2"]
    model: Any = st_reba.build(base("gpt2", "plain"), dtype="float32", device="cpu", **options)
    assert exporting.export_onnx(model, tmp_path / "same")["difference"] < 1e-5
    with torch.no_grad():
        model[0].model.h[1].mlp.c_proj.weight.mul_(1.01)
    with pytest.raises(ValueError, match="computes something else"):
        exporting.export_onnx(model, tmp_path / "other")
    assert os.listdir(tmp_path) == ["same"]


def test_no_interface(base: Callable[..., str], tmp_path: Path) -> None:
    model = st_reba.build(base("bloom"), dtype="float32", device="cpu")
    with pytest.raises(ValueError, match="attention interface"):
        exporting.export_onnx(model, tmp_path / "bloom")
    assert not os.listdir(tmp_path)


def test_what_is_there_stays(export: Callable[[str], Exported], tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(FileExistsError, match="not an exported model"):
        exporting.check_out(tmp_path, overwrite=True)
    with pytest.raises(FileExistsError, match="--overwrite"):
        exporting.check_out(export("gpt2").folder)
    exporting.check_out(export("gpt2").folder, overwrite=True)


def test_missing_package(monkeypatch: pytest.MonkeyPatch) -> None:
    from st_reba import optional

    def missing(name: str) -> None:
        raise ModuleNotFoundError(f"No module named {name!r}")

    monkeypatch.setattr(optional, "import_module", missing)
    with pytest.raises(ImportError, match=r"st-reba\[onnx\]"):
        exporting.check_out("anywhere")


def test_command(traced: Exported, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    traced.model.save_pretrained(str(tmp_path / "model"))
    (tmp_path / "texts.txt").write_text("One line.\n\nAnother line.\n", encoding="utf-8")
    arguments = ["onnx", str(tmp_path / "model"), str(tmp_path / "out")]
    assert main([*arguments, "--quantize", "int8", "--texts", str(tmp_path / "texts.txt")]) == 0
    printed = capsys.readouterr().out
    assert "onnx/model.onnx" in printed and "batched against alone: min" in printed
    assert json.loads((tmp_path / "out" / "onnx" / "model_quantized.json").read_text())["texts"] == 2
    assert main(arguments) == 2
    assert "--overwrite" in capsys.readouterr().err
    assert main([*arguments, "--overwrite", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["difference"] < 1e-5 and report["dimension"] == 32
    assert not (tmp_path / "out" / "onnx" / "model_quantized.onnx").exists()
    assert main(["onnx", "mini", str(tmp_path / "mini")]) == 2
    assert "st-reba build mini" in capsys.readouterr().err


def test_the_page_s_code_runs(export: Callable[[str], Exported], tmp_path: Path) -> None:
    """docs/how-to/onnx.md, as it stands, on an exported folder."""
    page = (Path(__file__).parents[3] / "docs" / "how-to" / "onnx.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    (tmp_path / "my_onnx").symlink_to(export("gpt2").folder)
    run = subprocess.run([sys.executable, "-c", block], cwd=tmp_path, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
