"""What is told to the user without a traceback."""

from __future__ import annotations


class UsageError(Exception):
    """A mistake in what the user gave; its message names the option, the value and the remedy."""


class WrongRival(Exception):
    """What was to be compared computes something else, so that its time means nothing."""
