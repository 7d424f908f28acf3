"""Exported folders: the traced graph in onnxruntime, and the files around it."""

from __future__ import annotations

import json
import logging
import os
import shutil
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
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
from tokenizers.models import WordLevel
from transformers import AutoConfig, AutoTokenizer

import st_reba
import st_reba.onnx
from st_reba.comparison import GOLDEN_TEXTS, relative_distance
from st_reba.hub import verify
from st_reba.hub.graph_runner import MIN_COSINES, Runner, summarize_cosines, verify_graph
from st_reba.onnx import tracing
from st_reba.onnx.folder import write_folder, write_tokenizer
from st_reba.onnx.graph import EmbeddingGraph

pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")
onnx = pytest.importorskip("onnx")

# pytest would keep every record of the tracer, which are many.
logging.getLogger("torch.__trace").propagate = False

LONG_TEXT = "The old mill stands under the bridge, and 河的两行柳树 beside it. " * 12
TEXTS = [
    "A cat sleeps on the roof.",
    "银行今天关门了。",
    "hi",
    LONG_TEXT,
    "x </s> <s> [SEP]",
]
QUANTIZED_GRAPH = "onnx/model_quantized.onnx"


@dataclass(frozen=True)
class Exported:
    """A model, the folder that it was exported to, and the report of the export."""

    model: Any
    folder: Path
    report: dict[str, Any]


def build(base: str, method: str, **options: Any) -> Any:
    return st_reba.build(base, method, dtype="float32", device="cpu", **options)


def read_json(file: Path) -> Any:
    return json.loads(file.read_text(encoding="utf-8"))


def load_graph(folder: Path, name: str, **options: Any) -> Any:
    return onnx.load(str(folder / name), **options).graph


@pytest.fixture(scope="module", params=slow_but(["echo", "reba"], "echo"))
def exported_model(request: Any, base: Base, tmp_path_factory: pytest.TempPathFactory) -> Exported:
    """Three copies, one layer (tracing takes its time), with a dense layer after the pooling."""
    model = build(
        base("gpt2"),
        request.param,
        pooling="mean",
        repeats=3,
        layer=1,
        max_seq_length=200,
    )
    torch.manual_seed(0)
    modules = [model[0], model[1], Dense(32, 16), model[2]]
    model = SentenceTransformer(modules=modules, device="cpu")
    folder = tmp_path_factory.mktemp("onnx") / "a" / "new" / "folder"
    with pytest.MonkeyPatch.context() as patch:
        # Weights stand beside the graph, as those of a large model.
        patch.setattr(tracing, "MAX_BYTES", 0)
        report = st_reba.onnx.export(model, folder, quantize="int8")
    return Exported(model, folder, report)


def test_a_graph_gives_the_models_vectors(exported_model: Exported) -> None:
    runner = Runner(exported_model.folder)
    expected = exported_model.model.encode(TEXTS)
    for vectors in (
        runner.encode(TEXTS),
        runner.encode(TEXTS, 5),
        runner.encode(TEXTS, 5, "left"),
    ):
        assert relative_distance(expected, vectors) < 1e-5
    assert runner.tokenizer.padding["direction"] == "left"
    assert exported_model.report["distance"] < 1e-5
    assert exported_model.report["dimension"] == 16
    token_ids = runner.tokenizer.encode(LONG_TEXT).ids
    assert len(token_ids) == exported_model.report["max_seq_length"]


def test_a_graph_has_stock_operators_and_shapes(exported_model: Exported) -> None:
    graph_file = str(exported_model.folder / "onnx" / "model.onnx")
    model_proto = onnx.load(graph_file, load_external_data=False)
    operator_sets = [
        (operators.domain, operators.version) for operators in model_proto.opset_import
    ]
    assert operator_sets == [("", 18)]
    assert not model_proto.functions
    shapes: dict[str, list[str | int]] = {}
    for value in (*model_proto.graph.input, *model_proto.graph.output):
        axes = value.type.tensor_type.shape.dim
        shapes[value.name] = [axis.dim_param or axis.dim_value for axis in axes]
    assert shapes == {
        "input_ids": ["batch", "length"],
        "attention_mask": ["batch", "length"],
        "last_hidden_state": ["batch", "length", 16],
    }


