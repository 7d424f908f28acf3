"""Every script of examples/tools: what it prints, against what the model itself gives."""

from __future__ import annotations

import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer

import st_reba

TOOLS = Path(st_reba.__file__).parents[1] / "examples" / "tools"
TEXT = "The central bank cut its interest rates again, and shares of house builders rose sharply."


@pytest.fixture
def shown(
    places: dict[str, Path],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> Callable[..., tuple[list[str], dict[str, Any]]]:
    """``shown(name, *arguments)``: the lines that a script prints with the saved ReBA model, and its names."""

    def run(name: str, *arguments: str) -> tuple[list[str], dict[str, Any]]:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "argv", [name, str(places["reba"] / "my_model"), *arguments])
        capsys.readouterr()
        names = runpy.run_path(str(TOOLS / name), run_name="__main__")
        return capsys.readouterr().out.splitlines(), names

    return run


def test_all_are_run() -> None:
    assert {path.name for path in TOOLS.glob("*.py")} == {"few_labels.py", "keywords.py", "topics.py"}
    for path in TOOLS.glob("*.py"):
        assert len(path.read_text(encoding="utf-8").splitlines()) <= 25, path.name


def test_keybert(shown: Callable[..., Any], models: dict[str, SentenceTransformer]) -> None:
    """The cosines of phrase and text."""
    lines, _ = shown("keywords.py", TEXT)
    found = [line.split("  ") for line in lines]
    assert len(found) == 4 and all(phrase in TEXT.lower().replace("of ", "") for _, phrase in found)
    vectors = models["reba"].encode([TEXT, *(phrase for _, phrase in found)], normalize_embeddings=True)
    np.testing.assert_allclose([float(score) for score, _ in found], vectors[1:] @ vectors[0], atol=1e-4, rtol=0)


def test_bertopic(shown: Callable[..., Any], models: dict[str, SentenceTransformer]) -> None:
    """The topics are the clusters of the model's own vectors."""
    from sklearn.cluster import KMeans
    from sklearn.decomposition import PCA

    lines, names = shown("topics.py")
    vectors = PCA(10).fit_transform(models["reba"].encode(names["texts"]))
    sizes = np.bincount(KMeans(8, random_state=0).fit(vectors).labels_)
    assert [int(line.split()[0]) for line in lines] == sorted(sizes.tolist(), reverse=True)
    assert sum(sizes) == 160 and all(line.split("  |  ")[1] in names["texts"] for line in lines)


def test_setfit(shown: Callable[..., Any], models: dict[str, SentenceTransformer]) -> None:
    """The head alone is logistic regression on the model's vectors; then the model is trained as well."""
    from sklearn.linear_model import LogisticRegression

    lines, names = shown("few_labels.py")
    few, rest, model = names["few"], names["rest"], models["reba"]
    head = LogisticRegression(max_iter=1000).fit(model.encode(few["text"]), few["label"])
    right = sum(head.predict(model.encode(rest["text"])) == np.array(rest["label"]))
    assert f"head alone: {right} of 48 right" in lines and right > 18
    assert any(line.startswith("model and head: ") for line in lines)
    moved = np.abs(names["model"].encode([TEXT]) - model.encode([TEXT])).max()
    assert 1e-5 < moved < 1
