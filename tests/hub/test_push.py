"""Publishing: what may be sent, one commit or none, files of others left alone, and a second push after a first."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hub_state import altered
from huggingface_hub import HfApi
from server import Hub

import st_reba.hub.push as pushing
from st_reba.cli import main
from st_reba.hub.golden import GRAPH, TEXTS, write_file
from st_reba.hub.push import PUSHED, HubError, Pushed, push

REPO = "org/model"
WRITING = ("create", "preupload", "batch", "upload", "commit", "branch")
WEIGHTS = bytes(range(256)) * 800
LAYOUT = {
    "modules.json": b"[]",
    "README.md": b"---\nlicense: mit\n---\n# A model\n",
    "st_reba.py": b"VALUE = 1\n",
    "1_ReBAPooling/config.json": b'{"pooling": "last"}',
    "model.safetensors": WEIGHTS,
    "LICENSE": b"A licence\n",
}


def golden(folder: Path, **changes: Any) -> None:
    header = {"format": 1, "dimension": 1, "tolerance": 1e-5, "dtype": "float32", "device": "cpu"}
    write_file(folder, {**header, "fields": {}, "versions": {}, **changes}, TEXTS[:1], [[1.0]])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder that looks like a model's."""
    for name, content in LAYOUT.items():
        path = tmp_path / "model" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    golden(tmp_path / "model")
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


