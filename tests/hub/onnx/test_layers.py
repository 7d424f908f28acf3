"""Graphs of models that read an inner layer: the same vectors in onnxruntime, and no layer above in the file."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from marks import slow_but
from sentence_transformers import SentenceTransformer

import st_reba
from st_reba import NoSink, ReadLayers
from st_reba.hub import onnx as exporting
from st_reba.hub.onnx.attention import graph_attention
from st_reba.hub.onnx.graph import EmbeddingGraph
from st_reba.hub.onnx.method import method_of

pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")
onnx = pytest.importorskip("onnx")

logging.getLogger("torch.__trace").propagate = False

TEXTS = ["A cat sleeps on the roof.", "银行今天关门了。", "hi", "The old mill under the bridge. " * 9, "x"]
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "truncated": ("mini", {"pooling": "mean", "stages": [ReadLayers(3), NoSink("mask0-bidir", k=1)]}),
    "whole": ("gemma2", {"stages": [ReadLayers([0, 2], final_norm=False)]}),
}


def difference(found: Any, wanted: Any) -> float:
    return float(np.abs(found - wanted).max() / np.abs(wanted).max())


@pytest.mark.parametrize("layer", [0, 1, 2, (0, 1), (1, 2)])
@pytest.mark.parametrize("name", slow_but(["gemma2", "gpt2", "bloom", "qwen3"], "gemma2"))
def test_what_is_traced(base: Callable[..., str], name: str, layer: Any) -> None:
    """The module that becomes a graph, run by torch."""
    method = "echo" if name == "bloom" else "reba"
    for final_norm, join in ((True, "mean"), (False, "mean"), (True, "concat")):
        stages = [ReadLayers(layer, join, final_norm)]
        model = st_reba.build(base(name), method, pooling="mean", normalize=False, stages=stages)
        first: Any = model[0]
        rows = [model.tokenizer(text)["input_ids"][:90] for text in TEXTS]
        for ids in rows:
            given = torch.tensor([ids])
            with torch.no_grad(), graph_attention(first.model):
                states = EmbeddingGraph(first, method_of(model)).eval()(given, torch.ones_like(given))
            text = model.tokenizer.decode(ids, skip_special_tokens=True)
            assert difference(states.mean(dim=1)[0].numpy(), model.encode(text)) < 1e-5


def layers_in(file: Path) -> set[int]:
    """Numbers of the layers that have weights in a graph."""
    names = [each.name.split(".") for each in onnx.load(str(file)).graph.initializer]
    return {int(name[name.index("layers") + 1]) for name in names if "layers" in name}


def total(file: Path) -> int:
    return int(sum(np.prod(each.dims) for each in onnx.load(str(file)).graph.initializer if len(each.dims) > 1))


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_exported(base: Callable[..., str], tmp_path: Path, name: str) -> None:
    architecture, options = CASES[name]
    model: SentenceTransformer = st_reba.build(
        base(architecture), dtype="float32", device="cpu", max_seq_length=100, **options
    )
    exports = st_reba.truncate_layers(model) if name == "truncated" else model
    report = exporting.export_onnx(exports, tmp_path / name)
    wanted = model.encode(TEXTS)
    runner = exporting.Runner(tmp_path / name)
    assert report["difference"] < 1e-5
    assert difference(runner.encode(TEXTS), wanted) < 1e-5
    assert difference(np.concatenate([runner.encode([text]) for text in TEXTS]), wanted) < 1e-5
    graph = tmp_path / name / "onnx" / "model.onnx"
    runs = model[0].runs
    matrices = [weight.numel() for weight in model[0].model.parameters() if weight.ndim > 1]
    of_layers = [weight.numel() for weight in model[0].model.layers[0].parameters() if weight.ndim > 1]
    above = (model[0].depth - runs) * sum(of_layers)
    # Nothing but a few small tables beside the weights of the layers that run.
    assert above > 0 and total(graph) == pytest.approx(sum(matrices) - above, rel=0.02)
    if name == "truncated":  # the other's weights are transposed, and lose their names
        assert layers_in(graph) == set(range(runs))
