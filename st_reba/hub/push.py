"""Publish a saved model as a Hub repository: verified first, in a process of its own."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..safety import PICKLES, leaves
from ..version import __version__
from .card import FILE as CARD
from .card import PLACEHOLDER
from .golden import FILE as GOLDEN
from .verify import CODE, verify_fresh

# What Inference Endpoints run.
HANDLER = "handler.py"
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
    with_endpoint: bool = False,
    trust_remote_code: bool = False,
    say: Callable[[str], Any] = print,
) -> Pushed:
    """Publish a saved or exported model as a Hub repository.

    Its golden vectors are computed again in another process first. Code of an earlier push is removed.

    Args:
        folder: A folder that ``st-reba build`` or ``st-reba onnx`` wrote.
        repo_id: ``organization/name``.
        private: Make a new repository private.
        revision: The branch to write to, made where it is missing; None: main.
        create_pr: Open a pull request instead of writing.
        message: Of the commit.
        token: For the Hub; None: that of ``hf auth login`` or HF_TOKEN.
        dry_run: Verify and list the files, and send nothing.
        with_endpoint: Add handler.py and requirements.txt, for Hugging Face's Inference Endpoints.
        trust_remote_code: Run code of the folder while it is verified, as the base may need.
        say: Is told what happens, a line at a time.

    Returns:
        The commit, its page and the files.

    Raises:
        ValueError: The folder or the name cannot be used, or the model is not what it was when it was saved.
        OSError: The Hub refused, or could not be reached.

    Example:
        >>> push("my_model", "org/my-model", dry_run=True)  # doctest: +SKIP
    """
    source = Path(folder)
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", repo_id):
        raise ValueError(f"repo_id={repo_id!r}: write organization/name, as org/my-model.")
    check_folder(source)
    with tempfile.TemporaryDirectory(prefix="st-reba-push-") as temporary:
        staged = Path(temporary, "model")
        # Links, so that weights are not copied: the card alone is another one.
        ignored = shutil.ignore_patterns(".*", "__pycache__", "*.pyc", "*.tmp", "*~")
        shutil.copytree(source.resolve(), staged, copy_function=os.symlink, ignore=ignored)
        card = (staged / CARD).read_text(encoding="utf-8").replace(PLACEHOLDER, repo_id)
        (staged / CARD).unlink()
        (staged / CARD).write_text(card, encoding="utf-8", newline="\n")
        if with_endpoint:
            shutil.copyfile(Path(__file__).with_name(HANDLER), staged / HANDLER)
            (staged / "requirements.txt").write_text(
                "sentence-transformers>=6.0\ntransformers>=5.0\n", encoding="utf-8"
            )
        paths = sorted(path for path in staged.rglob("*") if path.is_file())
        files = tuple(path.relative_to(staged).as_posix() for path in paths)
        for name, path in zip(files, paths, strict=True):
            say(f"{path.stat().st_size:>14,}  {name}")
        say("Verifying in a process of its own …")
        say(f"Verified. {verify_fresh(source, trust_remote_code=trust_remote_code)}")
        if dry_run:
            say(f"Nothing was sent to {repo_id}: this is a dry run.")
            return Pushed(repo_id, None, None, files)
        try:
            commit = _upload(staged, repo_id, private, revision, create_pr, message, token)
        except ValueError:
            raise
        except Exception as error:  # of huggingface_hub's releases, with different HTTP libraries
            raise OSError(f"{repo_id}: {' '.join(str(error).split())} To write there, {_LOGIN}.") from error
    url = str(commit.pr_url or commit.commit_url)
    say(f"Published: {url}")
    return Pushed(repo_id, str(commit.oid), url, files)


def _upload(
    staged: Path, repo_id: str, private: bool, revision: str | None, create_pr: bool, message: str | None, token: Any
) -> Any:
    from huggingface_hub import HfApi, get_token

    token = token or get_token()
    if not token:
        raise ValueError(f"There is no token for the Hub: {_LOGIN}.")
    api = HfApi(token=token, library_name="st_reba", library_version=__version__)
    api.create_repo(repo_id, private=private or None, exist_ok=True)
    if revision is not None:
        api.create_branch(repo_id, branch=revision, exist_ok=True)
    return api.upload_folder(
        repo_id=repo_id,
        folder_path=staged,
        revision=revision,
        create_pr=create_pr,
        commit_message=message or "Upload with st-reba",
        delete_patterns=["st_reba*.py"],
    )


def check_folder(folder: Path) -> None:
    """Refuse a folder that lacks what a published model needs, or holds pickles or links to files elsewhere.

    Raises:
        ValueError: It does.
    """
    if not folder.is_dir():
        raise FileNotFoundError(f"{str(folder)!r}: there is no such folder.")
    exported = (folder / "onnx").is_dir()
    for name in ("modules.json", CARD, GOLDEN, *([] if exported else [CODE])):
        if not (folder / name).is_file():
            remedy = "st-reba onnx MODEL FOLDER" if exported else "st-reba build BASE FOLDER"
            raise ValueError(f"{str(folder)!r} holds no {name}, so it is not complete. Make it again: {remedy}.")
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.suffix.lower() in PICKLES:
            raise ValueError(f"{name} is a pickle, which can run code when it is loaded. Save it as safetensors.")
        if leaves(str(folder), name):
            raise ValueError(f"{name} is a link to a place outside {str(folder)!r}. Put the file there, or remove it.")
