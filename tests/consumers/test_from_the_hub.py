"""From ``build`` by way of a Hub to the reader: published on the loopback address, loaded by name, three ways."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from isolated import run_job
from server import Hub, running

# Name: the base's tokenizer, and what ``build`` is given.
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "mini": ("", {"method": "reba", "pooling": "mean"}),
    "gpt2": ("plain", {"method": "echo", "pooling": "last"}),
    "gemma2": (
        "cls_sep",
        {
            "method": "nosink",
            "pooling": "mean",
            "setting": "mask0-bidir",
            "k": 2,
        },
    ),
}
GRAPH = "gpt2-onnx"
REPOSITORIES = {*MODELS, GRAPH}
TEXTS = [
    "银行的利率又下调了，房贷会更便宜吗？",
    "The cat is asleep on the warm roof.",
    "猫",
    "She walked. " * 20,
]


@pytest.fixture(scope="module")
def hub() -> Iterator[Hub]:
    with running() as hub_server:
        yield hub_server


@pytest.fixture(scope="module")
def play_role(
    hub: Hub,
    base: Callable[..., str],
    tmp_path_factory: pytest.TempPathFactory,
) -> Callable[..., dict[str, Any]]:
    """``play_role(role, **fields)``: what that role of hub_job.py answers, with a cache of its own."""
    shared_folder = str(tmp_path_factory.mktemp("shared"))
    models: dict[str, Any] = {}
    for name, (tokenizer, options) in MODELS.items():
        models[name] = (base(name, tokenizer), options)

    def play_role(role: str, **fields: Any) -> dict[str, Any]:
        folder = tmp_path_factory.mktemp("role")
        job = {
            "role": role,
            "models": models,
            "texts": TEXTS,
            "folder": shared_folder,
        }
        environment = {
            "HF_ENDPOINT": hub.endpoint,
            "HF_HUB_OFFLINE": "0",
            "HF_HOME": str(folder / "home"),
            "HF_HUB_DISABLE_XET": "1",
            "HF_HUB_DISABLE_TELEMETRY": "1",
        }
        if role == "publish":
            environment["HF_TOKEN"] = "hf_writer"
        answer: dict[str, Any] = run_job("hub_job.py", job | fields, folder, **environment)
        return answer

    return play_role


@pytest.fixture(scope="module")
def published_models(
    play_role: Callable[..., dict[str, Any]],
) -> dict[str, Any]:
    """For each repository the vectors that the model gave as built, and its commit."""
    return play_role("publish")


def test_every_model_has_a_repository_of_one_commit(
    hub: Hub, published_models: dict[str, Any]
) -> None:
    assert set(published_models) == REPOSITORIES
    assert len(hub.repos) == len(REPOSITORIES)
    for name, model in published_models.items():
        repo = hub.repos[f"org/{name}"]
        assert repo.branches == {"main": model["commit"]}
        assert len(repo.commits) == 2, "the one that made the repository, and the push"


def test_a_repository_has_weights_and_code_or_a_graph(
    hub: Hub, published_models: dict[str, Any]
) -> None:
    for name in published_models:
        files = set(hub.repos[f"org/{name}"].files())
        assert {"README.md", "golden.json", "modules.json"} < files
        assert ("st_reba.py" in files) == (name in MODELS)
        assert ("model.safetensors" in files) == (name in MODELS)


def test_no_two_texts_have_the_same_vector(
    published_models: dict[str, Any],
) -> None:
    """Else a mix-up would not be seen."""
    for model in published_models.values():
        vectors = np.array(model["vectors"])
        for row, vector in enumerate(vectors):
            other_vectors = np.delete(vectors, row, axis=0)
            assert np.abs(other_vectors - vector).max(axis=1).min() > 1e-3


@pytest.mark.parametrize(
    ("role", "repositories"),
    [
        ("with the package", set(MODELS)),
        ("with trusted code", set(MODELS)),
        ("as a graph", {GRAPH}),
    ],
)
def test_a_reader_gets_the_vectors_of_the_model_as_built(
    role: str,
    repositories: set[str],
    hub: Hub,
    published_models: dict[str, Any],
    play_role: Callable[..., dict[str, Any]],
) -> None:
    hub.requested_paths.clear()
    commits = {name: published_models[name]["commit"] for name in MODELS}
    vectors = play_role(role, commits=commits)
    assert set(vectors) == repositories
    for name in repositories:
        expected = published_models[name]["vectors"]
        np.testing.assert_allclose(vectors[name], expected, atol=1e-5, rtol=0, err_msg=name)
    read_repositories: set[str] = set()
    for path in hub.requested_paths:
        repository, separator, _ = path.partition("/resolve/")
        if separator:
            read_repositories.add(repository.strip("/").removeprefix("org/"))
    assert read_repositories == repositories
