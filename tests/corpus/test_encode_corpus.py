"""Encoding a corpus: equality with the model's own vectors, going on after any stop, and what is set aside."""

from __future__ import annotations

import errno
import json
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from architectures import TOKENIZERS
from permissions import somebody_else
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import StaticEmbedding

import st_reba
from st_reba.batches import position_counts
from st_reba.corpus import Corpus, Document, arrays, clock, encode_corpus, shard
from st_reba.corpus.clock import Clock
from st_reba.corpus.progress import RunProgress
from st_reba.lock import writers_lock

TEXTS = [f"Text {'very ' * (number * 7 % 9)}number {number}, 第{number}句。" for number in range(26)]
# Four shards, the last of them short; two batches a shard, one in the last.
SIZES: dict[str, Any] = {"shard_size": 8, "batch_size": 4}
BATCHES = 7


@pytest.fixture(scope="module")
def model() -> SentenceTransformer:
    return st_reba.build("mini", pooling="mean", prompts={"document": "Text: "})


@pytest.fixture(scope="module")
def undisturbed(model: SentenceTransformer, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    path = tmp_path_factory.mktemp("undisturbed") / "corpus"
    encode_corpus(model, [*TEXTS, ""], path, **SIZES)
    return content(path)


@pytest.fixture
def batches(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[int]]:
    """Count forward passes from now on; the given one fails."""
    real = shard.encode_batch

    def count(fail: int | None = None, error: BaseException | None = None) -> list[int]:
        done: list[int] = []

        def encode(model: Any, texts: list[str], **options: Any) -> Any:
            if len(done) == fail:
                raise error or RuntimeError("the machine broke")
            done.append(len(texts))
            return real(model, texts, **options)

        monkeypatch.setattr(shard, "encode_batch", encode)
        return done

    return count


def content(path: Path) -> dict[str, Any]:
    """Every file of a corpus, times left out."""
    found: dict[str, Any] = {}
    for file in sorted(path.rglob("*")):
        name = file.relative_to(path).as_posix()
        if file.is_dir() or name == ".lock":
            continue
        found[name] = file.read_bytes()
        if name == "corpus.json" or name.endswith(".vectors.json"):
            found[name] = {key: value for key, value in json.loads(found[name]).items() if key != "seconds"}
    return found


def stacked(corpus: Corpus) -> Any:
    return np.concatenate([np.array(vectors) for _, vectors in corpus.shards()])


def documents(corpus: Corpus) -> list[Document]:
    return [document for store, _ in corpus.shards() for document in store.get(range(len(store)))]


@pytest.mark.parametrize("sizes", [{"batch_size": 4}, {"batch_tokens": 300}, {}], ids=str)
def test_vectors_are_those_of_the_model(model: SentenceTransformer, tmp_path: Path, sizes: dict[str, int]) -> None:
    texts = [*TEXTS, *TEXTS[:3]]
    corpus = encode_corpus(model, iter(texts), tmp_path / "c", shard_size=8, **sizes)
    vectors = stacked(corpus)
    np.testing.assert_allclose(vectors, model.encode_document(texts), atol=1e-5)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)
    assert vectors.dtype == np.float32 and corpus.is_complete()
    assert [(document.id, document.text) for document in documents(corpus)] == [
        (str(number), text) for number, text in enumerate(texts)
    ]
    header = corpus.header()
    counts = position_counts(model, texts, prompt="Text: ", task="document")
    assert counts is not None
    assert header["totals"] == {
        "shards": 4,
        "documents": 29,
        "rejected": 0,
        "records": 29,
        "unusable": 0,
        "positions": sum(counts),
    }
    assert header["status"] == "complete" and header["metric"] == "cosine" and header["model"]["dimension"] == 192
    assert set(header["seconds"]) == {"gather", "read", "tokenize", "encode", "write"}
    assert all(seconds > 0 for seconds in header["seconds"].values())
    assert [file["name"] for file in header["files"]][:2] == ["shards/00000.sqlite", "shards/00000.npy"]
    corpus.check()


def test_float16(model: SentenceTransformer, tmp_path: Path) -> None:
    vectors = stacked(encode_corpus(model, TEXTS, tmp_path / "c", dtype="float16", **SIZES))
    assert vectors.dtype == np.float16
    np.testing.assert_allclose(vectors, model.encode_document(TEXTS), atol=1e-3)