def test_large_weights_stand_beside_a_graph(exported_model: Exported) -> None:
    graph = load_graph(exported_model.folder, "onnx/model.onnx", load_external_data=False)
    weight_files: set[str] = set()
    for weight in graph.initializer:
        if weight.data_location == onnx.TensorProto.EXTERNAL:
            entries = {entry.key: entry.value for entry in weight.external_data}
            weight_files.add(entries["location"])
    assert weight_files == {"model.onnx_data"}


def test_a_folder_holds_graphs_and_neither_weights_nor_code(
    exported_model: Exported,
) -> None:
    assert set(os.listdir(exported_model.folder / "onnx")) == {
        "model.onnx",
        "model.onnx_data",
        "model_quantized.onnx",
        "model_quantized.onnx_data",
        "model_quantized.json",
    }
    suffixes = {file.suffix for file in exported_model.folder.rglob("*")}
    assert not suffixes & {".safetensors", ".bin", ".py"}
    with pytest.raises((OSError, TypeError, ValueError)):
        SentenceTransformer(str(exported_model.folder), device="cpu")


def test_a_graph_holds_no_path_of_the_machine(exported_model: Exported) -> None:
    for file in (exported_model.folder / "onnx").glob("*.onnx"):
        content = file.read_bytes()
        assert b".py" not in content
        assert os.fsencode(sys.prefix) not in content


def test_small_files_are_those_of_stock_modules(exported_model: Exported) -> None:
    # What a model with Echo has in them, apart from versions.
    expected_files = read_json(Path(__file__).with_name("files.json"))
    for file_name, expected in expected_files.items():
        values = read_json(exported_model.folder / file_name)
        if isinstance(values, dict):
            assert expected.items() <= values.items(), file_name
        else:
            assert values == expected, file_name
    config: Any = AutoConfig.from_pretrained(str(exported_model.folder))
    assert config.vocab_size == 512
    assert "_name_or_path" not in read_json(exported_model.folder / "config.json")


def test_a_card_has_the_loss_of_int8(exported_model: Exported) -> None:
    card = (exported_model.folder / "README.md").read_text(encoding="utf-8")
    assert f"{exported_model.report['int8']['alone']['min']}" in card
    assert "{{" not in card
    assert "puts around every" not in card


def test_a_text_that_spells_a_special_token_is_ordinary_text(
    exported_model: Exported,
) -> None:
    """In every reader of the tokenizer's file."""
    max_length = exported_model.report["max_seq_length"]
    auto_tokenizer = AutoTokenizer.from_pretrained(str(exported_model.folder))
    raw_tokenizer = Tokenizer.from_file(str(exported_model.folder / "tokenizer.json"))
    raw_tokenizer.no_padding()
    contents = exported_model.model[0].tokenize_content(TEXTS)["input_ids"]
    for text, content in zip(TEXTS, contents, strict=True):
        expected_ids = [exported_model.model.tokenizer.bos_token_id, *content][:max_length]
        assert raw_tokenizer.encode(text).ids == expected_ids
        assert list(auto_tokenizer(text, truncation=True)["input_ids"]) == expected_ids
    added_tokens = read_json(exported_model.folder / "tokenizer.json")["added_tokens"]
    assert not any(token["special"] for token in added_tokens)
    assert auto_tokenizer.model_max_length == max_length


