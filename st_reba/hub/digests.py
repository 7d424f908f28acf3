"""Digests of a saved model's files, so that damage is found which no golden text meets.

Golden vectors cover what twenty texts touch. Digests cover the rest: tokens that none of these
holds, settings that matter only for long texts. They are to detect damage only: whoever can change
the files can change golden.json too.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

from ..files import sha256
from ..safety import Repository

WEIGHTS_SUFFIX = ".safetensors"
# Files that may be edited, or are compared in another way.
_SKIPPED_FILES = {"README.md", "golden.json", "st_reba.py"}
# A checkout may change their line ends.
_TEXT_SUFFIXES = {".json", ".jinja", ".py", ".txt"}


def digests_of(folder: Path) -> dict[str, str]:
    """SHA-256 of every file of a saved or exported model, by its name in the folder.

    Example:
        >>> import st_reba
        >>> from st_reba import hub
        >>> hub.save(st_reba.build("mini"), "my_model")
        >>> list(digests_of(Path("my_model")))[:3]
        ['1_Pooling/config.json', '2_Normalize/config.json', 'config.json']
    """
    digests = {}
    for file in sorted(folder.rglob("*")):
        if file.is_file() and file.name not in _SKIPPED_FILES:
            digests[file.relative_to(folder).as_posix()] = _file_digest(file)
    return digests


def describe_damage(digests: Mapping[str, str], repository: Repository) -> list[str]:
    """A line for each file of a repository that is not what its digest says; files without one are left out."""
    lines = []
    for name, digest in sorted(digests.items()):
        path = repository.find(repository.check_inner_path(name, "golden.json"))
        if path is None:
            lines.append(f"{name} is missing")
        elif _file_digest(Path(path)) != digest:
            lines.append(f"{name} differs")
    return lines


def _file_digest(file: Path) -> str:
    if file.suffix in _TEXT_SUFFIXES:
        text = file.read_bytes().replace(b"\r\n", b"\n")
        return hashlib.sha256(text).hexdigest()
    return sha256(file)
