"""The examples in docstrings may write files: each runs in an empty folder of its own."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def _example_folder(request: pytest.FixtureRequest) -> None:
    # Asked for here, not above: a folder for every other test too would be thousands.
    if isinstance(request.node, pytest.DoctestItem):
        folder: Path = request.getfixturevalue("tmp_path")
        patch: pytest.MonkeyPatch = request.getfixturevalue("monkeypatch")
        patch.chdir(folder)