def test_chunks_and_their_order(model: SentenceTransformer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A shard of several chunks, cut by texts or by characters."""
    wanted = model.encode_document(TEXTS)
    for name, limit in (("CHUNK_TEXTS", 5), ("CHUNK_CHARS", 100)):
        with monkeypatch.context() as patch:
            patch.setattr(shard, name, limit)
            progress = RunProgress(show=False)
            corpus = encode_corpus(model, TEXTS, tmp_path / name, progress=progress)
            np.testing.assert_allclose(stacked(corpus), wanted, atol=1e-5)
            assert progress.texts == 26 and progress.positions == corpus.header()["totals"]["positions"] > 26


def test_input_without_padding(tmp_path: Path) -> None:
    """Positions of a bag of words are not counted."""
    bag = SentenceTransformer(modules=[StaticEmbedding(TOKENIZERS["plain"]().backend_tokenizer, embedding_dim=8)])
    for sizes in ({}, {"batch_size": 4}):
        corpus = encode_corpus(bag, TEXTS, tmp_path / str(len(sizes)), shard_size=10, **sizes)
        np.testing.assert_allclose(stacked(corpus), bag.encode_document(TEXTS), atol=1e-5)
        assert corpus.header()["totals"]["positions"] is None


def test_shard_without_documents(model: SentenceTransformer, tmp_path: Path) -> None:
    corpus = encode_corpus(model, ["", " ", *TEXTS[:3]], tmp_path / "c", shard_size=2)
    assert [vectors.shape for _, vectors in corpus.shards()] == [(0, 192), (2, 192), (1, 192)]
    assert [reject.place for reject in corpus.rejects()] == ["record 0", "record 1"]


# Going on


@pytest.mark.parametrize("stop", range(BATCHES))
def test_goes_on_where_it_was(
    model: SentenceTransformer,
    tmp_path: Path,
    undisturbed: dict[str, Any],
    batches: Callable[..., list[int]],
    stop: int,
) -> None:
    """Stopped before, within and after every shard: the files are those of a run that was not."""
    texts = [*TEXTS, ""]
    error = KeyboardInterrupt() if stop % 2 else RuntimeError("the machine broke")
    batches(stop, error)
    with pytest.raises(type(error)):
        encode_corpus(model, texts, tmp_path / "c", **SIZES)
    corpus = Corpus(tmp_path / "c")
    kept = [number for number in range(4) if corpus.vectors(number) is not None]
    assert kept == list(range(stop // 2)) and not corpus.is_complete()
    assert corpus.header()["status"] == "encoding" and not list(tmp_path.rglob("*.tmp"))
    assert "preprocess" not in vars(model)
    done = batches()
    progress = RunProgress(show=False)
    encode_corpus(model, texts, tmp_path / "c", progress=progress, **SIZES)
    assert len(done) == BATCHES - 2 * len(kept)
    assert (progress.texts, progress.done, progress.total) == (sum(done), 26, 26)
    assert progress.kept == 26 and progress.texts == 26 - 8 * len(kept)
    assert content(tmp_path / "c") == undisturbed


def test_nothing_to_do(
    model: SentenceTransformer,
    tmp_path: Path,
    batches: Callable[..., list[int]],
    caplog: pytest.LogCaptureFixture,
) -> None:
    encode_corpus(model, TEXTS, tmp_path / "c", **SIZES)
    times = {file: file.stat().st_mtime_ns for file in (tmp_path / "c").rglob("*.*") if file.name != ".lock"}
    done = batches()
    with caplog.at_level(logging.INFO, "st_reba"):
        encode_corpus(model, TEXTS, tmp_path / "c", **SIZES)
    assert done == [] and "nothing to do" in caplog.text
    assert {file: file.stat().st_mtime_ns for file in times} == times


def test_grown_input(
    model: SentenceTransformer, tmp_path: Path, undisturbed: dict[str, Any], batches: Callable[..., list[int]]
) -> None:
    encode_corpus(model, TEXTS[:20], tmp_path / "c", **SIZES)
    batches(1)
    with pytest.raises(RuntimeError):
        encode_corpus(model, [*TEXTS, ""], tmp_path / "c", **SIZES)
    assert Corpus(tmp_path / "c").header()["status"] == "encoding"
    done = batches()
    encode_corpus(model, [*TEXTS, ""], tmp_path / "c", **SIZES)
    # The third shard was short.
    assert sum(done) == 10
    assert content(tmp_path / "c") == undisturbed


def test_damaged_vectors_are_made_again(
    model: SentenceTransformer, tmp_path: Path, undisturbed: dict[str, Any], batches: Callable[..., list[int]]
) -> None:
    corpus = encode_corpus(model, [*TEXTS, ""], tmp_path / "c", **SIZES)
    os.truncate(corpus.vectors_path(1), 1000)
    corpus.vectors_path(2).unlink()
    done = batches()
    encode_corpus(model, [*TEXTS, ""], tmp_path / "c", **SIZES)
    assert sum(done) == 16 and content(tmp_path / "c") == undisturbed


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"shard_size": 9}, "shard_size=8, and now shard_size=9.*--shard-size.*--overwrite"),
        ({"dtype": "float16"}, "dtype='float32', and now dtype='float16'.*--store-dtype.*--overwrite"),
        ({"batch_size": 5}, "batch_size=4, and now batch_size=5.*--batch-size.*--overwrite"),
        ({"batch_size": None, "batch_tokens": 100}, "batch_size=4, and now batch_size=None.*--overwrite"),
    ],
    ids=str,
)
def test_other_settings_are_refused(
    model: SentenceTransformer, tmp_path: Path, batches: Callable[..., list[int]], options: dict[str, Any], message: str
) -> None:
    batches(3)
    with pytest.raises(RuntimeError):
        encode_corpus(model, TEXTS, tmp_path / "c", **SIZES)
    before = content(tmp_path / "c")
    with pytest.raises(ValueError, match=message):
        encode_corpus(model, TEXTS, tmp_path / "c", **{**SIZES, **options})
    assert content(tmp_path / "c") == before
    batches()
    corpus = encode_corpus(model, TEXTS, tmp_path / "c", overwrite=True, **{**SIZES, **options})
    np.testing.assert_allclose(stacked(corpus), model.encode_document(TEXTS), atol=1e-3)


def test_other_model_is_refused(model: SentenceTransformer, tmp_path: Path, batches: Callable[..., list[int]]) -> None:
    other = st_reba.build("mini", "echo", pooling="mean")
    half = st_reba.build("mini", pooling="mean", prompts={"document": "Text: "}, dtype="bfloat16")
    batches(3)
    with pytest.raises(RuntimeError):
        encode_corpus(model, TEXTS, tmp_path / "c", **SIZES)
    before = content(tmp_path / "c")
    with pytest.raises(ValueError, match="configuration.*Fingerprint of the corpus .*--overwrite"):
        encode_corpus(other, TEXTS, tmp_path / "c", **SIZES)
    with pytest.raises(ValueError, match="model_dtype='float32', and now model_dtype='bfloat16'.*--dtype"):
        encode_corpus(half, TEXTS, tmp_path / "c", **SIZES)
    assert content(tmp_path / "c") == before
    batches()
    corpus = encode_corpus(other, TEXTS, tmp_path / "c", overwrite=True, **SIZES)
    np.testing.assert_allclose(stacked(corpus), other.encode_document(TEXTS), atol=1e-5)


def test_other_input_is_refused(model: SentenceTransformer, tmp_path: Path) -> None:
    encode_corpus(model, TEXTS, tmp_path / "c", **SIZES)
    texts = [*TEXTS[:9], "another", *TEXTS[10:]]
    with pytest.raises(ValueError, match="record 8.*shard 1.*--overwrite"):
        encode_corpus(model, texts, tmp_path / "c", **SIZES)
    corpus = encode_corpus(model, texts, tmp_path / "c", overwrite=True, **SIZES)
    np.testing.assert_allclose(stacked(corpus), model.encode_document(texts), atol=1e-5)


def test_failed_start_binds_to_nothing(model: SentenceTransformer, tmp_path: Path) -> None:
    """A run that stored no document leaves the choice of settings free."""
    with pytest.raises(ValueError, match="record 0"):
        encode_corpus(model, [""], tmp_path / "c", shard_size=1, strict=True)
    assert encode_corpus(model, TEXTS[:2], tmp_path / "c", shard_size=2, dtype="float16").is_complete()


# Overwriting


def test_overwrite(
    model: SentenceTransformer, tmp_path: Path, undisturbed: dict[str, Any], batches: Callable[..., list[int]]
) -> None:
    """A complete corpus is made anew; the run that does it goes on when it is stopped, as any other."""
    texts = [*TEXTS, ""]
    path = tmp_path / "c"
    encode_corpus(model, texts, path, **SIZES)
    (path / "notes.txt").write_text("mine")
    (path / "shards" / "notes.json").write_text("mine")
    batches(5)
    with pytest.raises(RuntimeError):
        encode_corpus(model, texts, path, overwrite=True, **SIZES)
    done = batches()
    encode_corpus(model, texts, path, overwrite=True, **SIZES)
    assert len(done) == BATCHES - 4
    assert (path / "notes.txt").read_text() == (path / "shards" / "notes.json").read_text() == "mine"
    (path / "notes.txt").unlink()
    (path / "shards" / "notes.json").unlink()
    assert content(path) == undisturbed


def test_only_what_does_not_fit_is_overwritten(
    model: SentenceTransformer, tmp_path: Path, undisturbed: dict[str, Any], batches: Callable[..., list[int]]
) -> None:
    path, texts = tmp_path / "c", [*TEXTS, ""]
    for options, count in ((SIZES, BATCHES), (SIZES, 0), ({**SIZES, "batch_size": 8}, 4), (SIZES, BATCHES)):
        done = batches()
        encode_corpus(model, texts, path, overwrite="misfit", **options)
        assert len(done) == count
    assert content(path) == undisturbed
    done = batches()
    corpus = encode_corpus(model, [*TEXTS[:8], *TEXTS[16:]], path, overwrite="misfit", **SIZES)
    assert len(done) == 3 and [one.text for one in documents(corpus)] == [*TEXTS[:8], *TEXTS[16:]]
    with pytest.raises(ValueError, match="overwrite='yes' is not known"):
        encode_corpus(model, texts, path, overwrite="yes", **SIZES)  # type: ignore[arg-type]


def test_killed_while_it_is_cleared(
    model: SentenceTransformer, tmp_path: Path, undisturbed: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever file or folder is about to be removed, the same call goes on."""
    path, texts = tmp_path / "c", [*TEXTS, ""]
    encode_corpus(model, texts, path, **SIZES)
    for last in ("rmdir", "unlink"):
        real = getattr(Path, last)

        def killed(file: Path, *arguments: Any, real: Any = real, **options: Any) -> None:
            if file.name in ("shards", "corpus.json"):
                raise KeyboardInterrupt
            real(file, *arguments, **options)

        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(Path, last, killed)
            encode_corpus(model, texts, path, overwrite=True, **SIZES)
        encode_corpus(model, texts, path, overwrite=True, **SIZES)
        assert content(path) == undisturbed


@pytest.mark.parametrize("overwrite", [False, True])
def test_other_folders_are_refused(model: SentenceTransformer, tmp_path: Path, overwrite: bool) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "a.txt").write_text("mine")
    (tmp_path / "file").write_text("mine")
    for name, message in (("folder", "not an encoded corpus"), ("file", "a file is there")):
        with pytest.raises(FileExistsError, match=message):
            encode_corpus(model, TEXTS, tmp_path / name, overwrite=overwrite)
    assert [file.name for file in tmp_path.rglob("*") if file.is_file()] == ["file", "a.txt"]


