"""Which files of a folder make a model repository, and what must not get into one."""

from __future__ import annotations

import hashlib
import io
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any

from .card import with_repo_id

CARD = "README.md"
CODE, GRAPH, GOLDEN = "st_reba.py", "onnx/model.onnx", "golden.json"
KNOWN = re.compile(
    r".*\.(bpe|gif|jinja|jpe?g|jsonl?|md|model|onnx|onnx_data|png|py|safetensors|svg|tiktoken|txt|ya?ml)", re.IGNORECASE
)
NAMES = re.compile(r"(LICEN[CS]E|NOTICE|COPYING|USE_POLICY)([._-].*)?", re.IGNORECASE)
PICKLES = re.compile(r".*\.(bin|ckpt|dill|h5|joblib|msgpack|npy|npz|pickle|pkl|pt|pth)", re.IGNORECASE)
PASSING = re.compile(r"__pycache__|.*(~|\.(tmp|temp|part|incomplete|lock|swp|bak|orig|building|old|log|pyc))")
_LOADED = r"[^/]+\.(json|safetensors|py|model|jinja|tiktoken|bpe|bin|pt|pth)|(vocab|merges)\.txt|\d+_\w+/.+"
LARGE = 10 * 1000 * 1000


@dataclass(frozen=True)
class Kind:
    """What a repository holds.

    Args:
        name: In words.
        required: Files that must be there, and what to do where one is not.
        loaded: Files that a loader reads: on the Hub they go when the folder no longer has them. All else there stays.
        foreign: Files that another kind has.
    """

    name: str
    required: dict[str, str]
    loaded: re.Pattern[str]
    foreign: re.Pattern[str]


_SAVE = "save it again with this version of st_reba"
_EXPORT = "export the model again: st-reba export-onnx MODEL FOLDER"
MODEL = Kind(
    "a model in torch",
    {
        "modules.json": "it is no saved embedder; make one with: st-reba build BASE FOLDER",
        CARD: "a repository needs its model card; save the model again with this version of st_reba",
        CODE: f"without it nobody can load the model who lacks st_reba; {_SAVE}",
        GOLDEN: f"without golden vectors nobody can check the model; {_SAVE}",
    },
    re.compile(_LOADED),
    re.compile(r"(?!)"),
)
EXPORTED = Kind(
    "an exported graph",
    {
        "modules.json": _EXPORT,
        CARD: f"a repository needs its model card; {_EXPORT}",
        GOLDEN: f"without golden vectors nobody can check the graph; {_EXPORT}",
        GRAPH: _EXPORT,
        "tokenizer.json": _EXPORT,
    },
    re.compile(rf"{_LOADED}|onnx/[^/]+"),
    re.compile(r".*\.(py|safetensors)", re.IGNORECASE),
)


def kind_of(has: Callable[[str], bool]) -> Kind | None:
    """What a folder or repository is, by its files.

    Args:
        has: Whether there is a file of that name.

    Returns:
        Its kind; None: neither.
    """
    if has(CODE):
        return MODEL
    return EXPORTED if has(GRAPH) else None


@dataclass(frozen=True)
class File:
    """A file that would be uploaded.

    Args:
        path: In the repository.
        source: Where it lies.
        size: In bytes.
        content: What is uploaded in its place; None: the file as it is.
    """

    path: str
    source: Path
    size: int
    content: bytes | None = None

    @property
    def upload(self) -> bytes | str:
        """As huggingface_hub takes it."""
        return str(self.source) if self.content is None else self.content

    def copy_to(self, target: Path) -> None:
        """Write what would be uploaded."""
        target.parent.mkdir(parents=True, exist_ok=True)
        if self.content is None:
            shutil.copyfile(self.source, target)
        else:
            target.write_bytes(self.content)

    @property
    def large(self) -> bool:
        """Whether the Hub will keep it as a large file (LFS)."""
        return self.size >= LARGE or self.path.endswith((".safetensors", ".model", ".onnx", ".onnx_data"))

    def is_same(self, remote: Any) -> bool:
        """Whether a file on the Hub, as huggingface_hub's RepoFile, has this content."""
        if remote.size != self.size:
            return False
        with self.source.open("rb") if self.content is None else io.BytesIO(self.content) as stream:
            if remote.lfs is not None:
                digest = hashlib.sha256()
                while part := stream.read(1 << 20):
                    digest.update(part)
                return bool(digest.hexdigest() == remote.lfs.sha256)
            # The name that git gives to the content.
            return bool(hashlib.sha1(b"blob %d\0" % self.size + stream.read()).hexdigest() == remote.blob_id)


