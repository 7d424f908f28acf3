"""An exported folder around a graph that was made by hand, as tracing a model takes its time."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from by_hand import MATRIX, TABLE, vectors_by_hand

import st_reba
from st_reba.hub import onnx as exporting
from st_reba.hub.golden import GRAPH, TEXTS, header, write_file
from st_reba.hub.onnx.folder import write_folder
from st_reba.hub.onnx.method import method_of


@pytest.fixture(scope="session")
def _by_hand(base: Callable[..., str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    onnx = pytest.importorskip("onnx")
    folder = tmp_path_factory.mktemp("by_hand")
    model = st_reba.build(base("gpt2", "bos"), "classical", pooling="mean", dtype="float32", device="cpu", check=False)
    method, draw, make, kind = method_of(model), np.random.default_rng(0), onnx.helper, onnx.TensorProto
    write_folder(model, method, folder)
    weights = {TABLE: (len(model.tokenizer), 24), MATRIX: (24, method.dimension)}
    graph = make.make_graph(
        [make.make_node("Gather", [TABLE, "input_ids"], ["rows"]),
         make.make_node("MatMul", ["rows", MATRIX], ["last_hidden_state"])],
        "by_hand",
        [make.make_tensor_value_info(name, kind.INT64, ["b", "t"]) for name in ("input_ids", "attention_mask")],
        [make.make_tensor_value_info("last_hidden_state", kind.FLOAT, ["b", "t", method.dimension])],
        [onnx.numpy_helper.from_array(draw.normal(size=size).astype("f4"), name) for name, size in weights.items()],
    )  # fmt: skip
    (folder / "onnx").mkdir()
    onnx.save(make.make_model(graph, opset_imports=[make.make_opsetid("", 18)], ir_version=10), str(folder / GRAPH))
    about = header(model, method.dimension, {})
    about["versions"] |= exporting.versions()
    about |= {"graph": GRAPH, "task": None, "tolerance": exporting.TOLERANCE}
    write_file(folder, about, TEXTS, vectors_by_hand(folder, list(TEXTS)).tolist())
    exporting._write_card(model, method, folder, None)
    return folder


@pytest.fixture
def by_hand(_by_hand: Path, tmp_path: Path) -> Path:
    """The folder: its graph, golden vectors, card and stock files."""
    return Path(shutil.copytree(_by_hand, tmp_path / "by_hand"))
