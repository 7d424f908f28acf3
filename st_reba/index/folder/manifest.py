"""The manifest of an index folder: the one file that says what belongs to the index.

An index folder holds, beside it, ``vectors-N.faiss`` and ``documents-N.sqlite`` of each segment, which never change,
and ``deleted-N-G.npy`` with the rows of a segment that are deleted. A change writes new files under new names, then
replaces the manifest: what it does not name does not count.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from os import PathLike
from pathlib import Path
from typing import Any

from ...files import StoredFile, whole_file
from ...fingerprint import ModelFingerprint
from ...version import __version__
from .migrate import migrated

FORMAT_VERSION = 2
MANIFEST_FILE = "manifest.json"
# Where documents are gathered and encoded until they make a segment.
BUILDING = ".building"
METRICS = ("cosine", "dot")
_OPTIONAL = (("changed", str), ("recall", dict), ("st_reba", str), ("model_source", str), ("addition", dict))


@dataclass(frozen=True)
class Segment:
    """Documents that were indexed together: one FAISS file and one document store, row for row.

    Args:
        number: Unique in the index; it is in the files' names.
        count: Rows, deleted ones included.
        factory: The FAISS factory string that made the file.
        vectors: The FAISS file.
        documents: The SQLite file.
        parameters: FAISS search parameters, as "nprobe=16"; None: FAISS's own.
        deleted: The rows that are deleted, sorted, int64; None: none.
        deleted_count: How many they are.
    """

    number: int
    count: int
    factory: str
    vectors: StoredFile
    documents: StoredFile
    parameters: str | None = None
    deleted: StoredFile | None = None
    deleted_count: int = 0

    @property
    def live(self) -> int:
        """Rows that are not deleted."""
        return self.count - self.deleted_count

    @property
    def files(self) -> tuple[StoredFile, ...]:
        """All files of the segment."""
        return (self.vectors, self.documents) + (() if self.deleted is None else (self.deleted,))


@dataclass(frozen=True)
class Manifest:
    """What an index folder holds and which model made it.

    Args:
        created: When the index was built, UTC, ISO 8601.
        model: The fingerprint of the model.
        metric: "cosine" (vectors have length one) or "dot".
        segments: In the order in which their documents were added.
        factory: The FAISS factory string that was asked for; later additions are flat until they are compacted.
        changed: When it was last changed.
        generation: Grows by one with every change.
        next_record: The number that names the next document without an id; never used twice.
        next_segment: The number of the next segment; never used twice.
        rejected: Records that were set aside, in all.
        recall: How the first segment's search compares with exact search: ``k``, ``recall``, ``queries``,
            ``parameters``; None: it is exact, or was not measured.
        st_reba: The version of st_reba that wrote it, if known.
        model_source: Where to load the model from: a Hub id, or a folder relative to the index; if known.
        addition: What the last change added, if it was an addition of files: whether the same command is given again.
        format_version: The version of the folder's layout.

    Example:
        >>> import st_reba
        >>> from st_reba.index import Index
        >>> Index.build(st_reba.build("mini"), ["Cats sleep.", "Ships sail."], "my_index").manifest.count
        2
    """

    created: str
    model: ModelFingerprint
    metric: str
    segments: tuple[Segment, ...]
    factory: str = "Flat"
    changed: str | None = None
    generation: int = 1
    next_record: int = 0
    next_segment: int = 1
    rejected: int = 0
    recall: Mapping[str, Any] | None = field(default=None, hash=False)
    st_reba: str | None = __version__
    model_source: str | None = None
    addition: Mapping[str, Any] | None = field(default=None, hash=False)
    format_version: int = FORMAT_VERSION

    @property
    def count(self) -> int:
        """Documents that can be found."""
        return sum(segment.live for segment in self.segments)

    @property
    def dim(self) -> int:
        """The number of values in a vector."""
        return self.model.dimension

    def succeeding(self, **changes: Any) -> Manifest:
        """The manifest of the next generation."""
        changes = {"addition": None, **changes}
        return replace(self, changed=now(), generation=self.generation + 1, st_reba=__version__, **changes)

    def write(self, folder: str | PathLike[str]) -> None:
        """Write the manifest into the index folder, whole or not at all: the moment at which a change takes effect."""
        value = {
            "format_version": self.format_version,
            "created": self.created,
            "changed": self.changed,
            "generation": self.generation,
            "st_reba": self.st_reba,
            "metric": self.metric,
            "dim": self.dim,
            "count": self.count,
            "factory": self.factory,
            "recall": None if self.recall is None else dict(self.recall),
            "rejected": self.rejected,
            "next_record": self.next_record,
            "next_segment": self.next_segment,
            "segments": [asdict(segment) for segment in self.segments],
            "addition": None if self.addition is None else dict(self.addition),
            "model_source": self.model_source,
            "model": self.model.to_json(),
        }
        text = json.dumps(value, ensure_ascii=False, indent=2) + "\n"
        with whole_file(Path(folder) / MANIFEST_FILE) as stream:
            stream.write(text.encode("utf-8", errors="replace"))

    @classmethod
    def read(cls, folder: str | PathLike[str]) -> Manifest:
        """Read and check the manifest of an index folder; one of an earlier version is migrated in memory.

        Args:
            folder: The index folder.

        Returns:
            The manifest.

        Raises:
            FileNotFoundError: There is no such file.
            ValueError: The file is not a manifest of a known version; the message names the file and the key.
        """
        path = Path(folder) / MANIFEST_FILE
        try:
            value = json.loads(path.read_bytes())
        except (FileNotFoundError, NotADirectoryError):
            building = (path.parent / BUILDING).is_dir()
            remedy = "it is still being built: run the same command again to go on" if building else "build one there"
            raise FileNotFoundError(f"{path}: no such file, so {path.parent} is not an index; {remedy}") from None
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{path}: not JSON ({error}); build the index again") from None
        if not isinstance(value, Mapping):
            raise ValueError(f"{path}: expected a JSON object, found {type(value).__name__}; build the index again")
        version = _get(value, "format_version", int, path)
        if not 1 <= version <= FORMAT_VERSION:
            later = "install a later st_reba" if version > FORMAT_VERSION else "build the index again"
            raise ValueError(f"{path}: format_version is {version}, this version reads up to {FORMAT_VERSION}; {later}")
        value = migrated(dict(value), path.parent)
        try:
            model = ModelFingerprint.from_json(_get(value, "model", dict, path))
        except ValueError as error:
            raise ValueError(_told(path, f"model.{error}")) from None
        optional: dict[str, Any] = {
            key: None if value.get(key) is None else _get(value, key, kind, path) for key, kind in _OPTIONAL
        }
        manifest = cls(
            created=_get(value, "created", str, path),
            model=model,
            metric=_get(value, "metric", str, path),
            segments=tuple(
                _segment(item, f"segments[{place}]", path)
                for place, item in enumerate(_get(value, "segments", list, path))
            ),
            factory=_get(value, "factory", str, path),
            generation=_get(value, "generation", int, path),
            next_record=_get(value, "next_record", int, path),
            next_segment=_get(value, "next_segment", int, path),
            rejected=_get(value, "rejected", int, path),
            **optional,
        )
        if manifest.metric not in METRICS:
            raise ValueError(_told(path, f"metric: expected one of {', '.join(METRICS)}, found {manifest.metric!r}"))
        for key, found in (("dim", manifest.dim), ("count", manifest.count)):
            if _get(value, key, int, path) != found:
                raise ValueError(_told(path, f"{key}: {value[key]}, but model and segments give {found}"))
        return manifest


def now() -> str:
    """The time, UTC, ISO 8601."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def is_index(folder: Path) -> bool:
    """Whether a folder holds an index, or one that is being built."""
    return (folder / MANIFEST_FILE).is_file() or (folder / BUILDING).is_dir()


