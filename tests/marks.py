"""What `scripts/test` leaves to `scripts/test --all`, and a type."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest

# The fixture of that name: the folder of an architecture, with a tokenizer.
Base = Callable[..., str]


def slow_but(cases: Iterable[Any], *fast_cases: Any, rows: bool = False) -> list[Any]:
    """Parameters, all marked slow but the `fast_cases`.

    Of `rows`, each of which is the arguments of a case, a fast case may also be what rows begin with.
    """
    parameters: list[Any] = []
    unknown_cases = list(fast_cases)
    for case in cases:
        names = {case, case[0]} if rows else {case}
        unknown_cases = [name for name in unknown_cases if name not in names]
        if names & set(fast_cases):
            parameters.append(case)
            continue
        arguments = case if rows else [case]
        parameters.append(pytest.param(*arguments, marks=pytest.mark.slow))
    assert not unknown_cases, f"no such cases: {unknown_cases}"
    return parameters
