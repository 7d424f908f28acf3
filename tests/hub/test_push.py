"""hub.push: on a Hub of this machine; nothing is sent that was not verified, and strangers load what was sent."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from sentence_transformers import SentenceTransformer
from server import Hub

from st_reba.hub import push

REPO = "org/model"


def test_dry_run(hub: Hub, copied: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (copied / ".cache").mkdir()
    (copied / ".cache" / "x").write_text("mine")
    (copied / "more").mkdir()
    (copied / "more" / "notes.txt").write_text("a")
    pushed = push(copied, REPO, dry_run=True)
    assert pushed.commit is None and pushed.url is None and not hub.repos
    assert {"README.md", "st_reba.py", "golden.json", "more/notes.txt"} <= set(pushed.files)
    assert not [name for name in pushed.files if ".cache" in name]
    first, *lines, last = capsys.readouterr().out.splitlines()
    assert [line[14:] for line in lines] == [f"  {name}" for name in pushed.files]
    assert first.startswith("Verified. 20 texts") and last == f"Nothing was sent to {REPO}: this is a dry run."
    assert "path/to/model" in (copied / "README.md").read_text(encoding="utf-8")


def test_push_and_load(hub: Hub, copied: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (copied / "st_reba_old.py").write_text("# of an earlier version\n", encoding="utf-8")
    push(copied, REPO, private=True)
    (copied / "st_reba_old.py").unlink()
    pushed = push(copied, REPO, message="Again")
    files = hub.repos[REPO].files("main")
    assert set(files) - {".gitattributes"} == set(pushed.files) and pushed.commit and pushed.commit in str(pushed.url)
    for name in set(pushed.files) - {"README.md"}:
        assert files[name] == (copied / name).read_bytes(), name
    assert REPO in files["README.md"].decode() and "path/to/model" not in files["README.md"].decode()
    model = SentenceTransformer(REPO, cache_folder=str(tmp_path / "cache"), device="cpu")
    assert (model.encode("猫") == SentenceTransformer(str(copied), device="cpu").encode("猫")).all()
    (copied / "README.md").write_text("---\n---\nnew", encoding="utf-8")
    assert hub.repos[REPO].private
    push(copied, "org/open")
    assert not hub.repos["org/open"].private
    for _ in range(2):
        push(copied, REPO, revision="v2")
    assert hub.repos[REPO].files("v2")["README.md"].endswith(b"new")
    asked = push(copied, REPO, create_pr=True)
    assert asked.url == f"{hub.endpoint}/{REPO}/discussions/1" and hub.repos[REPO].branches["refs/pr/1"] == asked.commit
    assert not hub.repos[REPO].files("main")["README.md"].endswith(b"new")
    assert hub.messages[:2] == ["Upload with st-reba", "Again"]
    assert capsys.readouterr().out.endswith(f"Published: {asked.url}\n")


def test_refusals(hub: Hub, copied: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(says: str, kind: type[Exception] = ValueError, name: str = REPO) -> None:
        with pytest.raises(kind, match=says) as caught:
            push(copied, name)
        assert "\n" not in str(caught.value)

    refused("repo_id", name="model")
    golden = (copied / "golden.json").read_text(encoding="utf-8")
    (copied / "golden.json").unlink()
    refused("golden.json")
    value = json.loads(golden)
    value["texts"][3]["vector"][0] += 0.1
    (copied / "golden.json").write_text(json.dumps(value), encoding="utf-8")
    refused("Save it again")
    (copied / "golden.json").write_text(golden, encoding="utf-8")
    monkeypatch.setenv("HF_TOKEN", "hf_nobody")
    refused(REPO, OSError)
    monkeypatch.delenv("HF_TOKEN")
    refused("no token")
    monkeypatch.setenv("HF_TOKEN", "hf_writer")
    code = (copied / "st_reba.py").read_text(encoding="utf-8")
    (copied / "st_reba.py").write_text(code + "import os\n", encoding="utf-8")
    refused("Save it again")
    (copied / "st_reba.py").unlink()
    refused("Save it again")
    modules = (copied / "modules.json").read_text(encoding="utf-8")
    (copied / "modules.json").write_text(modules.replace("sentence_transformers", "x"), encoding="utf-8")
    refused("trust_remote_code")
    assert not hub.repos
