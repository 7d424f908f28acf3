"""Exported folders: the traced graph in onnxruntime, and the files around it."""

from __future__ import annotations

import json
import logging
import os
import shutil
import sys
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from marks import Base, slow_but
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Dense
from tokenizers import Tokenizer
from transformers import AutoConfig, AutoTokenizer

import st_reba
import st_reba.onnx
from st_reba.hub import verify
from st_reba.hub.golden import TEXTS as TWENTY
from st_reba.hub.graph import LEAST, Runner, cosines, verify_graph
from st_reba.onnx import tracing
from st_reba.onnx.folder import write_folder, write_tokenizer
from st_reba.onnx.graph import EmbeddingGraph
from st_reba.storage.probe import worst

pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")
onnx = pytest.importorskip("onnx")

# pytest would keep every record of the tracer, which are many.
logging.getLogger("torch.__trace").propagate = False

LONG = "The old mill stands under the bridge, and 河的两行柳树 beside it. " * 12
TEXTS = ["A cat sleeps on the roof.", "银行今天关门了。", "hi", LONG, "x </s> <s> [SEP]"]


def build(base: str, method: str, **options: Any) -> Any:
    return st_reba.build(base, method, dtype="float32", device="cpu", **options)


def read(file: Path) -> Any:
    return json.loads(file.read_text(encoding="utf-8"))