def test_the_loss_of_int8_is_measured(exported_model: Exported) -> None:
    loss = exported_model.report["int8"]
    assert read_json(exported_model.folder / "onnx" / "model_quantized.json") == loss
    expected = Runner(exported_model.folder).encode(GOLDEN_TEXTS)
    quantized_vectors = Runner(exported_model.folder, QUANTIZED_GRAPH).encode(GOLDEN_TEXTS)
    assert loss["alone"] == summarize_cosines(quantized_vectors, expected)
    assert loss["alone"]["min"] < 1 - 1e-5
    assert loss["batch_size"] == 16
    assert logging.root.manager.disable == logging.NOTSET, "logs are still silenced"


def test_every_file_but_the_card_has_a_digest(exported_model: Exported) -> None:
    digests = read_json(exported_model.folder / "golden.json")["digests"]
    assert QUANTIZED_GRAPH in digests
    names = set()
    for file in exported_model.folder.rglob("*"):
        if file.is_file():
            names.add(file.relative_to(exported_model.folder).as_posix())
    assert set(digests) == names - {"golden.json", "README.md"}


def test_weights_of_int8_are_small_and_scaled_by_channel(
    exported_model: Exported,
) -> None:
    graph = load_graph(exported_model.folder, QUANTIZED_GRAPH)
    int8_weights: list[Any] = []
    filter_types: set[int] = set()
    has_channel_scales = False
    for weight in graph.initializer:
        if weight.data_type == onnx.TensorProto.INT8:
            int8_weights.append(onnx.numpy_helper.to_array(weight).astype(int))
        if weight.name.startswith("filter_modules."):
            filter_types.add(weight.data_type)
        has_channel_scales |= weight.name.endswith("_scale") and bool(weight.dims)
    assert has_channel_scales
    # With all of 8 bits, pairs of products overflow on a processor without VNNI.
    assert max(int(abs(values).max()) for values in int8_weights) <= 64
    operators = [node.op_type for node in graph.node]
    assert operators.count("MatMulInteger") == len(int8_weights) // 2
    assert filter_types == {onnx.TensorProto.FLOAT}, "the filter stays in float32"


def test_cosines_are_judged_by_the_smallest_and_the_mean() -> None:
    loss = summarize_cosines(np.array([[1, 0], [2, 0]]), np.array([[3, 0], [1, 1]]))
    assert loss == {"min": 0.707107, "mean": 0.853553, "ok": False}


def test_the_least_cosines_are_close_enough() -> None:
    least_cosine = MIN_COSINES["min"]
    rotated = np.array([[1, 0], [least_cosine, np.sqrt(1 - least_cosine**2)]])
    loss = summarize_cosines(np.array([[1, 0], [1, 0]]), rotated)
    assert loss == {**MIN_COSINES, "ok": True}


def test_verify_accepts_an_exported_folder(exported_model: Exported) -> None:
    report = verify(exported_model.folder)
    assert report.ok
    assert report.graph == "onnx/model.onnx"
    assert report.rounded is not None
    assert report.changes == {}
    golden_texts = read_json(exported_model.folder / "golden.json")["texts"]
    assert [golden_text["text"] for golden_text in golden_texts] == list(GOLDEN_TEXTS)


def test_verify_refuses_a_loss_that_is_too_large(
    exported_model: Exported, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(MIN_COSINES, "min", 0.999999)
    assert not verify(exported_model.folder).ok


def test_verify_refuses_a_vector_that_is_off(exported_model: Exported) -> None:
    golden_values = read_json(exported_model.folder / "golden.json")
    golden_values["texts"][3]["vector"][0] += 0.01
    assert not verify_graph(str(exported_model.folder), golden_values, hub={}).ok


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"device": "cuda"}, "device='cuda'"),
        ({"dtype": "bfloat16"}, "dtype='bfloat16'"),
        ({"device": "cpu", "dtype": "float16"}, "device='cpu', dtype='float16'"),
    ],
    ids=str,
)
def test_verify_refuses_another_device_and_number_type(
    exported_model: Exported, options: dict[str, Any], named: str
) -> None:
    with pytest.raises(ValueError, match=f"is a graph, .* drop {named}"):
        verify(exported_model.folder, **options)


