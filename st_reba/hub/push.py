"""Publish a saved model as a Hub repository, verified first."""

from __future__ import annotations

import glob
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from huggingface_hub import HfApi, get_token
from huggingface_hub.errors import HfHubHTTPError
from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined, unused-ignore]

from ..modules.version import __version__
from .card import PLACEHOLDER
from .card_base import CARD_FILE
from .card_files import CODE_FILES
from .golden import GOLDEN_FILE, read_golden
from .verify import verify

_LOGIN = "log in with `hf auth login`, or set HF_TOKEN, to a token with write access"


@dataclass(frozen=True)
class Pushed:
    """A push: commit and page are None after a dry run; ``files`` are those of the model."""

    repo_id: str
    commit: str | None
    url: str | None
    files: tuple[str, ...]


def push(
    folder: str | os.PathLike[str],
    repo_id: str,
    *,
    private: bool = False,
    revision: str | None = None,
    create_pr: bool = False,
    message: str | None = None,
    token: str | None = None,
    dry_run: bool = False,
    trust_remote_code: bool = False,
) -> Pushed:
    """Publish a saved or exported model as a Hub repository.

    Its golden vectors are computed again first. Files of an earlier push that this model lacks are
    removed, as readers would load some of them, such as a graph in 8 bits; others stay.

    Args:
        folder: A folder that ``st-reba build`` or ``st-reba onnx`` wrote.
        repo_id: ``organization/name``.
        private: Make a new repository private.
        revision: The branch to write to, made where it is missing; None: main.
        create_pr: Open a pull request instead of writing.
        message: The commit message.
        token: For the Hub; None: that of ``hf auth login`` or HF_TOKEN.
        dry_run: Verify and list the files, and send nothing.
        trust_remote_code: Run code of the folder while it is verified, as the base may need.

    Returns:
        The commit, its page and the files.

    Raises:
        ValueError: The name or the token is missing, or the model is not what it was when it was
            saved.
        OSError: The Hub refused, or could not be reached.

    Example:
        >>> push("my_model", "org/my-model", dry_run=True)  # doctest: +SKIP
    """
    source = Path(folder)
    if repo_id.count("/") != 1:
        raise ValueError(f"repo_id={repo_id!r}: write organization/name, as org/my-model.")
    validate_repo_id(repo_id)
    _check_complete(source)
    token = token or get_token()
    if not (token or dry_run):
        raise ValueError(f"There is no token for the Hub: {_LOGIN}.")
    report = verify(source, trust_remote_code=trust_remote_code)
    findings = "; ".join(str(report).splitlines())
    if not report.ok or report.code:
        raise ValueError(
            f"{str(source)!r} is not what it was when it was saved. {findings}. Save it again."
        )
    print(f"Verified: {findings}")
    with tempfile.TemporaryDirectory(prefix="st-reba-push-") as temporary:
        staged = Path(temporary, "model")
        files = _stage(source, staged, repo_id)
        if dry_run:
            print(f"Nothing was sent: a dry run does not check whether you may write to {repo_id}.")
            return Pushed(repo_id, None, None, files)
        api = HfApi(token=token, library_name="st_reba", library_version=__version__)
        with _explained_errors(repo_id):
            api.create_repo(repo_id, private=private or None, exist_ok=True)
            if revision is not None:
                api.create_branch(repo_id, branch=revision, exist_ok=True)
            commit = _upload(api, staged, repo_id, revision, create_pr=create_pr, message=message)
    url = str(commit.pr_url or commit.commit_url)
    print(f"Published: {url}")
    return Pushed(repo_id, str(commit.oid), url, files)


def _check_complete(folder: Path) -> None:
    if not folder.is_dir():
        raise ValueError(f"{str(folder)!r} is no folder. Name one that st-reba build wrote.")
    for name in ("modules.json", CARD_FILE, GOLDEN_FILE):
        if not (folder / name).is_file():
            raise ValueError(
                f"{str(folder)!r} holds no {name}, so it is not complete. Build or export it again."
            )


def _upload(
    api: HfApi,
    staged: Path,
    repo_id: str,
    revision: str | None,
    *,
    create_pr: bool,
    message: str | None,
) -> Any:
    """Send a folder in one commit, which also deletes files of an earlier push that the folder lacks."""
    earlier_files = _files_of_earlier_push(api, repo_id, revision)
    return api.upload_folder(
        repo_id=repo_id,
        folder_path=staged,
        revision=revision,
        create_pr=create_pr,
        commit_message=message or "Upload with st-reba",
        # A file that is sent again is not deleted.
        delete_patterns=[CODE_FILES, *map(glob.escape, earlier_files)],
    )


def _files_of_earlier_push(api: HfApi, repo_id: str, revision: str | None) -> list[str]:
    """The files whose digests a branch's golden.json lists; none if it has no such file, or a damaged one."""
    if not api.file_exists(repo_id, GOLDEN_FILE, revision=revision):
        return []
    golden_file = api.hf_hub_download(repo_id, GOLDEN_FILE, revision=revision)
    try:
        return list(read_golden(golden_file).get("digests", ()))
    except ValueError:
        return []


@contextmanager
def _explained_errors(repo_id: str) -> Iterator[None]:
    """Inside the ``with`` block, errors while sending name the repository, in one line."""
    try:
        yield
    except Exception as error:  # of huggingface_hub's releases, with different HTTP libraries
        problem = " ".join(str(error).split())
        if isinstance(error, HfHubHTTPError):
            raise OSError(f"{repo_id}: {problem} To write there, {_LOGIN}.") from error
        raise OSError(f"{repo_id}: nothing was published: {problem}. Push again.") from error


def _stage(source: Path, staged: Path, repo_id: str) -> tuple[str, ...]:
    """Make a folder of links, so that weights are not copied, with a card of its own; returns the files' names."""
    hidden_names = shutil.ignore_patterns(".*", "__pycache__", "*.pyc", "*.tmp", "*~")
    listed_folders: set[str] = set()

    def ignored_names(folder: str, names: list[str]) -> set[str]:
        """Called once for every folder, also for what links lead to."""
        real_folder = os.path.realpath(folder)
        if real_folder in listed_folders:
            link = os.path.relpath(folder, source.resolve())
            raise ValueError(
                f"{str(source)!r}: {link} leads back into the folder. Remove the link."
            )
        listed_folders.add(real_folder)
        return hidden_names(folder, names)

    shutil.copytree(source.resolve(), staged, copy_function=os.symlink, ignore=ignored_names)
    staged.chmod(stat.S_IRWXU)  # the folder may be read-only
    card = (staged / CARD_FILE).read_text(encoding="utf-8").replace(PLACEHOLDER, repo_id)
    (staged / CARD_FILE).unlink()
    (staged / CARD_FILE).write_text(card, encoding="utf-8", newline="\n")
    names: list[str] = []
    for path in sorted(staged.rglob("*")):
        if path.is_file():
            name = path.relative_to(staged).as_posix()
            print(f"{path.stat().st_size:>14,}  {name}")
            names.append(name)
    return tuple(names)
