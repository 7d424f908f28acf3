"""Publish a saved model as a Hub repository: checked first, then in one commit or not at all."""

from __future__ import annotations

import contextlib
import os
import re
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..files import whole_folder
from .contents import EXPORTED, GOLDEN, Contents, File, amount, contents, kind_of
from .fresh import check_vectors
from .remote import access_token, explained, retried, status

if TYPE_CHECKING:
    from huggingface_hub import HfApi

MAIN = "main"
# What the Hub or its web page puts into a new repository.
BLANK = re.compile(r"\.gitattributes|README\.md|(LICEN[CS]E|NOTICE)([._-].*)?", re.IGNORECASE)


@dataclass(frozen=True)
class Pushed:
    """What was published.

    Attributes:
        repo_id: The repository.
        commit: The commit that holds the files; None after a dry run.
        url: The page of that commit; None after a dry run.
        files: Paths of all files of the model.
        changed: Those of them that the commit wrote; none if all was there already.
        removed: Files of an earlier model that the commit took away.
    """

    repo_id: str
    commit: str | None
    url: str | None
    files: tuple[str, ...]
    changed: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()


@dataclass(frozen=True)
class Place:
    """How a repository's branch is before the push."""

    exists: bool
    branch_exists: bool
    private: bool
    head: str | None
    files: dict[str, Any]


def push(
    folder: str | os.PathLike[str],
    repo_id: str,
    *,
    private: bool = False,
    revision: str | None = None,
    message: str | None = None,
    token: str | None = None,
    dry_run: Path | None = None,
    create: bool = True,
    verify: bool = True,
    say: Callable[[str], Any] = print,
) -> Pushed:
    """Publish a saved model as a Hub repository.

    The folder is checked, its golden vectors are computed again in a fresh process, what will happen is told, and only
    then anything is sent. Large files go first, by their content: a push that ends early leaves the repository as it
    was, and the next one does not send again what has arrived. One commit then shows all files at once.

    Args:
        folder: A folder that ``st-reba build`` or ``st-reba export-onnx`` wrote.
        repo_id: ``ORG/NAME``.
        private: Make a new repository private. One that is there keeps its visibility, which must not be wider.
        revision: The branch to write to, made from ``main`` where it is missing; None: ``main``.
        message: Of the commit.
        token: For the Hub; None: the one of ``hf auth login`` or HF_TOKEN.
        dry_run: Write what would be uploaded into this new folder, and contact nothing.
        create: Make the repository where it is missing.
        verify: Check the golden vectors first.
        say: Is told what happens, a line at a time.

    Returns:
        The commit and its files. If all was there already, that is the latest commit, and ``changed`` is empty.

    Raises:
        ValueError: The folder, the name or the branch cannot be used, or a golden vector differs.
        HubError: The Hub refused or failed; an OSError, whose message says what to do.

    Example:
        >>> pushed = push("my_model", "org/my-model", dry_run=Path("upload"))  # doctest: +SKIP
    """
    check_name(repo_id, revision)
    found = contents(Path(folder), repo_id)
    for name in found.ignored:
        say(f"Left out: {name}")
    if dry_run is not None:
        if verify:
            check_vectors(Path(folder), offline=True)
        return _written(found, repo_id, dry_run, say)
    from huggingface_hub import HfApi

    api = HfApi(token=access_token(token), library_name="st_reba")
    branch = revision or MAIN
    try:
        place = _look(api, repo_id, branch, say)
    except Exception as error:
        raise explained(error, repo_id, "Nothing was sent.") from error
    _check_place(place, found, repo_id, branch, private=private, create=create)
    changed = [file for file in found.files if not (file.path in place.files and file.is_same(place.files[file.path]))]
    ours = {file.path for file in found.files}
    gone = sorted(path for path in place.files if path not in ours and found.kind.loaded.fullmatch(path))
    _tell(found, changed, gone, place, repo_id, branch, private, say)
    if not changed and not gone and place.branch_exists:
        say(f"Unchanged: {repo_id} holds all of this already, so there is no new commit.")
        return Pushed(repo_id, place.head, _url(api, repo_id, place.head), tuple(sorted(ours)))
    if verify:
        say("Checking the golden vectors in a new process ...")
        check_vectors(Path(folder))
    commit = _publish(api, repo_id, branch, place, found, changed, gone, private, message or "Upload with st-reba", say)
    url = _url(api, repo_id, commit)
    say(f"Published: {url}")
    names = tuple(file.path for file in changed)
    return Pushed(repo_id, commit, url, tuple(sorted(ours)), names, tuple(gone))


