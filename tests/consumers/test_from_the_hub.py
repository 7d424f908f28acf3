"""From ``build`` by way of a Hub to the reader: published on the loopback address, loaded by name, five ways."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import st_reba

HERE = Path(__file__).parent
ROOT = Path(st_reba.__file__).parents[1]
sys.path.append(str(HERE.parent / "hub"))

from server import Hub, running  # noqa: E402

# Name: the base's tokenizer, and what ``build`` is given.
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "mini": ("", {"method": "reba", "pooling": "mean"}),
    "gpt2": ("plain", {"method": "echo", "pooling": "last"}),
    "qwen3": ("bos", {"method": "reba", "pooling": "last"}),
    "gemma2": ("cls_sep", {"method": "nosink", "pooling": "mean", "setting": "mask0-bidir", "k": 2}),
}
TEXTS = [
    "银行的利率又下调了，房贷会更便宜吗？",
    "The cat is asleep on the warm roof.",
    "猫",
    "a",
    "北京（Beijing）到上海（Shanghai）的 G1 次列车，全程约 4 小时 28 分。",
    "She deposited the cheque at the bank, then walked along the river bank, as she did every day of that long year.",
]
WAYS = ("plugin", "flag", "again", "graph", "langchain")
PROXIES = ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")
DROPPED = (*PROXIES, "PYTHONPATH", "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_TOKEN", "HF_HUB_CACHE")


@pytest.fixture(scope="module")
def hub() -> Iterator[Hub]:
    with running() as server:
        yield server


@pytest.fixture(scope="module")
def act(hub: Hub, base: Callable[..., str], tmp_path_factory: pytest.TempPathFactory) -> Callable[..., dict[str, Any]]:
    """``act(role, **more)``: what that role of from_the_hub.py told, in a fresh process with a cache of its own."""
    kept = tmp_path_factory.mktemp("kept")
    models = {name: (base(name, tokenizer), options) for name, (tokenizer, options) in MODELS.items()}
    found: dict[str, dict[str, Any]] = {}

    def act(role: str, **more: Any) -> dict[str, Any]:
        if role in found:
            return found[role]
        folder = tmp_path_factory.mktemp(role)
        job = {"models": models, "texts": TEXTS, "folder": str(kept), "result": str(folder / "result.json"), **more}
        (folder / "job.json").write_text(json.dumps(job), encoding="utf-8")
        environment = {name: value for name, value in os.environ.items() if name not in DROPPED}
        environment |= {
            "HF_ENDPOINT": hub.endpoint,
            "HF_HOME": str(folder / "home"),
            "HF_HUB_DISABLE_XET": "1",
            "HF_HUB_DISABLE_TELEMETRY": "1",
            "HF_HUB_DISABLE_PROGRESS_BARS": "1",
            "OMP_NUM_THREADS": "1",
            "TOKENIZERS_PARALLELISM": "false",
        }
        if role == "publish":
            environment["HF_TOKEN"] = "hf_writer"
        if role in ("publish", "plugin"):
            environment["PYTHONPATH"] = str(ROOT)
        run = subprocess.run(
            [sys.executable, str(HERE / "from_the_hub.py"), role, str(folder / "job.json")],
            env=environment,
            cwd=folder,
            capture_output=True,
            encoding="utf-8",
            timeout=600,
        )
        assert run.returncode == 0, run.stderr[-5000:]
        result = json.loads((folder / "result.json").read_text(encoding="utf-8"))
        assert result["asked"] == [], "hosts that would have been contacted"
        found[role] = result["told"]
        return found[role]

    return act


@pytest.fixture(scope="module")
def published(act: Callable[..., dict[str, Any]]) -> dict[str, Any]:
    """For each model the vectors that it gave as built, and the commits of its two repositories."""
    return act("publish")


def test_two_repositories_a_model(hub: Hub, published: dict[str, Any]) -> None:
    assert set(hub.repos) == {f"org/{name}{end}" for name in MODELS for end in ("", "-onnx")}
    for name, told in published.items():
        for kind, end in (("torch", ""), ("onnx", "-onnx")):
            repo = hub.repos[f"org/{name}{end}"]
            assert repo.branches == {"main": told["commits"][kind]} and len(repo.commits) == 2
            assert {"README.md", "golden.json", "modules.json"} < set(repo.files())
            assert ("st_reba.py" in repo.files()) == ("model.safetensors" in repo.files()) == (kind == "torch")


def test_the_models_differ(published: dict[str, Any]) -> None:
    """Where two gave the same vectors, a mix-up would not be seen."""
    for name, told in published.items():
        vectors = np.array(told["vectors"])
        assert vectors.shape == (len(TEXTS), 192 if name == "mini" else 32)
        np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)
        assert np.abs(vectors[:, None] - vectors[None])[~np.eye(len(TEXTS), dtype=bool)].max(axis=1).min() > 1e-3


@pytest.mark.parametrize("way", WAYS)
def test_the_same_vectors(way: str, hub: Hub, published: dict[str, Any], act: Callable[..., dict[str, Any]]) -> None:
    if way == "again":
        act("flag")
    before = len(hub.seen)
    found = act(way, commits={name: told["commits"]["torch"] for name, told in published.items()})
    assert set(found) == set(MODELS)
    for name, told in published.items():
        assert np.abs(np.array(found[name]) - told["vectors"]).max() <= 1e-5, name
    if way != "flag":
        asked = {seen.path.split("/resolve/")[0].strip("/") for seen in hub.seen[before:] if "/resolve/" in seen.path}
        ends = {"again": [], "graph": ["-onnx"]}.get(way, [""])
        assert asked == {f"org/{name}{end}" for name in MODELS for end in ends}
