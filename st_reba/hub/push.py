"""Publish a saved model as a Hub repository: checked first, then in one commit or not at all."""

from __future__ import annotations

import gc
import json
import os
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tqdm import tqdm

from .card import FILE as CARD
from .card import with_repo_id
from .golden import FILE as GOLDEN
from .golden import GRAPH, read_golden
from .verify import verify_fresh

if TYPE_CHECKING:
    from huggingface_hub import HfApi

CODE = "st_reba.py"
# What Inference Endpoints run.
HANDLER = "handler.py"
# Lists, in a repository, the files that a push wrote, which later ones may remove. All else there is somebody's own.
PUSHED = "st_reba_files.json"
_OURS = re.compile(r"st_reba(_\w+)?\.py")
# What the Hub or its web page puts into a new repository.
_BLANK = re.compile(r"\.gitattributes|README\.md|(LICEN[CS]E|NOTICE)([._-].*)?", re.IGNORECASE)
# What a model is made of; weights that are pickles are not in the list.
_KNOWN = re.compile(
    r".*\.(bpe|gif|jinja|jpe?g|jsonl?|md|model|onnx|onnx_data|png|py|safetensors|svg|tiktoken|txt|ya?ml)"
    r"|(LICEN[CS]E|NOTICE|COPYING|USE_POLICY)([._-].*)?",
    re.IGNORECASE,
)
_PASSING = re.compile(r"\..*|__pycache__|.*(~|\.(tmp|temp|part|incomplete|lock|swp|bak|orig|building|old|log|pyc))")
_LOGIN = "log in with `hf auth login`, or set HF_TOKEN, to a token with write access"


class HubError(OSError):
    """The Hub refused, or could not be reached; the message says what to do."""


@dataclass(frozen=True)
class Pushed:
    """What was published, or would be: after a dry run, there is no commit and no page."""

    repo_id: str
    commit: str | None
    # The page of that commit, or of the pull request.
    url: str | None
    # All files of the model, and those of an earlier push that the commit removes.
    files: tuple[str, ...]
    removed: tuple[str, ...] = ()
    # Whether the repository held all of this already, so that there is no new commit.
    unchanged: bool = False


@dataclass(frozen=True)
class _Place:
    """A repository's branch before the push; ``ours`` are the files that an earlier push wrote."""

    exists: bool = False
    branch_exists: bool = False
    private: bool = False
    head: str | None = None
    files: Sequence[str] = ()
    ours: Sequence[str] = ()


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
    verify: bool = True,
    with_endpoint: bool = False,
    say: Callable[[str], Any] = print,
) -> Pushed:
    """Publish a saved model as a Hub repository, in one commit.

    Before anything is sent, the folder is checked, its golden vectors are computed again in another process, and
    ``say`` is told what will be sent and removed. Only files of an earlier push are ever removed.

    Args:
        folder: A folder that ``st-reba build`` or ``st-reba onnx`` wrote.
        repo_id: ``ORG/NAME``.
        private: Make a new repository private; one that is there must be private already.
        revision: The branch to write to, made from ``main`` where it is missing; None: ``main``.
        create_pr: Open a pull request to ``main`` instead of writing to it.
        message: Of the commit.
        token: For the Hub; None: the one of ``hf auth login`` or HF_TOKEN.
        dry_run: Check the folder, say what would be sent and removed, and send nothing.
        verify: Check the golden vectors first.
        with_endpoint: Publish handler.py and requirements.txt too, for Hugging Face's Inference Endpoints.
        say: Is told what happens, a line at a time.

    Returns:
        The commit and its files; the latest commit where nothing was new.

    Raises:
        ValueError: The folder, the name or the branch cannot be used, or a golden vector differs.
        HubError: The Hub refused or failed; an OSError.

    Example:
        >>> pushed = push("my_model", "org/my-model", dry_run=True)  # doctest: +SKIP
    """
    from huggingface_hub import HfApi, get_token

    check_name(repo_id, revision, create_pr)
    files, left_out = _contents(Path(folder), repo_id, with_endpoint)
    for name in left_out:
        say(f"Left out: {name}")
    # A public repository can be read without a token.
    api = HfApi(token=(token or get_token() or False) if dry_run else access_token(token), library_name="st_reba")
    branch = revision or "main"
    place = _known(api, repo_id, branch, say if dry_run else None)
    _check_place(place, files, repo_id, branch, private, create_pr)
    gone = sorted({path for path in place.files if path in place.ours or _OURS.fullmatch(path)} - set(files))
    who = "private" if place.private or private else "public"
    say(f"To {repo_id} ({who}), branch {branch}{'' if place.branch_exists else ', new'}:")
    list_files(files, gone, say)
    if verify:
        say("Checking the golden vectors in a process of its own ...")
        verify_fresh(Path(folder))
    if dry_run:
        say("Nothing was sent: this is a dry run.")
        return Pushed(repo_id, None, None, tuple(files), tuple(gone))
    with explained(repo_id, f"{repo_id} holds what it held; push again, and what has arrived is not sent twice."):
        if not place.exists:
            api.create_repo(repo_id, private=private, exist_ok=True)
        options = {"create_pr": True} if create_pr else {"revision": branch}
        with _branch(api, repo_id, branch, place):
            # Not upload_folder: huggingface_hub 2 may spread it over several commits, and whoever loads the model
            # between two of them would get one version's code and another's weights.
            commit = api.create_commit(
                repo_id,
                operations(files, gone),
                commit_message=message or "Upload with st-reba",
                parent_commit=place.head,
                **options,
            )
    url = str(commit.pr_url or f"{api.endpoint}/{repo_id}/tree/{commit.oid}")
    unchanged = commit.oid == place.head
    say(f"Unchanged: {repo_id} holds all of this already." if unchanged else f"Published: {url}")
    return Pushed(repo_id, str(commit.oid), url, tuple(files), tuple(gone), unchanged)


