"""A run's folder: what it depends on, and a line for everything that is finished, so that a stopped run can go on."""

from __future__ import annotations

import json
import os
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Generic, TypeVar

from ..files import sync, whole_file

K = TypeVar("K")
E = TypeVar("E")
R = TypeVar("R", bound="RunFolder[Any, Any]")

RUN_FILE, TRIALS_FILE = "run.json", "trials.jsonl"


class RunFolder(ABC, Generic[K, E]):
    """The folder of a run: ``run.json`` says what is run, ``trials.jsonl`` has a line for each finished trial.

    Args:
        folder: Made where it is not there.
        about: What the run depends on; JSON values. A folder with trials that depend on something else is refused.

    Raises:
        FileExistsError: The folder holds something else.
        ValueError: It holds another run (what differs is named), or a trial that cannot be read.
    """

    def __init__(self, folder: str | os.PathLike[str], about: Mapping[str, Any]) -> None:
        self.folder = Path(folder)
        self.trials: dict[K, E] = {}
        self._about = dict(about)
        self._path = self.folder / TRIALS_FILE
        self._check()
        self.folder.mkdir(parents=True, exist_ok=True)
        self._write_about()
        self._read()
        self._stream = self._path.open("ab")
        sync(self.folder)

    @abstractmethod
    def key(self, trial: E) -> K:
        """What tells a trial from the others."""

    @abstractmethod
    def to_json(self, trial: E) -> Any:
        """A trial as values that JSON can hold."""

    @abstractmethod
    def from_json(self, values: Any) -> E | None:
        """The trial that :meth:`to_json` wrote; None: it is none."""

    def _check(self) -> None:
        file = self.folder / RUN_FILE
        if self.folder.exists() and not self.folder.is_dir():
            raise FileExistsError(f"{self.folder}: a file is there; name a folder.")
        if not file.is_file():
            if self.folder.exists() and any(self.folder.iterdir()):
                raise FileExistsError(f"{self.folder}: not the folder of a run (no {RUN_FILE}); give another.")
            return
        try:
            there = json.loads(file.read_text(encoding="utf-8"))
        except ValueError:
            there = None
        if not isinstance(there, dict):
            raise ValueError(f"{file}: not readable as JSON; give another folder, or remove this one.")
        before, now = _flat(there), _flat(self._about)
        differing = [
            f"{name} was {before.get(name)!r}, now {now.get(name)!r}"
            # What the run found out itself is not compared.
            for name in sorted(before.keys() | now.keys(), key=str)
            if before.get(name) != now.get(name) and not name.startswith("found.")
        ]
        if differing and not (self._path.exists() and self._path.stat().st_size):
            return  # That run failed before its first trial, as one whose base is misspelt: nothing is lost.
        if differing:
            raise ValueError(
                f"{self.folder}: another run is there: {'; '.join(differing)}. Give another folder, or what "
                f"{RUN_FILE} has, to go on with that run."
            )
        self._about = there

    @property
    def found(self) -> dict[str, Any]:
        """What the run found out about its base, kept in ``run.json``."""
        return dict(self._about.get("found", {}))

    def find(self, **values: Any) -> None:
        """Keep what the run found out."""
        self._about["found"] = {**self.found, **values}
        self._write_about()

    def add(self, trial: E) -> None:
        """Keep a trial; it is on disk when this returns."""
        self._stream.write(json.dumps(self.to_json(trial), allow_nan=False).encode() + b"\n")
        self._stream.flush()
        os.fsync(self._stream.fileno())
        self.trials[self.key(trial)] = trial

    def close(self) -> None:
        """Close the file of trials."""
        self._stream.close()

    def __enter__(self: R) -> R:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _write_about(self) -> None:
        with whole_file(self.folder / RUN_FILE) as stream:
            stream.write(json.dumps(self._about, ensure_ascii=False, indent=2).encode() + b"\n")

    def _read(self) -> None:
        data = self._path.read_bytes() if self._path.exists() else b""
        # A kill can leave a part of the last line; that trial is made again.
        whole = data[: data.rfind(b"\n") + 1]
        lines = whole.splitlines(keepends=True)
        for number, line in enumerate(lines, 1):
            trial = self._trial(line)
            if trial is None and number == len(lines):
                whole = whole[: -len(line)]
                break
            if trial is None:
                raise ValueError(
                    f"{self._path}, line {number}: no trial; remove the line, and the trial is made again."
                )
            self.trials[self.key(trial)] = trial
        if len(whole) < len(data):
            os.truncate(self._path, len(whole))

    def _trial(self, line: bytes) -> E | None:
        try:
            return self.from_json(json.loads(line))
        except ValueError:
            return None


def _flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in values.items():
        flat.update(_flat(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {f"{prefix}{name}": value})
    return flat
