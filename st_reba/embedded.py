"""The base models that come with the package."""

from __future__ import annotations

from pathlib import Path

EMBEDDED = {"mini": Path(__file__).parent / "mini"}
