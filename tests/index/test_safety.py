"""What an index refuses: other models, damaged and missing files, later versions; and disks that refuse."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from indexes import TEXTS, clustered, make_corpus, make_model, mark
from permissions import somebody_else
from sentence_transformers import SentenceTransformer

from st_reba.corpus.folder import Corpus
from st_reba.fingerprint import fingerprint
from st_reba.index import Index
from st_reba.index.folder.commit import commit
from st_reba.index.folder.manifest import Manifest

FILES = ["documents-1.sqlite", "manifest.json", "vectors-1.faiss"]
DIM = 16


@pytest.fixture(scope="module")
def model() -> SentenceTransformer:
    return make_model()


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("index")
    make_corpus(folder / "corpus", clustered(300, DIM))
    Index.from_corpus(folder / "corpus", folder / "index", factory="IVF4,Flat").close()
    return folder / "index"


@pytest.fixture
def copy(built: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(built, tmp_path / "copy"))


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir()) if path.is_file()}


# Other models


def test_both_fingerprints_are_told(model: SentenceTransformer, tmp_path: Path) -> None:
    Index.build(model, TEXTS, tmp_path / "index").close()
    stored = Index.open(tmp_path / "index").manifest.model
    refused = {
        "method": make_model(pooling="lasttoken"),
        "dimension": make_model(truncate_dim=64),
        "normalization": make_model(similarity_fn_name="dot"),
    }
    for name, other in refused.items():
        with pytest.raises(ValueError) as caught:
            Index.open(tmp_path / "index", other)
        assert str(stored) in str(caught.value) and str(fingerprint(other)) in str(caught.value), name
        with pytest.raises(ValueError, match="and cannot be used with"):
            Index.open(tmp_path / "index").search("text", model=other)
    manifest = Index.open(tmp_path / "index").manifest
    commit(tmp_path / "index", manifest.succeeding(model=replace(manifest.model, revision="aaa")))
    config = model[0].auto_model.config  # type: ignore[union-attr]
    config._commit_hash = "bbb"
    try:
        with pytest.raises(ValueError, match="revision: aaa there, bbb here.*revision aaa,.*revision bbb,"):
            Index.open(tmp_path / "index", model)
    finally:
        config._commit_hash = None


def test_a_corpus_by_another_model(model: SentenceTransformer, tmp_path: Path) -> None:
    make_corpus(tmp_path / "corpus", clustered(5, 192))
    with pytest.raises(ValueError, match="the corpus was built with made up and cannot be used with mini"):
        Index.from_corpus(tmp_path / "corpus", tmp_path / "index", model)
    assert not (tmp_path / "index").exists()


# Damaged files


@pytest.mark.parametrize("name", FILES)
def test_missing_files(copy: Path, name: str) -> None:
    (copy / name).unlink()
    with pytest.raises(FileNotFoundError, match=f"{name}: no such file.*build"):
        Index.open(copy)


def test_no_index(copy: Path, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="nowhere is not an index; build one there"):
        Index.open(tmp_path / "nowhere")
    (copy / "manifest.json").unlink()
    (copy / ".building").mkdir()
    with pytest.raises(FileNotFoundError, match="still being built: run the same command again"):
        Index.open(copy)


@pytest.mark.parametrize("name", FILES)
def test_one_byte_less_or_another(copy: Path, name: str) -> None:
    original = (copy / name).read_bytes()
    (copy / name).write_bytes(original[:-3])  # of the manifest, more than its last line end
    with pytest.raises(ValueError, match=f"{name}.*build the index again"):
        Index.open(copy, verify=False)
    rng = np.random.default_rng(0)
    for place in [0, len(original) - 5, *rng.integers(len(original), size=20).tolist()]:
        changed = bytearray(original)
        changed[place] ^= 0x20
        (copy / name).write_bytes(changed)
        if name == "manifest.json":
            continue  # it has no digest; what is checked in it is told below
        with pytest.raises(ValueError, match=f"{name}: its SHA-256 is not .*build the index again"):
            Index.open(copy)
    (copy / name).write_bytes(original)
    assert len(Index.open(copy)) == 300


@pytest.mark.parametrize("name", FILES)
def test_garbage(copy: Path, name: str) -> None:
    original = (copy / name).read_bytes()
    manifest = json.loads((copy / "manifest.json").read_text())
    for bad in (b"", b"garbage" * 1000, os.urandom(len(original)), b"[]"):
        (copy / name).write_bytes(bad)
        with pytest.raises(ValueError, match=name):
            Index.open(copy)
        if name == "manifest.json":
            continue
        # Even if the manifest says that it is right.
        for file in manifest["segments"][0].values():
            if isinstance(file, dict) and file["name"] == name:
                file["bytes"] = len(bad)
        (copy / "manifest.json").write_text(json.dumps(manifest))
        with pytest.raises(ValueError, match=name):
            Index.open(copy, verify=False).search(np.ones(DIM), k=5)


def test_files_of_another_index(copy: Path, tmp_path: Path) -> None:
    make_corpus(tmp_path / "corpus", clustered(20, DIM))
    Index.from_corpus(tmp_path / "corpus", tmp_path / "other").close()
    manifest, other = (Manifest.read(folder) for folder in (copy, tmp_path / "other"))
    for key, message in (("vectors", "count 20, but manifest.json expects 300"), ("documents", "20 documents")):
        stored = getattr(other.segments[0], key)
        shutil.copy(tmp_path / "other" / stored.name, copy / f"strange-{key}")
        strange = replace(stored, name=f"strange-{key}")
        manifest.succeeding(segments=(replace(manifest.segments[0], **{key: strange}),)).write(copy)
        with pytest.raises(ValueError, match=f"strange-{key}: {message}"):
            Index.open(copy)
    manifest.write(copy)
    manifest.succeeding(model=mark(DIM + 1)).write(copy)
    with pytest.raises(ValueError, match=f"dim {DIM}, but manifest.json expects {DIM + 1}"):
        Index.open(copy)


@pytest.mark.parametrize("name", ["shards/00001.npy", "shards/00001.sqlite"])
def test_damaged_corpus(tmp_path: Path, name: str) -> None:
    path = make_corpus(tmp_path / "corpus", clustered(90, DIM))
    changed = bytearray((path / name).read_bytes())
    changed[-100] ^= 1
    (path / name).write_bytes(changed)
    with pytest.raises(ValueError, match=f"{Path(name).name}: its SHA-256 is not"):
        Index.from_corpus(path, tmp_path / "index")
    (path / name).write_bytes(changed[:-1])
    with pytest.raises(ValueError, match="it is truncated or altered"):
        Index.from_corpus(path, tmp_path / "index", verify=False)
    (path / "gathered.json").unlink()
    with pytest.raises(ValueError, match="the input was not read to its end"):
        Index.from_corpus(path, tmp_path / "index")
    assert not (tmp_path / "index").exists()


def test_a_vector_that_the_corpus_does_not_name(tmp_path: Path) -> None:
    vectors = clustered(90, DIM)
    vectors[50, 3] = np.nan
    with pytest.raises(ValueError, match="a vector is NaN, infinite or zero; it is damaged"):
        Index.from_corpus(make_corpus(tmp_path / "corpus", vectors), tmp_path / "index")


# The manifest


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("format_version", 3, "install a later st_reba"),
        ("format_version", "1", "expected int, found str"),
        ("count", True, "expected int, found bool"),
        ("count", 0, "segments give 300"),
        ("dim", 191, "model and segments give 16"),
        ("metric", "euclidean", "cosine, dot"),
        ("created", None, "expected str"),
        ("segments", [3], "expected an object"),
        ("segments", [], "segments give 0"),
        ("model", [], "expected dict"),
        ("model.config_hash", 3, "expected a string"),
        ("model.dimension", 0, "positive"),
        ("model.probe", ["!", "?"], "base64"),
        ("model.name", 3, "string or null"),
        ("segments.count", 0, "0 of 0 rows|1 of"),
        ("segments.deleted_count", 3, "deleted_count is 3, deleted is None"),
        ("segments.vectors", {"name": "../x", "bytes": 3, "sha256": ""}, "a file in the folder"),
        ("segments.documents", None, "expected an object"),
    ],
)
def test_bad_manifest(copy: Path, key: str, value: Any, message: str) -> None:
    path = copy / "manifest.json"
    for wrong in ({}, {"new": value}):
        changed = json.loads(path.read_text(encoding="utf-8"))
        inner = changed["model"] if key.startswith("model.") else changed
        inner = changed["segments"][0] if key.startswith("segments.") else inner
        inner.pop(key.rpartition(".")[2])
        inner.update({key.rpartition(".")[2]: item for item in wrong.values()})
        (copy.parent / "bad").mkdir(exist_ok=True)
        (copy.parent / "bad" / "manifest.json").write_text(json.dumps(changed))
        with pytest.raises(ValueError, match=f"bad.manifest.json: .*({message if wrong else 'missing|an object'})"):
            Manifest.read(copy.parent / "bad")


def test_manifest_is_written_whole_or_not_at_all(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    manifest = Manifest.read(copy)
    before = content(copy)
    monkeypatch.setattr(os, "fsync", lambda descriptor: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        manifest.succeeding(rejected=5).write(copy)
    assert content(copy) == before


def test_a_damaged_index_can_be_replaced(copy: Path, built: Path) -> None:
    (copy / "manifest.json").write_bytes(b"garbage")
    with pytest.raises(FileExistsError, match="already there"):
        Index.from_corpus(built.parent / "corpus", copy)
    with Index.from_corpus(built.parent / "corpus", copy, overwrite=True) as index:
        assert len(index) == 300 and index.manifest.segments[0].number == 2
    assert sorted(content(copy)) == [".lock", "documents-2.sqlite", "manifest.json", "vectors-2.faiss"]


# Disks


@contextmanager
def small_disk(limit: int) -> Iterator[None]:
    """Files cannot grow beyond a size: as on a full disk, writing fails in the middle."""
    resource = pytest.importorskip("resource")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize(("factory", "wide"), [("Flat", False), ("SQ8", False), ("Flat", True)])
def test_disk_full(copy: Path, tmp_path: Path, factory: str, wide: bool) -> None:
    """While the vectors are written, by hand or by FAISS, or the documents."""
    ids = [f"{row:0{400 if wide else 1}d}" for row in range(2000)]
    corpus = make_corpus(tmp_path / "corpus", clustered(2000, 8 if wide else 192), ids=ids, shards=20)
    before = content(copy)
    for target in (copy, tmp_path / "new"):
        with small_disk(300_000), pytest.raises(OSError, match=f"nothing that was there has changed.*{target.name}"):
            Index.from_corpus(corpus, target, factory=factory, overwrite=True)
    assert content(copy) == before and not (tmp_path / "new").exists()
    assert len(Index.open(copy).search(np.ones(DIM), 3)) == 3
    assert len(Index.from_corpus(corpus, copy, factory=factory, overwrite=True)) == 2000


@pytest.mark.skipif(not hasattr(os, "seteuid"), reason="needs users and permissions")
def test_read_only_folder(copy: Path, built: Path) -> None:
    """It can be searched; and writing is refused with the folder's name."""
    before = content(copy)
    corpus = Path(shutil.copytree(built.parent / "corpus", copy.parent / "corpus"))
    for path in copy.parent.rglob("*"):
        path.chmod(0o755 if path.is_dir() else 0o644)
    copy.chmod(0o555)
    with somebody_else(copy):
        assert len(Index.open(copy).search(np.ones(DIM), 3)) == 3
        for target in (copy, copy / "below"):
            with pytest.raises(PermissionError, match="copy"):
                Index.from_corpus(corpus, target, overwrite=True)
    copy.chmod(0o755)
    assert content(copy) == before