@pytest.fixture(scope="module", params=slow_but(["echo", "reba"], "echo"))
def exported(request: Any, base: Base, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Three copies, one layer (tracing takes its time), with a dense layer behind the pooling."""
    model = build(base("gpt2"), request.param, pooling="mean", repeats=3, layer=1, max_seq_length=200)
    torch.manual_seed(0)
    model = SentenceTransformer(modules=[model[0], model[1], Dense(32, 16), model[2]], device="cpu")
    folder = tmp_path_factory.mktemp("onnx") / "a" / "new" / "folder"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tracing, "MAX_BYTES", 0)  # weights stand beside the graph, as those of a large model
        report = st_reba.onnx.export(model, folder, quantize="int8")
    return model, folder, report


def test_vectors(exported: Any) -> None:
    model, folder, report = exported
    wanted, runner = model.encode(TEXTS), Runner(folder)
    assert report["distance"] < 1e-5 and report["dimension"] == 16
    found = [runner.encode(TEXTS), runner.encode(TEXTS, 5), runner.encode(TEXTS, 5, "left")]
    assert max(worst(wanted, each) for each in found) < 1e-5 and runner.tokenizer.padding["direction"] == "left"
    assert len(runner.tokenizer.encode(LONG).ids) == report["max_seq_length"]


def test_stock_operators_and_files(exported: Any) -> None:
    model, folder, report = exported
    graph = onnx.load(str(folder / "onnx" / "model.onnx"), load_external_data=False)
    assert [(each.domain, each.version) for each in graph.opset_import] == [("", 18)] and not graph.functions
    for each in (*graph.graph.input, *graph.graph.output):
        shape = [size.dim_param or size.dim_value for size in each.type.tensor_type.shape.dim]
        assert shape == ["batch", "length", *([16] if each.name == "last_hidden_state" else [])]
    outside = [each for each in graph.graph.initializer if each.data_location == onnx.TensorProto.EXTERNAL]
    places = {entry.value for each in outside for entry in each.external_data if entry.key == "location"}
    assert places == {"model.onnx_data"}
    names = [f"model{kind}.onnx{end}" for kind in ("", "_quantized") for end in ("", "_data")]
    assert {each.name for each in (folder / "onnx").iterdir()} == {*names, "model_quantized.json"}
    assert not [file for file in folder.rglob("*") if file.suffix in (".safetensors", ".bin", ".py")]
    # What a model with Echo has in its small files, apart from versions.
    for name, wanted in read(Path(__file__).with_name("files.json")).items():
        found = read(folder / name)
        assert found == (wanted if isinstance(found, list) else {**found, **wanted}), name
    config: Any = AutoConfig.from_pretrained(str(folder))
    assert config.vocab_size == 512 and "_name_or_path" not in read(folder / "config.json")
    card = (folder / "README.md").read_text(encoding="utf-8")
    assert f"{report['int8']['alone']['min']}" in card and "{{" not in card and "puts around every" not in card
    with pytest.raises((OSError, TypeError, ValueError)):
        SentenceTransformer(str(folder), device="cpu")


def test_tokenizer(exported: Any) -> None:
    """A text that spells a special token is ordinary text, in every reader."""
    model, folder, report = exported
    again, raw = AutoTokenizer.from_pretrained(str(folder)), Tokenizer.from_file(str(folder / "tokenizer.json"))
    raw.no_padding()
    for text, ids in zip(TEXTS, model[0].content(TEXTS)["input_ids"], strict=True):
        wanted = [model.tokenizer.bos_token_id, *ids][: report["max_seq_length"]]
        assert raw.encode(text).ids == wanted == list(again(text, truncation=True)["input_ids"])
    assert not any(each["special"] for each in read(folder / "tokenizer.json")["added_tokens"])
    assert again.model_max_length == report["max_seq_length"]


def test_int8(exported: Any) -> None:
    _, folder, report = exported
    assert read(folder / "onnx" / "model_quantized.json") == report["int8"]
    rounded, wanted = Runner(folder, "onnx/model_quantized.onnx"), Runner(folder).encode(TWENTY)
    assert report["int8"]["alone"] == cosines(rounded.encode(TWENTY), wanted)
    assert report["int8"]["alone"]["min"] < 1 - 1e-5 and report["int8"]["batch_size"] == 16
    assert logging.root.manager.disable == logging.NOTSET, "what was silenced speaks again"
    graph = onnx.load(str(folder / "onnx" / "model_quantized.onnx"))
    weights, types = graph.graph.initializer, onnx.TensorProto
    eight = [each for each in weights if each.data_type == types.INT8]
    # Of 8 bits, pairs of products overflow on a processor without VNNI.
    assert eight and max(int(abs(onnx.numpy_helper.to_array(each).astype(int)).max()) for each in eight) <= 64
    assert any(each.name.endswith("_scale") and each.dims for each in weights), "one for each channel"
    assert len([node for node in graph.graph.node if node.op_type == "MatMulInteger"]) == len(eight) // 2
    behind = {each.data_type for each in weights if each.name.startswith("filter_modules.")}
    assert behind == {types.FLOAT}, "the filter stays in float32"
    found = cosines(np.array([[1, 0], [2, 0]]), np.array([[3, 0], [1, 1]]))
    assert found == {"min": 0.707107, "mean": 0.853553, "ok": False}


def test_verify(exported: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = exported[1]
    report = verify(folder)
    assert report.ok and report.graph == "onnx/model.onnx" and report.rounded is not None and report.changes == {}
    monkeypatch.setitem(LEAST, "min", 0.999999)
    assert not verify(folder).ok
    monkeypatch.setitem(LEAST, "min", 0.98)
    golden = read(folder / "golden.json")
    assert [each["text"] for each in golden["texts"]] == list(TWENTY)
    golden["texts"][3]["vector"][0] += 0.01
    assert not verify_graph(str(folder), golden, hub={}).ok
    with pytest.raises(ValueError):
        verify(folder, device="cuda")
    fetched = Mock(return_value=str(folder))
    monkeypatch.setattr("huggingface_hub.snapshot_download", fetched)
    assert verify_graph("org/x", golden, hub={"cache_folder": "c", "revision": "r"}).rounded
    assert fetched.call_args.kwargs.items() >= {"cache_dir": "c", "revision": "r"}.items()


@pytest.mark.parametrize("exported", ["echo"], indirect=True)
def test_a_bad_graph_is_not_written(exported: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is off, or rounded too far; traced once, as tracing takes its time."""
    model, folder, _ = exported
    others = shutil.ignore_patterns("*quantized*")
    traced = Mock(side_effect=lambda graph, file: shutil.copytree(folder / "onnx", file.parent, ignore=others))
    monkeypatch.setattr(st_reba.onnx, "export_graph", traced)
    st_reba.onnx.export(model, tmp_path / "same")
    with pytest.raises(FileExistsError):
        st_reba.onnx.export(model, tmp_path / "same")
    st_reba.onnx.export(model, tmp_path / "same", overwrite=True)
    right = Runner.encode
    for way in range(3):  # alone, in a batch, padded on the left: the worst decides, not their mean
        with monkeypatch.context() as patch:
            off = 2e-4 * np.eye(3)[way]
            patch.setattr(Runner, "encode", lambda *given, off=off: right(*given) * (1 + off[len(given) - 2]))
            with pytest.raises(ValueError, match="is off by"):
                st_reba.onnx.export(model, tmp_path / "padded")
    monkeypatch.setitem(LEAST, "mean", 0.9999999)
    with pytest.raises(ValueError, match="loses too much"):
        st_reba.onnx.export(model, tmp_path / "rounded", quantize="int8")
    assert os.listdir(tmp_path) == ["same"]


def test_what_no_graph_holds(base: Base, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    of = (("mini", "reba"), ("bloom", "echo"), ("bloom", "reba"))
    graph, bloom, own = (EmbeddingGraph(build(base(name), method)) for name, method in of)
    slow: Any = SimpleNamespace(transformer=SimpleNamespace(text_tokenizer=SimpleNamespace(is_fast=False)))

    def fail(*_: Any, **__: Any) -> None:
        warnings.warn("of the exporter", stacklevel=1)
        raise RuntimeError from IndexError(f"{logging.root.manager.disable}, all warnings but errors are silenced")

    monkeypatch.setattr(torch.export, "export", fail)
    for says, call in {
        "quantize='int4'": lambda: st_reba.onnx.export(graph.transformer, tmp_path / "a", quantize="int4"),
        "of it: IndexError: 30": lambda: tracing.export_graph(graph, tmp_path / "b"),
        "of it: IndexError": lambda: tracing.export_graph(bloom, tmp_path / "b"),
        "attention of its own": lambda: tracing.export_graph(own, tmp_path / "b"),
        "in its vocabulary": lambda: write_tokenizer(setattr(graph, "budget", 1) or graph, tmp_path),
        "has no tokenizer.json": lambda: write_tokenizer(slow, tmp_path),
        "does not read onnx/model.onnx": lambda: Runner(tmp_path),
    }.items():
        with warnings.catch_warnings(action="error"), pytest.raises(ValueError, match=says):
            call()
    assert logging.root.manager.disable == logging.NOTSET
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with pytest.raises(ImportError, match="exporting needs onnxscript"):
        st_reba.onnx.export(bloom.transformer, tmp_path / "a")


@pytest.mark.parametrize("task", ["query", None])
def test_card(base: Base, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, task: Any) -> None:
    """And golden texts: an empty one only where the tokenizer adds a token. Nothing is traced."""
    options: dict[str, Any] = {"template": "{text} / {text}"}
    if task:
        options = {"template": {"query": "{text}{text}", "document": "D: {text}{text}"}, "prompts": {"query": "问："}}
    model = build(base("gpt2", "plain" if task else "bos_eos"), "echo", **options)
    model[0].base_model = "题"
    encode = model.encode_query if task else model.encode
    monkeypatch.setattr(st_reba.onnx, "export_graph", lambda graph, file: None)
    monkeypatch.setattr(st_reba.onnx, "Runner", lambda folder: SimpleNamespace(encode=lambda texts, *_: encode(texts)))
    st_reba.onnx.export(model, tmp_path / "out", task=task)
    card = (tmp_path / "out" / "README.md").read_text(encoding="utf-8")
    around = '`encode_query` does: the template `"{text}{text}"`, with the prompt `"问："`.'
    assert (around if task else '`encode` does: the template `"{text} / {text}"`.') in card
    assert ("queries only" in card) == ("adds no special tokens" in card) == bool(task)
    golden = read(tmp_path / "out" / "golden.json")
    assert [each["text"] for each in golden["texts"]] == list(TWENTY[1:] if task else TWENTY)
    assert "\nmodel_name: 题-" in card and "- onnx\n" in card and ("-onnx-query\n" in card) == bool(task)


def test_lengths_of_a_model_without_positions(base: Base, tmp_path: Path) -> None:
    model = build(base("bloom"), "echo", max_seq_length=64)
    graph = EmbeddingGraph(model)
    for graph.max_length in (32, None):  # without a limit the file has none
        write_folder(model, graph, tmp_path)
        config = read(tmp_path / "config.json")
        assert config.get("max_position_embeddings") == graph.max_length