def _known(api: Any, repo_id: str, branch: str, say: Callable[[str], Any] | None) -> _Place:
    """What a repository holds; where ``say`` is given, it is told of an error, and nothing is known."""
    try:
        with explained(repo_id, "Nothing was sent."):
            return _look(api, repo_id, branch)
    except HubError as error:
        if say is None:
            raise
        say(f"The Hub did not say what {repo_id} holds already: {error}")
        return _Place()


def list_files(files: Mapping[str, Path | bytes], gone: Sequence[str], say: Callable[[str], Any]) -> None:
    """Say what is sent and removed."""
    sizes = {path: len(file) if isinstance(file, bytes) else file.stat().st_size for path, file in files.items()}
    for path, size in sizes.items():
        say(f"  {tqdm.format_sizeof(size, 'B'):>8}  {path}")
    for path in gone:
        say(f"  {'removed':>8}  {path}")
    say(f"  {tqdm.format_sizeof(sum(sizes.values()), 'B'):>8}  in {len(files)} files")


def push_recipe(
    recipe: str,
    repo_id: str,
    *,
    weights: bool = True,
    building: Mapping[str, Any] | None = None,
    dry_run: bool = False,
    token: str | None = None,
    **options: Any,
) -> Pushed:
    """Build a recipe's model in a temporary folder and publish it; the model is never in memory twice.

    Args:
        recipe: A name of the zoo, or the path of a recipe's YAML file.
        repo_id: ``ORG/NAME``.
        weights: Publish the weights; False: a repository that names its pinned base instead.
        building: Arguments of :func:`st_reba.build` in place of the recipe's.
        dry_run, token, **options: As for :func:`push`.

    Returns:
        As :func:`push`.

    Raises:
        ValueError: As for :func:`push`, or the recipe is not known or cannot be built.
        HubError: As for :func:`push`.

    Example:
        >>> pushed = push_recipe("mini-reba", "org/mini-reba", dry_run=True)  # doctest: +SKIP
    """
    # Building takes long; what can be known to fail fails before.
    check_name(repo_id, options.get("revision"), options.get("create_pr", False))
    if not dry_run:
        access_token(token)
    with tempfile.TemporaryDirectory(prefix="st-reba-push-") as temporary:
        folder = Path(temporary) / "model"
        _build(recipe, folder, weights, {name: value for name, value in (building or {}).items() if value is not None})
        # The model is free again before another process loads it to verify it.
        gc.collect()
        return push(folder, repo_id, dry_run=dry_run, token=token, **options)


def _build(recipe: str, folder: Path, weights: bool, building: Mapping[str, Any]) -> None:
    from .. import zoo
    from ..building import build
    from .saving import save

    known = zoo.load(recipe)
    # The weights keep the type in which the base stores them, and are not widened to be saved.
    model = build(recipe if os.path.isfile(recipe) else f"zoo:{recipe}", **{"dtype": "auto", **building})
    # Not checked here, where the model would be loaded beside itself, but by the push.
    save(model, folder, weights=weights, check=False, about=known.about, name=known.name)


