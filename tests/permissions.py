"""What only shows to a user with fewer rights: the superuser may write anywhere."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def somebody_else(path: Path) -> Iterator[None]:
    """Without root's rights, if the tests have them; the folders above a path are opened for that."""
    above = [folder for folder in path.parents if folder.stat().st_uid == os.getuid() and len(folder.parts) > 2]
    modes = {folder: folder.stat().st_mode for folder in above}
    for folder in above:
        folder.chmod(0o755)
    root = os.geteuid() == 0
    try:
        if root:
            os.seteuid(65534)
        yield
    finally:
        if root:
            os.seteuid(0)
        for folder, mode in modes.items():
            folder.chmod(mode)
