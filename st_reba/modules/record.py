"""What a saved model says of the filter behind its pooling: for the record, and checked, as it comes from a file."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from .limits import MOST_DIMENSIONS, MOST_TOKENS, check_whole, shown

# Of each kind: the numbers that go with it.
_NUMBERS: dict[str, tuple[str, ...]] = {
    "center": (),
    "abtt": ("r",),
    "standardize": (),
    "whiten": ("dimensions", "r", "power"),
}


def check_record(record: object) -> dict[str, Any] | None:
    """A record of a post-filter, if it is one.

    Args:
        record: None, or a mapping: ``kind``; ``r`` of abtt; ``dimensions``, ``r`` and ``power`` of whiten; ``texts``
            (how many it was fitted on), ``seed`` (by which they were drawn) and ``sha256`` (of them, or None).

    Returns:
        A copy, or None.

    Raises:
        ValueError: It is neither; the message names the key, its value and what is allowed.

    Example:
        >>> check_record({"kind": "abtt", "r": 3, "texts": 2000, "seed": 0, "sha256": None})["r"]
        3
    """
    if record is None:
        return None
    if not isinstance(record, Mapping):
        raise ValueError(f"postfilter={shown(record)} must be a mapping, or None.")
    kind = record.get("kind")
    if not isinstance(kind, str) or kind not in _NUMBERS:
        raise ValueError(f"postfilter: kind={shown(kind)} is not known: it is one of {list(_NUMBERS)}.")
    keys = ["kind", *_NUMBERS[kind], "texts", "seed", "sha256"]
    if wrong := sorted(map(str, set(record) ^ set(keys))):
        raise ValueError(f"postfilter: {shown(wrong[0])} is missing or too much: the keys of {kind!r} are {keys}.")
    for number in _NUMBERS[kind]:
        if number != "power":
            least = 0 if (kind, number) == ("whiten", "r") else 1
            check_whole(f"postfilter: {number}", record[number], MOST_DIMENSIONS, least=least)
        elif not is_power(record[number]):
            raise ValueError(f"postfilter: power={shown(record[number])} must be a number above 0, at most 1.")
    check_whole("postfilter: texts", record["texts"], MOST_TOKENS**2, least=0)
    check_whole("postfilter: seed", record["seed"], MOST_TOKENS**8, least=0)
    digest = record["sha256"]
    if digest is not None and (not isinstance(digest, str) or not re.fullmatch("[0-9a-f]{64}", digest)):
        raise ValueError(f"postfilter: sha256={shown(digest)} must be 64 hexadecimal digits, or None.")
    return dict(record)


def is_power(value: object) -> bool:
    """Whether a value can be the power of a whitening."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value <= 1