def access_token(token: str | None) -> str:
    """The given token for the Hub, or the one that huggingface_hub keeps; an error, without it, where it is none."""
    from huggingface_hub import get_token

    found = token or get_token()
    if not found:
        raise ValueError(f"there is no token for the Hub: {_LOGIN}")
    if not re.fullmatch(r"[\x21-\x7e]+", found):
        raise ValueError(f"the token for the Hub holds a space or another character that none has: {_LOGIN}")
    return found


def check_name(repo_id: str, revision: str | None, create_pr: bool) -> None:
    from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]

    if repo_id.count("/") != 1 or not all(repo_id.split("/")):
        raise ValueError(f"ORG/NAME={repo_id!r}: write a user or organization, a slash and a name, as org/my-model")
    validate_repo_id(repo_id)
    if revision is not None and create_pr:
        raise ValueError(f"revision={revision!r}: a pull request goes to main. Drop revision or create_pr.")
    if revision is not None and re.fullmatch(r"[0-9a-f]{40}|refs/.*|.*\.\..*|[^\w].*|", revision):
        raise ValueError(f"revision={revision!r} is no branch that can be written to: name one, as v2")


# What is published.


def _contents(folder: Path, repo_id: str, with_endpoint: bool) -> tuple[dict[str, Path | bytes], list[str]]:
    """What of a folder is published, by its path there, and the hidden and temporary files that are left out."""
    given = f"FOLDER={str(folder)!r}"
    if not folder.is_dir():
        raise FileNotFoundError(f"{given}: there is no such folder")
    exported = not (folder / CODE).is_file() and (folder / "onnx").is_dir()
    for name in ("modules.json", CARD, GOLDEN, *((GRAPH, "tokenizer.json") if exported else (CODE,))):
        if not (folder / name).is_file():
            remedy = "st-reba onnx MODEL FOLDER" if exported else "st-reba build BASE FOLDER"
            raise ValueError(f"{given} holds no {name}, so it is not complete; make it again: {remedy}")
    if (read_golden(folder / GOLDEN).get("graph") is not None) is not exported:
        # A graph beside a model would vouch for weights that nobody has run.
        raise ValueError(f"{given}: its golden.json is of another kind of model. Write it again.")
    files: dict[str, Path | bytes] = {}
    # A folder is named once, not with all that is in it.
    left_out: dict[str, None] = {}
    foreign = []
    for source in sorted(folder.rglob("*")):
        path = source.relative_to(folder)
        passing = next((n for n, part in enumerate(path.parts, 1) if _PASSING.fullmatch(part)), None)
        if passing is not None:
            left_out["/".join(path.parts[:passing])] = None
        elif source.is_symlink() and source.is_dir():
            foreign.append(f"{path.as_posix()} (a link to a folder)")
        elif source.is_dir():
            continue
        elif not _KNOWN.fullmatch(source.name) or exported and source.suffix in (".py", ".safetensors"):
            foreign.append(path.as_posix())
        else:
            files[path.as_posix()] = source
    if foreign:
        shown = ", ".join(foreign[:5]) + (f", and {len(foreign) - 5} more" if len(foreign) > 5 else "")
        raise ValueError(
            f"{given} holds what is no part of such a model and is not published: {shown}. Move it elsewhere (and save "
            "weights as safetensors, not as pickles), then push."
        )
    if with_endpoint:
        files |= _endpoint(files, exported)
    files[CARD] = with_repo_id((folder / CARD).read_text(encoding="utf-8"), repo_id).encode("utf-8")
    listed = {"files": sorted({*files, PUSHED})}
    files[PUSHED] = (json.dumps(listed, indent=1, ensure_ascii=False) + "\n").encode("utf-8")
    return dict(sorted(files.items())), list(left_out)


def _endpoint(files: Mapping[str, Any], exported: bool) -> dict[str, bytes]:
    """What Inference Endpoints look for: who answers, and what must be installed."""
    from ..modules.vendoring import REQUIREMENTS  # here, as it imports torch

    if exported:
        raise ValueError("with_endpoint=True (--with-endpoint) goes with a saved model, not with an exported graph.")
    if own := {HANDLER, "requirements.txt"} & set(files):
        raise ValueError(f"with_endpoint=True (--with-endpoint): FOLDER holds {', '.join(sorted(own))} of its own.")
    lines = "".join(f"{package}{bound}\n" for package, bound in REQUIREMENTS.items())
    return {HANDLER: Path(__file__).with_name(HANDLER).read_bytes(), "requirements.txt": lines.encode()}


