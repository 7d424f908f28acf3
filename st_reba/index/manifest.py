"""The manifest of an index folder."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from os import PathLike
from pathlib import Path
from typing import Any

from st_reba.files import whole_file
from st_reba.index.fingerprint import ModelFingerprint
from st_reba.version import __version__

FORMAT_VERSION = 1
MANIFEST_FILE = "manifest.json"
VECTORS_FILE = "vectors.faiss"
DOCUMENTS_FILE = "documents.sqlite"
METRICS = ("cosine", "dot")
FACTORIES = ("Flat",)


@dataclass(frozen=True)
class Manifest:
    """What an index folder holds and which model made it.

    Args:
        created: When the index was built, UTC, ISO 8601.
        model: The fingerprint of the model.
        metric: "cosine" (vectors have length one) or "dot".
        dim: The number of values in a vector.
        count: The number of documents.
        factory: The kind of FAISS index.
        st_reba: The version of st_reba that built it, if known.
        model_source: Where to load the model from: a Hub id, or a folder relative to the index; if known.
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
    dim: int
    count: int
    factory: str = "Flat"
    st_reba: str | None = None
    model_source: str | None = None
    format_version: int = FORMAT_VERSION

    @classmethod
    def new(cls, model: ModelFingerprint, metric: str, count: int, model_source: str | None = None) -> Manifest:
        """Make the manifest of an index that is being built now."""
        created = datetime.now(timezone.utc).isoformat(timespec="seconds")
        return cls(created, model, metric, model.dimension, count, st_reba=__version__, model_source=model_source)

    def write(self, path: str | PathLike[str]) -> None:
        """Write the manifest as JSON, whole or not at all.

        Args:
            path: The file to write or replace.
        """
        value = {
            "format_version": self.format_version,
            "created": self.created,
            "st_reba": self.st_reba,
            "metric": self.metric,
            "dim": self.dim,
            "count": self.count,
            "factory": self.factory,
            "model_source": self.model_source,
            "model": self.model.to_json(),
        }
        text = json.dumps(value, ensure_ascii=False, indent=2) + "\n"
        with whole_file(path) as stream:
            stream.write(text.encode("utf-8", errors="replace"))

    @classmethod
    def read(cls, path: str | PathLike[str]) -> Manifest:
        """Read and check a manifest.

        Args:
            path: The file that `write` made.

        Returns:
            The manifest.

        Raises:
            FileNotFoundError: There is no such file.
            ValueError: The file is not a manifest of a known version; the message names the file and the key.
        """
        path = Path(path)
        try:
            value = json.loads(path.read_bytes())
        except (FileNotFoundError, NotADirectoryError):
            raise FileNotFoundError(
                f"{path}: no such file, so {path.parent} is not an index; build one there"
            ) from None
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{path}: not JSON ({error}); build the index again") from None
        if not isinstance(value, Mapping):
            raise ValueError(f"{path}: expected a JSON object, found {type(value).__name__}; build the index again")
        version = _get(value, "format_version", int, path)
        if version != FORMAT_VERSION:
            later = "install a later st_reba" if version > FORMAT_VERSION else "build the index again"
            raise ValueError(f"{path}: format_version is {version}, this version reads {FORMAT_VERSION}; {later}")
        try:
            model = ModelFingerprint.from_json(_get(value, "model", dict, path))
        except ValueError as error:
            raise ValueError(_told(path, f"model.{error}")) from None
        manifest = cls(
            created=_get(value, "created", str, path),
            model=model,
            metric=_get(value, "metric", str, path),
            dim=_get(value, "dim", int, path),
            count=_get(value, "count", int, path),
            factory=_get(value, "factory", str, path),
            st_reba=None if value.get("st_reba") is None else _get(value, "st_reba", str, path),
            model_source=None if value.get("model_source") is None else _get(value, "model_source", str, path),
            format_version=version,
        )
        manifest._check_values(path)
        return manifest

    def _check_values(self, path: Path) -> None:
        if self.metric not in METRICS:
            raise ValueError(_told(path, f"metric: expected one of {', '.join(METRICS)}, found {self.metric!r}"))
        if self.factory not in FACTORIES:
            raise ValueError(_told(path, f"factory: expected one of {', '.join(FACTORIES)}, found {self.factory!r}"))
        if self.count < 1:
            raise ValueError(_told(path, f"count: expected a positive whole number, found {self.count}"))
        if self.dim != self.model.dimension:
            raise ValueError(_told(path, f"dim: {self.dim}, but model.dimension is {self.model.dimension}"))


def _told(path: Path, problem: str) -> str:
    return f"{path}: {problem}; build the index again"


def _get(value: Mapping[str, Any], key: str, kind: type, path: Path) -> Any:
    if key not in value:
        raise ValueError(_told(path, f"{key}: missing"))
    found = value[key]
    if not isinstance(found, kind) or isinstance(found, bool):
        raise ValueError(_told(path, f"{key}: expected {kind.__name__}, found {type(found).__name__}"))
    return found


def is_index(folder: Path) -> bool:
    """Whether a folder holds an index and nothing else."""
    return {MANIFEST_FILE, VECTORS_FILE, DOCUMENTS_FILE}.issuperset(os.listdir(folder))
