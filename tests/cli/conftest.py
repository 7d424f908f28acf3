"""The fixtures of commanding.py."""

from commanding import copied, model, refused, run, saved  # noqa: F401
