"""Whether the code that travels with a model is this package's own."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from sentence_transformers.util import load_file_path

from ..modules.vendoring import NAME, code
from ..version import __version__

_VERSION = re.compile(rb"# st_reba (\d[\w.+-]{0,40})\s")


@dataclass(frozen=True)
class Code:
    """The code in a repository, held against that of the installed package.

    It runs only for readers without the package who trust the repository's code.

    Args:
        state: ``"same"``, ``"differs"`` or ``"absent"``.
        version: The version that it says it is.
        files: Files that differ, are missing, or are more than the package writes.
    """

    state: Literal["same", "differs", "absent"]
    version: str | None = None
    files: tuple[str, ...] = ()

    def __str__(self) -> str:
        if self.state == "absent":
            return "code: none in the repository; readers need st_reba installed"
        if self.state == "same":
            return f"code: that of st_reba {self.version}, byte for byte"
        listed = ", ".join(self.files[:4]) + (f" and {len(self.files) - 4} more" if len(self.files) > 4 else "")
        other = f"says it is of st_reba {self.version}" if self.version else "names no version"
        return f"code: differs from st_reba {__version__} ({other}): {listed}"


def code_of(model: str | os.PathLike[str], hub: Mapping[str, Any] | None = None) -> Code:
    """Compare a repository's code with that of the installed package.

    Args:
        model: Folder or Hub id.
        hub: ``token``, ``cache_folder``, ``revision`` and ``local_files_only``, as ``SentenceTransformer`` takes them.

    Returns:
        What was found. In a folder, files of such a name that the package does not write are found too.

    Example:
        >>> import st_reba, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     st_reba.build("mini").save_pretrained(folder)
        ...     code_of(folder).state
        'same'
    """
    path = os.fspath(model)
    wanted = code()
    main = _read(path, f"{NAME}.py", hub)
    if main is None:
        return Code("absent")
    found = {name: main if name == f"{NAME}.py" else _read(path, name, hub) for name in wanted}
    wrong = {name for name, content in wanted.items() if found[name] != content}
    if os.path.isdir(path):
        wrong |= {file.name for file in Path(path).glob(f"{NAME}*.py")} - set(wanted)
    version = _VERSION.match(main)
    said = version[1].decode() if version else None
    return Code("differs" if wrong else "same", said, tuple(sorted(wrong)))


def _read(path: str, name: str, hub: Mapping[str, Any] | None) -> bytes | None:
    file = load_file_path(path, name, **(hub or {}))
    # As written, whatever a checkout made of the line ends.
    return None if file is None else Path(file).read_bytes().replace(b"\r\n", b"\n")
