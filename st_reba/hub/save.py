"""Save a model whole or not at all: weights, code, golden vectors, card."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sentence_transformers import SentenceTransformer

from ..modules import RepeatTransformer
from .card import card_values, write_card
from .golden import write_golden
from .graph_runner import GRAPH


def save(
    model: SentenceTransformer,
    folder: str | os.PathLike[str],
    *,
    overwrite: bool = False,
    golden: bool = True,
    name: str | None = None,
    license: str | None = None,
    about: Mapping[str, Any] | None = None,
) -> None:
    """Save a model as ``model.save_pretrained(folder)`` does, with golden vectors and a card, whole or not at all.

    Args:
        model: The model. Do not encode with it meanwhile: its weights are converted to the base's
            number type while they are saved.
        folder: The folder to make; an empty one may be there.
        overwrite: Replace a saved model that is there, with all its files.
        golden: Write golden.json, which ``st-reba verify`` compares with.
        name: Name of the model in its card; None: its base and method.
        license: Licence of the base's weights, as the Hub spells it; None: that in ``about``, or in
            the card beside the base.
        about: Facts for the card, as a recipe holds them: language, licence, licence_link, note,
            scores, measured.

    Raises:
        FileExistsError: Something is there that may not be replaced.
        ValueError: The model gives vectors that are not finite.

    Example:
        >>> import st_reba
        >>> save(st_reba.build("mini"), "my_model")
        >>> sorted(path.name for path in Path("my_model").glob("*.py"))
        ['st_reba.py']
    """
    with new_folder(folder, overwrite=overwrite) as new:
        ours = isinstance(model[0], RepeatTransformer)
        model.save_pretrained(str(new), create_model_card=not ours)
        _drop_local_settings(new / "tokenizer_config.json")
        if golden:
            write_golden(model, new)
        if ours:
            write_card(new, card_values(model, new, name=name, license=license, about=about))


@contextmanager
def new_folder(
    folder: str | os.PathLike[str], *, overwrite: bool, is_export: bool = False
) -> Iterator[Path]:
    """An empty folder, which is put in place when the ``with`` block ends without an error."""
    check_free(Path(folder), overwrite=overwrite, is_export=is_export)
    target = Path(os.path.realpath(folder))
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{target.name}.", dir=target.parent) as temporary:
        new = Path(temporary, "new")
        new.mkdir()
        yield new
        _apply_umask(new)
        _move_into_place(new, target)


def check_free(folder: Path, *, overwrite: bool, is_export: bool = False) -> None:
    """Refuse a folder that cannot be replaced, or must not be.

    Args:
        folder: The folder to make.
        overwrite: A saved model may be replaced; an export replaces only an exported model.
        is_export: An exported model is to be written.
    """
    real_folder = os.path.realpath(folder)
    if os.path.ismount(real_folder):
        raise FileExistsError(
            f"{str(folder)!r} is a mount point, which cannot be replaced. Name a folder in it."
        )
    if _is_around_current_folder(real_folder):
        raise FileExistsError(
            f"{str(folder)!r} is the current folder, or holds it. Name a folder in it, or run this from elsewhere."
        )
    is_empty_folder = folder.is_dir() and not any(folder.iterdir())
    if is_empty_folder or not os.path.lexists(folder):
        return
    if is_export:
        kind = "an exported model"
        has_weights = any(folder.glob("*.safetensors"))  # which an export would delete
        is_of_kind = (folder / GRAPH).is_file() and not has_weights
    else:
        kind = "a saved model"
        is_of_kind = (folder / "modules.json").is_file()
    if not is_of_kind:
        raise FileExistsError(f"{str(folder)!r} exists, and is not {kind}. Name another folder.")
    if not overwrite:
        raise FileExistsError(
            f"{str(folder)!r} holds {kind}. Give overwrite=True (--overwrite), or another folder."
        )


def _is_around_current_folder(folder: str) -> bool:
    try:
        return Path.cwd().is_relative_to(folder)
    except FileNotFoundError:  # the current folder is deleted
        return False


def _move_into_place(new: Path, target: Path) -> None:
    """Move a finished folder into place.

    The old folder is moved into the temporary folder of ``new``, and deleted with it.
    """
    old = new.with_name("old")
    if target.exists():
        os.replace(target, old)
    try:
        os.replace(new, target)
    except OSError:
        if old.exists():
            os.replace(old, target)
        raise


def _drop_local_settings(file: Path) -> None:
    """Remove what transformers records about how the tokenizer was loaded on this machine."""
    if file.is_file():
        value = json.loads(file.read_text(encoding="utf-8"))
        if value.pop("local_files_only", None) is not None:
            text = json.dumps(value, indent=2, ensure_ascii=False)
            file.write_text(f"{text}\n", encoding="utf-8")


def _apply_umask(folder: Path) -> None:
    """Give all files the mode that the umask says; libraries write some only for the owner."""
    mask = os.umask(0)
    os.umask(mask)
    for path in folder.rglob("*"):
        path.chmod((0o777 if path.is_dir() else 0o666) & ~mask)
