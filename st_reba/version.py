"""The version of the package."""

from __future__ import annotations

from .modules.version import __version__

__all__ = ["__version__"]
