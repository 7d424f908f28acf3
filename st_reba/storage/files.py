"""Files and folders that are written whole or not at all, and one writer at a time."""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from filelock import FileLock, Timeout
from numpy.typing import NDArray

LOCK_FILE = ".lock"


@contextmanager
def whole_file(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """A binary stream whose file appears, new or replaced, when the ``with`` block ends without an error."""
    with whole_path(path) as temporary, temporary.open("wb") as stream:
        yield stream


@contextmanager
def whole_path(path: str | os.PathLike[str]) -> Iterator[Path]:
    """A temporary path, to be written by a library; it becomes ``path`` when the ``with`` block ends without error."""
    path = Path(path)
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex[:12]}.tmp")
    try:
        yield temporary
        sync(temporary)
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync(path.parent)


def write_npy(path: str | os.PathLike[str], array: NDArray[Any]) -> None:
    """Write an array as ``.npy``, whole or not at all."""
    with whole_file(path) as stream:
        # np.save would not tell of a full disk.
        described = {"descr": array.dtype.str, "fortran_order": False, "shape": array.shape}
        np.lib.format.write_array_header_1_0(stream, described)
        stream.write(np.ascontiguousarray(array).data)


def remove_leftovers(folder: Path) -> None:
    """Remove the temporary files of a killed writer; to be called under the writers' lock."""
    for file in folder.glob(".*.tmp*"):
        file.unlink(missing_ok=True)


def make_folder(path: Path) -> bool:
    """Make a folder and its parents, and sync their names to disk; False: it was there."""
    if path.is_dir():
        return False
    make_folder(path.parent)
    path.mkdir(exist_ok=True)
    sync(path.parent)
    return True


def sync(path: Path) -> None:
    """Flush a file, or the names in a folder, to disk."""
    if path.is_dir() and os.name == "nt":  # folders cannot be opened there
        return
    descriptor = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def refuse_links(folder: Path) -> None:
    """Raise if a link is in a folder of ours: what is written or removed through it would be somebody else's."""
    for place, folders, files in os.walk(folder):
        if links := [path for name in (*folders, *files) if os.path.islink(path := os.path.join(place, name))]:
            raise ValueError(f"{links[0]}: a link, through which nothing is written; remove it, or put the file there")


@contextmanager
def sole_writer(folder: Path, kept: str) -> Iterator[None]:
    """Make a folder and keep other writers out of it; the system releases the lock when the process ends.

    Args:
        folder: The folder; if it was made here, it is removed again after an error.
        kept: Pattern of a file; if one in the folder matches, the folder stays.

    Raises:
        BlockingIOError: Another process, or another thread of this one, is writing.
        OSError: Such as a full disk; of the block too, with the folder where an error names no file.
        ValueError: A link is in the folder.
    """
    try:
        made = make_folder(folder)
        refuse_links(folder)
        with FileLock(folder / LOCK_FILE, timeout=0):
            try:
                yield
            except BaseException:
                if made and not any(folder.glob(kept)):
                    shutil.rmtree(folder, ignore_errors=True)
                raise
    except Timeout:
        raise BlockingIOError(f"{folder}: another process is writing here; wait, or give another path") from None
    except OSError as error:
        if error.errno is None or error.filename is not None:
            raise
        said = f"{error.strerror}; make room, then run the same again: what is finished stays"
        raise type(error)(error.errno, said, str(folder)) from error