def test_two_writers(copy: Path, built: Path) -> None:
    from st_reba.lock import writers_lock

    with writers_lock(copy), pytest.raises(BlockingIOError, match="copy: another process is writing"):
        Index.from_corpus(built.parent / "corpus", copy, overwrite=True)
    assert len(Index.open(copy)) == 300


# Builds that go on


def test_a_killed_build_goes_on(model: SentenceTransformer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed between shards, after encoding and before the commit; with the same input nothing is encoded twice."""
    import st_reba.index.building.making as making

    encoded: list[str] = []
    real = model.encode_document

    def encode(texts: list[str], **options: Any) -> Any:
        if "batch_size" in options and TEXTS[6] in texts and len(encoded) == 4:
            encoded.append("killed")
            raise KeyboardInterrupt
        encoded.extend(text for text in texts if text in TEXTS)
        return real(texts, **options)

    monkeypatch.setattr(model, "encode_document", encode)
    options: dict[str, Any] = {"shard_size": 4, "batch_size": 4}
    with pytest.raises(KeyboardInterrupt):
        Index.build(model, TEXTS, tmp_path / "index", **options)
    assert sorted(os.listdir(tmp_path / "index")) == [".building", ".lock"]
    commit_now = making.make_generation
    monkeypatch.setattr(making, "make_generation", lambda *arguments, **options: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        Index.build(model, TEXTS, tmp_path / "index", **options)
    assert Corpus(tmp_path / "index" / ".building").is_complete()
    monkeypatch.setattr(making, "make_generation", commit_now)
    with Index.build(model, TEXTS, tmp_path / "index", **options) as index:
        assert [found.text for found in index.search(TEXTS[8], 1)] == [TEXTS[8]]
    assert encoded[4] == "killed" and sorted(encoded[:4]) == sorted(TEXTS[:4])
    assert sorted(encoded[5:]) == sorted(TEXTS[4:])
    assert not (tmp_path / "index" / ".building").exists()
    with Index.build(model, TEXTS, tmp_path / "undisturbed", **options) as other:
        assert other.manifest.segments == index.manifest.segments


def test_what_does_not_fit_is_begun_anew(
    model: SentenceTransformer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import st_reba.index.building.making as making

    with monkeypatch.context() as patch:
        patch.setattr(making, "make_generation", lambda *arguments, **options: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            Index.build(model, TEXTS, tmp_path / "index", shard_size=4)
    # Another input, as a generator, which can be read only once; then another model.
    with Index.build(model, iter([*TEXTS[:6], "new"]), tmp_path / "index", shard_size=4) as index:
        assert len(index) == 7 and index.search("new", 1)[0].text == "new"
    with monkeypatch.context() as patch:
        patch.setattr(making, "make_generation", lambda *arguments, **options: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            Index.build(model, TEXTS, tmp_path / "index", overwrite=True)
    assert len(Index.open(tmp_path / "index", model)) == 7
    other = make_model(pooling="lasttoken")
    with Index.build(other, TEXTS, tmp_path / "index", overwrite=True) as index:
        assert len(index) == 10 and index.manifest.generation == 2
    with pytest.raises(ValueError, match="configuration"):
        Index.open(tmp_path / "index", model)
