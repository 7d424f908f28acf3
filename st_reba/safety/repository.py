"""The files of a model, in a folder or on the Hub, read before any library reads them."""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path, PureWindowsPath
from typing import Any, TypeAlias

from sentence_transformers.util import load_file_path

from ..bases import HUB_OPTION_NAMES

# A value read from JSON, of unknown content until it is checked.
JsonValue: TypeAlias = Any
JsonObject: TypeAlias = dict[str, JsonValue]
# How sentence-transformers finds a model on the Hub: revision, token, cache_folder,
# local_files_only.
HubOptions: TypeAlias = Mapping[str, JsonValue]


COPY_AGAIN = "Copy all files of the model, or build it again."
_JSON_NAMES: dict[type, str] = {dict: "an object", list: "a list"}
_MAX_CONFIGURATION_BYTES = 4 << 20
# The limit for an index of shards, or a list of words.
_MAX_LIST_BYTES = 64 << 20
_MAX_VALUES = 100_000
# The most letters in a string, such as a prompt or template, which is added to every encoded text.
_MAX_LETTERS = 1 << 18
# A folder with more files than this is not a model, but a disk reached through a link.
_MAX_FILES = 100_000
# Text files that libraries read whole; the limit is this, or a quarter of the weights' size.
_TEXT_NAME = re.compile(
    r"README\.md|modules\.json|merges\.txt|.*config.*\.json|.*token.*\.json|vocab.*|.*\.(jinja|model)"
)
_MAX_TEXT_BYTES = 40 << 20
_WEIGHT_SUFFIXES = (".safetensors", ".bin", ".gguf", ".pt")


class RepositoryRefused(ValueError):
    """A repository asks for what it may not have; nothing of it was loaded or run."""


