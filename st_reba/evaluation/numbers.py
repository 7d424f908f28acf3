"""Scores and grades in tables: which numbers can be used."""

from __future__ import annotations

from typing import Any

# Beyond this, sums and squares of scores overflow.
LARGEST_NUMBER = 1e30


def is_number(value: Any) -> bool:
    """Whether a cell holds a score: finite, and at most 1e30 either way."""
    try:
        return abs(float(value)) <= LARGEST_NUMBER
    except (TypeError, ValueError, OverflowError):
        return False
