"""Fixtures of the tests of the index."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def index_path(tmp_path: Path) -> Path:
    """A folder for an index, which is not there yet."""
    return tmp_path / "index"
