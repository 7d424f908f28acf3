"""Files that are written whole or not at all."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from os import PathLike
from pathlib import Path
from typing import BinaryIO


@contextmanager
def whole_file(path: str | PathLike[str]) -> Iterator[BinaryIO]:
    """A binary stream whose file appears, new or replaced, when the ``with`` block ends without an error."""
    with whole_path(path) as temporary, temporary.open("wb") as stream:
        yield stream


@contextmanager
def whole_path(path: str | PathLike[str]) -> Iterator[Path]:
    """A path to be written, by SQLite say, which becomes ``path`` when the ``with`` block ends without an error."""
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


def remove_leftovers(folder: str | PathLike[str]) -> None:
    """Remove what a killed writer left of files that were not yet whole; call it under the writers' lock."""
    for file in Path(folder).glob(".*.tmp*"):
        file.unlink(missing_ok=True)


def make_folder(path: str | PathLike[str]) -> bool:
    """Make a folder and those above it, so that their names are on the disk too; False: it was there."""
    path = Path(path)
    if path.is_dir():
        return False
    make_folder(path.parent)
    path.mkdir(exist_ok=True)
    sync(path.parent)
    return True


def sync(path: str | PathLike[str]) -> None:
    """Ask the system to put a file, or the names in a folder, on disk."""
    path = Path(path)
    if path.is_dir() and os.name == "nt":  # folders cannot be opened there
        return
    descriptor = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
