"""No test asks the Hub, and each example in a docstring runs in an empty folder of its own: it may write files."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path

import pytest

# The page needs gradio, which only its own tests have.
collect_ignore = [] if find_spec("gradio") else ["st_reba/explore/page.py"]
# Before anything imports huggingface_hub. Tests of the Hub start one of their own, and go there.
os.environ["HF_HUB_OFFLINE"] = "1"


@pytest.fixture(autouse=True)
def _example_folder(request: pytest.FixtureRequest) -> None:
    # Asked for here, not above: a folder for every other test too would be thousands.
    if isinstance(request.node, pytest.DoctestItem):
        folder: Path = request.getfixturevalue("tmp_path")
        patch: pytest.MonkeyPatch = request.getfixturevalue("monkeypatch")
        patch.chdir(folder)
