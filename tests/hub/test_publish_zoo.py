"""scripts/publish_zoo.py: recipes on a Hub of this machine; one that fails is named, and the others are sent."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest
from server import Hub

import st_reba
from st_reba.hub import push

SCRIPT = Path(st_reba.__file__).parents[1] / "scripts" / "publish_zoo.py"


def test_one_fails(hub: Hub, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys.modules[push.__module__], "verify_fresh", lambda *_, **__: "all of it")
    main = runpy.run_path(str(SCRIPT))["main"]
    assert main(["baichuan-7b-echo", "mini-echo", "--org", "org", "--private"]) == 1
    assert set(hub.repos) == {"org/mini-echo"}
    outcome = capsys.readouterr().out.splitlines()[-2:]
    assert "failed: zoo:baichuan-7b-echo cannot be built" in outcome[0] and hub.endpoint in outcome[1]


@pytest.mark.parametrize("names", [[], ["no-such-model"], ["mini-echo", "--all-ready"]])
def test_refusals(names: list[str]) -> None:
    with pytest.raises(SystemExit):
        runpy.run_path(str(SCRIPT))["main"]([*names, "--org", "org"])