@dataclass(frozen=True)
class Contents:
    """The files of a model folder, the names of those that are left out, and what they make."""

    files: tuple[File, ...]
    ignored: tuple[str, ...]
    kind: Kind = MODEL

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files)


def contents(folder: Path, repo_id: str) -> Contents:
    """List what of a folder would be uploaded.

    Args:
        folder: A folder that ``st-reba build`` or ``st-reba export-onnx`` wrote.
        repo_id: ``ORG/NAME``, which the card's examples will name.

    Returns:
        The files, sorted by path. Hidden and temporary files are left out.

    Raises:
        FileNotFoundError: There is no such folder.
        ValueError: It is no complete model repository, or holds something that does not belong into one.
    """
    if not folder.is_dir():
        raise FileNotFoundError(f"FOLDER={str(folder)!r}: there is no such folder")
    kind = kind_of(lambda name: (folder / name).is_file()) or (EXPORTED if (folder / "onnx").is_dir() else MODEL)
    for name, remedy in kind.required.items():
        if not (folder / name).is_file():
            raise ValueError(f"FOLDER={str(folder)!r} holds no {name}: {remedy}")
    files, ignored, foreign = [], [], []
    for source in sorted(folder.rglob("*")):
        path = source.relative_to(folder).as_posix()
        parts = PurePosixPath(path).parts
        if any(part.startswith(".") or PASSING.fullmatch(part) for part in parts):
            # A folder is named once, not with all that is in it.
            top = next(index for index, part in enumerate(parts) if part.startswith(".") or PASSING.fullmatch(part))
            name = "/".join(parts[: top + 1])
            if name not in ignored:
                ignored.append(name)
        elif source.is_dir():
            if source.is_symlink():
                foreign.append(f"{path} (a link to a folder)")
        elif not source.is_file():
            foreign.append(f"{path} (no file)")
        elif PICKLES.fullmatch(source.name):
            foreign.append(f"{path} (may hold pickled code; save the weights as safetensors)")
        elif not KNOWN.fullmatch(source.name) and not NAMES.fullmatch(source.name):
            foreign.append(f"{path} (not part of a model)")
        elif kind.foreign.fullmatch(source.name):
            foreign.append(f"{path} (not part of {kind.name})")
        else:
            files.append(File(path, source, source.stat().st_size))
    if foreign:
        shown = ", ".join(foreign[:5]) + (f", and {len(foreign) - 5} more" if len(foreign) > 5 else "")
        raise ValueError(f"FOLDER={str(folder)!r} holds what is not published: {shown}. Move it elsewhere, then push.")
    return Contents(tuple(_named(file, repo_id) for file in files), tuple(ignored), kind)


def _named(file: File, repo_id: str) -> File:
    if file.path != CARD:
        return file
    content = with_repo_id(file.source.read_text(encoding="utf-8"), repo_id).encode("utf-8")
    return replace(file, size=len(content), content=content)


def amount(size: int) -> str:
    """A number of bytes for people.

    Example:
        >>> amount(999), amount(7_300_000)
        ('999 B', '7.3 MB')
    """
    number, unit = float(size), "B"
    for larger in ("kB", "MB", "GB", "TB"):
        if number < 1000:
            break
        number, unit = number / 1000, larger
    return f"{number:.0f} {unit}" if unit == "B" else f"{number:.1f} {unit}"
