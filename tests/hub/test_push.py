"""Publishing: what may be sent, one commit or none, every fault of the server, and a second push after a first."""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hub_state import altered
from huggingface_hub import HfApi
from marks import slow_but
from server import Hub

import st_reba.hub.push as pushing
from st_reba.cli import main
from st_reba.hub.contents import contents
from st_reba.hub.push import Pushed, push
from st_reba.hub.remote import HubError

REPO = "org/model"
WRITING = ("create", "preupload", "batch", "upload", "commit", "branch")
WEIGHTS = bytes(range(256)) * 800
LAYOUT = {
    "modules.json": b"[]",
    "README.md": b"---\nlicense: mit\n---\n# A model\n",
    "st_reba.py": b"VALUE = 1\n",
    "golden.json": b"{}",
    "1_ReBAPooling/config.json": b'{"pooling": "last"}',
    "model.safetensors": WEIGHTS,
    "LICENSE": b"A licence\n",
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder that looks like a model's."""
    for name, content in LAYOUT.items():
        path = tmp_path / "model" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return tmp_path / "model"


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def send(folder: Path, said: list[str]) -> Callable[..., Pushed]:
    """Push that folder; its golden vectors are not real ones."""

    def send(**options: Any) -> Pushed:
        return push(options.pop("folder", folder), options.pop("repo", REPO), verify=False, say=said.append, **options)

    return send


def published(hub: Hub, revision: str = "main") -> dict[str, bytes]:
    files = {path: blob.data for path, blob in hub.repos[REPO].files(revision).items()}
    assert files.pop(".gitattributes")
    return files


def test_one_commit_shows_all_files(hub: Hub, send: Callable[..., Pushed], said: list[str]) -> None:
    pushed = send(message="The first")
    repo = hub.repos[REPO]
    assert published(hub) == LAYOUT and not repo.private
    assert list(repo.messages.values()) == ["initial commit", "The first"] and hub.count("commit") == 1
    assert pushed.commit == repo.branches["main"] and pushed.url == f"{hub.endpoint}/{REPO}/tree/{pushed.commit}"
    assert pushed.files == tuple(sorted(LAYOUT)) and set(pushed.changed) == set(LAYOUT) and pushed.removed == ()
    assert repo.files()["model.safetensors"].lfs and not repo.files()["README.md"].lfs
    told = "\n".join(said)
    assert "To org/model (public, new), branch main:" in told and "204.8 kB LFS model.safetensors" in told
    assert said.index(next(line for line in said if line.startswith("To "))) < len(said) - 1
    assert all("hf_writer" not in line for line in said)


def test_it_is_told_before_anything_is_sent(hub: Hub, send: Callable[..., Pushed], folder: Path) -> None:
    counts: list[int] = []
    push(folder, REPO, verify=False, say=lambda line: counts.append(sum(hub.count(name) for name in WRITING)))
    assert counts[:-1] == [0] * (len(counts) - 1) and len(counts) == len(LAYOUT) + 3


def test_unchanged_content_makes_no_commit(hub: Hub, send: Callable[..., Pushed], said: list[str]) -> None:
    first = send()
    before = len(hub.repos[REPO].commits)
    hub.seen.clear()
    again = send()
    assert again.commit == first.commit and again.changed == () and "Unchanged: org/model" in said[-1]
    assert len(hub.repos[REPO].commits) == before and not any(hub.count(name) for name in WRITING)


def test_a_new_version_sends_what_differs_and_removes_what_a_loader_would_still_read(
    hub: Hub, send: Callable[..., Pushed], folder: Path
) -> None:
    send()
    api = HfApi()
    for path in ("notes/by_hand.md", "extra.json"):
        api.upload_file(path_or_fileobj=b"{}", path_in_repo=path, repo_id=REPO)
    hub.seen.clear()
    (folder / "1_ReBAPooling/config.json").unlink()
    (folder / "1_ReBAPooling").rmdir()
    (folder / "2_Normalize").mkdir()
    (folder / "2_Normalize/config.json").write_bytes(b"{}")
    pushed = send()
    assert pushed.changed == ("2_Normalize/config.json",)
    assert pushed.removed == ("1_ReBAPooling/config.json", "extra.json")
    assert set(published(hub)) == {*pushed.files, "notes/by_hand.md"}
    assert hub.count("upload") == 0 and hub.count("commit") == 1
    # The earlier version stays what it was.
    assert "1_ReBAPooling/config.json" in hub.repos[REPO].files(list(hub.repos[REPO].commits)[1])


@pytest.mark.parametrize("content", [altered(WEIGHTS), WEIGHTS + b"."])
def test_other_weights_of_any_size_are_sent(
    hub: Hub, send: Callable[..., Pushed], folder: Path, content: bytes
) -> None:
    send()
    (folder / "model.safetensors").write_bytes(content)
    (folder / "LICENSE").write_bytes(altered(LAYOUT["LICENSE"]))
    assert set(send().changed) == {"model.safetensors", "LICENSE"}
    assert published(hub)["model.safetensors"] == content


def test_a_branch_is_made_and_appears_with_its_content(
    hub: Hub, send: Callable[..., Pushed], folder: Path, said: list[str]
) -> None:
    send()
    (folder / "golden.json").write_bytes(b'{"v": 2}')
    pushed = send(revision="v2")
    repo = hub.repos[REPO]
    assert repo.branches["v2"] == pushed.commit != repo.branches["main"]
    assert published(hub)["golden.json"] == b"{}" and published(hub, "v2")["golden.json"] == b'{"v": 2}'
    assert "To org/model (public), branch v2, new:" in said
    assert send(revision="v2").changed == ()
    hub.fail("commit", 403, times=9)
    (folder / "golden.json").write_bytes(b'{"v": 3}')
    with pytest.raises(HubError, match="403"):
        send(revision="v3")
    assert set(repo.branches) == {"main", "v2"}
    # The same content as main needs a branch and no commit.
    hub.heal()
    (folder / "golden.json").write_bytes(b"{}")
    assert send(revision="same").commit == repo.branches["same"] == repo.branches["main"]


def test_visibility(hub: Hub, send: Callable[..., Pushed], said: list[str]) -> None:
    send(private=True)
    assert hub.repos[REPO].private and "To org/model (private, new), branch main:" in said
    send()
    assert hub.repos[REPO].private and "To org/model (private), branch main:" in said
    hub.repos[REPO].private = False
    with pytest.raises(ValueError, match="org/model is public: make it private"):
        send(private=True)


def test_a_repository_with_something_else_is_left_alone(hub: Hub, send: Callable[..., Pushed]) -> None:
    api = HfApi()
    api.create_repo(REPO)
    api.upload_file(path_or_fileobj=b"# by hand", path_in_repo="README.md", repo_id=REPO)
    send()
    api.create_repo("org/base")
    api.upload_file(path_or_fileobj=WEIGHTS, path_in_repo="model.safetensors", repo_id="org/base")
    with pytest.raises(ValueError, match=r"org/base \(main\) holds something else \(model.safetensors\)"):
        send(repo="org/base")
    with pytest.raises(ValueError, match="org/none is not on the Hub, and create=False"):
        send(repo="org/none", create=False)
    assert "org/none" not in hub.repos and hub.repos["org/base"].files()["model.safetensors"].data == WEIGHTS


@pytest.mark.parametrize(
    ("repo", "revision", "error"),
    [
        ("model", None, "ORG/NAME='model': write a user"),
        ("a/b/c", None, "ORG/NAME='a/b/c': write a user"),
        ("org/", None, "ORG/NAME='org/': write a user"),
        ("org/a b", None, "ORG/NAME='org/a b'"),
        ("org/a--b", None, "ORG/NAME='org/a--b'"),
        (REPO, "0" * 40, "is a commit"),
        (REPO, "a..b", "no branch name"),
        (REPO, "-f", "no branch name"),
        (REPO, "refs/pr/1", "no branch name"),
        (REPO, "", "no branch name"),
    ],
)
def test_names_are_checked_first(
    hub: Hub, send: Callable[..., Pushed], repo: str, revision: str | None, error: str
) -> None:
    with pytest.raises(ValueError, match=re.escape(error)):
        send(repo=repo, revision=revision)
    assert hub.seen == []


@pytest.mark.parametrize("name", ["modules.json", "README.md", "st_reba.py", "golden.json"])
def test_an_incomplete_folder_is_refused(hub: Hub, send: Callable[..., Pushed], folder: Path, name: str) -> None:
    (folder / name).unlink()
    with pytest.raises(ValueError, match=f"holds no {name}: .*(save|st-reba build)"):
        send()
    with pytest.raises(FileNotFoundError, match="there is no such folder"):
        send(folder=folder / "none")
    assert hub.seen == []


@pytest.mark.parametrize(
    "name", ["pytorch_model.bin", "optimizer.PT", "1_ReBAPooling/x.pkl", "id_rsa", "train.csv", "run.sh"]
)
def test_what_does_not_belong_is_refused(hub: Hub, send: Callable[..., Pushed], folder: Path, name: str) -> None:
    (folder / name).write_bytes(b"x")
    with pytest.raises(ValueError, match=f"holds what is not published: {name} "):
        send()
    assert hub.seen == []


def test_hidden_and_temporary_files_are_left_out(
    hub: Hub, send: Callable[..., Pushed], folder: Path, said: list[str], tmp_path: Path
) -> None:
    names = [".env", ".git/config", ".cache/huggingface/x.json", "__pycache__/st_reba.pyc", "README.md~", "a.json.tmp"]
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(b"secret")
    send()
    assert published(hub) == LAYOUT
    left = {line.removeprefix("Left out: ") for line in said if line.startswith("Left out: ")}
    assert left == {".env", ".git", ".cache", "__pycache__", "README.md~", "a.json.tmp"}
    (folder / "linked").symlink_to(tmp_path)
    with pytest.raises(ValueError, match=r"linked \(a link to a folder\)"):
        send()


def test_a_linked_file_is_published_by_its_content(hub: Hub, send: Callable[..., Pushed], folder: Path) -> None:
    (folder.parent / "blob").write_bytes(WEIGHTS)
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors").symlink_to(folder.parent / "blob")
    send()
    assert published(hub) == LAYOUT


def test_the_card_s_examples_name_the_repository(
    hub: Hub, send: Callable[..., Pushed], folder: Path, tmp_path: Path
) -> None:
    (folder / "README.md").write_text("SentenceTransformer('ORG/NAME')", encoding="utf-8")
    wanted = b"SentenceTransformer('org/model')"
    send(dry_run=tmp_path / "upload")
    assert (tmp_path / "upload/README.md").read_bytes() == wanted
    assert send().commit and published(hub)["README.md"] == wanted
    # The folder is as it was, and what was published is known again.
    assert "ORG/NAME" in (folder / "README.md").read_text(encoding="utf-8")
    assert not send().changed


def test_a_dry_run_contacts_nothing(
    hub: Hub, send: Callable[..., Pushed], said: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HF_TOKEN")
    out = tmp_path / "upload"
    (tmp_path / "model/.env").write_bytes(b"secret")
    pushed = send(dry_run=out)
    assert {file.path: file.source.read_bytes() for file in contents(out, "org/model").files} == LAYOUT
    assert not (out / ".env").exists() and (pushed.commit, pushed.url) == (None, None)
    assert hub.seen == [] and said[-1].endswith("org/model was not contacted")
    with pytest.raises(FileExistsError):
        send(dry_run=out)


def test_the_token(hub: Hub, send: Callable[..., Pushed], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HF_TOKEN")
    with pytest.raises(ValueError, match="no token for the Hub: log in with `hf auth login`, or set HF_TOKEN"):
        send()
    assert hub.seen == []
    with pytest.raises(ValueError, match="holds a space") as raised:
        send(token="hf_secret with\nmore")
    assert "hf_secret" not in str(raised.value)
    for token, error in (("hf_unknown", "401: the Hub does not accept the token"), ("hf_reader", "403: the token may")):
        with pytest.raises(HubError, match=error) as refused:
            send(token=token)
        assert token not in str(refused.value) and "hf auth login" in str(refused.value)
    assert hub.repos == {}
    with pytest.raises(HubError, match="403: the token may not write to other/model.*of a member of 'other'"):
        send(token="hf_writer", repo="other/model")
    monkeypatch.setenv("HF_TOKEN", "hf_writer")
    send()


def test_offline_is_said(hub: Hub, send: Callable[..., Pushed], waits: list[float], monkeypatch: Any) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(HubError, match="HF_HUB_OFFLINE or TRANSFORMERS_OFFLINE is set: unset it"):
        send()
    assert waits == []


@pytest.mark.parametrize("endpoint", ["info", "tree", "create", "preupload", "batch", "upload", "branch", "commit"])
@pytest.mark.parametrize("kind", slow_but([429, 500, 502, 503, "lost"], 503, "lost"))
def test_what_passes_is_tried_again(
    hub: Hub, send: Callable[..., Pushed], waits: list[float], endpoint: str, kind: int | str, folder: Path
) -> None:
    if endpoint in ("branch", "tree"):
        send()
        (folder / "golden.json").write_bytes(b'{"v": 2}')
    revision = "v2" if endpoint == "branch" else None
    hub.fail(endpoint, kind, times=2, headers={"Retry-After": "7"} if kind == 429 else {})
    commits = len(hub.repos[REPO].commits) if REPO in hub.repos else 1
    send(revision=revision)
    assert published(hub, revision or "main")["golden.json"] == (folder / "golden.json").read_bytes()
    assert len(hub.repos[REPO].commits) == commits + 1
    # huggingface_hub itself waits a second more than it is told to.
    assert len(waits) == (1 if (endpoint, kind) == ("commit", "lost") else 2)
    if kind == 429:
        assert all(wait in (7, 8) for wait in waits)


@pytest.mark.parametrize("endpoint", ["info", "create", "preupload", "upload", "commit"])
@pytest.mark.parametrize("kind", [503, "lost", 429])
def test_what_does_not_pass_ends(
    hub: Hub, send: Callable[..., Pushed], waits: list[float], endpoint: str, kind: int | str
) -> None:
    hub.fail(endpoint, kind, times=1000)
    if (endpoint, kind) == ("commit", "lost"):
        # All that was lost is the answer.
        assert send().commit == hub.repos[REPO].branches["main"] and published(hub) == LAYOUT
        return
    with pytest.raises(HubError) as raised:
        send()
    named = {503: "503: the Hub has an error", 429: "429: the Hub allows no more", "lost": "the connection to the Hub"}
    assert named[kind] in str(raised.value)
    assert len(waits) <= 5
    if endpoint in ("preupload", "upload", "commit"):
        assert "org/model was made and is still empty; push again to go on" in str(raised.value)
        assert published(hub) == {}


@pytest.mark.parametrize(
    ("endpoint", "kind", "error"),
    [
        ("info", 401, "401: the Hub does not accept the token: log in"),
        ("create", 403, "403: the token may not write to org/model"),
        ("preupload", 401, "401: the Hub does not accept the token: log in"),
        ("preupload", 403, "403: .*write access, of a member of 'org'"),
        ("batch", 404, "404: org/model is not there"),
        ("upload", 403, "403: "),
        ("upload", "altered", "400: .*BadDigest"),
        ("commit", 404, "404: org/model is not there"),
        ("commit", 409, "409: org/model has changed meanwhile: look at it and push again"),
        ("commit", 412, "412: org/model has changed meanwhile"),
        ("commit", 413, "413: .*as the test asked"),
    ],
)
def test_what_will_not_pass_is_said_at_once(
    hub: Hub, send: Callable[..., Pushed], waits: list[float], endpoint: str, kind: int | str, error: str
) -> None:
    hub.fail(endpoint, kind, times=1000)
    with pytest.raises(HubError, match=error) as raised:
        send()
    assert waits == [] and "hf_writer" not in str(raised.value)
    assert REPO not in hub.repos or published(hub) == {}
    hub.heal()
    send()
    assert published(hub) == LAYOUT


def test_a_wait_of_an_hour_is_not_waited(hub: Hub, send: Callable[..., Pushed], waits: list[float]) -> None:
    hub.fail("create", 429, times=9, headers={"Retry-After": "3600"})
    with pytest.raises(HubError, match="429: the Hub allows no more requests now: push again in 3600 s"):
        send()
    assert waits == []


def test_a_slow_answer_is_waited_for(hub: Hub, send: Callable[..., Pushed]) -> None:
    for endpoint in ("info", "upload", "commit"):
        hub.fail(endpoint, "slow", seconds=0.3)
    send()
    assert published(hub) == LAYOUT


def test_a_cut_upload_goes_on(hub: Hub, send: Callable[..., Pushed], waits: list[float]) -> None:
    hub.fail("upload", "cut", after=100_000)
    send()
    assert published(hub) == LAYOUT and waits == [1] and hub.count("upload") == 2


def test_the_second_push_does_not_send_again_what_has_arrived(
    hub: Hub, send: Callable[..., Pushed], folder: Path, waits: list[float]
) -> None:
    for number in (2, 3):
        (folder / f"model-{number}.safetensors").write_bytes(WEIGHTS + b"%d" % number)
    second = hashlib.sha256(WEIGHTS + b"3").hexdigest()
    # Files go side by side, and the first refusal ends what has not begun.
    hub.fail("upload", 403, times=1000, path=second, seconds=1)
    with pytest.raises(HubError, match="403"):
        send()
    assert published(hub) == {}
    hub.heal()
    arrived = set(hub.repos[REPO].objects)
    assert arrived and second not in arrived
    hub.seen.clear()
    send()
    again = {seen.path.rsplit("/", 1)[-1] for seen in hub.seen if seen.endpoint == "upload"}
    assert again == set(hub.repos[REPO].objects) - arrived and second in again
    assert len(published(hub)) == len(LAYOUT) + 2 and hub.count("commit") == 1


@pytest.mark.slow
def test_a_push_that_is_killed_is_resumed(
    hub: Hub, folder: Path, tmp_path: Path, environment: Callable[[Hub, Path], dict[str, str]]
) -> None:
    (folder / "model-2.safetensors").write_bytes(WEIGHTS + b"2")
    hub.fail("commit", "slow", seconds=60)
    code = f"from st_reba.hub.push import push; push({str(folder)!r}, {REPO!r}, verify=False)"
    root = str(Path(__file__).parents[2])
    variables = {**environment(hub, tmp_path / "home"), "HF_TOKEN": "hf_writer", "PYTHONPATH": root}
    process = subprocess.Popen([sys.executable, "-c", code], env=variables, stdout=subprocess.DEVNULL)
    try:
        for _ in range(600):
            if hub.count("commit") or process.poll() is not None:
                break
            hub.stopped.wait(0.1)
        assert process.poll() is None and hub.count("commit") == 1
    finally:
        process.kill()
        process.wait(10)
    assert published(hub) == {} and hub.received("upload") == 2 * len(WEIGHTS) + 1
    hub.seen.clear()
    push(folder, REPO, verify=False, say=lambda line: None)
    assert hub.received("upload") == 0 and len(published(hub)) == len(LAYOUT) + 1


def test_someone_else_commits_meanwhile(
    hub: Hub, send: Callable[..., Pushed], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    send()
    (folder / "golden.json").write_bytes(b'{"v": 2}')
    theirs = {**hub.repos[REPO].files()}
    look = pushing._look

    def slower(*arguments: Any) -> Any:
        place = look(*arguments)
        hub.repos[REPO].commit("main", theirs, "theirs")
        return place

    monkeypatch.setattr(pushing, "_look", slower)
    with pytest.raises(HubError, match="412: org/model has changed meanwhile: look at it and push again"):
        send()
    assert hub.repos[REPO].messages[hub.repos[REPO].branches["main"]] == "theirs"


def test_the_command(hub: Hub, folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any) -> None:
    checked: list[Path] = []
    monkeypatch.setattr(pushing, "check_vectors", checked.append)
    assert main(["push", str(folder), REPO, "--private", "--message", "One", "--json"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["commit"] == hub.repos[REPO].branches["main"] and "To org/model (private, new)" in err
    assert checked == [folder] and "One" in hub.repos[REPO].messages.values()
    assert main(["push", str(folder), REPO]) == 0
    assert "Unchanged: org/model" in capsys.readouterr().out
    assert main(["push", str(folder), REPO, "--no-weights"]) == 2
    assert main(["push", str(folder), "none"]) == 2
    hub.fail("info", 401)
    assert main(["push", str(folder), REPO]) == 2
    assert "hf auth login" in capsys.readouterr().err