def push_recipe(
    recipe: str,
    repo_id: str,
    *,
    weights: bool = True,
    dry_run: Path | None = None,
    token: str | None = None,
    building: Mapping[str, Any] | None = None,
    **options: Any,
) -> Pushed:
    """Build a recipe's model in a temporary folder and publish it.

    Args:
        recipe: A name of the zoo, or the path of a recipe's YAML file.
        repo_id: ``ORG/NAME``.
        weights: Publish the weights; False: a repository that names its pinned base instead.
        dry_run: Write what would be uploaded into this new folder, and contact nothing but for the base.
        token: For the Hub; None: the one of ``hf auth login`` or HF_TOKEN.
        building: Arguments of :func:`st_reba.build` in place of the recipe's. The weights keep the dtype in which the
            base stores them unless this or the recipe says otherwise.
        **options: As for :func:`push`.

    Returns:
        As :func:`push`.

    Raises:
        ValueError: As for :func:`push`, or the recipe is not known or cannot be built.
        HubError: As for :func:`push`.

    Example:
        >>> pushed = push_recipe("mini-reba", "org/mini-reba", dry_run=Path("upload"))  # doctest: +SKIP
    """
    from .. import zoo
    from .saving import save

    check_name(repo_id, options.get("revision"))
    loaded = zoo.load(recipe)
    if dry_run is None:
        # Building takes long; what can be known to fail fails before.
        access_token(token)
    given = {name: value for name, value in (building or {}).items() if value is not None}
    model = loaded.build(**{"dtype": loaded.arguments.get("dtype", "auto"), **given})
    with tempfile.TemporaryDirectory(prefix="st-reba-push-") as temporary:
        folder = Path(temporary) / "model"
        save(model, folder, golden=True, weights=weights, recipe=loaded)
        return push(folder, repo_id, dry_run=dry_run, token=token, **options)


def check_name(repo_id: str, revision: str | None) -> None:
    """Refuse a repository or branch name that the Hub would not take.

    Raises:
        ValueError: A name is no such name.
    """
    from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]

    if repo_id.count("/") != 1 or not all(repo_id.split("/")):
        raise ValueError(f"ORG/NAME={repo_id!r}: write a user or organization, a slash and a name, as org/my-model")
    try:
        validate_repo_id(repo_id)
    except ValueError as error:
        raise ValueError(f"ORG/NAME={repo_id!r}: {error}") from None
    if revision is None:
        return
    if re.fullmatch(r"[0-9a-f]{40}", revision):
        raise ValueError(f"revision={revision!r} is a commit, which cannot be written to: name a branch")
    if not re.fullmatch(r"(?!.*(\.\.|//))[\w][\w./-]*(?<![./])", revision) or revision.startswith("refs/"):
        raise ValueError(f"revision={revision!r} is no branch name: use letters, digits, '.', '_', '-'")


def _look(api: HfApi, repo_id: str, branch: str, say: Callable[[str], Any]) -> Place:
    """Read what is there."""
    from huggingface_hub.errors import RepositoryNotFoundError, RevisionNotFoundError

    def information(revision: str) -> Any:
        return retried(lambda: api.model_info(repo_id, revision=revision), say)

    # With a good token the Hub answers 404 for what is not there; 401 would be about the token.
    try:
        there, branch_exists = information(branch), True
    except RevisionNotFoundError:
        there, branch_exists = information(MAIN), False
    except RepositoryNotFoundError as error:
        if status(error) != 404:
            raise
        return Place(False, False, False, None, {})
    head = str(there.sha)
    files = retried(lambda: _files(api, repo_id, head), say)
    return Place(True, branch_exists, bool(there.private), head, files)


def _files(api: HfApi, repo_id: str, commit: str) -> dict[str, Any]:
    entries = api.list_repo_tree(repo_id, recursive=True, revision=commit)
    return {entry.path: entry for entry in entries if hasattr(entry, "blob_id")}


def _check_place(place: Place, found: Contents, repo_id: str, branch: str, *, private: bool, create: bool) -> None:
    if not place.exists:
        if not create:
            raise ValueError(f"{repo_id} is not on the Hub, and create=False: create it there first")
        return
    if private and not place.private:
        raise ValueError(f"{repo_id} is public: make it private on its page first, or push without --private")
    others = [path for path in place.files if not BLANK.fullmatch(path)]
    there = kind_of(place.files.__contains__)
    if there is EXPORTED and GOLDEN not in place.files:
        # Many repositories hold a graph; golden vectors say that it is one of ours.
        there = None
    if there is not None and there is not found.kind:
        named = f", as {repo_id}-onnx" if found.kind is EXPORTED else ""
        raise ValueError(
            f"{repo_id} ({branch}) holds {there.name}, and FOLDER {found.kind.name}: each has a repository of its own, "
            f"so choose another name{named}"
        )
    if others and there is None:
        raise ValueError(
            f"{repo_id} ({branch}) holds something else ({', '.join(others[:3])}), which would be overwritten: "
            "choose another name, or empty it first"
        )


