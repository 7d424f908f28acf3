"""Files and folders that are written whole or not at all."""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from os import PathLike
from pathlib import Path
from typing import BinaryIO


@contextmanager
def whole_file(path: str | PathLike[str]) -> Iterator[BinaryIO]:
    """Write a file so that a reader sees the old content or the new, never a part.

    Args:
        path: The file to write or replace.

    Yields:
        A binary stream; the file appears when the ``with`` block ends without an error.
    """
    path = Path(path)
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex[:12]}.tmp")
    try:
        with temporary.open("wb") as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync(path.parent)


@contextmanager
def whole_folder(
    path: str | PathLike[str], *, overwrite: bool, kind: str, is_kind: Callable[[Path], bool]
) -> Iterator[Path]:
    """Write a folder so that it appears complete; one that is there is replaced at the end, or stays on failure.

    Args:
        path: The folder to make. A link is followed.
        overwrite: Replace a folder of the same kind. An empty folder is always filled.
        kind: What such a folder is called in errors, as ``"an index"``.
        is_kind: Whether a folder is one: nothing else is ever removed.

    Yields:
        A temporary folder beside the target, to be filled.

    Raises:
        FileExistsError: Something is there that may not be replaced.
    """
    target = Path(os.path.realpath(path))
    check_folder(target, overwrite=overwrite, kind=kind, is_kind=is_kind)
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_name(f".{target.name}.{uuid.uuid4().hex[:12]}.building")
    temporary.mkdir()
    try:
        yield temporary
        for file in temporary.rglob("*"):
            sync(file)
        sync(temporary)
        # Again, as building takes long.
        check_folder(target, overwrite=overwrite, kind=kind, is_kind=is_kind)
        _put_in_place(temporary, target)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def check_folder(target: Path, *, overwrite: bool, kind: str, is_kind: Callable[[Path], bool]) -> None:
    """Refuse to write where something else is; arguments as for :func:`whole_folder`."""
    if not target.exists():
        return
    if not target.is_dir():
        raise FileExistsError(f"{target}: a file is there; name a folder")
    if not any(target.iterdir()):
        return
    if not is_kind(target):
        # Overwriting removes the folder, which must not hold anything else.
        raise FileExistsError(f"{target}: not {kind}, so it is not replaced; give another path")
    if not overwrite:
        raise FileExistsError(
            f"{target}: already there; give another path, or overwrite=True (--overwrite) to replace {kind}"
        )


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


def _put_in_place(temporary: Path, target: Path) -> None:
    aside = target.with_name(f".{target.name}.{uuid.uuid4().hex[:12]}.old")
    try:
        if target.exists():
            os.replace(target, aside)
        os.replace(temporary, target)
    except BaseException:
        if aside.exists() and not target.exists():
            os.replace(aside, target)
        raise
    sync(target.parent)
    shutil.rmtree(aside, ignore_errors=True)
