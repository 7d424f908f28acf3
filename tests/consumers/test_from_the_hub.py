"""From ``build`` by way of a Hub to the reader: published on the loopback address, loaded by name, three ways."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from given import answer
from server import Hub, running

# Name: the base's tokenizer, and what ``build`` is given.
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "mini": ("", {"method": "reba", "pooling": "mean"}),
    "gpt2": ("plain", {"method": "echo", "pooling": "last"}),
    "gemma2": ("cls_sep", {"method": "nosink", "pooling": "mean", "setting": "mask0-bidir", "k": 2}),
}
TEXTS = ["银行的利率又下调了，房贷会更便宜吗？", "The cat is asleep on the warm roof.", "猫", "She walked. " * 20]


@pytest.fixture(scope="module")
def hub() -> Iterator[Hub]:
    with running() as server:
        yield server


@pytest.fixture(scope="module")
def act(hub: Hub, base: Callable[..., str], tmp_path_factory: pytest.TempPathFactory) -> Callable[..., dict[str, Any]]:
    """``act(role, **more)``: what that role of from_the_hub.py answers, with a cache of its own."""
    kept = str(tmp_path_factory.mktemp("kept"))
    models = {name: (base(name, tokenizer), options) for name, (tokenizer, options) in MODELS.items()}

    def act(role: str, **more: Any) -> dict[str, Any]:
        folder = tmp_path_factory.mktemp(role)
        job = {"role": role, "models": models, "texts": TEXTS, "folder": kept, **more}
        environment = {"HF_ENDPOINT": hub.endpoint, "HF_HUB_OFFLINE": "0", "HF_HOME": str(folder / "home")}
        environment |= {"HF_TOKEN": "hf_writer"} if role == "publish" else {}
        environment |= {"HF_HUB_DISABLE_XET": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}
        found: dict[str, Any] = answer("from_the_hub.py", job, folder, **environment)
        return found

    return act


@pytest.fixture(scope="module")
def published(act: Callable[..., dict[str, Any]]) -> dict[str, Any]:
    """For each repository the vectors that the model gave as built, and its commit."""
    return act("publish")


def test_repositories(hub: Hub, published: dict[str, Any]) -> None:
    assert set(hub.repos) == {f"org/{name}" for name in published} and set(published) == {*MODELS, "gpt2-onnx"}
    for name, told in published.items():
        repo = hub.repos[f"org/{name}"]
        assert repo.branches == {"main": told["commit"]} and len(repo.commits) == 2
        assert {"README.md", "golden.json", "modules.json"} < set(repo.files())
        assert ("st_reba.py" in repo.files()) == ("model.safetensors" in repo.files()) == (name in MODELS)
        # Where two texts had the same vector, a mix-up would not be seen.
        vectors = np.array(told["vectors"])
        assert np.abs(vectors[:, None] - vectors[None])[~np.eye(len(TEXTS), dtype=bool)].max(axis=1).min() > 1e-3


@pytest.mark.parametrize("way", ["plugin", "flag", "graph"])
def test_the_same_vectors(way: str, hub: Hub, published: dict[str, Any], act: Callable[..., dict[str, Any]]) -> None:
    before = len(hub.seen)
    found = act(way, commits={name: published[name]["commit"] for name in MODELS})
    assert set(found) == ({"gpt2-onnx"} if way == "graph" else set(MODELS))
    for name, vectors in found.items():
        np.testing.assert_allclose(vectors, published[name]["vectors"], atol=1e-5, rtol=0, err_msg=name)
    asked = {path.split("/resolve/")[0].strip("/") for path in hub.seen[before:] if "/resolve/" in path}
    assert asked == {f"org/{name}" for name in found}