def _tell(
    found: Contents,
    changed: list[File],
    gone: list[str],
    place: Place,
    repo_id: str,
    branch: str,
    private: bool,
    say: Callable[[str], Any],
) -> None:
    """Say what will happen."""
    visibility = "private" if (place.private if place.exists else private) else "public"
    new = "" if place.exists else ", new"
    new_branch = "" if place.branch_exists or (branch == MAIN and not place.exists) else ", new"
    say(f"To {repo_id} ({visibility}{new}), branch {branch}{new_branch}:")
    to_send = {file.path for file in changed}
    for file in found.files:
        kind = "LFS" if file.large else ""
        say(f"  {amount(file.size):>10} {kind:3} {file.path}{'' if file.path in to_send else ' (is there already)'}")
    for path in gone:
        say(f"  {'removed':>10}     {path}")
    say(f"  {amount(found.size):>10}     in {len(found.files)} files")


def _publish(
    api: HfApi,
    repo_id: str,
    branch: str,
    place: Place,
    found: Contents,
    changed: list[File],
    gone: list[str],
    private: bool,
    message: str,
    say: Callable[[str], Any],
) -> str:
    """Send the files and commit; the id of the commit."""
    from huggingface_hub import CommitOperationAdd, CommitOperationDelete

    head, made_repo, made_branch, tried = place.head, False, False, False

    def commit() -> str:
        nonlocal tried
        if tried:
            # An answer may have been lost after the commit was made.
            now = str(api.model_info(repo_id, revision=branch).sha)
            if now != head and _is_there(found, gone, _files(api, repo_id, now)):
                return now
        tried = True
        made = api.create_commit(
            repo_id, [*additions, *deletions], commit_message=message, revision=branch, parent_commit=head
        )
        return str(made.oid)

    try:
        if not place.exists:
            retried(lambda: api.create_repo(repo_id, private=private, exist_ok=True), say)
            made_repo = True
            head = str(retried(lambda: api.model_info(repo_id), say).sha)
        additions = [CommitOperationAdd(file.path, file.upload) for file in changed]
        deletions = [CommitOperationDelete(path, is_folder=False) for path in gone]
        # Sent under a branch that is there: the new one appears only with its content.
        if additions:
            api.preupload_lfs_files(repo_id, additions, revision=branch if place.branch_exists else MAIN)
        if not place.branch_exists and branch != MAIN:
            retried(lambda: api.create_branch(repo_id, branch=branch, revision=head, exist_ok=True), say)
            made_branch = True
        if not additions and not deletions:
            return str(head)
        return retried(commit, say)
    except BaseException as error:
        if made_branch:
            # It would show the content of main under a name that promises another.
            with contextlib.suppress(Exception):
                if api.model_info(repo_id, revision=branch).sha == head:
                    api.delete_branch(repo_id, branch=branch)
        afterwards = (
            f"The new repository {repo_id} was made and is still empty; push again to go on, without sending twice "
            f"what has arrived, or delete it on its page."
            if made_repo
            else f"{repo_id} is as it was; push again to go on, without sending twice what has arrived."
            if place.exists
            else "Nothing was made."
            if status(error) is not None
            else f"{repo_id} may have been made, and is empty then; push again to go on."
        )
        if not isinstance(error, Exception):
            say(afterwards)
            raise
        raise explained(error, repo_id, afterwards) from error


def _is_there(found: Contents, gone: list[str], files: dict[str, Any]) -> bool:
    same = all(file.path in files and file.is_same(files[file.path]) for file in found.files)
    return same and not any(path in files for path in gone)


def _written(found: Contents, repo_id: str, target: Path, say: Callable[[str], Any]) -> Pushed:
    """Write what would be uploaded."""
    with whole_folder(target, overwrite=False, kind="a saved model", is_kind=lambda path: False) as temporary:
        for file in found.files:
            file.copy_to(temporary / file.path)
    for file in found.files:
        say(f"  {amount(file.size):>10} {'LFS' if file.large else '':3} {file.path}")
    say(f"  {amount(found.size):>10}     in {len(found.files)} files, in {target}; {repo_id} was not contacted")
    return Pushed(repo_id, None, None, tuple(file.path for file in found.files))


def _url(api: HfApi, repo_id: str, commit: str | None) -> str:
    return f"{api.endpoint}/{repo_id}/tree/{commit}"
