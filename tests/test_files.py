"""Files that are written whole or not at all, also where what wrote them failed."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import numpy as np
import pytest

from st_reba.files import (
    make_folder,
    parse_path,
    refuse_links,
    remove_leftovers,
    sole_writer,
    whole_file,
    whole_path,
    write_npy,
)


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("old_content", [None, b"old"])
def test_a_file_appears_when_it_is_whole(old_content: bytes | None, tmp_path: Path) -> None:
    path = tmp_path / "numbers"
    if old_content is not None:
        path.write_bytes(old_content)
    with whole_file(str(path)) as stream:
        stream.write(b"new")
        stream.flush()
        # It is beside the other, whose place it can take in one step.
        (temporary_path,) = tmp_path.glob(".numbers.*.tmp")
        assert temporary_path.read_bytes() == b"new"
        assert path.exists() == (old_content is not None)
        assert old_content is None or path.read_bytes() == old_content
    assert names_in(tmp_path) == ["numbers"]
    assert path.read_bytes() == b"new"


@pytest.mark.parametrize("error", [OSError, KeyboardInterrupt])
def test_after_an_error_the_old_file_stays_alone(
    error: type[BaseException], tmp_path: Path
) -> None:
    path = tmp_path / "numbers"
    for old_names in ([], ["numbers"]):
        with pytest.raises(error), whole_file(path) as stream:
            stream.write(b"half")
            raise error
        with pytest.raises(error), whole_path(path):
            raise error  # before there is a file
        assert names_in(tmp_path) == old_names
        path.write_bytes(b"old")
    assert path.read_bytes() == b"old"


@pytest.mark.parametrize(("shape", "dtype"), [((4, 3), "float32"), ((4, 0), "float16")])
def test_an_array_is_written_whatever_its_order_in_memory(
    shape: tuple[int, int],
    dtype: str,
    tmp_path: Path,
) -> None:
    array = np.arange(shape[0] * shape[1]).reshape(shape).T.astype(dtype)
    write_npy(tmp_path / "a.npy", array)
    read_array = np.load(tmp_path / "a.npy")
    assert read_array.dtype == dtype
    assert np.array_equal(read_array, array)
    assert names_in(tmp_path) == ["a.npy"]


def test_leftovers_of_killed_writers_alone_are_removed(tmp_path: Path) -> None:
    for name in (
        ".numbers.0123456789ab.tmp",
        ".a.tmp-journal",
        "finished.tmp",
        ".hidden",
        "numbers",
    ):
        (tmp_path / name).touch()
    remove_leftovers(tmp_path)
    assert names_in(tmp_path) == [".hidden", "finished.tmp", "numbers"]


def test_a_folder_is_made_with_those_above_it(tmp_path: Path) -> None:
    folder = tmp_path / "one" / "two"
    assert make_folder(folder)
    assert folder.is_dir()
    assert not make_folder(folder)


def test_an_error_that_names_a_file_stays_as_it_is(tmp_path: Path) -> None:
    with pytest.raises(PermissionError) as raised, sole_writer(tmp_path, "no file"):
        raise PermissionError(errno.EACCES, "its own words", "its own file")
    assert raised.value.filename == "its own file"
    assert tmp_path.is_dir()


def test_a_full_disk_is_named_once_with_the_remedy(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(source: Path, target: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", str(source))

    monkeypatch.setattr(os, "replace", fail)
    path = tmp_path / "numbers.npy"
    with pytest.raises(OSError, match="make room") as raised, sole_writer(tmp_path, "no file"):
        write_npy(path, np.zeros(1))
    assert raised.value.filename == str(path)
    assert str(raised.value).count("make room") == 1


@pytest.mark.parametrize(("finished_pattern", "stays"), [("no file", False), ("*.npy", True)])
def test_a_new_folder_is_removed_after_an_error_unless_a_file_is_finished(
    finished_pattern: str,
    stays: bool,
    tmp_path: Path,
) -> None:
    folder = tmp_path / "new"
    with pytest.raises(OSError, match="make room") as raised, sole_writer(folder, finished_pattern):
        write_npy(folder / "a.npy", np.zeros(1))
        raise OSError(errno.ENOSPC, "full")
    assert raised.value.filename == str(folder)
    assert folder.is_dir() == stays


def test_links_are_refused_at_any_depth(tmp_path: Path) -> None:
    (tmp_path / "inner").mkdir()
    refuse_links(tmp_path)
    link = tmp_path / "inner" / "link"
    link.symlink_to(tmp_path / "nowhere")
    with pytest.raises(ValueError, match="a link"):
        refuse_links(tmp_path)
    with pytest.raises(ValueError, match="a link"), sole_writer(tmp_path, "*"):
        raise AssertionError("it wrote")


@pytest.mark.parametrize("path", ["", " ", "a\0b", "\ud800"])
def test_a_path_that_no_file_can_have_is_refused(path: str) -> None:
    with pytest.raises(ValueError, match=r"^out="):
        parse_path(path, "out")


def test_what_is_written_is_on_disk_and_nothing_stays_open(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A file, and the names in its folder."""
    synced_files: list[int] = []
    descriptors: list[int] = []

    def record_sync(descriptor: int) -> None:
        synced_files.append(os.fstat(descriptor).st_ino)
        descriptors.append(descriptor)

    monkeypatch.setattr(os, "fsync", record_sync)
    with whole_file(tmp_path / "a"):
        pass
    make_folder(tmp_path / "b")
    folder_number = tmp_path.stat().st_ino
    assert synced_files == [(tmp_path / "a").stat().st_ino, folder_number, folder_number]
    for descriptor in descriptors:
        with pytest.raises(OSError):
            os.fstat(descriptor)