def test_killed_at_the_very_start(model: SentenceTransformer, tmp_path: Path) -> None:
    """Before the header was written there is only the lock."""
    (tmp_path / ".lock").touch()
    (tmp_path / ".corpus.json.0123456789ab.tmp").write_text("{")
    assert encode_corpus(model, TEXTS[:2], tmp_path).is_complete()
    assert not list(tmp_path.glob("*.tmp"))


# What is set aside


def breaking(model: SentenceTransformer, monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on, some texts have a vector that cannot be used."""
    real = model.encode_document

    def encode(texts: list[str], **options: Any) -> Any:
        vectors = np.array(real(texts, **options))
        for row, text in enumerate(texts):
            if "number 3," in text:
                vectors[row, 5] = np.nan
            if "number 12," in text:
                vectors[row] = 0
            if "number 13," in text:
                vectors[row, 0] = -np.inf
            if "number 25," in text:
                vectors[row, 1] = 1e5
        return vectors

    monkeypatch.setattr(model, "encode_document", encode)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_unusable_vectors(
    model: SentenceTransformer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dtype: Any
) -> None:
    wanted = model.encode_document(TEXTS)
    breaking(model, monkeypatch)
    # Several chunks a shard, of which the rows are counted through.
    monkeypatch.setattr(shard, "CHUNK_TEXTS", 3)
    corpus = encode_corpus(model, ["", *TEXTS], tmp_path / "c", dtype=dtype, **SIZES)
    bad = [3, 12, 13] + ([25] if dtype == "float16" else [])
    good = [number for number in range(25) if number not in bad]
    vectors = stacked(corpus)
    assert np.isnan(vectors[bad]).all()
    np.testing.assert_allclose(vectors[good], wanted[good], atol=1e-5 if dtype == "float32" else 1e-3)
    lines = [json.loads(line) for line in (tmp_path / "c" / "rejects.jsonl").read_text().splitlines()]
    assert [line["id"] for line in lines] == [None, *(str(number + 1) for number in bad)]
    assert lines[0]["place"] == "record 0" and lines[1]["place"] == "shard 0, row 3"
    assert [line["text"] for line in lines[1:]] == [TEXTS[number][:80] for number in bad]
    reasons = ["NaN or infinite", "zero", "NaN or infinite", "1e+05, is not a float16"][: len(bad)]
    assert all(reason in line["reason"] for line, reason in zip(lines[1:], reasons, strict=True))
    totals = corpus.header()["totals"]
    assert (totals["rejected"], totals["unusable"], totals["documents"]) == (1, len(bad), 26)
    assert corpus.vectors(0).unusable.keys() == {3}  # type: ignore[union-attr]


def test_strict(
    model: SentenceTransformer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, batches: Callable[..., list[int]]
) -> None:
    done = batches()
    with pytest.raises(ValueError, match="record 9: no text"):
        encode_corpus(model, [*TEXTS[:9], " "], tmp_path / "a", strict=True, **SIZES)
    assert done == []
    breaking(model, monkeypatch)
    for _ in range(2):  # a repeated run stops at the same document
        with pytest.raises(ValueError, match=r"document '3' \(shard 0, row 3\): .*NaN or infinite.*--dtype"):
            encode_corpus(model, TEXTS, tmp_path / "b", strict=True, **SIZES)
        assert len(done) == 2
    assert encode_corpus(model, TEXTS, tmp_path / "b", **SIZES).header()["totals"]["unusable"] == 3


# One writer, and disks that fail


def test_one_writer(model: SentenceTransformer, tmp_path: Path) -> None:
    encode_corpus(model, TEXTS[:2], tmp_path / "c")
    before = content(tmp_path / "c")
    with writers_lock(tmp_path / "c"):
        with pytest.raises(BlockingIOError, match=f"{tmp_path / 'c'}: another process is writing"):
            encode_corpus(model, TEXTS[:3], tmp_path / "c")
        assert content(tmp_path / "c") == before
    assert encode_corpus(model, TEXTS[:3], tmp_path / "c").header()["totals"]["documents"] == 3


@pytest.mark.parametrize(
    ("number", "message"),
    [
        (errno.ENOSPC, "free space, then run the same command again: 2 of 4 shards are kept.*00002.npy"),
        (errno.EROFS, "make it writable.*same command again: 2 of 4 shards.*00002.npy"),
        (errno.EACCES, "make it readable and writable.*same command again: 2 of 4 shards.*00002.npy"),
    ],
)
def test_disk_errors(
    model: SentenceTransformer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    undisturbed: dict[str, Any],
    number: int,
    message: str,
) -> None:
    real = np.lib.format.write_array_header_1_0

    def fail(stream: Any, header: Any) -> None:
        if "00002" in stream.name:
            raise OSError(number, os.strerror(number))
        real(stream, header)

    with monkeypatch.context() as patch:
        patch.setattr(arrays.np.lib.format, "write_array_header_1_0", fail)
        with pytest.raises(OSError, match=message) as caught:
            encode_corpus(model, [*TEXTS, ""], tmp_path / "c", **SIZES)
    assert caught.value.errno == number and not list(tmp_path.rglob("*.tmp"))
    encode_corpus(model, [*TEXTS, ""], tmp_path / "c", **SIZES)
    assert content(tmp_path / "c") == undisturbed


@pytest.mark.skipif(not hasattr(os, "seteuid"), reason="needs users and permissions")
def test_read_only_folder(model: SentenceTransformer, tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir(mode=0o555)
    with somebody_else(folder), pytest.raises(PermissionError, match="make it readable and writable"):
        encode_corpus(model, TEXTS, folder / "c")
    assert not any(folder.iterdir())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"engine": "cluster"}, "engine='cluster'.*single, local, ray"),
        ({"workers": 2}, "workers=2.*--engine local"),
        ({"devices": ["cpu"]}, "devices=.*--engine local"),
        ({"engine": "local", "workers": 0}, "workers=0 must be a whole number"),
        ({"shard_size": 0}, "shard_size=0 must be a whole number"),
        ({"dtype": "float64"}, "dtype='float64'.*float32, float16"),
        ({"batch_size": 2, "batch_tokens": 2}, "exclude each other"),
        ({"max_chars": 0}, "max_chars=0"),
    ],
    ids=str,
)
def test_bad_options_leave_no_folder(
    model: SentenceTransformer, tmp_path: Path, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        encode_corpus(model, TEXTS, tmp_path / "c", **options)
    assert not list(tmp_path.iterdir())


# The parts


def test_progress_is_of_this_run_alone(
    model: SentenceTransformer,
    tmp_path: Path,
    batches: Callable[..., list[int]],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    batches(4)
    with pytest.raises(RuntimeError):
        encode_corpus(model, TEXTS, tmp_path / "c", show_progress_bar=False, **SIZES)
    assert "Encoding" not in capsys.readouterr().err
    batches()
    monkeypatch.setenv("TQDM_MININTERVAL", "0")
    progress = RunProgress(show=True)
    corpus = encode_corpus(model, TEXTS, tmp_path / "c", progress=progress, **SIZES)
    shown = capsys.readouterr().err
    assert "Reading: 100%" in shown and "16/26" in shown and "26/26" in shown and "tokens/s" in shown
    records = [corpus.vectors(number) for number in range(4)]
    positions = [record.positions or 0 for record in records if record is not None]
    assert (progress.records, progress.texts, progress.positions) == (26, 10, positions[2] + positions[3])
    assert progress.seconds > 0


def test_writer_of_arrays(tmp_path: Path) -> None:
    rows = np.arange(12, dtype=np.float32).reshape(4, 3)
    np.save(tmp_path / "wanted.npy", rows)
    with arrays.npy_writer(tmp_path / "a.npy", 4, "float32") as write:
        write(rows[:1])
        write(rows[::-1][:3][::-1])
    assert (tmp_path / "a.npy").read_bytes() == (tmp_path / "wanted.npy").read_bytes()
    for parts in ([rows[:3]], [rows, rows[:1]], [rows[:2], rows[2:, :2]], []):
        with pytest.raises(ValueError, match="rows"), arrays.npy_writer(tmp_path / "b.npy", 4, "float32") as write:
            for part in parts:
                write(part)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["a.npy", "wanted.npy"]


def test_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stage within another counts for itself alone, also when it fails."""
    now = [0.0]
    monkeypatch.setattr(clock.time, "perf_counter", lambda: now[0])
    found = Clock("encode", "tokenize", "write")

    def passes(seconds: float) -> None:
        now[0] += seconds

    with found.stage("encode"):
        passes(1)
        with pytest.raises(ValueError), found.stage("tokenize"):
            passes(2)
            raise ValueError
        passes(4)
    passes(100)
    with found.stage("encode"):
        passes(8)
    assert found.seconds == {"encode": 13, "tokenize": 2, "write": 0}
