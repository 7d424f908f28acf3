"""Folders that appear whole or not at all: written beside their place, then swapped with what was there."""

from __future__ import annotations

import ctypes
import glob
import os
import shutil
import stat
import sys
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from .files import sync

# linux/fs.h, fcntl.h.
_RENAME_EXCHANGE = 2
_AT_FDCWD = -100


@contextmanager
def new_folder(
    path: str | os.PathLike[str], *, overwrite: bool, kind: str, is_kind: Callable[[Path], bool]
) -> Iterator[Path]:
    """Write a folder that appears complete; one that is there is replaced at the end, or stays on failure.

    Linux swaps both folders at one moment. Elsewhere two renames follow each other; if the process is killed between
    them, the next call puts the old folder back. What killed writers left beside the folder is removed.

    Args:
        path: The folder to make. A link is followed.
        overwrite: Replace a folder of the same kind. An empty folder is always filled.
        kind: What such a folder is called in errors, as ``"a saved model"``.
        is_kind: Whether a folder is one: nothing else is ever removed.

    Yields:
        A temporary folder beside the target, to be filled.

    Raises:
        FileExistsError: Something is there that may not be replaced.
    """
    target = Path(os.path.realpath(path))
    target.parent.mkdir(parents=True, exist_ok=True)
    _clear(target, is_kind)
    check_folder(target, overwrite=overwrite, kind=kind, is_kind=is_kind)
    temporary = _beside(target, "building")
    temporary.mkdir()
    claim = _claim(temporary)
    try:
        yield temporary
        # Others may read what some libraries write for its owner alone, as far as this process's umask lets them.
        (temporary / ".mode").touch()
        mode = stat.S_IMODE((temporary / ".mode").stat().st_mode)
        (temporary / ".mode").unlink()
        for file in temporary.rglob("*"):
            if file.is_file() and not file.is_symlink():
                file.chmod(mode)
            sync(file)
        sync(temporary)
        # Again, as filling it takes long.
        check_folder(target, overwrite=overwrite, kind=kind, is_kind=is_kind)
        _put_in_place(temporary, target)
    finally:
        # Not filled, or by now the old folder.
        shutil.rmtree(temporary, ignore_errors=True)
        if claim is not None:
            os.close(claim)


def check_folder(target: Path, *, overwrite: bool, kind: str, is_kind: Callable[[Path], bool]) -> None:
    """Refuse to write where something else is; arguments as for :func:`new_folder`."""
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


def _put_in_place(temporary: Path, target: Path) -> None:
    if not target.exists():
        os.replace(temporary, target)
    elif not _exchange(temporary, target):
        aside = _beside(target, "old")
        os.replace(target, aside)
        os.replace(temporary, target)
        shutil.rmtree(aside, ignore_errors=True)
    sync(target.parent)


def _exchange(one: Path, other: Path) -> bool:
    """Swap the names of two folders at one moment; False: this system or file system cannot."""
    if not sys.platform.startswith("linux"):
        return False
    try:
        rename = ctypes.CDLL(None).renameat2
    except (AttributeError, OSError):
        return False
    return bool(rename(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE) == 0)


def _clear(target: Path, is_kind: Callable[[Path], bool]) -> None:
    """Put back what a killed writer set aside, and remove what it had begun."""
    for aside in _all_beside(target, "old"):
        if not target.exists():
            os.replace(aside, target)
        elif is_kind(target):
            shutil.rmtree(aside, ignore_errors=True)
    for begun in _all_beside(target, "building"):
        if (claim := _claim(begun)) is not None:
            shutil.rmtree(begun, ignore_errors=True)
            os.close(claim)


def _beside(target: Path, ending: str) -> Path:
    return target.with_name(f".{target.name}.{uuid.uuid4().hex[:12]}.{ending}")


def _all_beside(target: Path, ending: str) -> list[Path]:
    pattern = f".{glob.escape(target.name)}.{'[0-9a-f]' * 12}.{ending}"
    return sorted(path for path in target.parent.glob(pattern) if path.is_dir() and not path.is_symlink())


def _claim(folder: Path) -> int | None:
    """A descriptor that holds a folder until it is closed or its process ends; None: another has it, or none can."""
    if os.name == "nt":
        return None
    import fcntl

    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        return None
    return descriptor
