"""What a path holds, by its files' names: what cannot be meant is refused before a library or a model is loaded."""

from __future__ import annotations

import json
from difflib import get_close_matches
from pathlib import Path

from ..embedded import EMBEDDED as EMBEDDED
from ..folders import check_folder
from ..recipe import is_recipe

# The files that only a folder of this kind has; the first kind that fits is told.
_MARKS: dict[str, tuple[str, ...]] = {
    "an index": ("index.sqlite",),
    "an encoded corpus": ("corpus.json", "documents"),
    "an exported model": ("onnx/model.onnx",),
    "a saved model": ("modules.json",),
    "a base model": ("config.json",),
    "an adapter": ("adapter_config.json",),
    "the folder of a search": ("run.json",),
    "a Space": ("app.py", "requirements.txt"),
}
MODELS = ("a saved model", "an exported model")
BASES = ("a base model", "an adapter", "a saved model")
_MADE_BY = {
    "a saved model": " Make one: st-reba build BASE OUT",
    "an index": " Make one: st-reba index build MODEL INPUT OUT",
}


def kind_of(path: str | Path) -> str | None:
    """What is there, in words; None: nothing is."""
    place = Path(path)
    if not place.is_dir():
        return "a file" if place.exists() else None
    for kind, marks in _MARKS.items():
        if all((place / mark).exists() for mark in marks):
            return kind
    return "a folder of other files" if any(place.iterdir()) else "an empty folder"


def expect(name: str, path: str | Path, *wanted: str) -> None:
    """Refuse a path that holds something else than what is wanted.

    Args:
        name: What the option or argument is called.
        path: The path.
        wanted: Kinds as :func:`kind_of` has them; the first is what errors call it.

    Raises:
        FileNotFoundError: Nothing is there; the nearest name is told.
        ValueError: Something else is; the message says what, and what makes the kind that is wanted.
    """
    found, made = kind_of(path), _MADE_BY.get(wanted[0], "")
    if found is None:
        raise FileNotFoundError(f"{name} {str(path)!r}: there is no such {_noun(wanted)}.{_nearest(path)}{made}")
    if found not in wanted:
        raise ValueError(f"{name} {str(path)!r} is {found}, not {wanted[0]}.{made}")


def expect_model(name: str, path: str) -> None:
    """Refuse what is no saved model, nor can be one on the Hub."""
    if path in EMBEDDED and not Path(path).exists():
        raise ValueError(f"{name} {path!r} is a base model, not a saved one. Make one: st-reba build {path} OUT")
    if kind_of(path) is None and "/" not in path:
        raise FileNotFoundError(
            f"{name} {path!r}: there is no such folder.{_nearest(path)} Of a model on the Hub give ORG/NAME."
        )
    if not _on_hub(path):
        expect(name, path, *MODELS)


def expect_results(name: str, path: str | Path) -> None:
    """Refuse what cannot be a folder of results."""
    found = kind_of(path)
    if found is None:
        raise FileNotFoundError(f"{name} {str(path)!r}: there is no such folder.{_nearest(path)}")
    if found != "a folder of other files":
        raise ValueError(f"{name} {str(path)!r} is {found}, not a folder of results of st-reba evaluate.")


def expect_there(name: str, path: str | Path) -> None:
    """Refuse a path where nothing is; the nearest name is told."""
    if not Path(path).exists():
        raise FileNotFoundError(f"{name} {str(path)!r}: there is no such file.{_nearest(path)}")


def expect_source(name: str, path: str) -> None:
    """Refuse what is neither a saved model nor a recipe."""
    if Path(path).is_dir() or path in EMBEDDED:
        expect_model(name, path)
    elif path.removeprefix("zoo:") not in zoo_names() and not is_recipe(path):
        near = _nearest(path, [*zoo_names(), *(each.name for each in Path().iterdir() if each.is_dir())])
        raise FileNotFoundError(
            f"{name} {path!r}: there is no such folder, and the zoo has no such name.{near} All names: st-reba zoo"
        )


def expect_base(name: str, path: str) -> None:
    """Refuse what is no model of any kind, nor the name of one."""
    if path in EMBEDDED or path.startswith("zoo:"):
        return
    if path.endswith((".yaml", ".yml")):
        expect(name, path, "a file")
    elif not _on_hub(path):
        expect(name, path, *BASES)
    elif path in zoo_names():
        raise ValueError(f"{name} {path!r} is a name of the zoo: write zoo:{path}")
    elif "/" not in path and (near := _nearest(path, [*EMBEDDED, *(each.name for each in Path().iterdir())])):
        raise FileNotFoundError(f"{name} {path!r}: there is no such folder.{near} Of a model on the Hub give ORG/NAME.")


def expect_no_embedder(name: str, path: str) -> None:
    """Refuse a model that st_reba saved: its method and pooling would be lost."""
    try:
        first = json.loads((Path(path) / "modules.json").read_text(encoding="utf-8"))[0]["type"]
    except (OSError, ValueError, LookupError, TypeError):
        return  # loading says what is wrong with it
    if str(first).startswith("st_reba."):
        raise ValueError(f"{name} {path!r} is a saved model already. Build from its base: st-reba info shows it.")


def expect_free(out: Path, kind: str, *, overwrite: bool) -> None:
    """Refuse to write where something is, unless it is of the kind that may be replaced."""
    check_folder(out, overwrite=overwrite, kind=kind, is_kind=lambda folder: kind_of(folder) == kind)


def expect_writable(out: Path, suffixes: tuple[str, ...] = ()) -> None:
    """Refuse a file that cannot be written: a folder is there, none is around it, or its name ends otherwise."""
    if out.is_dir():
        raise ValueError(f"--out {str(out)!r} is a folder: name the file to write.")
    if not out.parent.is_dir():
        raise ValueError(f"--out {str(out)!r}: the folder {str(out.parent)!r} does not exist. Make it first.")
    if suffixes and out.suffix not in suffixes:
        raise ValueError(f"--out {str(out)!r}: the name must end in {' or '.join(suffixes)}.")


def zoo_names(incomplete: str = "") -> list[str]:
    """Names of the zoo's models that begin so."""
    from ..zoo import names

    return [name for name in names() if name.startswith(incomplete)]


def base_names(incomplete: str) -> list[str]:
    """What a shell offers for a base."""
    return [name for name in [*EMBEDDED, *(f"zoo:{each}" for each in zoo_names())] if name.startswith(incomplete)]


def _on_hub(path: str) -> bool:
    """Whether it may be a name on the Hub: nothing is there, and it is NAME or ORG/NAME, where ORG is no folder."""
    first, *rest = path.split("/")
    named = bool(first) and all(rest) and first not in (".", "..", "~") and (not rest or not Path(first).is_dir())
    return len(rest) < 2 and named and kind_of(path) is None


def _noun(wanted: tuple[str, ...]) -> str:
    return "file" if wanted[0] == "a file" else "folder"


def _nearest(path: str | Path, names: list[str] | None = None) -> str:
    around = Path(path).parent
    if names is None:
        names = [each.name for each in around.iterdir()] if around.is_dir() else []
    near = get_close_matches(Path(path).name, names, n=1, cutoff=0.7)
    return f" Did you mean {str(around / near[0])!r}?" if near else ""