def _segment(value: object, where: str, path: Path) -> Segment:
    if not isinstance(value, Mapping):
        raise ValueError(_told(path, f"{where}: expected an object, found {type(value).__name__}"))
    try:
        segment = Segment(
            number=_get(value, "number", int, path),
            count=_get(value, "count", int, path),
            factory=_get(value, "factory", str, path),
            vectors=StoredFile.from_json(value.get("vectors")),
            documents=StoredFile.from_json(value.get("documents")),
            parameters=None if value.get("parameters") is None else _get(value, "parameters", str, path),
            deleted=None if value.get("deleted") is None else StoredFile.from_json(value["deleted"]),
            deleted_count=_get(value, "deleted_count", int, path),
        )
    except ValueError as error:
        if str(error).startswith(str(path)):
            raise
        raise ValueError(_told(path, f"{where}: {error}")) from None
    if segment.count < 1 or not 0 <= segment.deleted_count <= segment.count:
        raise ValueError(_told(path, f"{where}: {segment.deleted_count} of {segment.count} rows deleted"))
    if (segment.deleted is None) != (segment.deleted_count == 0):
        raise ValueError(
            _told(path, f"{where}: deleted_count is {segment.deleted_count}, deleted is {segment.deleted}")
        )
    return segment


def _told(path: Path, problem: str) -> str:
    return f"{path}: {problem}; build the index again"


def _get(value: Mapping[str, Any], key: str, kind: type, path: Path) -> Any:
    if key not in value:
        raise ValueError(_told(path, f"{key}: missing"))
    found = value[key]
    if not isinstance(found, kind) or isinstance(found, bool):
        raise ValueError(_told(path, f"{key}: expected {kind.__name__}, found {type(found).__name__}"))
    return found
