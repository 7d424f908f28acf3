"""Builds and additions that meet other writers, full disks, links and what is there already."""

from __future__ import annotations

import errno
import os
import resource
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from indexes import MODEL, QUIET, build, documents, texts
from kills import run_child
from marks import slow_but
from tiny import tiny_model

from st_reba.index import Document, Index
from st_reba.storage.files import sole_writer


def test_what_is_there_is_not_replaced(tmp_path: Path) -> None:
    build(tmp_path / "index", ["cat"])
    for model in (MODEL, "not/there"):  # said before a model is loaded
        with pytest.raises(FileExistsError):
            Index.build(model, ["dog"], tmp_path / "index", **QUIET)
    assert [one.text for one in build(tmp_path / "index", ["dog"], overwrite=True)] == ["dog"]
    (tmp_path / "index" / "index.sqlite").write_bytes(b"nonsense")
    with pytest.raises(ValueError, match="build the index again"):
        build(tmp_path / "index", ["dog"], overwrite=True)
    mine = tmp_path / "folder" / "vectors-1.faiss"
    mine.parent.mkdir()
    mine.write_text("mine", encoding="utf-8")
    for place in (mine, mine.parent):
        with pytest.raises(FileExistsError):
            build(place, ["cat"], overwrite=True)
    assert mine.read_text(encoding="utf-8") == "mine"


