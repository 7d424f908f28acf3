"""How a change of an index folder takes effect, and how what no longer counts is removed; for its one writer."""

from __future__ import annotations

import re
from pathlib import Path

from ...files import remove_leftovers
from .manifest import Manifest

_OWN = re.compile(r"(vectors|documents|deleted)(-\d+)*\.(faiss|sqlite|npy)")


def commit(folder: Path, manifest: Manifest) -> None:
    """Make a manifest the present one, then remove the files of the one before.

    Readers that have those open keep them; one that has only read the old manifest reads the new one.

    Args:
        folder: The index folder, whose lock the caller has.
        manifest: What it holds from now on; all files that it names are there.

    Raises:
        OSError: The manifest could not be written; the old one is as it was.
    """
    manifest.write(folder)
    sweep(folder, manifest)


def sweep(folder: Path, manifest: Manifest | None) -> None:
    """Remove what writers left: files that were not finished, and segments that the manifest does not name.

    Args:
        folder: The index folder, whose lock the caller has.
        manifest: The present manifest; None: there is none.
    """
    remove_leftovers(folder)
    named = set() if manifest is None else {file.name for segment in manifest.segments for file in segment.files}
    for path in folder.iterdir():
        if is_part(path.name) and path.name not in named:
            try:
                path.unlink(missing_ok=True)
            except PermissionError:  # a reader has it open, on systems where that keeps it: the next writer tries again
                continue


def is_part(name: str) -> bool:
    """Whether a file's name is one that writers give to the files of segments."""
    return _OWN.fullmatch(name) is not None


def free_segment_number(folder: Path, manifest: Manifest | None) -> int:
    """A number for a new segment: no file of the folder has it, even where the manifest is damaged."""
    numbers = [
        int(number) for path in folder.iterdir() for number in re.findall(r"^(?:vectors|documents)-(\d+)\.", path.name)
    ]
    return max([manifest.next_segment if manifest is not None else 1, *(number + 1 for number in numbers)])
