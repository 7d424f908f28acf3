"""A saved model behind an HTTP address that OpenAI's clients understand. Needs the extra ``serve``."""

from __future__ import annotations

from .run import serve
from .settings import Settings

__all__ = ["Settings", "serve"]
