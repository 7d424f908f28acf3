"""Where the model of a corpus or an index is: a Hub id, or a folder that may be moved together with it."""

from __future__ import annotations

import os
from os import PathLike
from pathlib import Path


def relative(source: str | PathLike[str], folder: Path) -> str:
    """A model's folder as seen from another, beginning with a dot; anything else, as a Hub id, as it is."""
    source = os.fspath(source)
    if not os.path.isdir(source):
        return source
    return _dotted(os.path.relpath(os.path.realpath(source), folder))


def moved(source: object, corpus: Path, folder: Path) -> str | None:
    """A model's place as seen from the index, where a corpus tells it as seen from itself."""
    if not isinstance(source, str) or not source:
        return None
    if not source.startswith("."):
        return source
    return _dotted(os.path.relpath(os.path.join(os.path.realpath(corpus), source), folder))


def located(source: str | None, folder: Path) -> str:
    """A Hub id, or the path of a model's folder.

    Args:
        source: What the index remembers.
        folder: The index folder.

    Raises:
        ValueError: The index was not told, or the folder is gone.
    """
    if source is None:
        raise ValueError("the index does not say where its model is; name it: --model FOLDER_OR_HUB_ID")
    if not source.startswith("."):
        return source
    path = os.path.normpath(folder / source)
    if not os.path.isdir(path):
        # Never handed on: a missing folder's name could be somebody's repository on the Hub.
        raise ValueError(f"the index was built with the model in {path!r}, which is gone; name it: --model FOLDER")
    return path


def _dotted(path: str) -> str:
    return path if path.startswith(".") else os.path.join(".", path)
