"""What `scripts/test` leaves to `scripts/test --all`, and a type."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest

# The fixture of that name: the folder of an architecture, with a tokenizer.
Base = Callable[..., str]


def slow_but(values: Iterable[Any], *fast: Any, rows: bool = False) -> list[Any]:
    """Parameters, all marked slow but the `fast`; of `rows`, one a case, these may be what rows begin with."""
    named = [(value, value[0] if rows else value) for value in values]
    missing = [one for one in fast if not any(one in names for names in named)]
    assert not missing, f"no such cases: {missing}"
    return [
        value if {value, name} & {*fast} else pytest.param(*(value if rows else [value]), marks=pytest.mark.slow)
        for value, name in named
    ]
