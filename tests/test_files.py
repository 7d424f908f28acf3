"""Files that are written whole or not at all, also where what wrote them failed."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import numpy as np
import pytest

from st_reba.files import make_folder, remove_leftovers, sole_writer, whole_file, whole_path, write_npy


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_file_appears_when_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "numbers"
    for old, new in ((None, b"one"), (b"one", b"two")):
        for error in (OSError, KeyboardInterrupt):
            with pytest.raises(error), whole_file(path) as stream:
                stream.write(b"half")
                raise error
            with pytest.raises(error), whole_path(path):
                raise error  # before there is a file
            assert [each.read_bytes() for each in tmp_path.iterdir()] == ([] if old is None else [old])
        with whole_file(str(path)) as stream:
            stream.write(new)
            stream.flush()
            # Beside it, so that it can take its place in one step.
            (temporary,) = tmp_path.glob(".numbers.*.tmp")
            assert temporary.read_bytes() == new and (path.read_bytes() if path.exists() else None) == old
        assert names(tmp_path) == ["numbers"] and path.read_bytes() == new


def test_an_array(tmp_path: Path) -> None:
    for shape, dtype in (((3, 4), "float32"), ((0, 4), "float16")):
        array = np.arange(np.prod(shape)).reshape(shape[::-1]).T.astype(dtype)  # not in the order of its memory
        write_npy(tmp_path / "a.npy", array)
        found = np.load(tmp_path / "a.npy")
        assert found.dtype == dtype and np.array_equal(found, array) and names(tmp_path) == ["a.npy"]


def test_leftovers_of_the_killed_alone_are_removed(tmp_path: Path) -> None:
    for name in (".numbers.0123456789ab.tmp", ".a.tmp-journal", "kept.tmp", ".hidden", "numbers"):
        (tmp_path / name).write_bytes(b"")
    remove_leftovers(tmp_path)
    assert names(tmp_path) == [".hidden", "kept.tmp", "numbers"]


def test_a_folder_and_those_above_it(tmp_path: Path) -> None:
    path = tmp_path / "one" / "two"
    assert make_folder(path) and path.is_dir() and not make_folder(path)
    with pytest.raises(PermissionError) as told, sole_writer(path, "no file"):
        raise PermissionError(errno.EACCES, "its own words", "its own file")
    assert told.value.filename == "its own file" and path.is_dir()
    made = tmp_path / "made"
    for kept, stays in (("no file", False), ("*.npy", True)):
        with pytest.raises(OSError) as full, sole_writer(made, kept):
            write_npy(made / "a.npy", np.zeros(1))
            raise OSError(errno.ENOSPC, "full")
        assert full.value.filename == str(made) and made.is_dir() == stays


def test_what_is_written_is_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file, and the names in its folder; nothing stays open."""
    synced, opened = [], []
    monkeypatch.setattr(os, "fsync", lambda number: (synced.append(os.fstat(number).st_ino), opened.append(number)))
    with whole_file(tmp_path / "a"):
        pass
    make_folder(tmp_path / "b")
    assert synced == [(tmp_path / "a").stat().st_ino, *[tmp_path.stat().st_ino] * 2]
    for number in opened:
        with pytest.raises(OSError):
            os.fstat(number)
