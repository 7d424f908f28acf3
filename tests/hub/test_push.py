"""hub.push and scripts/publish_zoo.py: on a Hub of this machine; nothing is sent that was not verified."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest
from sentence_transformers import SentenceTransformer
from server import Hub

import st_reba
from st_reba.hub import push, verify

REPO = "org/model"


def test_dry_run(hub: Hub, copied: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in (".cache", "more"):
        (copied / name).mkdir()
        (copied / name / "notes.txt").write_text("mine")
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
    files = hub.repos[REPO].files()
    assert set(files) - {".gitattributes"} == set(pushed.files) and pushed.commit and pushed.commit in str(pushed.url)
    for name in set(pushed.files) - {"README.md"}:
        assert files[name] == (copied / name).read_bytes(), name
    assert REPO in files["README.md"].decode() and "path/to/model" not in files["README.md"].decode()
    model = SentenceTransformer(REPO, cache_folder=str(tmp_path / "cache"), device="cpu")
    assert (model.encode("猫") == SentenceTransformer(str(copied), device="cpu").encode("猫")).all()
    (copied / "README.md").write_text("---\n---\nnew", encoding="utf-8")
    push(copied, "org/open")
    assert hub.repos[REPO].private and not hub.repos["org/open"].private
    for _ in range(2):
        push(copied, REPO, revision="v2")
    assert hub.repos[REPO].files("v2")["README.md"].endswith(b"new")
    asked = push(copied, REPO, create_pr=True)
    assert asked.url == f"{hub.endpoint}/{REPO}/discussions/1" and hub.repos[REPO].branches["refs/pr/1"] == asked.commit
    assert hub.repos[REPO].files() == files and hub.messages[:2] == ["Upload with st-reba", "Again"]
    assert capsys.readouterr().out.endswith(f"Published: {asked.url}\n")


def test_a_published_model_is_verified_by_its_name(hub: Hub, copied: Path, tmp_path: Path) -> None:
    push(copied, REPO)
    report = verify(REPO, cache_folder=str(tmp_path / "cache"), device="cpu")
    assert report.ok and report.damage == []


def test_refusals(hub: Hub, copied: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(says: str, kind: type[Exception] = ValueError, name: str = REPO) -> None:
        with pytest.raises(kind, match=says) as caught:
            push(copied, name)
        assert "\n" not in str(caught.value)

    refused("repo_id", name="model")
    changes: list[tuple[str, str, Any]] = [
        ("golden.json", "golden.json", None),
        ("Save it again", "golden.json", lambda text: text.replace('"猫"', '"狗"')),
        ("Save it again", "st_reba.py", lambda text: text + "import os\n"),
        ("Save it again", "st_reba.py", None),
        ("trust_remote_code", "modules.json", lambda text: text.replace("sentence_transformers", "x")),
    ]
    for says, name, change in changes:
        text = (copied / name).read_text(encoding="utf-8")
        (copied / name).unlink()
        if change:
            (copied / name).write_text(change(text), encoding="utf-8")
        refused(says)
        (copied / name).write_text(text, encoding="utf-8")
    monkeypatch.setenv("HF_TOKEN", "hf_nobody")
    refused(REPO, OSError)
    monkeypatch.delenv("HF_TOKEN")
    refused("no token")
    assert not hub.repos


def test_a_zoo_of_which_one_fails(hub: Hub, capsys: pytest.CaptureFixture[str]) -> None:
    """That one is named, and the others are sent."""
    main = runpy.run_path(str(Path(st_reba.__file__).parents[1] / "scripts" / "publish_zoo.py"))["main"]
    assert main(["org", "baichuan-7b-echo", "mini-echo", "--private"]) == 1
    assert set(hub.repos) == {"org/mini-echo"}
    found = capsys.readouterr()
    assert hub.endpoint in found.out and "baichuan-7b-echo failed" in found.err
