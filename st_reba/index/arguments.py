"""Arguments of an index's methods: each is checked, and an error names it, its value and the remedy."""

from __future__ import annotations

import operator
import os
from collections.abc import Iterable, Mapping
from os import PathLike
from pathlib import Path
from typing import SupportsIndex

import numpy as np

from ..corpus.records import beginning, clean_text
from ..storage.files import parse_path


def resolve_folder(path: str | PathLike[str]) -> Path:
    """The folder of an index, links resolved.

    Example:
        >>> resolve_folder("")
        Traceback (most recent call last):
        ValueError: path='' names no file or folder; give its path
    """
    return Path(os.path.realpath(parse_path(path, "path")))


def parse_count(value: SupportsIndex, option: str) -> int:
    """A whole number from 1 on; numbers of NumPy count, True does not.

    Example:
        >>> parse_count(np.int64(3), "k")
        3
        >>> parse_count(0, "k")
        Traceback (most recent call last):
        ValueError: k=0 must be a whole number from 1 on
    """
    message = f"{option}={value!r:.80} must be a whole number from 1 on"
    if isinstance(value, (bool, np.bool_)) or not hasattr(value, "__index__"):
        raise TypeError(message)
    number = operator.index(value)
    if number < 1:
        raise ValueError(message)
    return number


def parse_queries(queries: str | Iterable[str]) -> list[str]:
    """Texts to search for, lone surrogates replaced.

    Example:
        >>> parse_queries("Cats sleep")
        ['Cats sleep']
    """
    shown = beginning(queries)
    if not isinstance(queries, Iterable) or isinstance(queries, (bytes, Mapping)):
        raise TypeError(f"queries={shown}: give a text, a list of texts, or an array of floats")
    texts = [queries] if isinstance(queries, str) else list(queries)
    if not all(isinstance(text, str) and text.strip() for text in texts):
        raise ValueError(f"queries={shown}: give texts that are not empty, or an array of floats")
    return [clean_text(text) for text in texts]


def parse_ids(ids: Iterable[str]) -> list[str]:
    """A list of ids.

    Example:
        >>> parse_ids(("a", "b"))
        ['a', 'b']
        >>> parse_ids("ab")
        Traceback (most recent call last):
        TypeError: ids='ab': give a list of strings
    """
    is_list = isinstance(ids, Iterable) and not isinstance(ids, (str, bytes))
    identities = list(ids) if is_list else []
    if not is_list or not all(isinstance(identity, str) for identity in identities):
        raise TypeError(f"ids={ids!r:.200}: give a list of strings")
    return identities