def test_verify_downloads_graphs_from_the_hub(
    exported_model: Exported, monkeypatch: pytest.MonkeyPatch
) -> None:
    download = Mock(return_value=str(exported_model.folder))
    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    golden_values = read_json(exported_model.folder / "golden.json")
    report = verify_graph("org/x", golden_values, hub={"cache_folder": "c", "revision": "r"})
    assert report.rounded
    assert {
        "cache_dir": "c",
        "revision": "r",
    }.items() <= download.call_args.kwargs.items()


@pytest.fixture
def no_tracing(exported_model: Exported, monkeypatch: pytest.MonkeyPatch) -> None:
    """Exports take the graph that was traced, as tracing takes its time."""
    ignored_files = shutil.ignore_patterns("*quantized*")

    def copy_graph(graph: EmbeddingGraph, file: Path) -> None:
        shutil.copytree(exported_model.folder / "onnx", file.parent, ignore=ignored_files)

    monkeypatch.setattr(st_reba.onnx, "export_graph", copy_graph)


# The graph of one model is enough for these.
echo_only = pytest.mark.parametrize("exported_model", ["echo"], indirect=True)


@echo_only
@pytest.mark.usefixtures("no_tracing")
def test_export_replaces_a_folder_only_if_told_to(exported_model: Exported, tmp_path: Path) -> None:
    folder = tmp_path / "same"
    st_reba.onnx.export(exported_model.model, folder)
    with pytest.raises(FileExistsError):
        st_reba.onnx.export(exported_model.model, folder)
    st_reba.onnx.export(exported_model.model, folder, overwrite=True)
    assert os.listdir(tmp_path) == ["same"]


@echo_only
@pytest.mark.usefixtures("no_tracing")
@pytest.mark.parametrize("argument_count", [2, 3, 4], ids=["alone", "batched", "left padding"])
def test_a_graph_that_is_off_is_not_written(
    argument_count: int,
    exported_model: Exported,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One way of running decides: the worst, not the mean of all."""
    encode = Runner.encode

    def encode_with_error(*arguments: Any) -> Any:
        error = 2e-4 if len(arguments) == argument_count else 0.0
        return encode(*arguments) * (1 + error)

    monkeypatch.setattr(Runner, "encode", encode_with_error)
    with pytest.raises(ValueError, match="is off by"):
        st_reba.onnx.export(exported_model.model, tmp_path / "off")
    assert os.listdir(tmp_path) == []


@echo_only
@pytest.mark.usefixtures("no_tracing")
def test_a_graph_that_loses_too_much_is_not_written(
    exported_model: Exported, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(MIN_COSINES, "mean", 0.9999999)
    with pytest.raises(ValueError, match="loses too much"):
        st_reba.onnx.export(exported_model.model, tmp_path / "rounded", quantize="int8")
    assert os.listdir(tmp_path) == []


def test_export_refuses_another_quantization(tmp_path: Path) -> None:
    model: Any = None
    with pytest.raises(ValueError, match="quantize='int4'"):
        st_reba.onnx.export(model, tmp_path / "a", quantize="int4")


def test_export_names_a_missing_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    model: Any = None
    with pytest.raises(ImportError, match="exporting needs onnxscript"):
        st_reba.onnx.export(model, tmp_path / "a")


@pytest.mark.parametrize("name", ["mini", "bloom"])
def test_a_fault_of_tracing_is_named_by_its_cause(
    name: str, base: Base, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While torch traces, logs and warnings are silenced."""

    def fail(*_: object, **__: object) -> None:
        warnings.warn("of the exporter", stacklevel=1)
        raise RuntimeError from IndexError(f"{logging.root.manager.disable} is silenced")

    monkeypatch.setattr(torch.export, "export", fail)
    graph = EmbeddingGraph(build(base(name), "echo"))
    message = f"of it: IndexError: {logging.WARNING} is silenced"
    with (
        warnings.catch_warnings(action="error"),
        pytest.raises(ValueError, match=message),
    ):
        tracing.export_graph(graph, tmp_path / "b")
    assert logging.root.manager.disable == logging.NOTSET


@pytest.mark.parametrize(("spare_bytes", "stands_beside"), [(0, False), (-1, True)])
def test_weights_stand_beside_a_graph_where_they_are_larger_than_a_file_may_be(
    base: Base,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    spare_bytes: int,
    stands_beside: bool,
) -> None:
    weights = onnx.numpy_helper.from_array(np.ones(1024, np.float32), "weights")
    output = onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [1024])
    node = onnx.helper.make_node("Identity", ["weights"], ["y"])
    proto = onnx.helper.make_model(onnx.helper.make_graph([node], "graph", [], [output], [weights]))
    traced_model = import_module("onnx_ir").from_proto(proto)
    monkeypatch.setattr(tracing, "_trace", lambda graph: traced_model)
    monkeypatch.setattr(tracing, "MAX_BYTES", 4096 + spare_bytes)
    graph = EmbeddingGraph(build(base("llama"), "echo"))
    tracing.export_graph(graph, tmp_path / "onnx" / "model.onnx")
    assert (tmp_path / "onnx" / "model.onnx_data").exists() == stands_beside


