"""Encoding a corpus: its vectors are the model's, a stopped run goes on, and other models and settings are refused."""

from __future__ import annotations

import errno
import logging
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from contents import LONG, TEXTS, documents_of, files_of, times_of, vectors_of
from permissions import somebody_else
from sentence_transformers import SentenceTransformer
from tiny import tiny_model

import st_reba
from st_reba.batches import position_counts
from st_reba.corpus import Corpus, Document, encode, encode_corpus
from st_reba.corpus.encode import Run
from st_reba.corpus.passages import cutter
from st_reba.lock import writers_lock

# Four parts, the last of them short; two batches a part, one in the last.
SIZES: dict[str, Any] = {"part_size": 8, "batch_size": 4, "show_progress_bar": False}
BATCHES = 7


@pytest.fixture(scope="module")
def undisturbed(model: SentenceTransformer, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return files_of(encode_corpus(model, TEXTS, tmp_path_factory.mktemp("undisturbed") / "c", **SIZES).path)


# Vectors


@pytest.mark.parametrize("sizes", [{"batch_size": 4}, {"batch_tokens": 300}, {}], ids=str)
def test_vectors_are_those_of_the_model(model: SentenceTransformer, tmp_path: Path, sizes: Any) -> None:
    run = Run()
    corpus = encode_corpus(model, iter([*TEXTS, TEXTS[0]]), tmp_path / "c", part_size=8, run=run, **sizes)
    vectors = vectors_of(corpus)
    np.testing.assert_allclose(vectors, model.encode_document([*TEXTS, TEXTS[0]]), atol=1e-6)
    assert vectors.dtype == np.float32 and corpus.is_complete() and corpus.header()["similarity"] == "cosine"
    assert documents_of(corpus) == [Document(text, str(number)) for number, text in enumerate([*TEXTS, TEXTS[0]])]
    row, own = list(corpus.read(1))[2]
    assert row.text == TEXTS[10] and own.shape == (1, 192) and np.array_equal(own[0], vectors[10])
    counts = position_counts(model, [*TEXTS, TEXTS[0]], prompt="Text: ", task="document")
    assert counts and (run.records, run.total, run.kept, run.texts, run.positions) == (27, 27, 27, 27, sum(counts))
    assert run.seconds > 0


def test_float16(model: SentenceTransformer, tmp_path: Path) -> None:
    vectors = vectors_of(encode_corpus(model, TEXTS, tmp_path / "c", dtype="float16", **SIZES))
    assert vectors.dtype == np.float16
    np.testing.assert_allclose(vectors, model.encode_document(TEXTS), atol=1e-3)


def test_a_model_may_be_a_path(model: SentenceTransformer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The corpus remembers where it is, from its own folder; it is not loaded for an input with a wrong column."""
    model.save_pretrained(str(tmp_path / "model"))
    corpus = encode_corpus(tmp_path / "model", TEXTS, tmp_path / "out" / "c", **SIZES)
    np.testing.assert_allclose(vectors_of(corpus), model.encode_document(TEXTS), atol=1e-6)
    assert corpus.header()["model_source"] == "../../model"
    monkeypatch.setattr(encode, "loaded", lambda *_: pytest.fail("a model is loaded"))
    with pytest.raises(ValueError, match="no column 'abstract'; there: 'title'"):
        encode_corpus(tmp_path / "model", [{"title": "x"}], tmp_path / "d", text_column="abstract")
    assert not (tmp_path / "d").exists()


def test_tables_and_metadata(tmp_path: Path) -> None:
    polars = pytest.importorskip("polars")
    table = polars.DataFrame({"doc_id": ["a", "b"], "content": ["cat", "dog"], "n": [0.5, float("nan")]})
    corpus = encode_corpus(tiny_model(), table, tmp_path / "c")
    assert documents_of(corpus) == [Document("cat", "a", {"n": 0.5}), Document("dog", "b", {"n": None})]


@pytest.mark.parametrize(("seconds", "size"), [(0, 64), (1e9, 16_384)])
def test_the_size_of_a_part_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seconds: float, size: int
) -> None:
    """Once: a run that goes on, on a machine of another speed, has the same parts."""
    monkeypatch.setattr(encode, "PART_SECONDS", seconds)
    corpus = encode_corpus(tiny_model(), ["cat"] * 100, tmp_path / "c")
    assert corpus.header()["settings"]["part_size"] == size and corpus.parts() == (2 if size == 64 else 1)
    monkeypatch.setattr(encode, "PART_SECONDS", 1)
    before = times_of(corpus.path)
    assert times_of(encode_corpus(tiny_model(), ["cat"] * 100, corpus.path).path) == before
    with pytest.raises(ValueError, match=rf"part_size=10, but it was begun with {size} \(--part-size\)"):
        encode_corpus(tiny_model(), ["cat"] * 100, corpus.path, part_size=10)


# Passages


def test_passages_have_a_vector_each(model: SentenceTransformer, tmp_path: Path, batches: Any) -> None:
    run, done = Run(), batches()
    texts = ["short", LONG, "also short", LONG * 3]
    corpus = encode_corpus(model, texts, tmp_path / "c", passages="16:4", part_size=3, run=run, show_progress_bar=False)
    rows = [(row, vectors) for number in (0, 1) for row, vectors in corpus.read(number)]
    assert [row.text for row, _ in rows] == texts and rows[0][0].passages == ["short"]
    assert [row.spans for row, _ in rows] == cutter(model, "16:4")(texts)
    for row, vectors in rows:
        np.testing.assert_allclose(vectors, model.encode_document(row.passages), atol=1e-6)
    totals = corpus.header()["totals"]
    assert (totals["documents"], totals["vectors"]) == (4, sum(done)) and run.texts == run.total == sum(done) > 12
    with pytest.raises(ValueError, match=r"passages='16:5', but it was begun with '16:4' \(--passages\)"):
        encode_corpus(model, texts, tmp_path / "c", passages="16:5")


# Going on


@pytest.mark.parametrize("stop", [0, 1, 4, 6])
def test_goes_on_where_it_was(
    model: SentenceTransformer, tmp_path: Path, undisturbed: dict[str, str], batches: Any, stop: int
) -> None:
    """Stopped before, within and after a part: the files are those of a run that was not."""
    batches(stop)
    first, second = Run(), Run()
    with pytest.raises(KeyboardInterrupt):
        encode_corpus(model, TEXTS, tmp_path / "c", run=first, **SIZES)
    corpus = Corpus(tmp_path / "c")
    kept = stop // 2
    assert corpus.pending() == list(range(kept, 4)) and not corpus.is_complete()
    assert (first.texts, first.kept, first.total) == (4 * stop, 8 * kept, 26) and not list(tmp_path.rglob("*.tmp"))
    with pytest.raises(ValueError, match="not encoded to its end"):
        corpus.verify()
    done = batches()
    encode_corpus(model, TEXTS, tmp_path / "c", run=second, **SIZES)
    assert len(done) == BATCHES - 2 * kept
    assert (second.texts, second.kept, second.total) == (26 - 8 * kept, 26, 26)
    assert files_of(tmp_path / "c") == undisturbed


def test_nothing_to_do(
    model: SentenceTransformer, tmp_path: Path, batches: Any, caplog: pytest.LogCaptureFixture
) -> None:
    encode_corpus(model, TEXTS[:9], tmp_path / "c", **SIZES)
    done, before = batches(), times_of(tmp_path / "c")
    with caplog.at_level(logging.INFO, "st_reba"):
        encode_corpus(model, TEXTS[:9], tmp_path / "c", **SIZES)
    assert done == [] and "nothing to do" in caplog.text and times_of(tmp_path / "c") == before


def test_bars_tell_what_is_kept(
    model: SentenceTransformer, tmp_path: Path, batches: Any, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    batches(4)
    with pytest.raises(KeyboardInterrupt):
        encode_corpus(model, TEXTS, tmp_path / "c", **SIZES)
    assert "Encoding" not in capsys.readouterr().err
    batches()
    monkeypatch.setenv("TQDM_MININTERVAL", "0")
    encode_corpus(model, TEXTS, tmp_path / "c", **{**SIZES, "show_progress_bar": True})
    shown = capsys.readouterr().err
    assert "Reading: 100%" in shown and "16/26" in shown and "26/26" in shown and "tokens/s" in shown


# Another model, other settings


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dtype": "float16"}, r"dtype='float16', but it was begun with 'float32' \(--store-dtype\).*--overwrite"),
        ({"batch_size": 5}, r"batch_size=5, but it was begun with 4 \(--batch-size\)"),
        ({"batch_size": None, "batch_tokens": 99}, "batch_size=None, but it was begun with 4"),
    ],
    ids=str,
)
def test_other_settings_are_refused(
    model: SentenceTransformer, tmp_path: Path, batches: Any, options: dict[str, Any], message: str
) -> None:
    batches(2)
    with pytest.raises(KeyboardInterrupt):
        encode_corpus(model, TEXTS[:9], tmp_path / "c", **SIZES)
    before = files_of(tmp_path / "c")
    with pytest.raises(ValueError, match=message):
        encode_corpus(model, TEXTS[:9], tmp_path / "c", **{**SIZES, **options})
    assert files_of(tmp_path / "c") == before
    batches()
    corpus = encode_corpus(model, TEXTS[:9], tmp_path / "c", overwrite=True, **{**SIZES, **options})
    np.testing.assert_allclose(vectors_of(corpus), model.encode_document(TEXTS[:9]), atol=1e-3)


def test_another_model_is_refused(model: SentenceTransformer, tmp_path: Path) -> None:
    corpus = encode_corpus(model, TEXTS[:9], tmp_path / "c", **SIZES)
    before = files_of(corpus.path)
    other = st_reba.build("mini", "echo", pooling="mean")
    half = st_reba.build("mini", pooling="mean", prompts={"document": "Text: "}, dtype="bfloat16")
    with pytest.raises(ValueError, match=f"the corpus {corpus.path} was built with mini and cannot be used with"):
        encode_corpus(other, TEXTS[:9], corpus.path, **SIZES)
    with pytest.raises(ValueError, match=r"model_dtype='bfloat16', but it was begun with 'float32' \(--dtype\)"):
        encode_corpus(half, TEXTS[:9], corpus.path, **SIZES)
    assert files_of(corpus.path) == before
    encode_corpus(other, TEXTS[:9], corpus.path, overwrite=True, **SIZES)
    np.testing.assert_allclose(vectors_of(corpus), other.encode_document(TEXTS[:9]), atol=1e-6)


def test_overwriting_removes_nothing_else(model: SentenceTransformer, tmp_path: Path) -> None:
    corpus = encode_corpus(model, TEXTS, tmp_path / "c", **SIZES)
    (corpus.path / "notes.txt").write_text("mine")
    (corpus.path / "documents" / "notes.parquet").write_text("mine")
    (corpus.path / "corpus.json").write_text("{")
    with pytest.raises(ValueError, match="corpus.json: not JSON"):
        encode_corpus(model, TEXTS[:2], corpus.path, **SIZES)
    encode_corpus(model, TEXTS[:2], corpus.path, overwrite=True, **SIZES)
    assert {name for name in files_of(corpus.path) if "notes" in name} == {"notes.txt", "documents/notes.parquet"}
    assert len(documents_of(corpus)) == 2


def test_a_failed_start_leaves_nothing(tmp_path: Path) -> None:
    """Nor, in a folder that was there, what would bind a later run to its settings."""
    tiny = tiny_model()
    (tmp_path / "c").mkdir()
    for folder in (tmp_path / "c", tmp_path / "d"):
        with pytest.raises(ValueError, match="record 0"):
            encode_corpus(tiny, [""], folder, strict=True)
    assert not (tmp_path / "d").exists()
    assert encode_corpus(tiny, TEXTS[:2], tmp_path / "c", dtype="float16").is_complete()


# Folders


@pytest.mark.parametrize("overwrite", [False, True])
def test_other_folders_are_refused(tmp_path: Path, overwrite: bool) -> None:
    for name in ("file", "folder/a.txt", "papers/documents/00000.parquet"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("mine")
    before = files_of(tmp_path)
    for name, message in (
        ("folder", "an encoded corpus"),
        ("papers", "an encoded corpus"),
        ("file", "a file is there"),
    ):
        with pytest.raises(FileExistsError, match=message):
            encode_corpus(tiny_model(), TEXTS, tmp_path / name, overwrite=overwrite)
    assert files_of(tmp_path) == before
    with pytest.raises(FileNotFoundError, match="not an encoded corpus; st-reba encode-corpus writes one"):
        Corpus(tmp_path / "folder").header()


def test_one_writer(tmp_path: Path) -> None:
    corpus = encode_corpus(tiny_model(), TEXTS[:2], tmp_path / "c")
    before = files_of(corpus.path)
    with writers_lock(corpus.path), pytest.raises(BlockingIOError, match=f"{corpus.path}: another process is writing"):
        encode_corpus(tiny_model(), TEXTS[:3], corpus.path)
    assert files_of(corpus.path) == before
    assert encode_corpus(tiny_model(), TEXTS[:3], corpus.path).header()["totals"]["documents"] == 3


@pytest.mark.parametrize(
    ("number", "message"),
    [(errno.ENOSPC, "free space, then run the same again"), (errno.EROFS, "make it readable and writable")],
)
def test_disk_errors(
    model: SentenceTransformer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, message: str
) -> None:
    """What is finished stays, and the same call goes on."""
    real = np.save

    def fail(stream: Any, rows: Any) -> None:
        if "00001" in stream.name:
            raise OSError(number, os.strerror(number))
        real(stream, rows)

    with monkeypatch.context() as patch:
        patch.setattr(np, "save", fail)
        with pytest.raises(OSError, match=f"{message}.*what is finished stays.*00001.npy") as caught:
            encode_corpus(model, TEXTS[:17], tmp_path / "c", **SIZES)
    assert caught.value.errno == number and not list(tmp_path.rglob("*.tmp"))
    assert Corpus(tmp_path / "c").pending() == [1, 2]
    corpus = encode_corpus(model, TEXTS[:17], tmp_path / "c", **SIZES)
    np.testing.assert_allclose(vectors_of(corpus), model.encode_document(TEXTS[:17]), atol=1e-6)


@pytest.mark.skipif(not hasattr(os, "seteuid"), reason="needs users and permissions")
def test_read_only_folder(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir(mode=0o555)
    with somebody_else(folder), pytest.raises(PermissionError, match="make it readable and writable"):
        encode_corpus(tiny_model(), TEXTS, folder / "c")
    assert not any(folder.iterdir())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"engine": "cluster"}, "engine='cluster'.*local, ray"),
        ({"workers": 0}, "workers=0 must be a whole number"),
        ({"workers": 1, "devices": ["cuda:0", "cuda:1"]}, "workers=1 are fewer than devices="),
        ({"devices": "cuda:0"}, "devices='cuda:0' must be a list"),
        ({"part_size": 0}, "part_size=0 must be a whole number"),
        ({"dtype": "float64"}, "dtype='float64'.*float32, float16"),
        ({"batch_size": 2, "batch_tokens": 2}, "exclude each other"),
        ({"max_chars": 0}, "max_chars=0"),
    ],
    ids=str,
)
def test_bad_options_leave_no_folder(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        encode_corpus(tiny_model(), TEXTS, tmp_path / "c", **options)
    assert not list(tmp_path.iterdir())
