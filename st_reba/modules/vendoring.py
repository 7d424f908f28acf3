"""The code that travels with a model: every save leaves the files that its modules need, as flat files.

``modules.json`` names the classes by one dot, as ``st_reba.ReBAPooling``: the installed package, or else, where the
reader trusts the repository's code, the file ``st_reba.py`` in its root. Each module that is saved writes what its own
class imports, also where this code is itself such a copy, so that it follows a model through any number of saves.
"""

from __future__ import annotations

import copyreg
import json
import re
from collections.abc import Collection
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar

from torch import nn

from .version import __version__

NAME = "st_reba"
SETTINGS_FILE = "config_sentence_transformers.json"
# What this code needs at least. Newer versions are not shut out: `st-reba verify` says whether vectors are the same.
REQUIREMENTS = {"sentence-transformers": ">=6.0", "transformers": ">=5.0"}

_IMPORT = re.compile(r"^(\s*from \.)(\w+)(?= import )", re.MULTILINE)
_CLASS = re.compile(r"^from \.(\w+) import (\w+)$", re.MULTILINE)
_FILE = re.compile(r"^from \.(\w+) import __name__ as _", re.MULTILINE)
# The modules that published classes stand in.
_homes: dict[type, str] = {}
_Module = TypeVar("_Module", bound=nn.Module)
# How many folders above a module's own the repository may begin: a Router keeps its modules one deeper.
_LEVELS = 2


def published(kind: type[_Module]) -> type[_Module]:
    """Class decorator: give a module class the name by which repositories store it."""
    # For pickles: a worker process may have no package ``st_reba``.
    copyreg.pickle(kind, partial(_reduced, kind.__module__))
    _homes[kind] = kind.__module__
    kind.__module__ = NAME
    return kind


def _reduced(home: str, module: nn.Module) -> tuple[Any, ...]:
    reduced: Any = object.__reduce_ex__(module, 4)
    return (_made, (home, type(module).__name__), *reduced[2:])


def _made(home: str, name: str) -> nn.Module:
    kind = getattr(import_module(home), name)
    made: nn.Module = kind.__new__(kind)
    return made


def extra(name: str, *, needed: bool = True) -> Any:
    """A module beside this one that not every repository carries; where a copy has none, an error, or None."""
    try:
        return import_module(_module(name))
    except ModuleNotFoundError as error:
        if not needed:
            return None
        raise ImportError(
            f"The code that came with this model has no {name}.py, which a training needs, and some backbones "
            "and plans. Install the package st-reba and import it first; or, to embed only, call encode, or run inside "
            "torch.inference_mode()."
        ) from error


def code(*classes: type, files: Collection[str] = ()) -> dict[str, bytes]:
    """The files that a repository with these classes, and further ``files``, carries, by name: name → content."""
    own = [next(base for base in each.__mro__ if _home(base)) for each in classes]
    homes = {each.__name__: _stem(str(_home(each)).rpartition(".")[2]) for each in own}
    texts: dict[str, str] = {}
    missing = {"vendoring", *homes.values(), *files}
    while missing:
        texts |= {stem: _read(stem) for stem in missing}
        missing = {found[2] for text in texts.values() for found in _IMPORT.finditer(text)} - set(texts)
    files = {f"{NAME}_{stem}.py": _IMPORT.sub(rf"\1{NAME}_\2", text) for stem, text in texts.items()}
    return {name: text.encode() for name, text in {f"{NAME}.py": _main(homes, texts), **files}.items()}


def _home(kind: type) -> str | None:
    """The module beside this one that a class stands in; None: it is somebody else's, such as a user's subclass."""
    home = _homes.get(kind, kind.__module__)
    return home if home.rpartition(".")[0] == __name__.rpartition(".")[0] else None


def _main(homes: dict[str, str], stems: Any) -> str:
    """The file that a reader of modules.json opens."""
    lines = [f"# {NAME} {__version__}", '"""The classes of this model, as modules.json names them."""', ""]
    lines += ["from __future__ import annotations", ""]
    lines += [f"from .{NAME}_{home} import {name}" for name, home in sorted(homes.items())]
    lines += ["", f"__all__ = {sorted(homes)}"]
    lines += ["", "# All by name: some versions of transformers copy only what this file itself imports."]
    lines += [f"from .{NAME}_{stem} import __name__ as _  # noqa: E402" for stem in sorted(stems)]
    return "\n".join(lines) + "\n"


def carried(main: str) -> tuple[list[type], list[str]]:
    """The classes that a repository's main file names, as they are here, and its files."""
    classes = [getattr(import_module(_module(_stem(home))), name) for home, name in _CLASS.findall(main)]
    return classes, [_stem(name) for name in _FILE.findall(main)]


def leave_code(folder: str, *classes: type, files: Collection[str] = ()) -> None:
    """Write the code of a module that is being saved into ``folder``, and its requirements, into the repository.

    What its other modules left is kept; the first module, whose folder is the repository's root, begins anew.
    """
    root = _root(Path(folder))
    main = root / f"{NAME}.py"
    if Path(folder).resolve() == root.resolve():
        for old in root.glob(f"{NAME}*.py"):
            old.unlink()
    if main.is_file():
        kept, left = carried(main.read_text(encoding="utf-8"))
        classes, files = (*classes, *kept), {*files, *left}
    for name, content in code(*dict.fromkeys(classes), files=files).items():
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


def _stem(name: str) -> str:
    """A module's name in the package: without the mark that a copy's bears."""
    return name.removeprefix(f"{NAME}_")


def _module(stem: str) -> str:
    """The module of a file, beside this one."""
    home, _, own = __name__.rpartition(".")
    return f"{home}.{own.removesuffix('vendoring')}{stem}"


def _read(stem: str) -> str:
    """A file as it stands in the package, from the package or from a copy."""
    here = Path(__file__)
    text = here.with_name(f"{here.stem.removesuffix('vendoring')}{stem}.py").read_text(encoding="utf-8")
    return text.replace(f"from .{NAME}_", "from .")
