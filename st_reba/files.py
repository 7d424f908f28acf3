"""Files that are written whole or not at all."""

from __future__ import annotations

import hashlib
import os
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
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


@dataclass(frozen=True)
class StoredFile:
    """A finished file, as a manifest names it."""

    name: str  # relative to the manifest's folder, with forward slashes
    bytes: int
    sha256: str  # of its content, in hexadecimal digits

    @classmethod
    def of(cls, path: str | PathLike[str], folder: str | PathLike[str]) -> StoredFile:
        """Measure a file that lies in a folder."""
        path = Path(path)
        with path.open("rb") as stream:
            digest = hashlib.file_digest(stream, "sha256").hexdigest()
            return cls(path.relative_to(folder).as_posix(), os.fstat(stream.fileno()).st_size, digest)

    @classmethod
    def from_json(cls, value: object) -> StoredFile:
        """Read what ``asdict`` gave.

        Raises:
            ValueError: A key is missing or has the wrong type, or the name leads out of the folder.
        """
        if not isinstance(value, Mapping):
            raise ValueError(f"expected an object, found {type(value).__name__}")
        name, size, digest = value.get("name"), value.get("bytes"), value.get("sha256")
        if not isinstance(name, str) or not name or name.startswith("/") or ".." in name.split("/") or "\\" in name:
            raise ValueError(f"name: expected a file in the folder, found {name!r}")
        if not isinstance(size, int) or isinstance(size, bool) or size < 0:
            raise ValueError(f"bytes: expected a whole number, found {size!r}")
        if not isinstance(digest, str):
            raise ValueError(f"sha256: expected a string, found {type(digest).__name__}")
        return cls(name, size, digest)

    def check(self, folder: str | PathLike[str], *, content: bool = True) -> Path:
        """The path of the file, which must be as it was written: its size and, if asked for, its ``content``.

        Raises:
            FileNotFoundError: It is not there.
            ValueError: It is shorter, longer or altered.
        """
        path = Path(folder) / self.name
        if not path.is_file():
            raise FileNotFoundError(f"{path}: no such file")
        size = path.stat().st_size
        if size != self.bytes:
            raise ValueError(f"{path}: {size} bytes, but {self.bytes} were written; it is truncated or altered")
        if content and StoredFile.of(path, folder).sha256 != self.sha256:
            raise ValueError(f"{path}: its SHA-256 is not that of what was written; it is altered or damaged")
        return path


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
