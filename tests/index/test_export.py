"""An index given away: as .npy with its documents beside, and as parquet."""

from __future__ import annotations

import json
import logging
import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from tiny import DIM, WORDS, tiny_model

import st_reba.index.exporting as exporting
from st_reba.index import Document, Index, export, read_documents

MODEL = tiny_model()
TEXTS = [f"{a} {b}" for a in WORDS[:12] for b in WORDS[:12] if a != b]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("export") / "index"
    documents = [Document(text, f"d{n}", {"n": n, "名": "é"}) for n, text in enumerate(TEXTS[:100])]
    with Index.build(MODEL, documents, path, show_progress_bar=False) as index:
        index.add(TEXTS[100:])
        index.delete([f"d{n}" for n in range(0, 60, 3)])
    return path


def expected() -> tuple[list[str], list[str], np.ndarray]:
    rows = [n for n in range(len(TEXTS)) if n >= 60 or n % 3]
    vectors = MODEL.encode_document([TEXTS[n] for n in rows], show_progress_bar=False).astype(np.float64)
    ids = [f"d{n}" if n < 100 else str(n) for n in rows]
    return ids, [TEXTS[n] for n in rows], vectors / np.linalg.norm(vectors, axis=1)[:, None]


def test_npy(path: Path, tmp_path: Path) -> None:
    ids, texts, vectors = expected()
    assert export(path, tmp_path / "x.npy") == len(ids)
    found = np.load(tmp_path / "x.npy")
    assert found.dtype == np.float32 and found.shape == (len(ids), DIM)
    assert np.abs(found - vectors).max() < 1e-6
    lines = [json.loads(line) for line in (tmp_path / "x.documents.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [line["id"] for line in lines] == ids and [line["text"] for line in lines] == texts
    assert lines[0]["metadata"] == {"n": 1, "名": "é"} and lines[-1]["metadata"] == {}
    assert {file.name for file in tmp_path.iterdir()} == {"x.npy", "x.documents.jsonl"}


def test_parquet(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    monkeypatch.setattr(exporting, "_ROWS_A_GROUP", 7)
    ids, texts, vectors = expected()
    assert export(path, tmp_path / "x.parquet") == len(ids)
    file = parquet.ParquetFile(tmp_path / "x.parquet")
    assert file.num_row_groups == -(-len(ids) // 7) or file.num_row_groups > 5
    table = file.read()
    assert table.column_names == ["id", "text", "metadata", "vector"]
    assert table["id"].to_pylist() == ids and table["text"].to_pylist() == texts
    assert json.loads(table["metadata"][0].as_py()) == {"n": 1, "名": "é"}
    assert str(table.schema.field("vector").type).startswith("fixed_size_list<") and f"[{DIM}]" in str(
        table.schema.field("vector").type
    )
    assert np.abs(np.array(table["vector"].to_pylist()) - vectors).max() < 1e-6
    # What was exported can be read as an input again.
    again = list(read_documents(tmp_path / "x.parquet"))
    assert [document.id for document in again] == ids and [document.text for document in again] == texts


def test_whole_or_not_at_all(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / ".x.npy.0123456789ab.tmp").write_bytes(b"killed")
    export(path, tmp_path / "x.npy")
    before = (tmp_path / "x.npy").read_bytes()
    with pytest.raises(FileExistsError, match="--overwrite"):
        export(path, tmp_path / "x.npy")

    def failing(self: object) -> object:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(exporting.Rows, "blocks", failing)
        for name in ("x.npy", "y.parquet"):
            with pytest.raises(OSError, match="No space"):
                export(path, tmp_path / name, overwrite=True)
    assert (tmp_path / "x.npy").read_bytes() == before
    assert {file.name for file in tmp_path.iterdir()} == {"x.npy", "x.documents.jsonl"}
    assert export(path, tmp_path / "x.npy", overwrite=True) == len(expected()[0])


def test_refused(path: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"export writes \.npy or \.parquet"):
        export(path, tmp_path / "x.csv")
    with pytest.raises(FileNotFoundError, match="no such folder"):
        export(path, tmp_path / "no" / "x.npy")
    with pytest.raises(FileNotFoundError, match="not an index"):
        export(tmp_path, tmp_path / "x.npy")
    with Index.build(MODEL, ["cat"], tmp_path / "empty") as index:
        index.delete(["0"])
        with pytest.raises(ValueError, match="the index is empty"):
            index.export(tmp_path / "x.npy")


def test_parquet_needs_an_extra(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(ImportError, match=r"\.parquet, unlike \.npy, needs pyarrow.*pip install 'st-reba\[corpus\]'"):
        export(path, tmp_path / "x.parquet")
    assert not list(tmp_path.iterdir()) and export(path, tmp_path / "x.npy")


def test_codes_in_place_of_vectors_are_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with Index.build(MODEL, TEXTS, tmp_path / "index", factory="SQ8") as index, caplog.at_level(logging.WARNING):
        index.export(tmp_path / "x.npy")
    assert "approximations" in caplog.text
    vectors = MODEL.encode_document(TEXTS, show_progress_bar=False)
    vectors /= np.linalg.norm(vectors, axis=1)[:, None]
    assert 1e-6 < np.abs(np.load(tmp_path / "x.npy") - vectors).max() < 0.02
