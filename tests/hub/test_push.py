"""hub.push and scripts/publish_zoo.py: on a Hub of this machine; nothing is sent that was not verified."""

from __future__ import annotations

import json
import runpy
import shutil
from hashlib import sha256
from importlib import import_module
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import huggingface_hub.constants as constants
import pytest
from sentence_transformers import SentenceTransformer
from server import Hub

import st_reba
from st_reba.hub import push, verify

REPO = "org/model"


def test_a_dry_run_lists_the_files_and_sends_nothing(
    hub: Hub, copied_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for folder_name in (".cache", "more"):
        (copied_folder / folder_name).mkdir()
        (copied_folder / folder_name / "notes.txt").write_text("mine")
    pushed = push(copied_folder, REPO, dry_run=True)
    assert pushed.commit is None
    assert pushed.url is None
    assert not hub.repos
    assert {"README.md", "st_reba.py", "golden.json", "more/notes.txt"} <= set(pushed.files)
    assert not [name for name in pushed.files if ".cache" in name]
    first_line, *file_lines, last_line = capsys.readouterr().out.splitlines()
    assert first_line.startswith("Verified: 25 texts")
    assert [line[14:] for line in file_lines] == [f"  {name}" for name in pushed.files]
    assert last_line.startswith("Nothing was sent: a dry run")
    assert "path/to/model" in (copied_folder / "README.md").read_text(encoding="utf-8")


def test_a_folder_that_may_only_be_read_can_be_pushed(
    copied_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its copy, in which the card is written, is not like it."""
    copied_folder.chmod(0o500)
    copy_permissions: list[int] = []

    def write_text(path: Path, *arguments: Any, **options: Any) -> int:
        copy_permissions.append(path.parent.stat().st_mode & 0o777)
        return original_write_text(path, *arguments, **options)

    original_write_text = Path.write_text
    monkeypatch.setattr(Path, "write_text", write_text)
    push(copied_folder, REPO, dry_run=True)
    assert copy_permissions == [0o700]


def test_a_push_sends_the_folder_as_it_is(hub: Hub, copied_folder: Path) -> None:
    """But for the card, which names the repository."""
    push(copied_folder, REPO)
    pushed = push(copied_folder, REPO, message="Again")
    files = hub.repos[REPO].files()
    assert set(files) - {".gitattributes"} == set(pushed.files)
    assert pushed.commit
    assert pushed.commit in str(pushed.url)
    for name in set(pushed.files) - {"README.md"}:
        assert files[name] == (copied_folder / name).read_bytes(), name
    card = files["README.md"].decode()
    assert REPO in card
    assert "path/to/model" not in card
    assert hub.messages == ["Upload with st-reba", "Again"]


def test_files_of_an_earlier_push_are_removed_and_others_stay(
    hub: Hub, copied_folder: Path, tmp_path: Path
) -> None:
    earlier_folder = Path(shutil.copytree(copied_folder, tmp_path / "earlier"))
    (earlier_folder / "st_reba_old.py").write_text("# of an earlier version\n", encoding="utf-8")
    old_graph = earlier_folder / "onnx" / "model_quantized.onnx"
    old_graph.parent.mkdir()
    old_graph.write_bytes(b"of an earlier version")
    golden_file = earlier_folder / "golden.json"
    golden = json.loads(golden_file.read_text(encoding="utf-8"))
    golden["digests"]["onnx/model_quantized.onnx"] = sha256(old_graph.read_bytes()).hexdigest()
    golden_file.write_text(json.dumps(golden), encoding="utf-8")
    (earlier_folder / "notes.txt").write_text("no part of the model", encoding="utf-8")
    push(earlier_folder, REPO)
    pushed = push(copied_folder, REPO)
    files = hub.repos[REPO].files()
    assert set(files) - {".gitattributes"} == {*pushed.files, "notes.txt"}


def test_a_pushed_model_loads_by_its_name(hub: Hub, copied_folder: Path, tmp_path: Path) -> None:
    push(copied_folder, REPO)
    loaded_model = SentenceTransformer(REPO, cache_folder=str(tmp_path / "cache"), device="cpu")
    local_model = SentenceTransformer(str(copied_folder), device="cpu")
    assert (loaded_model.encode("猫") == local_model.encode("猫")).all()


@pytest.mark.parametrize("names", [("a",), ("a", "b"), ("more/a",)])
def test_links_that_lead_back_are_refused(
    hub: Hub, copied_folder: Path, names: tuple[str, ...]
) -> None:
    (copied_folder / "more").mkdir()
    for name in names:
        (copied_folder / name).symlink_to(copied_folder)
    assert_refused(copied_folder, "leads back into the folder. Remove the link")
    assert not hub.repos


def test_files_behind_a_link_are_sent(hub: Hub, copied_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "notes.txt").write_text("mine", encoding="utf-8")
    (copied_folder / "more").symlink_to(tmp_path / "elsewhere")
    assert "more/notes.txt" in push(copied_folder, REPO).files


def test_a_repository_is_private_where_that_is_asked_for(hub: Hub, copied_folder: Path) -> None:
    push(copied_folder, REPO, private=True)
    push(copied_folder, "org/open")
    assert hub.repos[REPO].private
    assert not hub.repos["org/open"].private


def test_a_push_to_another_revision_leaves_main(hub: Hub, copied_folder: Path) -> None:
    push(copied_folder, REPO)
    main_files = hub.repos[REPO].files()
    (copied_folder / "README.md").write_text("---\n---\nnew", encoding="utf-8")
    for _ in range(2):
        push(copied_folder, REPO, revision="v2")
    assert hub.repos[REPO].files("v2")["README.md"].endswith(b"new")
    assert hub.repos[REPO].files() == main_files


def test_a_pull_request_leaves_main_and_is_named(
    hub: Hub, copied_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    push(copied_folder, REPO)
    main_files = hub.repos[REPO].files()
    (copied_folder / "README.md").write_text("---\n---\nnew", encoding="utf-8")
    pushed = push(copied_folder, REPO, create_pr=True)
    assert pushed.url == f"{hub.endpoint}/{REPO}/discussions/1"
    assert hub.repos[REPO].branches["refs/pr/1"] == pushed.commit
    assert hub.repos[REPO].files() == main_files
    assert capsys.readouterr().out.endswith(f"Published: {pushed.url}\n")


def test_a_published_model_is_verified_by_its_name(
    hub: Hub, copied_folder: Path, tmp_path: Path
) -> None:
    push(copied_folder, REPO)
    report = verify(REPO, cache_folder=str(tmp_path / "cache"), device="cpu")
    assert report.ok and report.damage == []


def assert_refused(
    folder: Path,
    message: str,
    error_type: type[Exception] = ValueError,
    repo_id: str = REPO,
) -> None:
    """In one line."""
    with pytest.raises(error_type, match=message) as raised:
        push(folder, repo_id)
    assert "\n" not in str(raised.value)


def test_a_folder_that_is_not_there_is_refused(hub: Hub, tmp_path: Path) -> None:
    assert_refused(tmp_path / "模型", "模型' is no folder")
    assert not hub.repos


def test_a_repository_without_an_owner_is_refused(hub: Hub, copied_folder: Path) -> None:
    assert_refused(copied_folder, "repo_id", repo_id="model")
    for invalid_name in ("me/我的模型", "me/a--b", f"me/{'a' * 97}"):
        with pytest.raises(ValueError, match="(?i)repo.id"):
            push(copied_folder, invalid_name, dry_run=True)
    assert not hub.repos


@pytest.mark.parametrize(
    ("message", "file_name", "original_text", "changed_text"),
    [
        ("Save it again", "golden.json", '"猫"', '"狗"'),
        (
            "Save it again",
            "st_reba.py",
            "import torch\n",
            "import torch\nimport os\n",
        ),
        ("trust_remote_code", "modules.json", "sentence_transformers", "x"),
    ],
)
def test_a_changed_file_is_refused(
    hub: Hub,
    copied_folder: Path,
    message: str,
    file_name: str,
    original_text: str,
    changed_text: str,
) -> None:
    text = (copied_folder / file_name).read_text(encoding="utf-8")
    assert original_text in text
    (copied_folder / file_name).write_text(
        text.replace(original_text, changed_text), encoding="utf-8"
    )
    assert_refused(copied_folder, message)
    assert not hub.repos


@pytest.mark.parametrize(
    ("message", "file_name"),
    [("golden.json", "golden.json"), ("Save it again", "st_reba.py")],
)
def test_a_missing_file_is_refused(
    hub: Hub, copied_folder: Path, message: str, file_name: str
) -> None:
    (copied_folder / file_name).unlink()
    assert_refused(copied_folder, message)
    assert not hub.repos


def test_who_may_not_write_is_refused(
    hub: Hub, copied_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_nobody")
    assert_refused(copied_folder, f"{REPO}: .* To write there, log in", OSError)
    monkeypatch.delenv("HF_TOKEN")
    assert_refused(copied_folder, "no token")
    push(copied_folder, REPO, dry_run=True)
    assert not hub.repos
    push(copied_folder, REPO, token="hf_writer")
    assert hub.repos


def test_code_of_a_folder_runs_only_where_that_is_allowed(
    copied_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing_verify = Mock(side_effect=ValueError("enough"))
    # The package's attribute st_reba.hub.push is a function.
    monkeypatch.setattr(import_module("st_reba.hub.push"), "verify", failing_verify)
    for is_trusted in (False, True):
        with pytest.raises(ValueError, match="enough"):
            push(copied_folder, REPO, trust_remote_code=is_trusted, dry_run=True)
        failing_verify.assert_called_with(copied_folder, trust_remote_code=is_trusted)


def test_a_hub_that_does_not_answer_asks_for_no_login(
    hub: Hub, copied_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:1")
    assert_refused(copied_folder, r"nothing was published: [^.]*\. Push again\.$", OSError)


def test_a_zoo_of_which_one_fails_sends_the_others(
    hub: Hub, capsys: pytest.CaptureFixture[str]
) -> None:
    """The one that fails is named."""
    script = Path(st_reba.__file__).parents[1] / "scripts" / "publish_zoo.py"
    main = runpy.run_path(str(script))["main"]
    assert main(["org", "baichuan-7b-echo", "mini-echo", "--private"]) == 1
    assert set(hub.repos) == {"org/mini-echo"}
    printed = capsys.readouterr()
    assert hub.endpoint in printed.out
    assert "baichuan-7b-echo failed" in printed.err