def sent(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_handler_of_ones_own_is_kept(folder: Path, send: Callable[..., Pushed]) -> None:
    (folder / "handler.py").write_text("")
    with pytest.raises(ValueError, match="--with-endpoint.*handler.py"):
        send(with_endpoint=True, dry_run=True)


def test_one_commit_shows_all_files(hub: Hub, folder: Path) -> None:
    said: list[tuple[str, int]] = []
    pushed = push(
        folder,
        REPO,
        message="The first",
        verify=False,
        say=lambda line: said.append((line, sum(map(hub.count, WRITING)))),
    )
    repo, there = hub.repos[REPO], published(hub)
    assert json.loads(there.pop(PUSHED))["files"] == list(pushed.files) == sorted([*LAYOUT, "golden.json", PUSHED])
    assert there == sent(folder) and not repo.private and pushed.removed == ()
    assert list(repo.messages.values()) == ["initial commit", "The first"] and hub.count("commit") == 1
    assert pushed.commit == repo.branches["main"] and pushed.url == f"{hub.endpoint}/{REPO}/tree/{pushed.commit}"
    assert repo.files()["model.safetensors"].lfs and not repo.files()["README.md"].lfs
    # All is told before anything is sent.
    told = "\n".join(line for line, _ in said)
    assert "To org/model (public), branch main, new:" in told and "205kB  model.safetensors" in told
    assert {count for _, count in said[:-1]} == {0} and "hf_writer" not in told


def test_a_dry_run_sends_nothing(
    hub: Hub, send: Callable[..., Pushed], folder: Path, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    send()
    (folder / "1_ReBAPooling" / "config.json").unlink()
    hub.seen.clear()
    monkeypatch.delenv("HF_TOKEN")
    pushed = send(dry_run=True)
    assert (pushed.commit, pushed.url) == (None, None) and "golden.json" in pushed.files
    assert pushed.removed == ("1_ReBAPooling/config.json",) and "   removed  1_ReBAPooling/config.json" in said
    assert not any(map(hub.count, WRITING)) and {seen.token for seen in hub.seen} == {None}
    assert send(dry_run=True, repo="org/none").removed == () and "org/none" not in hub.repos
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert "golden.json" in send(
        dry_run=True
    ).files and "The Hub did not say what org/model holds already: " in "\n".join(said)


def test_unchanged_content_makes_no_commit(hub: Hub, send: Callable[..., Pushed], said: list[str]) -> None:
    first, commits = send(), len(hub.repos[REPO].commits)
    hub.seen.clear()
    again = send()
    assert again.commit == first.commit and again.unchanged and not first.unchanged
    assert "Unchanged: org/model" in said[-1]
    assert len(hub.repos[REPO].commits) == commits and not hub.count("upload") and not hub.count("commit")


def test_only_what_an_earlier_push_wrote_is_removed(hub: Hub, send: Callable[..., Pushed], folder: Path) -> None:
    send()
    api = HfApi()
    theirs = ["handler.py", "requirements.txt", "eval.json", "notes/by_hand.md", "1_ReBAPooling/theirs.json"]
    for path in (*theirs, "st_reba_older.py"):
        api.upload_file(path_or_fileobj=b"{}", path_in_repo=path, repo_id=REPO)
    hub.seen.clear()
    (folder / "1_ReBAPooling/config.json").unlink()
    (folder / "2_Normalize").mkdir()
    (folder / "2_Normalize/config.json").write_bytes(b"{}")
    pushed = send()
    # Code of ours that nothing imports any more goes too, whoever put it there.
    assert pushed.removed == ("1_ReBAPooling/config.json", "st_reba_older.py")
    assert set(published(hub)) == {*pushed.files, *theirs}
    assert hub.count("upload") == 0 and hub.count("commit") == 1
    # The earlier version stays what it was; what was removed is nobody's any more.
    assert "1_ReBAPooling/config.json" in hub.repos[REPO].files(list(hub.repos[REPO].commits)[1])
    assert "1_ReBAPooling/config.json" not in json.loads(published(hub)[PUSHED])["files"]


def test_a_branch_and_a_pull_request(hub: Hub, send: Callable[..., Pushed], folder: Path, said: list[str]) -> None:
    send()
    before = published(hub)
    (folder / "model.safetensors").write_bytes(altered(WEIGHTS))
    pushed = send(revision="v2")
    repo = hub.repos[REPO]
    assert repo.branches["v2"] == pushed.commit != repo.branches["main"] and published(hub) == before
    assert published(hub, "v2")["model.safetensors"] == altered(WEIGHTS)
    assert "To org/model (public), branch v2, new:" in said
    # A branch that gets no content is not left with that of main.
    hub.fail("commit", 403, times=9)
    (folder / "LICENSE").write_bytes(b"Another")
    with pytest.raises(HubError, match="403"):
        send(revision="v3")
    assert set(repo.branches) == {"main", "v2"}
    hub.heal()
    request = send(create_pr=True)
    assert published(hub) == before and "/discussions/" in str(request.url)
    assert published(hub, "refs/pr/1")["LICENSE"] == b"Another"
    with pytest.raises(ValueError, match="a pull request goes to main"):
        send(create_pr=True, revision="v2")
    with pytest.raises(ValueError, match="so no pull request can be opened there"):
        send(create_pr=True, repo="org/none")


def test_visibility(hub: Hub, send: Callable[..., Pushed], said: list[str]) -> None:
    send(private=True)
    assert hub.repos[REPO].private and "To org/model (private), branch main, new:" in said
    send()
    assert hub.repos[REPO].private
    hub.repos[REPO].private = False
    with pytest.raises(ValueError, match="org/model is public: make it private"):
        send(private=True)


def test_repositories_of_something_else(hub: Hub, send: Callable[..., Pushed], folder: Path) -> None:
    api = HfApi()
    api.create_repo(REPO)
    api.upload_file(path_or_fileobj=b"# by hand", path_in_repo="README.md", repo_id=REPO)
    send()
    api.create_repo("org/base")
    api.upload_file(path_or_fileobj=WEIGHTS, path_in_repo="model.safetensors", repo_id="org/base")
    with pytest.raises(ValueError, match=r"org/base \(main\) holds something else \(model.safetensors\)"):
        send(repo="org/base")
    assert hub.repos["org/base"].files()["model.safetensors"].data == WEIGHTS
    # A graph and a model each have a repository of their own, and golden vectors of their own.
    exported = Path(shutil.copytree(folder, folder.with_name("exported")))
    for name in ("st_reba.py", "model.safetensors"):
        (exported / name).unlink()
    (exported / "onnx").mkdir()
    (exported / GRAPH).write_bytes(b"graph")
    (exported / "tokenizer.json").write_bytes(b"{}")
    with pytest.raises(ValueError, match="its golden.json is of another kind"):
        send(folder=exported)
    golden(exported, graph=GRAPH)
    with pytest.raises(ValueError, match=r"holds a model in torch, and FOLDER an exported graph.*as org/model-onnx"):
        send(folder=exported)
    send(folder=exported, repo="org/model-onnx")
    with pytest.raises(ValueError, match="holds an exported graph, and FOLDER a model in torch"):
        send(repo="org/model-onnx")


@pytest.mark.parametrize(
    ("repo", "revision", "error"),
    [
        ("model", None, "ORG/NAME='model': write a user"),
        ("a/b/c", None, "ORG/NAME='a/b/c': write a user"),
        ("org/a b", None, "'org/a b'"),
        (REPO, "0" * 40, "no branch"),
        (REPO, "a..b", "no branch"),
        (REPO, "-f", "no branch"),
        (REPO, "refs/pr/1", "no branch"),
        (REPO, "", "no branch"),
    ],
)
def test_names_are_checked_first(
    hub: Hub, send: Callable[..., Pushed], repo: str, revision: str | None, error: str
) -> None:
    with pytest.raises(ValueError, match=re.escape(error)):
        send(repo=repo, revision=revision)
    assert hub.seen == []


def test_what_does_not_belong_is_refused_or_left_out(
    hub: Hub, send: Callable[..., Pushed], folder: Path, said: list[str], tmp_path: Path
) -> None:
    for name in ("pytorch_model.bin", "1_ReBAPooling/x.pkl", "id_rsa", "train.csv", "run.sh"):
        (folder / name).write_bytes(b"x")
        with pytest.raises(ValueError, match=f"is not published: {name}"):
            send()
        (folder / name).unlink()
    (folder / "linked").symlink_to(tmp_path)
    with pytest.raises(ValueError, match=r"linked \(a link to a folder\)"):
        send()
    (folder / "linked").unlink()
    for name in ("modules.json", "README.md", "st_reba.py", "golden.json"):
        content = (folder / name).read_bytes()
        (folder / name).unlink()
        with pytest.raises(ValueError, match=f"holds no {name}, so it is not complete.*st-reba build"):
            send()
        (folder / name).write_bytes(content)
    with pytest.raises(FileNotFoundError, match="there is no such folder"):
        send(folder=folder / "none")
    assert hub.seen == []
    wanted = sent(folder)
    for name in (".env", ".git/config", ".cache/huggingface/x.json", "__pycache__/x.pyc", "README.md~", "a.json.tmp"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(b"secret")
    # A linked file is published by its content.
    (folder.parent / "blob").write_bytes(WEIGHTS)
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors").symlink_to(folder.parent / "blob")
    send()
    assert {name: content for name, content in published(hub).items() if name != PUSHED} == wanted
    left = {line.removeprefix("Left out: ") for line in said if line.startswith("Left out: ")}
    assert left == {".env", ".git", ".cache", "__pycache__", "README.md~", "a.json.tmp"}


def test_the_cards_examples_name_the_repository(hub: Hub, send: Callable[..., Pushed], folder: Path) -> None:
    (folder / "README.md").write_text("---\n---\nSentenceTransformer('path/to/model')", encoding="utf-8")
    send()
    assert published(hub)["README.md"].endswith(b"SentenceTransformer('org/model')")
    assert "path/to/model" in (folder / "README.md").read_text(encoding="utf-8")


def test_the_token(hub: Hub, send: Callable[..., Pushed], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HF_TOKEN")
    with pytest.raises(ValueError, match="no token for the Hub: log in with `hf auth login`, or set HF_TOKEN"):
        send()
    with pytest.raises(ValueError, match="holds a space") as raised:
        send(token="hf_secret with\nmore")
    assert "hf_secret" not in str(raised.value) and hub.seen == []
    for token, error in (("hf_unknown", "401: the Hub does not accept the token"), ("hf_reader", "403: the token may")):
        with pytest.raises(HubError, match=error) as refused:
            send(token=token)
        assert token not in str(refused.value) and "hf auth login" in str(refused.value)
    with pytest.raises(HubError, match="403: the token may not write to other/model.*of a member of 'other'"):
        send(token="hf_writer", repo="other/model")
    assert hub.repos == {}


@pytest.mark.parametrize(
    ("endpoint", "kind", "error"),
    [
        ("info", 401, "401: the Hub does not accept the token: log in"),
        ("info", 503, "503: push again later.*Nothing was sent"),
        ("create", 429, "429: the Hub allows no more requests now"),
        ("preupload", 403, "403: .*write access, of a member of 'org'"),
        ("upload", "altered", "400: .*BadDigest"),
        ("commit", 412, "412: org/model has changed meanwhile: look at it and push again"),
        ("commit", 503, "503: push again later.*what has arrived is not sent twice"),
        ("commit", "lost", "push again later"),
    ],
)
def test_what_fails_is_said_and_the_next_push_goes_on(
    hub: Hub,
    send: Callable[..., Pushed],
    waits: list[float],
    folder: Path,
    endpoint: str,
    kind: int | str,
    error: str,
) -> None:
    hub.fail(endpoint, kind, times=1000)
    with pytest.raises(HubError, match=error) as raised:
        send()
    assert "\n" not in str(raised.value) and "hf_writer" not in str(raised.value) and len(waits) <= 5
    assert REPO not in hub.repos or published(hub) == {} or kind == "lost"
    hub.heal()
    hub.seen.clear()
    pushed = send()
    assert published(hub).keys() == set(pushed.files)
    # Weights that had arrived are not sent again.
    assert hub.count("upload") == (0 if endpoint == "commit" else 1)


def test_a_cut_upload_goes_on(hub: Hub, send: Callable[..., Pushed], waits: list[float]) -> None:
    hub.fail("upload", "cut", after=100_000)
    send()
    assert published(hub)["model.safetensors"] == WEIGHTS and waits == [1] and hub.count("upload") == 2


def test_someone_else_commits_meanwhile(
    hub: Hub, send: Callable[..., Pushed], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    send()
    (folder / "LICENSE").write_bytes(b"Another")
    look = pushing._look

    def slower(*arguments: Any) -> Any:
        place = look(*arguments)
        hub.repos[REPO].commit("main", {**hub.repos[REPO].files()}, "theirs")
        return place

    monkeypatch.setattr(pushing, "_look", slower)
    with pytest.raises(HubError, match="412: org/model has changed meanwhile"):
        send()
    assert hub.repos[REPO].messages[hub.repos[REPO].branches["main"]] == "theirs"


def test_offline_is_said(hub: Hub, send: Callable[..., Pushed], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(HubError, match="HF_HUB_OFFLINE"):
        send()


def test_the_command(hub: Hub, folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any) -> None:
    checked: list[Path] = []
    monkeypatch.setattr(pushing, "verify_fresh", checked.append)
    assert main(["push", str(folder), REPO, "--dry-run"]) == 0 and hub.repos == {}
    assert "Nothing was sent: this is a dry run." in capsys.readouterr().out
    assert main(["push", str(folder), REPO, "--private", "--message", "One", "--json"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["commit"] == hub.repos[REPO].branches["main"] and "To org/model (private)" in err
    assert checked == [folder, folder] and "One" in hub.repos[REPO].messages.values()
    assert main(["push", str(folder), REPO, "--no-weights"]) == 2
    hub.fail("info", 401)
    assert main(["push", str(folder), REPO]) == 2
    assert "hf auth login" in capsys.readouterr().err
