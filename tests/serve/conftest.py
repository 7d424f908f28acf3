"""The fixtures of asking.py."""

from asking import ask, model  # noqa: F401
