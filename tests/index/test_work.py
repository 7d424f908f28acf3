"""Inputs on their way into an index: what is new is encoded, once, and a stopped run goes on."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from indexes import MODEL, QUIET, texts

import st_reba.index.changes as changes
import st_reba.index.work as work
from st_reba.corpus import part as encoding
from st_reba.index import Document, Index
from st_reba.lock import writers_lock


def test_what_is_there_already_is_not_encoded(index: Index, seen: list[str]) -> None:
    same = [Document("cat", "a", {"n": 1}), Document("dog", "b")]
    generation = index.info()["changes"]
    for change in (index.add(same), index.upsert(same), index.add(same)):
        assert (change.unchanged, change.added, change.replaced, change.repeated) == (2, 0, 0, False)
    assert seen == [] and index.info()["changes"] == generation
    # Other metadata is another document.
    change = index.upsert([Document("cat", "a", {"n": 2}), Document("fish", "f"), *same[1:]])
    assert (change.replaced, change.added, change.unchanged) == (1, 1, 1) and sorted(seen) == ["cat", "fish"]
    document = index.get("a")
    assert document == Document("cat", "a", {"n": 2})
    assert index.get("f") == Document("fish", "f")


@pytest.mark.parametrize("between", [False, True])
def test_an_addition_that_was_told_of_nobody(
    index: Index, seen: list[str], monkeypatch: pytest.MonkeyPatch, between: bool
) -> None:
    """It took effect, and its writer was killed before it could say so; another may have added meanwhile."""

    def killed(*given: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("st_reba.index.index.sweep", killed)
        with pytest.raises(KeyboardInterrupt):
            index.add(["moon", "king"])
    assert len(index) == 5
    if between:
        assert index.add(["rain"]).added == 1
        assert index.add([Document("salt", "s")]).added == 1
    assert index.add(["moon", "king"]).repeated and len(index) == 5 + 2 * between
    assert (
        not (index.path / ".building").exists()
        and sorted(seen)[:2] == ["king", "moon"]
        and len(seen) == 2 + 2 * between
    )
    # Once told, the same texts are more texts, if they are to be.
    assert index.add(["moon", "king"], again=True).added == 2


@pytest.mark.parametrize("step", [encoding.encode_batch, changes.take_in])
def test_what_was_encoded_is_not_encoded_again(
    index: Index, seen: list[str], monkeypatch: pytest.MonkeyPatch, step: Callable[..., Any]
) -> None:
    """Stopped while texts are encoded, or taken in; others add in between."""
    given, options = texts(40), {"part_size": 5, "batch_size": 5}
    count = 0

    def stopped(*arguments: Any, **named: Any) -> Any:
        nonlocal count
        count += 1
        if step is changes.take_in or count == 5:
            raise KeyboardInterrupt
        return real(*arguments, **named)

    with monkeypatch.context() as patched:
        target = (
            (encoding, "encode_batch")
            if step is not changes.take_in
            else (__import__("st_reba.index.index", fromlist=["x"]), "take_in")
        )
        real = getattr(*target)
        patched.setattr(*target, stopped)
        with pytest.raises(KeyboardInterrupt):
            index.add(given, **options)
    assert len(index) == 3 and len(seen) == (20 if step is not changes.take_in else 40)
    (left,) = index.info()["unfinished"]
    assert (left["parts"], left["left"]) == (8, 4 if step is not changes.take_in else 0)
    assert index.add(["moon"]).added == 1
    assert index.add(given, **options).added == 40 and sorted(seen) == sorted([*given, "moon"])
    assert index.info()["unfinished"] == [] and not (index.path / ".building").exists()


def test_a_build_goes_on(tmp_path: Path, seen: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    given, path = texts(40), tmp_path / "i"
    with monkeypatch.context() as patched:
        patched.setattr("st_reba.index.index.take_in", lambda *a, **b: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            Index.build(MODEL, given, path, **QUIET)
        with pytest.raises(ValueError, match="record 40"):
            Index.build(MODEL, [*given, ""], path, **QUIET)
    with pytest.raises(FileNotFoundError, match="no index"):
        Index.open(path)
    # Another input goes its own way, and then there is an index.
    assert len(Index.build(MODEL, given, path, **QUIET)) == 40 and sorted(seen) == sorted(given)
    assert not (path / ".building").exists()


def test_what_another_writer_added_while_it_was_encoded(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    encode, others = work.encode_pending, [Document("moon", "m")]

    def encoding_meanwhile(*given: Any) -> None:
        if others:
            Index.open(index.path, MODEL).add([others.pop()], **QUIET)
        encode(*given)

    monkeypatch.setattr(work, "encode_pending", encoding_meanwhile)
    change = index.upsert([Document("moon", "m"), Document("sun", "s")], **QUIET)
    assert (change.unchanged, change.added, change.replaced) == (1, 1, 0) and not others


def test_an_input_that_is_read_is_another_writers_too(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever clears away what was left behind must see that its writer lives."""
    locked = []
    gather = work.gather

    def gathering(source: Any, corpus: Any, *given: Any, **options: Any) -> Any:
        with pytest.raises(BlockingIOError), writers_lock(corpus.path):
            raise AssertionError
        locked.append(corpus)
        return gather(source, corpus, *given, **options)

    monkeypatch.setattr(work, "gather", gathering)
    assert index.add(["moon"]).added == 1 and len(locked) == 1


def test_links_are_refused(path: Path, tmp_path: Path) -> None:
    """Nothing is written or removed through them."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "mine.txt").write_text("mine")
    for link in (path / ".building", path / "vectors-9.faiss"):
        link.symlink_to(outside, target_is_directory=True)
        with Index.open(path, MODEL) as index:
            for change in (lambda: index.add(["cat"]), index.compact, lambda: index.delete(["d0"])):
                with pytest.raises(ValueError, match=f"{link.name}: a link"):
                    change()
        link.unlink()
    (path / ".building").mkdir()
    (path / ".building" / "x").symlink_to(outside, target_is_directory=True)
    with Index.open(path, MODEL) as index, pytest.raises(ValueError, match="a link"):
        index.add(["cat"])
    assert os.listdir(outside) == ["mine.txt"]
