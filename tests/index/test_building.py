"""Builds and additions that meet other writers, full disks, links and existing files."""

from __future__ import annotations

import errno
import os
import resource
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from indexes import MODEL, QUIET, build, ids_of, make_documents, make_texts, texts_of
from kills import run_child
from marks import slow_but
from tiny import tiny_model

from st_reba.files import LOCK_FILE, sole_writer
from st_reba.index import Document, Index
from st_reba.index import index as index_module
from st_reba.index.changes import BUILDING

CHANGES: dict[str, Callable[[Index], object]] = {
    "add": lambda index: index.add(["cat"], **QUIET),
    "compact": lambda index: index.compact(),
    "delete": lambda index: index.delete(["d1"]),
}


def test_an_index_is_replaced_only_on_request(index_path: Path) -> None:
    build(index_path, ["cat"])
    for model in (MODEL, "not/there"):  # refused before a model is loaded
        with pytest.raises(FileExistsError):
            Index.build(model, ["dog"], index_path, **QUIET)
    index = build(index_path, ["dog"], overwrite=True)
    assert texts_of(index) == ["dog"]


def test_a_damaged_index_is_not_replaced(tmp_path: Path) -> None:
    build(tmp_path / "index", ["cat"])
    (tmp_path / "index" / "index.sqlite").write_bytes(b"nonsense")
    with pytest.raises(ValueError, match="build the index again"):
        build(tmp_path / "index", ["dog"], overwrite=True)


def test_files_of_others_are_not_replaced(tmp_path: Path) -> None:
    foreign_file = tmp_path / "folder" / "vectors-1.faiss"
    foreign_file.parent.mkdir()
    foreign_file.write_text("mine", encoding="utf-8")
    for foreign_path in (foreign_file, foreign_file.parent):
        with pytest.raises(FileExistsError):
            build(foreign_path, ["cat"], overwrite=True)
    assert foreign_file.read_text(encoding="utf-8") == "mine"


@pytest.mark.parametrize(
    ("input", "options", "reason"),
    [
        ([], {}, "no "),
        (["cat", ""], {}, "no text"),
        (["cat"], {"factory": "HNSW32"}, "HNSW"),
        (["cat"], {"factory": "IVF1,PQ4x4fs"}, "FastScan"),
        (["cat"], {"parameters": "nprobe=3"}, "name the factory"),
        (["cat"], {"factory": "IVF1,Flat", "parameters": "efSearch=3"}, "efSearch"),
        ([Document("cat", "a"), Document("dog", "a")], {}, "id used twice"),
        (["cat"], {"passages": "2:2"}, "passages"),
        (["cat"], {"passages": "9"}, "tokenizer"),  # this model's gives no offsets
        (["cat"], {"workers": 0}, "workers=0"),
    ],
)
def test_a_build_that_fails_leaves_nothing(
    index_path: Path,
    input: Any,
    options: Any,
    reason: str,
) -> None:
    with pytest.raises(ValueError, match=reason):
        build(index_path, input, **options)
    assert not (index_path).exists()


