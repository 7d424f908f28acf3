"""The trials of a run, kept on disk as they are made, so that a run that was stopped can go on."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from ...files import sync, whole_file

Key = tuple[str, int, int | None]

RUN_FILE, TRIALS_FILE = "run.json", "trials.jsonl"


@dataclass(frozen=True)
class Trial:
    """One converted model, scored.

    Args:
        setting: The paper's name, as in ``SETTINGS``.
        k: Number of converted layers.
        k0: The nosink ones among them, where bidirectional ones are combined with them; else None.
        m: Sink tokens that nosink layers hide.
        pooling: Of the model.
        stack: The layers, for people.
        validation: Score, a fraction; None: it failed.
        heldout: Score, a fraction; None: it failed.
        seconds: What it took; 0: an equal stack had been scored already.
        error: Why it failed.
    """

    setting: str
    k: int
    k0: int | None
    m: int
    pooling: str
    stack: str
    validation: float | None
    heldout: float | None
    seconds: float
    error: str | None = None

    @property
    def key(self) -> Key:
        """What tells it from the run's other trials."""
        return self.setting, self.k, self.k0

    def __str__(self) -> str:
        name = self.setting.upper()
        if self.setting == "baseline":
            return name
        return f"{name} k={self.k}" + ("" if self.k0 is None else f" k0={self.k0}")


def best(trials: Sequence[Trial]) -> Trial | None:
    """The trial of the highest validation score; among equals the smaller k, then the smaller k0, then the earlier.

    Args:
        trials: Those that failed are passed over.

    Returns:
        The best; None: there is none.

    Source:
        NoSink, section 4.1: k and k0 are chosen on the validation set.

    Example:
        >>> trials = [Trial("mask0-bidir", k, None, 1, "mean", "", score, 0.9, 0) for k, score in [(3, 0.7), (2, 0.7)]]
        >>> best(trials).k
        2
    """
    scored = [
        (-trial.validation, trial.k, trial.k0 or 0, n) for n, trial in enumerate(trials) if trial.validation is not None
    ]
    return trials[min(scored)[-1]] if scored else None


class Ledger:
    """The folder of a run: ``run.json`` says what is run, ``trials.jsonl`` has a line for each finished trial.

    Args:
        folder: Made where it is not there.
        about: What the run depends on; JSON values. A folder with trials that depend on something else is refused.

    Raises:
        FileExistsError: The folder holds something else.
        ValueError: It holds another run (what differs is named), or a trial that cannot be read.

    Example:
        >>> with Ledger("run", {"base": "mini"}) as ledger:
        ...     ledger.add(Trial("baseline", 0, None, 1, "mean", "6 forward", 0.5, 0.6, 1.5))
        >>> with Ledger("run", {"base": "mini"}) as ledger:
        ...     [str(trial) for trial in ledger.trials.values()]
        ['BASELINE']
        >>> Ledger("run", {"base": "other"})
        Traceback (most recent call last):
        ...
        ValueError: run: another run is there: base was 'mini', now 'other'. Give another folder, or ...
    """

    def __init__(self, folder: str | os.PathLike[str], about: Mapping[str, Any]) -> None:
        self.folder = Path(folder)
        self.trials: dict[Key, Trial] = {}
        self._about = dict(about)
        self._path = self.folder / TRIALS_FILE
        self._check()
        self.folder.mkdir(parents=True, exist_ok=True)
        self._write_about()
        self._read()
        self._stream = self._path.open("ab")
        sync(self.folder)

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

    def add(self, trial: Trial) -> None:
        """Keep a trial; it is on disk when this returns."""
        self._stream.write(json.dumps(asdict(trial), allow_nan=False).encode() + b"\n")
        self._stream.flush()
        os.fsync(self._stream.fileno())
        self.trials[trial.key] = trial

    def close(self) -> None:
        """Close the file of trials."""
        self._stream.close()

    def __enter__(self) -> Ledger:
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
            trial = _trial(line)
            if trial is None and number == len(lines):
                whole = whole[: -len(line)]
                break
            if trial is None:
                raise ValueError(
                    f"{self._path}, line {number}: no trial; remove the line, and the trial is made again."
                )
            self.trials[trial.key] = trial
        if len(whole) < len(data):
            os.truncate(self._path, len(whole))


def _trial(line: bytes) -> Trial | None:
    try:
        values = json.loads(line)
    except ValueError:
        return None
    if not isinstance(values, dict) or set(values) != {field.name for field in fields(Trial)}:
        return None
    return Trial(**values)


def _flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in values.items():
        flat.update(_flat(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {f"{prefix}{name}": value})
    return flat
