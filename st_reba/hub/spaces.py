"""Publish a Space that ``st-reba space`` wrote."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .push import Pushed, access_token, check_name, explained, list_files, operations

# What a Space of this package is made of.
FILES = ("README.md", "app.py", "requirements.txt")


def is_space(folder: str | os.PathLike[str]) -> bool:
    """Whether a folder holds the files of a Space, and nothing else.

    Example:
        >>> is_space("my_model")
        False
    """
    place = Path(folder)
    return place.is_dir() and sorted(path.name for path in place.iterdir()) == list(FILES)


def push_space(
    folder: str | os.PathLike[str],
    repo_id: str,
    *,
    private: bool = False,
    message: str | None = None,
    token: str | None = None,
    dry_run: bool = False,
    say: Callable[[str], Any] = print,
) -> Pushed:
    """Publish a Space in one commit; it is made where it is missing.

    Args:
        folder: A folder that ``st-reba space`` wrote.
        repo_id: ``ORG/NAME``.
        private: Make a new Space private.
        message: Of the commit.
        token: For the Hub; None: the one of ``hf auth login`` or HF_TOKEN.
        dry_run: Say what would be sent, and send nothing.
        say: Is told what happens, a line at a time.

    Returns:
        The commit and its files.

    Raises:
        ValueError: The folder is no Space, the name cannot be used, or a Space of that name has files of its own.
        HubError: The Hub refused or failed; an OSError.

    Example:
        >>> pushed = push_space("my_space", "org/my-space", dry_run=True)  # doctest: +SKIP
    """
    from huggingface_hub import HfApi

    check_name(repo_id, None, False)
    if not is_space(folder):
        raise ValueError(f"FOLDER={str(folder)!r} is no Space: write one with st-reba space")
    files: dict[str, Path | bytes] = {name: Path(folder, name) for name in FILES}
    say(f"To the Space {repo_id}{' (private)' if private else ''}:")
    list_files(files, (), say)
    if dry_run:
        say("Nothing was sent: this is a dry run.")
        return Pushed(repo_id, None, None, FILES)
    api = HfApi(token=access_token(token), library_name="st_reba")
    with explained(repo_id, f"The Space {repo_id} holds what it held; push again."):
        api.create_repo(repo_id, repo_type="space", space_sdk="gradio", private=private, exist_ok=True)
        there = api.space_info(repo_id)
        others = {each.rfilename for each in there.siblings or ()} - {*FILES, ".gitattributes"}
        if others:
            shown = ", ".join(sorted(others)[:3])
            raise ValueError(f"The Space {repo_id} holds files of its own ({shown}): choose another name")
        commit = api.create_commit(
            repo_id,
            operations(files, ()),
            repo_type="space",
            commit_message=message or "Upload with st-reba",
            parent_commit=there.sha,
        )
    url = f"{api.endpoint}/spaces/{repo_id}"
    say(f"Published: {url}")
    return Pushed(repo_id, str(commit.oid), url, FILES, unchanged=commit.oid == there.sha)