def test_vectors_that_are_too_few_for_a_factory_serve_another(
    index_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(ValueError, match="cannot be trained on 20"):
        build(index_path, make_texts(20), factory="IVF99,Flat")
    monkeypatch.setattr("st_reba.corpus.encode_part.encode_texts", None)
    assert len(build(index_path, make_texts(20))) == 20


def test_rejects_are_listed(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no documents"):
        build(tmp_path / "nothing", ["", " "], strict=False)
    input = [Document("cat", "a"), " ", Document("dog", "a"), "zzzz", {"text": 7}]
    index = build(tmp_path / "index", input, strict=False)
    assert ids_of(index) == ["a"]
    rejects = sorted((reject.place, reject.kind) for reject in index.rejects())
    assert rejects == [
        ("record 1", "no text"),
        ("record 2", "id used twice"),
        ("record 3", "no vector"),
        ("record 4", "wrong type"),
    ]


def test_a_build_goes_on_after_a_failure(tmp_path: Path) -> None:
    for _ in range(2):
        with pytest.raises(ValueError, match="no vector"):
            build(tmp_path / "index", ["cat", "zzzz"])
    # A writer was killed while it removed what another model had encoded.
    (tmp_path / "index" / ".building" / "corpus.json").unlink()
    index = Index.build(tiny_model(1), ["cat", "zzzz"], tmp_path / "index", **QUIET)
    assert len(index) == 2


def test_what_a_killed_build_leaves_is_no_obstacle(index_path: Path) -> None:
    (index_path / BUILDING).mkdir(parents=True)
    (index_path / LOCK_FILE).touch()
    assert len(build(index_path, ["cat"])) == 1


@pytest.mark.parametrize(
    ("text", "reason", "is_encoded"), [("", "no text", False), ("zzzz", "no vector", True)]
)
def test_an_addition_that_fails_changes_nothing(
    index_path: Path,
    text: str,
    reason: str,
    is_encoded: bool,
) -> None:
    index = build(index_path, make_documents(10))
    facts_before = index.verify()
    building = index.path / ".building"
    with pytest.raises(ValueError, match=reason):
        index.add(["cat", text], **QUIET)
    assert building.exists() == is_encoded
    facts = index.verify()
    assert facts | {"bytes": 0} == facts_before | {"bytes": 0}
    # A part of rejects alone does not end the addition.
    assert index.add([text, "cat"], strict=False, part_size=1, **QUIET).added == 1
    assert not building.exists()


def test_one_writer_at_a_time(
    index_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("st_reba.files.WRITER_PATIENCE", 0.1)
    index = build(index_path, make_documents(10))
    with sole_writer(index_path, "*"):
        with pytest.raises(BlockingIOError):
            index.add(["cat"], **QUIET)
        with pytest.raises(BlockingIOError):
            build(index_path, ["cat"], overwrite=True)
        assert index.search("cat")
        assert index.delete(["d1"]).deleted == 1
    assert index.add(["cat"], **QUIET).added == 1


def test_the_later_of_two_builds_does_not_replace_the_first(
    index_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    build_index = index_module.build_index

    def build_later(*arguments: Any, **options: Any) -> Any:
        monkeypatch.setattr(index_module, "build_index", build_index)
        build(index_path, ["cat"])
        return build_index(*arguments, **options)

    monkeypatch.setattr(index_module, "build_index", build_later)
    with pytest.raises(FileExistsError):
        build(index_path, ["dog"])
    assert texts_of(Index.open(index_path)) == ["cat"]


def test_files_of_the_next_writer_stay(
    index_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It may begin as soon as a change is committed, before the earlier writer has tidied up."""
    index = build(index_path, make_documents(10))
    writing = index._store.writing

    @contextmanager
    def write_and_compact(**options: Any) -> Iterator[Any]:
        with writing(**options) as connection:
            yield connection
        Index.open(index.path).compact()

    monkeypatch.setattr(index._store, "writing", write_and_compact)
    index.delete(["d1"])
    assert Index.open(index.path).verify()["vectors"] == 9
    assert len(list(index.path.glob("*.faiss"))) == 1


@pytest.mark.parametrize("make_change", CHANGES.values(), ids=CHANGES)
@pytest.mark.parametrize(("link", "target"), [(".building", "."), ("vectors-7.faiss", "a")])
def test_nothing_is_written_through_links(
    tmp_path: Path,
    link: str,
    target: str,
    make_change: Callable[[Index], object],
) -> None:
    index = build(tmp_path / "index", make_documents(10))
    foreign_folder = tmp_path / "mine"
    foreign_folder.mkdir()
    (foreign_folder / "a").write_text("mine", encoding="utf-8")
    (index.path / link).symlink_to(foreign_folder / target)
    with pytest.raises(ValueError, match="link"):
        make_change(index)
    assert (foreign_folder / "a").read_text(encoding="utf-8") == "mine"


def test_a_full_disk_is_named_with_the_remedy(
    index_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    index = build(index_path, make_documents(10))
    index.delete(["d1"])

    def fail(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fail)
        with pytest.raises(OSError, match="make room, then run the same again") as raised:
            index.compact()
    assert raised.value.filename == str(index.path / "vectors-3.faiss")
    assert index.verify()["documents"] == 9
    assert index.compact().deleted == 1


EXPORT = "out.parquet"
STEPS: dict[str, Callable[[Index], object]] = {
    "build": lambda index: build(index.path, make_documents(90), overwrite=True),
    "add": lambda index: index.add(make_texts(60, 1), **QUIET),
    "delete": lambda index: index.delete([f"d{number}" for number in range(2, 60)]),
    "compact": lambda index: index.compact(),
    "export": lambda index: index.export(index.path.with_name(EXPORT)),
}
COUNTS_AFTER_STEP = {"build": 90, "add": 119, "delete": 1, "compact": 59, "export": 59}


@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are forked")
@pytest.mark.parametrize("step", slow_but(list(STEPS), "build", "add"))
def test_a_step_that_cannot_write_works_afterwards(
    tmp_path: Path,
    step: str,
) -> None:
    """As on a full disk: the old state stays, and the same call then works."""
    original = tmp_path / "start"
    build(original, make_documents(60)).delete(["d1"])
    failure_count = 0
    for limit in (0, 300, 3_000, 9_000, 20_000, 40_000):
        index_folder = Path(shutil.copytree(original, tmp_path / f"at {limit}"))
        export = tmp_path / EXPORT
        export.unlink(missing_ok=True)

        def work(
            index_folder: Path = index_folder,
            limit: int = limit,
        ) -> None:
            index = Index.open(index_folder, MODEL)
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
            STEPS[step](index)

        result = run_child(work)
        index = Index.open(index_folder, MODEL)
        assert len(list(index)) == index.verify()["documents"]
        if result.status:
            failure_count += 1
            assert result.error_message.startswith("OSError")
            assert "make room, then run the same again" in result.error_message
            assert len(index) == 59
            assert not export.exists()
            STEPS[step](index)
        index.verify()
        assert len(index) == COUNTS_AFTER_STEP[step]
    assert failure_count
