"""Marks for slow cases, and the type of the fixture ``base``."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest

# The fixture of that name: the folder of an architecture, with a tokenizer.
Base = Callable[..., str]


def slow_but(values: Iterable[Any], *fast_values: Any, rows: bool = False) -> list[Any]:
    """Parameters, all marked slow but some.

    Args:
        values: The parameters; with ``rows`` a tuple of several for each case.
        *fast_values: The cases that are not slow; with ``rows``, the first parameter names a case too.
        rows: Each value holds several parameters.
    """
    parameters: list[Any] = []
    fast_names = set(fast_values)
    for value in values:
        names = {value, value[0]} if rows else {value}
        if names & set(fast_values):
            fast_names -= names
            parameters.append(value)
        else:
            arguments = value if rows else [value]
            parameters.append(pytest.param(*arguments, marks=pytest.mark.slow))
    assert not fast_names, f"no such cases: {fast_names}"
    return parameters