@pytest.mark.parametrize(
    ("input", "options", "why"),
    [
        ([], {}, "no "), (["cat", ""], {}, "no text"), (["cat"], {"factory": "HNSW32"}, "HNSW"),
        (["cat"], {"factory": "IVF1,PQ4x4fs"}, "FastScan"), (["cat"], {"parameters": "nprobe=3"}, "name the factory"),
        (["cat"], {"factory": "IVF1,Flat", "parameters": "efSearch=3"}, "efSearch"),
        ([Document("cat", "a"), Document("dog", "a")], {}, "id used twice"), (["cat"], {"passages": "2:2"}, "passages"),
        (["cat"], {"passages": "9"}, "tokenizer"),  # this model's gives no offsets
    ],
)  # fmt: skip
def test_a_build_that_fails_leaves_nothing(tmp_path: Path, input: Any, options: Any, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        build(tmp_path / "index", input, **options)
    assert not (tmp_path / "index").exists()


def test_too_few_vectors_for_a_factory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The vectors stay for a build with another."""
    with pytest.raises(ValueError, match="cannot be trained on 20"):
        build(tmp_path / "index", texts(20), factory="IVF99,Flat")
    monkeypatch.setattr("st_reba.corpus.parts.encode_texts", None)
    assert len(build(tmp_path / "index", texts(20))) == 20


def test_what_is_set_aside_is_told(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no documents"):
        build(tmp_path / "nothing", ["", " "], strict=False)
    input = [Document("cat", "a"), " ", Document("dog", "a"), "zzzz", {"text": 7}]
    index = build(tmp_path / "index", input, strict=False)
    assert [one.id for one in index] == ["a"]
    wanted = [("record 1", "no text"), ("record 2", "id used twice"), ("record 3", "no vector")]
    assert sorted((one.place, one.kind) for one in index.rejects()) == [*wanted, ("record 4", "wrong type")]


def test_what_fails_changes_nothing(tmp_path: Path) -> None:
    for _ in range(2):
        with pytest.raises(ValueError, match="no vector"):
            build(tmp_path / "index", ["cat", "zzzz"])
    # A writer was killed while it removed what another model had encoded.
    (tmp_path / "index" / ".building" / "corpus.json").unlink()
    assert len(Index.build(tiny_model(1), ["cat", "zzzz"], tmp_path / "index", **QUIET)) == 2
    index = build(tmp_path / "index", documents(10), overwrite=True)
    before = index.verify()
    for text, why, encoded in (("", "no text", False), ("zzzz", "no vector", True)):
        with pytest.raises(ValueError, match=why):
            index.add(["cat", text], **QUIET)
        assert (index.path / ".building").exists() == encoded
    assert {**before, "bytes": 0} == {**index.verify(), "bytes": 0}
    assert index.add(["zzzz", "cat"], strict=False, **QUIET).added == 1
    assert not (index.path / ".building").exists()


def test_one_writer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("st_reba.storage.files.WRITER_PATIENCE", 0.1)
    index = build(tmp_path / "index", documents(10))
    with sole_writer(tmp_path / "index", "*"):
        for change in (lambda: index.add(["cat"], **QUIET), lambda: build(tmp_path / "index", ["cat"], overwrite=True)):
            with pytest.raises(BlockingIOError):
                change()
        assert index.search("cat") and index.delete(["d1"]).deleted == 1
    assert index.add(["cat"], **QUIET).added == 1


def test_builds_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second to end does not take the place of the first."""
    module = import_module("st_reba.index.index")
    build_index = module.build_index

    def later(*given: Any, **options: Any) -> Any:
        monkeypatch.setattr(module, "build_index", build_index)
        build(tmp_path / "index", ["cat"])
        return build_index(*given, **options)

    monkeypatch.setattr(module, "build_index", later)
    with pytest.raises(FileExistsError):
        build(tmp_path / "index", ["dog"])
    assert [one.text for one in Index.open(tmp_path / "index")] == ["cat"]


def test_files_of_the_next_writer_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may begin as soon as a change is committed, before the process that made the change has tidied up."""
    index = build(tmp_path / "index", documents(10))
    writing = index._store.writing

    @contextmanager
    def followed(**options: Any) -> Iterator[Any]:
        with writing(**options) as tx:
            yield tx
        Index.open(index.path).compact()

    monkeypatch.setattr(index._store, "writing", followed)
    index.delete(["d1"])
    assert Index.open(index.path).verify()["vectors"] == 9
    assert len(list(index.path.glob("*.faiss"))) == 1


@pytest.mark.parametrize("place", [".building", "vectors-7.faiss"])
def test_nothing_is_written_through_links(tmp_path: Path, place: str) -> None:
    index = build(tmp_path / "index", documents(10))
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "a").write_text("mine", encoding="utf-8")
    shutil.rmtree(tmp_path / "index" / place, ignore_errors=True)
    (tmp_path / "index" / place).symlink_to(tmp_path / "mine" / ("a" if "." in place[1:] else "."))
    for change in (lambda: index.add(["cat"], **QUIET), lambda: index.compact(), lambda: index.delete(["d1"])):
        with pytest.raises(ValueError, match="link"):
            change()
    assert (tmp_path / "mine" / "a").read_text(encoding="utf-8") == "mine"


def test_a_full_disk_is_named_with_the_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    index = build(tmp_path / "index", documents(10))
    index.delete(["d1"])

    def is_full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch, pytest.raises(OSError, match="make room, then run the same again") as raised:
        patch.setattr(os, "fsync", is_full)
        index.compact()
    assert raised.value.filename == str(index.path / "vectors-3.faiss")
    assert index.verify()["documents"] == 9 and index.compact().deleted == 1


@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are forked")
@pytest.mark.parametrize("kind", slow_but(["build", "add", "delete", "compact", "export"], "build", "add"))
def test_files_that_cannot_grow(tmp_path: Path, kind: str) -> None:
    """As on a full disk: the old state stays, and the same call then works."""
    start, out = tmp_path / "start", tmp_path / "out.parquet"
    build(start, documents(60)).delete(["d1"])
    steps = {
        "build": lambda index: build(index.path, documents(90), overwrite=True),
        "add": lambda index: index.add(texts(60, 1), **QUIET),
        "delete": lambda index: index.delete([f"d{n}" for n in range(2, 60)]),
        "compact": lambda index: index.compact(),
        "export": lambda index: index.export(out),
    }
    failed = 0
    for limit in (0, 300, 3_000, 9_000, 20_000, 40_000):
        place = Path(shutil.copytree(start, tmp_path / f"at {limit}"))
        out.unlink(missing_ok=True)

        def work(place: Path = place, limit: int = limit) -> None:
            index = Index.open(place, MODEL)
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
            steps[kind](index)

        status, said, _ = run_child(work)
        index = Index.open(place, MODEL)
        assert len([*index]) == index.verify()["documents"]
        if status:
            failed += 1
            assert said.startswith(("OSError", "PermissionError")), said
            assert len(index) == 59 and not out.exists()
            steps[kind](index)
        index.verify()
        assert len(index) == {"build": 90, "add": 119, "delete": 1}.get(kind, 59)
    assert failed