def test_an_added_token_that_the_file_reads_otherwise_is_refused(
    base: Base, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = EmbeddingGraph(build(base("mini"), "reba"))
    graph.transformer.text_tokenizer.add_tokens("quokka")
    write_tokenizer(graph, tmp_path)
    tokenize_content = graph.transformer.tokenize_content

    def split_inside_words(texts: list[str]) -> Any:
        return tokenize_content([text.replace("aquokka", "aquo kka") for text in texts])

    monkeypatch.setattr(graph.transformer, "tokenize_content", split_inside_words)
    with pytest.raises(ValueError, match="for 'aquokkab', a tokenizer.json gives"):
        write_tokenizer(graph, tmp_path)


def test_rows_of_attention_need_the_attention_interface(base: Base, tmp_path: Path) -> None:
    graph = EmbeddingGraph(build(base("bloom"), "reba"))
    with pytest.raises(ValueError, match="attention of its own"):
        tracing.export_graph(graph, tmp_path / "b")


def test_a_tokenizer_whose_file_gives_other_ids_is_refused(base: Base, tmp_path: Path) -> None:
    graph = EmbeddingGraph(build(base("mini"), "reba"))
    graph.budget = 1
    with pytest.raises(ValueError, match="in its vocabulary"):
        write_tokenizer(graph, tmp_path)


def test_a_folder_without_a_graph_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="does not read onnx/model.onnx"):
        Runner(tmp_path)


@pytest.mark.parametrize("fault", ["input_ids", "last_hidden_state"])
def test_a_graph_with_other_names_is_refused(
    exported_model: Exported, tmp_path: Path, fault: str
) -> None:
    folder = Path(shutil.copytree(exported_model.folder, tmp_path / "exported"))
    names = {"input_ids": "input_ids", "last_hidden_state": "last_hidden_state", fault: "y"}
    values = [
        onnx.helper.make_tensor_value_info(name, onnx.TensorProto.INT64, ["b", "t"])
        for name in (names["input_ids"], "attention_mask", names["last_hidden_state"])
    ]
    node = onnx.helper.make_node("Add", [values[0].name, values[1].name], [values[2].name])
    graph = onnx.helper.make_graph([node], "graph", values[:2], values[2:])
    opsets = [onnx.helper.make_opsetid("", 17)]
    model = onnx.helper.make_model(graph, opset_imports=opsets, ir_version=8)
    (folder / "onnx" / "model.onnx").write_bytes(model.SerializeToString())
    with pytest.raises(ValueError, match="gives no vectors .* Export the model again"):
        verify(folder)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "is missing or damaged"),
        ("{}", "is missing or damaged"),
        (Tokenizer(WordLevel({"a": 0}, unk_token="a")).to_str(), "names no padding token"),
    ],
    ids=["missing", "empty", "without padding"],
)
def test_a_tokenizer_that_cannot_be_used_is_refused(
    exported_model: Exported, tmp_path: Path, content: str | None, message: str
) -> None:
    folder = Path(shutil.copytree(exported_model.folder, tmp_path / "exported"))
    (folder / "tokenizer.json").unlink()
    if content is not None:
        (folder / "tokenizer.json").write_text(content, encoding="utf-8")
    with pytest.raises(ValueError, match=message):
        verify(folder)