@dataclass(frozen=True)
class Repository:
    """The files of a model.

    Args:
        path: Its folder or Hub id.
        hub_options: How it is found on the Hub.
        folder: The folder inside it where files are sought: that of a module, or ``"."``.
    """

    path: str
    hub_options: HubOptions = field(default_factory=dict, hash=False)
    folder: str = "."

    def __post_init__(self) -> None:
        if os.path.isfile(self.path):
            raise RepositoryRefused(
                f"{self.path!r} is a file, not a saved model. Give the folder of one, or its name on the Hub."
            )

    @property
    def transformers_options(self) -> dict[str, JsonValue]:
        """How transformers finds it on the Hub."""
        return {HUB_OPTION_NAMES[name]: value for name, value in self.hub_options.items()}

    def inside(self, folder: str) -> Repository:
        """The same in one of its folders."""
        return replace(self, folder=self._path_of(folder))

    def _path_of(self, file_name: str) -> str:
        return str(Path(self.folder, file_name))

    def refusal(self, file_name: str, reason: str) -> RepositoryRefused:
        """The error that names a file and what is wrong with it."""
        return RepositoryRefused(f"{self.path!r}: {self._path_of(file_name)}: {reason}")

    @property
    def local_folder(self) -> Path | None:
        """The folder on this machine, if it is here."""
        path = Path(self.path, self.folder)
        return path if path.is_dir() else None

    def check_inner_path(self, inner_path: JsonValue, file_name: str) -> str:
        """The path of a folder or file that a file names, if it lies in the repository."""
        if not isinstance(inner_path, str):
            raise self.refusal(file_name, f"{inner_path!r:.80} is not a path. {COPY_AGAIN}")
        path = PureWindowsPath(inner_path)
        if path.anchor or ".." in path.parts or "\0" in inner_path:
            raise self.refusal(
                file_name, f"{inner_path!r:.80} leads out of the model's folder. Remove it."
            )
        return inner_path

    def check_files(self, *, with_subfolders: bool = True) -> None:
        """Refuse pipes, devices and texts larger than a model's, which libraries would read."""
        root = self.local_folder
        if root is None:
            return
        text_bytes: dict[str, int] = {}
        weight_bytes = 0
        for name, size in self._walk(root, with_subfolders):
            if _TEXT_NAME.fullmatch(os.path.basename(name)):
                text_bytes[name] = size
            elif name.endswith(_WEIGHT_SUFFIXES):
                weight_bytes += size
        limit = max(_MAX_TEXT_BYTES, weight_bytes // 4)
        for name, size in text_bytes.items():
            if size > limit:
                raise self.refusal(name, f"{size:,} bytes: at most {limit:,} here. Remove it.")

    def _walk(self, root: Path, with_subfolders: bool) -> Iterator[tuple[str, int]]:
        """Name and size of every file; the name from the root on."""
        file_count = 0
        for parent, subfolders, file_names in os.walk(root):
            if not with_subfolders:
                subfolders.clear()
            file_count += len(file_names)
            if file_count > _MAX_FILES:
                raise self.refusal(str(root), f"more than {_MAX_FILES:,} files. Name the model's.")
            for file_name in file_names:
                path = os.path.join(parent, file_name)
                name = os.path.relpath(path, root)
                yield name, self._regular_size(path, name)

    def _regular_size(self, path: str, name: str) -> int:
        try:
            status = os.stat(path)
        except OSError:
            return 0  # a link to nothing, as good as no file
        if not stat.S_ISREG(status.st_mode):
            raise self.refusal(name, "it is a pipe or a device, not a file. Remove it.")
        return status.st_size

    def find(self, file_name: str) -> str | None:
        """Path of a file on this machine, fetched from the Hub if need be; None: there is none."""
        path = load_file_path(self.path, self._path_of(file_name), **self.hub_options)
        if path is None:
            return None
        self._regular_size(path, file_name)
        return str(path)

    def configuration(self, file_name: str, *, is_list: bool = False) -> Configuration:
        """A JSON file that holds an object, with its values; none if there is no such file.

        Args:
            file_name: The file.
            is_list: Whether it may be as long as a list of shards or words.
        """
        max_bytes = _MAX_CONFIGURATION_BYTES
        if is_list:
            max_bytes = _MAX_LIST_BYTES
        values = self.read_json(file_name, {}, max_bytes)
        self._check_type(file_name, values, dict)
        return Configuration(self, file_name, values)

    def read_list(self, file_name: str) -> list[JsonValue]:
        """Values of a JSON file that holds a list; none if there is no such file."""
        values = self.read_json(file_name, [], _MAX_CONFIGURATION_BYTES)
        self._check_type(file_name, values, list)
        return list(values)

    def read_json(self, file_name: str, default: JsonValue, max_bytes: int) -> JsonValue:
        """What a JSON file holds; the default if there is no such file."""
        path = self.find(file_name)
        if path is None:
            return default
        size = os.path.getsize(path)
        if size > max_bytes:
            reason = f"{size:,} bytes are more than a configuration has. {COPY_AGAIN}"
            raise self.refusal(file_name, reason)
        try:
            return json.loads(Path(path).read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError) as error:
            reason = f"it is not JSON ({str(error)[:200]}). {COPY_AGAIN}"
            raise self.refusal(file_name, reason) from error

    def _check_type(self, file_name: str, value: JsonValue, expected_type: type) -> None:
        if not isinstance(value, expected_type):
            reason = (
                f"it holds a {type(value).__name__}, not {_JSON_NAMES[expected_type]}. {COPY_AGAIN}"
            )
            raise self.refusal(file_name, reason)

    @contextmanager
    def explaining(self, file_name: str) -> Iterator[None]:
        """Inside the ``with`` block, a value that is missing or of a wrong type is refused."""
        try:
            yield
        except (KeyError, TypeError, AttributeError, IndexError, RuntimeError) as error:
            detail = f"{type(error).__name__}: {str(error)[:200]}"
            reason = f"a value is missing or of a wrong type ({detail}). {COPY_AGAIN}"
            raise self.refusal(file_name, reason) from error


@dataclass(frozen=True)
class Configuration:
    """A JSON file of a repository, and its values."""

    repository: Repository
    file_name: str
    values: JsonObject

    def walk(self) -> Iterator[tuple[str, JsonValue]]:
        """All values at any depth, with the names of the settings that they belong to."""
        waiting: list[tuple[str, JsonValue]] = list(self.values.items())
        value_count = 0
        while waiting:
            setting, value = waiting.pop()
            value_count += 1
            if value_count > _MAX_VALUES:
                raise self.refusal(f"{setting}: more than {_MAX_VALUES:,} values. {COPY_AGAIN}")
            if isinstance(value, str) and len(value) > _MAX_LETTERS:
                raise self.refusal(f"{setting}: {len(value):,} letters are too many. {COPY_AGAIN}")
            yield setting, value
            if isinstance(value, dict):
                waiting += value.items()
            elif isinstance(value, list):
                waiting += [(setting, item) for item in value]

    def check_size(self) -> None:
        """Refuse more values, or longer texts, than a configuration has."""
        for _ in self.walk():
            pass

    def refusal(self, reason: str) -> RepositoryRefused:
        """The error that names the file and what is wrong with it."""
        return self.repository.refusal(self.file_name, reason)

    def refusal_of(self, setting: str, value: JsonValue, reason: str) -> RepositoryRefused:
        """The error that names a setting, its value and what is wrong with it."""
        return self.refusal(f"{setting}={value!r:.80} {reason}")

    def explaining(self) -> AbstractContextManager[None]:
        """Inside the ``with`` block, a value that is missing or of a wrong type is refused."""
        return self.repository.explaining(self.file_name)


@contextmanager
def panics_as_errors() -> Iterator[None]:
    """Inside the ``with`` block, a tokenizer file that its library does not expect is a ValueError."""
    try:
        yield
    except BaseException as error:
        # It stops with an error that is not an Exception, and whose class it does not export.
        if type(error).__name__ != "PanicException":
            raise
        raise ValueError(f"a tokenizer's file is damaged: {error}") from None