# The Hub.


def _look(api: HfApi, repo_id: str, branch: str) -> _Place:
    """Read what is there."""
    from huggingface_hub.errors import RepositoryNotFoundError, RevisionNotFoundError

    # With a good token the Hub answers 404 for what is not there; 401 would be about the token.
    try:
        there, branch_exists = api.model_info(repo_id, revision=branch), True
    except RevisionNotFoundError:
        there, branch_exists = api.model_info(repo_id), False
    except RepositoryNotFoundError as error:
        if error.response.status_code != 404 and api.token:
            raise
        return _Place()
    files = [each.rfilename for each in there.siblings or ()]
    ours: Any = ()
    if PUSHED in files:
        with tempfile.TemporaryDirectory() as temporary:
            file = api.hf_hub_download(repo_id, PUSHED, revision=str(there.sha), local_dir=temporary)
            listed = json.loads(Path(file).read_text(encoding="utf-8"))
        ours = listed.get("files", ()) if isinstance(listed, dict) else ()
    return _Place(True, branch_exists, bool(there.private), str(there.sha), files, ours)


def _check_place(
    place: _Place, files: Mapping[str, Any], repo_id: str, branch: str, private: bool, create_pr: bool
) -> None:
    if create_pr and not place.exists:
        raise ValueError(f"{repo_id} is not on the Hub, so no pull request can be opened there: drop create_pr")
    if private and place.exists and not place.private:
        raise ValueError(f"{repo_id} is public: make it private on its page first, or push without --private")
    model = CODE in place.files
    # Many repositories hold a graph; golden vectors say that it is one of ours.
    graph = not model and GRAPH in place.files and GOLDEN in place.files
    if model and CODE not in files or graph and CODE in files:
        kinds = ("an exported graph", "a model in torch")
        raise ValueError(
            f"{repo_id} ({branch}) holds {kinds[model]}, and FOLDER {kinds[graph]}: each has a repository of its own. "
            f"Choose another name{f', as {repo_id}-onnx' if model else ''}."
        )
    others = [path for path in place.files if not _BLANK.fullmatch(path)]
    if others and not model and not graph:
        raise ValueError(
            f"{repo_id} ({branch}) holds something else ({', '.join(others[:3])}), which would be overwritten: choose "
            "another name, or empty it first"
        )


def operations(files: Mapping[str, Path | bytes], gone: Sequence[str]) -> list[Any]:
    from huggingface_hub import CommitOperationAdd, CommitOperationDelete

    return [
        *(CommitOperationAdd(path, file if isinstance(file, bytes) else str(file)) for path, file in files.items()),
        *(CommitOperationDelete(path, is_folder=False) for path in gone),
    ]


@contextmanager
def _branch(api: HfApi, repo_id: str, branch: str, place: _Place) -> Iterator[None]:
    """Make a missing branch, and remove it again where it gets no content: it would show that of main."""
    if place.branch_exists or branch == "main":
        yield
        return
    api.create_branch(repo_id, branch=branch, revision=place.head, exist_ok=True)
    try:
        yield
    except BaseException:
        api.delete_branch(repo_id, branch=branch)
        raise


@contextmanager
def explained(repo_id: str, afterwards: str) -> Iterator[None]:
    """Turn what huggingface_hub raises into one line that says what to do, and how things are now."""
    try:
        yield
    except ValueError:
        raise
    # Its releases use different HTTP libraries, whose errors have no base in common.
    except Exception as error:
        # What went wrong with an upload stands behind a message of its own.
        cause: Any = error.__cause__ if isinstance(error, RuntimeError) and error.__cause__ else error
        status = int(getattr(getattr(cause, "response", None), "status_code", 0))
        said = " ".join(str(getattr(cause, "server_message", None) or cause).split()).rstrip(".")
        changed = f"{repo_id} has changed meanwhile: look at it and push again"
        advice = {
            401: f"the Hub does not accept the token: {_LOGIN}",
            403: f"the token may not write to {repo_id}: {_LOGIN}, of a member of {repo_id.split('/')[0]!r}",
            404: f"{repo_id} is not there, or the token may not see it",
            409: changed,
            412: changed,
            429: "the Hub allows no more requests now: push again later",
        }.get(status, "push again later" if not status or status >= 500 else "")
        raise HubError(f"{': '.join(filter(None, [str(status or ''), advice, said]))}. {afterwards}") from error