@pytest.fixture
def export_untraced(monkeypatch: pytest.MonkeyPatch) -> Callable[[Any, Path, Any], Path]:
    """Exports a model without its graph, whose vectors are taken from the model; returns the folder."""

    def export(model: Any, folder: Path, task: Any) -> Path:
        encode = model.encode_query if task else model.encode
        runner = SimpleNamespace(encode=lambda texts, *_: encode(texts))
        monkeypatch.setattr(st_reba.onnx, "export_graph", lambda graph, file: None)
        monkeypatch.setattr(st_reba.onnx, "Runner", lambda folder: runner)
        st_reba.onnx.export(model, folder, task=task)
        return folder

    return export


def read_exported(folder: Path) -> tuple[str, list[str]]:
    """The card, and the golden texts."""
    golden_texts = read_json(folder / "golden.json")["texts"]
    card = (folder / "README.md").read_text(encoding="utf-8")
    return card, [golden_text["text"] for golden_text in golden_texts]


def test_a_card_describes_a_graph_for_all_texts(
    base: Base, tmp_path: Path, export_untraced: Callable[[Any, Path, Any], Path]
) -> None:
    model = build(base("gpt2", "bos_eos"), "echo", template="{text} / {text}")
    model[0].base_model = "题"
    card, golden_texts = read_exported(export_untraced(model, tmp_path / "out", None))
    assert '`encode` does: the template `"{text} / {text}"`.' in card
    assert "queries only" not in card
    assert "adds no special tokens" not in card
    assert golden_texts == list(GOLDEN_TEXTS)
    assert "\nmodel_name: 题-" in card
    assert "- onnx\n" in card
    assert "- st-reba\n" in card
    assert "-onnx-query\n" not in card


def test_a_card_describes_a_graph_for_queries(
    base: Base, tmp_path: Path, export_untraced: Callable[[Any, Path, Any], Path]
) -> None:
    """Its tokenizer makes no token of an empty text, which is not a golden text then."""
    model = build(
        base("gpt2", "plain"),
        "echo",
        template={"query": "{text}{text}", "document": "D: {text}{text}"},
        prompts={"query": "问："},
    )
    model[0].base_model = "题"
    card, golden_texts = read_exported(export_untraced(model, tmp_path / "out", "query"))
    encoder = '`encode_query` does: the template `"{text}{text}"`, with the prompt `"问："`.'
    assert encoder in card
    assert "queries only" in card
    assert "adds no special tokens" in card
    assert golden_texts == list(GOLDEN_TEXTS[1:])
    assert "\nmodel_name: 题-" in card
    assert "-onnx-query\n" in card


@pytest.mark.parametrize("max_length", [32, None])
def test_the_file_of_a_model_without_positions_has_its_limit(
    max_length: int | None, base: Base, tmp_path: Path
) -> None:
    """Without a limit it has none."""
    model = build(base("bloom"), "echo", max_seq_length=64)
    graph = EmbeddingGraph(model)
    graph.max_length = max_length
    write_folder(model, graph, tmp_path)
    config = read_json(tmp_path / "config.json")
    assert config.get("max_position_embeddings") == max_length
    assert "null" not in config


def test_an_exported_folder_says_what_it_is_where_torch_should_load_it(
    exported_model: Exported,
) -> None:
    with pytest.raises(ValueError, match="is an ONNX export.*check it with st-reba verify"):
        st_reba.load(exported_model.folder)
