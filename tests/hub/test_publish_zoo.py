"""scripts/publish_zoo.py: recipes on a Hub of this machine; one that fails is named, and the others are sent."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest
from server import Hub

import st_reba

SCRIPT = Path(st_reba.__file__).parents[1] / "scripts" / "publish_zoo.py"


def test_one_fails(hub: Hub, capsys: pytest.CaptureFixture[str]) -> None:
    main = runpy.run_path(str(SCRIPT))["main"]
    assert main(["org", "baichuan-7b-echo", "mini-echo", "--private"]) == 1
    assert set(hub.repos) == {"org/mini-echo"}
    found = capsys.readouterr()
    assert hub.endpoint in found.out and "baichuan-7b-echo failed" in found.err
