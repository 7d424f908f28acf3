"""A post-filter in an exported graph: every consumer gets filtered vectors without knowing of it."""

from __future__ import annotations

import itertools
import json
import logging
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Dense

import st_reba
from st_reba.hub import onnx as exporting
from st_reba.hub.verify import verify

pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")
onnx = pytest.importorskip("onnx")

logging.getLogger("torch.__trace").propagate = False

pytestmark = pytest.mark.slow

TEXTS = [
    " ".join(words)
    for words in itertools.product(
        ("Ann", "王芳", "Tom", "李老师"),
        ("sells", "likes", "买了", "忘记了"),
        ("rice", "苹果", "the rain", "电影"),
        ("now", "再次"),
    )
] + [f"No. {number}" for number in range(80)]
CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "whiten": ({"pooling": "mean"}, {"kind": "whiten", "dimensions": 16}),
    "abtt": ({"method": "echo", "pooling": "last", "normalize": False}, {"kind": "abtt", "r": 2}),
}


@pytest.fixture(scope="module", params=CASES)
def exported(
    request: pytest.FixtureRequest, base: Callable[..., str], tmp_path_factory: pytest.TempPathFactory
) -> tuple[SentenceTransformer, Path, dict[str, Any]]:
    build, options = CASES[request.param]
    # One layer of a tiny model: the filter stands behind the pooling, and tracing takes its time by layers.
    plain = st_reba.build(
        base("gpt2"), stages=[st_reba.ReadLayers(1)], dtype="float32", device="cpu", max_seq_length=100, **build
    )
    model = st_reba.fit_postfilter(plain, TEXTS, **options)
    folder = tmp_path_factory.mktemp("onnx") / request.param
    return model, folder, exporting.export_onnx(model, folder, int8=True, texts=TEXTS[:32])


def test_vectors(exported: tuple[SentenceTransformer, Path, dict[str, Any]]) -> None:
    model, folder, report = exported
    wanted = model.encode(TEXTS[:20])
    scale = np.abs(wanted).max()
    assert report["dimension"] == wanted.shape[1] == model.get_embedding_dimension()
    assert report["difference"] < 1e-5
    runner = exporting.Runner(folder)
    for side in ("left", "right"):
        assert np.abs(runner.encode(TEXTS[:20], side=cast(Any, side)) - wanted).max() < 1e-5 * scale
    assert verify(str(folder)).ok
    script = Path(__file__).with_name("bare.py")
    done = subprocess.run([sys.executable, str(script), str(folder)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found.pop("loaded") == [] and max(found.values()) < 1e-5


def test_folder(exported: tuple[SentenceTransformer, Path, dict[str, Any]]) -> None:
    model, folder, _ = exported
    types = [each["type"].rsplit(".", 1)[-1] for each in json.loads((folder / "modules.json").read_text())]
    assert types == ["Transformer", "Pooling", *["Normalize"] * (type(model[-1]).__name__ == "Normalize")]
    pooling = json.loads((folder / "1_Pooling" / "config.json").read_text())
    assert pooling["embedding_dimension"] == model.get_embedding_dimension()
    assert not list(folder.rglob("*.safetensors"))
    assert "| stage | Filter" in (folder / "README.md").read_text(encoding="utf-8")


def test_the_filter_stays_exact_in_8_bits(exported: tuple[SentenceTransformer, Path, dict[str, Any]]) -> None:
    _, folder, _ = exported
    nodes = onnx.load(str(folder / "onnx" / "model_quantized.onnx")).graph.node
    products = [node for node in nodes if any(name.endswith("dense_weight") for name in node.input)]
    assert [node.op_type for node in products] == ["MatMul"]
    assert any(node.op_type == "MatMulInteger" for node in nodes)


def test_other_layers_behind_the_pooling(base: Callable[..., str], tmp_path: Path) -> None:
    model = st_reba.build(
        base("gpt2"), "echo", stages=[st_reba.ReadLayers(1)], dtype="float32", device="cpu", max_seq_length=60
    )
    torch.manual_seed(0)
    tanh = SentenceTransformer(modules=[*model, Dense(32, 8)], device="cpu")
    exporting.export_onnx(tanh, tmp_path / "tanh")
    assert np.abs(exporting.Runner(tmp_path / "tanh").encode(TEXTS[:5]) - tanh.encode(TEXTS[:5])).max() < 1e-5
    for layer, message in (
        (Dense(32, 32, use_residual=True), "use_residual"),
        (Dense(32, 8, module_output_name="other"), "other.*from 'sentence_embedding'"),
        (torch.nn.Identity(), "Identity.*only Dense"),
    ):
        with pytest.raises(ValueError, match=message):
            exporting.export_onnx(SentenceTransformer(modules=[*model, layer], device="cpu"), tmp_path / "other")
    assert not (tmp_path / "other").exists()
