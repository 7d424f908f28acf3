"""Files and folders that are written whole or not at all, and one writer at a time."""

from __future__ import annotations

import errno
import hashlib
import logging
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

logger = logging.getLogger(__name__)

LOCK_FILE = ".lock"
WRITER_PATIENCE = 30.0  # seconds that a writer waits for another
MAKE_ROOM = "make room, then run the same again"
# A disk that is full, a quota, a limit on the size of a file.
_FULL_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@contextmanager
def whole_file(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """A binary stream whose file appears, new or replaced, when the ``with`` block ends without an error."""
    with whole_path(path) as temporary_path, temporary_path.open("wb") as stream:
        yield stream


@contextmanager
def whole_path(target_path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a temporary path for a library to write to.

    It replaces ``target_path`` if the ``with`` block ends without an error.
    """
    target_path = Path(target_path)
    if target_path.is_dir():
        raise IsADirectoryError(
            f"{target_path}: a folder, where a file is to be written; remove it, or give another path"
        )
    temporary_path = target_path.with_name(f".{target_path.name}.{uuid.uuid4().hex[:12]}.tmp")
    try:
        with naming_full_disk(target_path):
            yield temporary_path
            sync(temporary_path)
            os.replace(temporary_path, target_path)
            sync(target_path.parent)
    except BaseException:
        temporary_path.unlink(missing_ok=True)
        raise


@contextmanager
def naming_full_disk(path: Path) -> Iterator[None]:
    """Add path and remedy to a system error that names no file, or that reports a full disk."""
    try:
        yield
    except OSError as error:
        if error.errno is None or MAKE_ROOM in str(error):
            raise
        if error.filename is not None and error.errno not in _FULL_DISK:
            raise
        message = f"{error.strerror}; {MAKE_ROOM}: what is finished stays"
        raise type(error)(error.errno, message, str(path)) from error


def write_npy(path: str | os.PathLike[str], array: NDArray[Any]) -> None:
    """Write an array as ``.npy``, whole or not at all."""
    with whole_file(path) as stream:
        # np.save reports no full disk.
        array_header = {"descr": array.dtype.str, "fortran_order": False, "shape": array.shape}
        np.lib.format.write_array_header_1_0(stream, array_header)
        stream.write(np.ascontiguousarray(array).data)


def sha256(path: Path) -> str:
    """SHA-256 of a file's content, in hexadecimal digits."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def remove_leftovers(folder: Path) -> None:
    """Remove the temporary files of a killed writer; to be called under the writers' lock."""
    for file in folder.glob(".*.tmp*"):
        file.unlink(missing_ok=True)


def parse_path(value: str | os.PathLike[str], option: str) -> Path:
    """A path from a caller; a ValueError or TypeError names the option if no file can have it.

    Example:
        >>> parse_path("", "path")
        Traceback (most recent call last):
        ValueError: path='' names no file or folder; give its path
    """
    if not isinstance(value, (str, os.PathLike)):
        raise TypeError(
            f"{option}={value!r:.80} is a {type(value).__name__}; give a path as a string"
        )
    path_text = os.fspath(value)
    if not isinstance(path_text, str) or not path_text.strip() or "\0" in path_text:
        raise ValueError(f"{option}={path_text!r:.80} names no file or folder; give its path")
    try:
        os.fsencode(path_text)
    except UnicodeEncodeError:
        raise ValueError(
            f"{option}={path_text!r:.80} holds a character that no file name can; give another path"
        ) from None
    return Path(path_text)


def make_folder(path: Path) -> bool:
    """Make a folder and its parents, and sync their names to disk; False: it existed already."""
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
    file_descriptor = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
    try:
        os.fsync(file_descriptor)
    finally:
        os.close(file_descriptor)


def refuse_links(folder: Path) -> None:
    """Refuse links in a folder of ours: writing or removing through one would hit others' files."""
    for path in folder.rglob("*"):
        if path.is_symlink():
            raise ValueError(
                f"{path}: a link, through which nothing is written; remove it, or put the file there"
            )


@contextmanager
def sole_writer(
    folder: Path, finished_pattern: str, *, patience: float | None = None
) -> Iterator[None]:
    """Make a folder and keep other writers out of it; the system releases the lock when the process ends.

    Args:
        folder: The folder; if it was made here, it is removed again after an error.
        finished_pattern: Pattern of a file; if one in the folder matches, the folder stays.
        patience: Seconds to wait for another writer; None: ``WRITER_PATIENCE``.

    Raises:
        BlockingIOError: Another process, or another thread of this one, is still writing.
        OSError: Such as a full disk, also from inside the block; if the error names no file, the
            folder is added.
        ValueError: A link is in the folder.
    """
    with naming_full_disk(folder):
        is_new = make_folder(folder)
        refuse_links(folder)
        with _lock(folder, WRITER_PATIENCE if patience is None else patience):
            try:
                yield
            except BaseException:
                if is_new and not any(folder.glob(finished_pattern)):
                    shutil.rmtree(folder, ignore_errors=True)
                raise


@contextmanager
def _lock(folder: Path, patience: float) -> Iterator[None]:
    """Hold the folder's lock. Other writers are waited for, and a warning says so."""
    folder_lock = FileLock(folder / LOCK_FILE, timeout=0)
    try:
        folder_lock.acquire()
    except Timeout:
        if patience > 0:
            logger.warning(
                "%s: waiting up to %g s for another process that writes here", folder, patience
            )
        try:
            folder_lock.acquire(timeout=patience)
        except Timeout:
            raise BlockingIOError(
                waited_for("another process is encoding and writing", folder, patience)
            ) from None
    try:
        yield
    finally:
        folder_lock.release()


def waited_for(activity: str, folder: Path, patience: float | None = None) -> str:
    """The message about a writer that did not end in time."""
    seconds = WRITER_PATIENCE if patience is None else patience
    return f"{folder}: {activity} here, and did not end within {seconds:g} s; when it has ended, run the same again"
