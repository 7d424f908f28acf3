"""The folder of a search: what it depends on, and a line for each finished arm, so that it can be stopped."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

from ..files import remove_leftovers, sync, whole_file
from ..lock import LOCK_FILE, writers_lock
from .crossfit import Scored
from .trials import Arm, Filter, Read, Trial

RUN_FILE, TRIALS_FILE = "run.json", "trials.jsonl"


@dataclass(frozen=True)
class Result:
    """An arm on one rung: every reading of one forward pass over its texts.

    Args:
        arm: The arm.
        rung: Its number, from 0.
        items: Items that were scored.
        tokens: Positions that ran, padding excluded.
        seconds: What it took.
        scored: Readings behind filters; none: it failed.
        error: Why it failed.
    """

    arm: Arm
    rung: int
    items: int
    tokens: int
    seconds: float
    scored: tuple[Scored, ...]
    error: str | None = None

    def trials(self) -> list[tuple[Trial, float]]:
        """Whole methods and their scores; some may be another arm's, too, whose conversions reach as far down."""
        return [(Trial(self.arm, each.read, each.filter).own, each.score) for each in self.scored]

    def to_json(self) -> dict[str, Any]:
        """As a line of the ledger; rows have no names, so that thousands of them stay small."""
        scored = [[*asdict(s.read).values(), *asdict(s.filter).values(), s.score] for s in self.scored]
        return {**vars(self), "arm": self.arm.to_json(), "scored": scored}

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Result:
        """Read what :meth:`to_json` gave."""
        scored = tuple(Scored(Read(*row[:5]), _filter(*row[5:9]), row[9]) for row in values["scored"])
        return cls(**{**values, "arm": Arm.of(values["arm"]), "scored": scored})


# The same few stand in thousands of rows.
_filter = cache(Filter)


class Ledger:
    """The folder of a run: ``run.json`` says what is run, ``trials.jsonl`` has a line for each finished arm."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.results: dict[tuple[Arm, int], Result] = {}

    @classmethod
    @contextmanager
    def opened(cls, out: str | os.PathLike[str], about: Mapping[str, Any]) -> Iterator[Ledger]:
        """Open a folder, new or of the same run, and keep other writers out.

        Args:
            out: The folder.
            about: What the run depends on; JSON values.

        Raises:
            FileExistsError: It holds something else.
            BlockingIOError: Another process is writing there.
            ValueError: It holds another run (what differs is named), or a line that cannot be read.

        Example:
            >>> with Ledger.opened("run", {"base": "mini"}) as ledger:
            ...     ledger.add(Result(Arm(), 0, 50, 900, 1.5, ()))
            >>> with Ledger.opened("run", {"base": "mini"}) as ledger:
            ...     [result.items for result in ledger.results.values()]
            [50]
            >>> with Ledger.opened("run", {"base": "other"}) as ledger:
            ...     pass
            Traceback (most recent call last):
            ...
            ValueError: run: another run is there: base was 'mini', now 'other'. Give another folder.
        """
        folder = Path(out)
        if folder.exists() and not folder.is_dir():
            raise FileExistsError(f"{folder}: a file is there; name a folder.")
        there = {path.name for path in folder.iterdir()} - {LOCK_FILE} if folder.is_dir() else set()
        if there and RUN_FILE not in there:
            raise FileExistsError(f"{folder}: not the folder of a run (no {RUN_FILE}); give another.")
        folder.mkdir(parents=True, exist_ok=True)
        with writers_lock(folder):
            remove_leftovers(folder)
            for left in folder.glob(".vectors-*"):
                shutil.rmtree(left)
            ledger = cls(folder)
            ledger._check(about)
            ledger._read()
            yield ledger

    def add(self, result: Result) -> None:
        """Keep a result; it is on disk when this returns."""
        with (self.folder / TRIALS_FILE).open("ab") as stream:
            stream.write(json.dumps(result.to_json(), allow_nan=False).encode() + b"\n")
            stream.flush()
            os.fsync(stream.fileno())
        self.results[result.arm, result.rung] = result

    def _check(self, about: Mapping[str, Any]) -> None:
        file, trials = self.folder / RUN_FILE, self.folder / TRIALS_FILE
        # A run that failed before its first arm, as one whose base is misspelt, leaves nothing to lose.
        if file.is_file() and trials.exists() and trials.stat().st_size:
            try:
                before = _flat(json.loads(file.read_text(encoding="utf-8")))
            except (ValueError, AttributeError):
                raise ValueError(f"{file}: not readable as JSON; give another folder, or remove this one.") from None
            now = _flat(json.loads(json.dumps(about)))
            differing = [
                f"{name} was {before.get(name)!r:.200}, now {now.get(name)!r:.200}"
                for name in sorted(before.keys() | now.keys())
                if before.get(name) != now.get(name)
            ]
            if differing:
                raise ValueError(f"{self.folder}: another run is there: {'; '.join(differing)}. Give another folder.")
        with whole_file(file) as stream:
            stream.write(json.dumps(about, ensure_ascii=False, indent=2).encode() + b"\n")
        sync(self.folder)

    def _read(self) -> None:
        path = self.folder / TRIALS_FILE
        data = path.read_bytes() if path.exists() else b""
        # A kill can leave a part of the last line; that arm runs again.
        whole = data[: data.rfind(b"\n") + 1]
        if len(whole) < len(data):
            os.truncate(path, len(whole))
        for number, line in enumerate(whole.splitlines(), 1):
            try:
                result = Result.of(json.loads(line))
            except (ValueError, TypeError, KeyError, IndexError):
                raise ValueError(f"{path}, line {number}: no result; remove it, and its arm runs again.") from None
            self.results[result.arm, result.rung] = result


def _flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in values.items():
        flat.update(_flat(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {f"{prefix}{name}": value})
    return flat
