"""Publishing a Space, against a small server of the Hub's endpoints."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from server import Hub

from st_reba.cli import main
from st_reba.explore import write_space
from st_reba.hub.spaces import FILES, push_space

REPO = "org/page"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_space(tmp_path / "space", ["mini"], title="A page")


def test_a_space_is_published_and_replaced(
    hub: Hub, folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder.parent)
    assert main(["push", "space", REPO, "--dry-run"]) == 0 and hub.repos == {}
    assert "Nothing was sent" in capsys.readouterr().out
    assert main(["push", "space", REPO, "--json"]) == 0
    pushed = json.loads(capsys.readouterr().out)
    assert pushed["commit"] == hub.repos[REPO].branches["main"] and pushed["url"].endswith("/spaces/org/page")
    written = [seen.path for seen in hub.seen if seen.endpoint in ("preupload", "commit")]
    assert written and all(path.startswith("/api/spaces/") for path in written)
    write_space(folder, ["mini", "mini echo"], title="Another", overwrite=True)
    push_space(folder, REPO)
    files = {path: blob.data for path, blob in hub.repos[REPO].files("main").items() if path in FILES}
    assert files == {name: (folder / name).read_bytes() for name in FILES}


def test_what_is_refused(hub: Hub, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["push", str(folder), REPO, "--create-pr"]) == 2
    assert "--create-pr does not go with a Space" in capsys.readouterr().err
    with pytest.raises(ValueError, match="st-reba space"):
        push_space(tmp_path, REPO)
    push_space(folder, REPO)
    there = hub.repos[REPO]
    there.commit("main", {**there.files("main"), "data.csv": there.files("main")["app.py"]}, "theirs")
    with pytest.raises(ValueError, match=r"files of its own \(data.csv\)"):
        push_space(folder, REPO)
