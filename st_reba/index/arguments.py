"""Arguments of an index's methods, checked: errors name option, value and remedy."""

from __future__ import annotations

import operator
import os
from collections.abc import Iterable, Mapping
from os import PathLike
from pathlib import Path
from typing import SupportsIndex, TypedDict

import numpy as np

from ..corpus.records import clean_text, preview
from ..encode import python_values
from ..files import parse_path


class AddOptions(TypedDict, total=False):
    """The options of ``Index.add`` and ``Index.upsert``."""

    text_column: str | None
    id_column: str | None
    encoding: str | None
    batch_tokens: int | None
    part_size: int | None
    workers: int | None
    strict: bool
    show_progress_bar: bool | None


def resolve_folder(path: str | PathLike[str]) -> Path:
    """The folder of an index, links resolved.

    Example:
        >>> resolve_folder("")
        Traceback (most recent call last):
        ValueError: path='' names no file or folder; give its path
    """
    return Path(os.path.realpath(parse_path(path, "path")))


def parse_count(value: SupportsIndex, option: str) -> int:
    """A whole number of at least 1; numbers of NumPy count, True does not.

    Example:
        >>> parse_count(np.int64(3), "k")
        3
        >>> parse_count(0, "k")
        Traceback (most recent call last):
        ValueError: k=0 must be a whole number of at least 1
    """
    message = f"{option}={preview(value)} must be a whole number of at least 1"
    is_truth_value = isinstance(value, (bool, np.bool_))
    if is_truth_value or not hasattr(value, "__index__"):
        raise TypeError(message)
    whole_number = operator.index(value)
    if whole_number < 1:
        raise ValueError(message)
    return whole_number


def parse_queries(queries: str | Iterable[str]) -> list[str]:
    """Texts to search for, lone surrogates replaced.

    Example:
        >>> parse_queries("Cats sleep")
        ['Cats sleep']
    """
    message = f"queries={preview(queries)!r}: give texts that are not empty, or an array of floats"
    if isinstance(queries, str):
        query_texts = [queries]
    elif isinstance(queries, Iterable) and not isinstance(queries, (bytes, Mapping)):
        query_texts = list(python_values(queries))
    else:
        raise TypeError(message)
    cleaned_texts = []
    for query_text in query_texts:
        if not isinstance(query_text, str) or not query_text.strip():
            raise ValueError(message)
        cleaned_texts.append(clean_text(query_text))
    return cleaned_texts


def parse_ids(ids: Iterable[str]) -> list[str]:
    """A list of ids.

    Example:
        >>> parse_ids(("a", "b"))
        ['a', 'b']
        >>> parse_ids("ab")
        Traceback (most recent call last):
        TypeError: ids='ab': give a list of strings
    """
    message = f"ids={ids!r:.200}: give a list of strings"
    if isinstance(ids, (str, bytes)) or not isinstance(ids, Iterable):
        raise TypeError(message)
    document_ids = list(ids)
    for document_id in document_ids:
        if not isinstance(document_id, str):
            raise TypeError(message)
    return document_ids
