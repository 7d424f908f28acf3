"""The code that travels with a model: every save leaves these modules in the repository, as flat files.

A repository's ``modules.json`` names the classes by one dot, as ``st_reba.ReBAPooling``. That name finds the installed
package, or else, where the reader trusts the repository's code, the file ``st_reba.py`` in its root. The files are
written by the module that is saved there, so that they follow a model through any number of saves, whether this code
runs as a package or is itself such a copy.
"""

from __future__ import annotations

import copyreg
import json
import re
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from torch import nn

from .version import __version__

NAME = "st_reba"
SETTINGS_FILE = "config_sentence_transformers.json"
# What this code needs; sentence-transformers holds a reader's environment against it. Not the package itself: a
# repository is read without it.
REQUIREMENTS = {"sentence-transformers": ">=6.0,<7", "transformers": ">=5.0,<6"}

_IMPORT = re.compile(r"^(\s*from \.)(\w+)(?= import )", re.MULTILINE)
# How many folders above a module's own the repository may begin: a Router keeps its modules one deeper.
_LEVELS = 2


def publish(home: str, *classes: type[nn.Module]) -> None:
    """Give classes the names by which repositories store them.

    Args:
        home: The module that holds the classes in this process, for pickles: a worker process may have no package
            ``st_reba``.
        *classes: The classes that ``modules.json`` may name.
    """
    for each in classes:
        each.__module__ = NAME
        copyreg.pickle(each, partial(_reduced, home))


def _reduced(home: str, module: nn.Module) -> tuple[Any, ...]:
    reduced: Any = object.__reduce_ex__(module, 4)
    return (_made, (home, type(module).__name__), *reduced[2:])


def _made(home: str, name: str) -> nn.Module:
    kind = getattr(import_module(home), name)
    made: nn.Module = kind.__new__(kind)
    return made


def code() -> dict[str, bytes]:
    """The files that a repository carries, by name: the same bytes from the package and from a copy of it."""
    here = Path(__file__)
    if here.stem.startswith(f"{NAME}_"):
        main = here.with_name(f"{NAME}.py")
        names = sorted({match[2] for match in _IMPORT.finditer(main.read_text(encoding="utf-8"))})
        return {file.name: _bytes(file.read_text(encoding="utf-8")) for file in [main, *map(_beside(here), names)]}
    files = {file.stem: file.read_text(encoding="utf-8") for file in sorted(here.parent.glob("*.py"))}
    text = f"# {NAME} {__version__}\n" + files.pop("__init__")
    text += "\n# All by name: some versions of transformers copy only what this file itself imports.\n"
    text += "".join(f"from .{name} import __name__ as _\n" for name in files)
    return {f"{NAME}.py": _flat(text), **{f"{NAME}_{name}.py": _flat(text) for name, text in files.items()}}


def leave_code(folder: str) -> None:
    """Write the code, and what it requires, into the repository that a module is being saved to.

    Args:
        folder: The module's own folder: the repository's root, or one inside it.
    """
    root = _root(Path(folder))
    for name, content in code().items():
        (root / name).write_bytes(content)
    settings = root / SETTINGS_FILE
    if settings.is_file():
        # Written before the modules, and by sentence-transformers in this form.
        value = {**json.loads(settings.read_text(encoding="utf-8")), "requirements": REQUIREMENTS}
        settings.write_text(json.dumps(value, indent=2, sort_keys=True), encoding="utf-8")


def _root(folder: Path) -> Path:
    """The folder whose settings say that it is a repository, of those around a module's own."""
    around = [folder, *folder.parents][:_LEVELS]
    return next((each for each in around if (each / SETTINGS_FILE).is_file()), folder)


def _beside(here: Path) -> Any:
    return lambda name: here.with_name(f"{name}.py")


def _flat(text: str) -> bytes:
    return _bytes(_IMPORT.sub(rf"\1{NAME}_\2", text))


def _bytes(text: str) -> bytes:
    """The same on every system, whatever ends its lines."""
    return text.encode("utf-8")
