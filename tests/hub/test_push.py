"""hub.push: on a Hub of this machine; nothing is sent that was not verified, and strangers load what was sent."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from sentence_transformers import SentenceTransformer
from server import Hub

from st_reba.hub import push

module = sys.modules["st_reba.hub.push"]
REPO = "org/model"
# As an endpoint's server does it, where st_reba is not installed.
SERVER = """
import json, sys
sys.modules["st_reba"] = None
sys.path.insert(0, sys.argv[1])
from handler import EndpointHandler
handler = EndpointHandler(path=sys.argv[1])
for one in ({"inputs": 3}, {"inputs": [3]}, {}, {"inputs": "a", "parameters": {"task": "x"}}):
    try:
        handler(one)
    except ValueError:
        continue
    raise AssertionError(one)
print(json.dumps([handler({"inputs": ["猫", "a"]}), handler({"inputs": "a", "parameters": {"task": "query"}})]))
"""


@pytest.fixture
def copied(saved: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(saved, tmp_path / "model"))


@pytest.fixture
def unverified(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "verify_fresh", lambda *_, **__: "all of it")


def test_dry_run(hub: Hub, copied: Path, unverified: None) -> None:
    (copied / ".cache").mkdir()
    (copied / ".cache" / "x").write_text("mine")
    (copied / "more").mkdir()
    (copied / "more" / "notes.txt").write_text("a")
    lines: list[str] = []
    pushed = push(copied, REPO, dry_run=True, say=lines.append)
    assert pushed.commit is None and pushed.url is None and not hub.repos
    assert {"README.md", "st_reba.py", "golden.json", "more/notes.txt"} <= set(pushed.files)
    assert not [name for name in pushed.files if ".cache" in name]
    assert all(any(line.endswith(f"  {name}") for line in lines) for name in pushed.files)
    assert "Verified. all of it" in lines
    assert "path/to/model" in (copied / "README.md").read_text(encoding="utf-8")


def test_push_and_load(hub: Hub, copied: Path, unverified: None, tmp_path: Path) -> None:
    (copied / "st_reba_old.py").write_text("# of an earlier version\n", encoding="utf-8")
    push(copied, REPO, private=True, say=lambda line: None)
    (copied / "st_reba_old.py").unlink()
    pushed = push(copied, REPO, message="Again", say=lambda line: None)
    files = hub.repos[REPO].files("main")
    assert set(files) - {".gitattributes"} == set(pushed.files) and pushed.commit and pushed.commit in str(pushed.url)
    for name in set(pushed.files) - {"README.md"}:
        assert files[name].data == (copied / name).read_bytes(), name
    assert REPO in files["README.md"].data.decode() and "path/to/model" not in files["README.md"].data.decode()
    model = SentenceTransformer(REPO, cache_folder=str(tmp_path / "cache"), device="cpu")
    assert (model.encode("猫") == SentenceTransformer(str(copied), device="cpu").encode("猫")).all()


def test_a_branch(hub: Hub, copied: Path, unverified: None) -> None:
    push(copied, REPO, say=lambda line: None)
    (copied / "README.md").write_text("---\n---\nnew", encoding="utf-8")
    push(copied, REPO, revision="v2", say=lambda line: None)
    assert hub.repos[REPO].files("v2")["README.md"].data.endswith(b"new")
    asked = push(copied, REPO, create_pr=True, say=lambda line: None)
    assert asked.url == f"{hub.endpoint}/{REPO}/discussions/1" and hub.repos[REPO].branches["refs/pr/1"] == asked.commit
    assert not hub.repos[REPO].files("main")["README.md"].data.endswith(b"new")


def test_refusals(hub: Hub, copied: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(kind: type[Exception] = ValueError, folder: Path = copied, name: str = REPO, **options: Any) -> None:
        with pytest.raises(kind) as caught:
            push(folder, name, say=lambda line: None, **options)
        assert "\n" not in str(caught.value)

    refused(FileNotFoundError, copied / "missing")
    refused(name="model")
    golden = (copied / "golden.json").read_text(encoding="utf-8")
    value = json.loads(golden)
    value["texts"][3]["vector"][0] += 0.1
    (copied / "golden.json").write_text(json.dumps(value), encoding="utf-8")
    refused()
    (copied / "golden.json").write_text(golden, encoding="utf-8")
    monkeypatch.setattr(module, "verify_fresh", lambda *_, **__: None)
    (copied / "pytorch_model.bin").write_bytes(b"")
    refused()
    (copied / "pytorch_model.bin").unlink()
    (copied / "more").mkdir()
    (copied / "more" / "notes.txt").symlink_to("/etc/hostname")
    refused()
    (copied / "more" / "notes.txt").unlink()
    monkeypatch.delenv("HF_TOKEN")
    refused()
    monkeypatch.setenv("HF_TOKEN", "hf_nobody")
    refused(OSError)
    monkeypatch.setenv("HF_TOKEN", "hf_writer")
    (copied / "st_reba.py").unlink()
    refused()
    assert not hub.repos


@pytest.mark.slow
def test_endpoint(hub: Hub, copied: Path, unverified: None, tmp_path: Path) -> None:
    pushed = push(copied, REPO, with_endpoint=True, say=lambda line: None)
    assert {"handler.py", "requirements.txt"} <= set(pushed.files)
    for name, blob in hub.repos[REPO].files("main").items():
        (tmp_path / "served" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "served" / name).write_bytes(blob.data)
    environment = {**os.environ, "HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": "1"}
    run = subprocess.run(
        [sys.executable, "-c", SERVER, str(tmp_path / "served")], capture_output=True, text=True, env=environment
    )
    assert run.returncode == 0, run.stderr
    two, query = json.loads(run.stdout.splitlines()[-1])
    model = SentenceTransformer(str(copied), device="cpu")
    assert abs(model.encode(["猫", "a"]) - two).max() < 1e-5 and abs(model.encode_query("a") - query).max() < 1e-5
