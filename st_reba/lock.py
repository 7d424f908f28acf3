"""One writer at a time in a folder."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from os import PathLike
from pathlib import Path

LOCK_FILE = ".lock"


@contextmanager
def writers_lock(folder: str | PathLike[str]) -> Iterator[None]:
    """Keep every other writer out of a folder. The system lets go of the lock when its process ends, however it does.

    Args:
        folder: A folder that is there.

    Raises:
        BlockingIOError: Another process, or another thread of this one, is writing.
        OSError: The folder cannot be written to.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder, writers_lock(folder):
        ...     Path(folder, LOCK_FILE).exists()
        True
    """
    from filelock import FileLock, Timeout

    folder = Path(folder)
    lock = FileLock(folder / LOCK_FILE, timeout=0)
    try:
        lock.acquire()
    except Timeout:
        raise BlockingIOError(
            f"{folder}: another process is writing here, and there may be only one; wait until it ends, or give "
            "another path"
        ) from None
    try:
        yield
    finally:
        lock.release()
