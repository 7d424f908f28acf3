"""What an evaluation found, a file a result: runs go on where they were stopped, and reports read them."""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, fields
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from ..files import remove_leftovers, whole_file
from ..lock import writers_lock
from ..version import __version__
from .methods import Base, Method
from .statistics import Evidence

FORMAT = 2
MARK = "results.json"
_PACKAGES = ("sentence-transformers", "transformers", "torch", "numpy", "scipy", "scikit-learn", "mteb", "seqeval")


@cache
def package_versions() -> dict[str, str | None]:
    """Versions of what can move a score by more than rounding; None: not installed."""
    found: dict[str, str | None] = {"st-reba": __version__, **dict.fromkeys(_PACKAGES)}
    for package in _PACKAGES:
        with suppress(PackageNotFoundError):
            found[package] = version(package)
    return found


@dataclass(frozen=True)
class Result:
    """One method's scores on one task.

    Args:
        kind: Of the task, as tables are headed: ``"STS"``, ``"NER"``, ``"WordSense"``, …
        task: Its name.
        base: What tables call the base model.
        method: The method's name (``Method.name``).
        identity: Of all that decides the scores: see :func:`identity`.
        data: Of the items: results with the same are of the same items, and can be compared item by item.
        scores: Every metric, by name; fractions, more is better.
        main: The metric that tables show; mteb's own, where it is one of its tasks.
        paper: The papers' metric, where that is another.
        intervals: A metric's 95 % interval, where there is evidence of each item.
        settings: What else was chosen: layer, prompt, budget, seed, …; results that differ only here make a curve.
        arguments: Of ``build``, without the base.
        items: How many were scored.
        left_out: Items that could not be used: the reason, and their names.
        texts: How many were encoded.
        tokens: Their positions, all copies included; None: not counted.
        seconds: That encoding and scoring took.
        command: What runs it again.
        versions: Of the packages that can move a score.
    """

    kind: str
    task: str
    base: str
    method: str
    identity: str
    scores: Mapping[str, float]
    main: str
    paper: str | None = None
    data: str = ""
    intervals: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    arguments: Mapping[str, Any] = field(default_factory=dict)
    items: int = 0
    left_out: Mapping[str, list[str]] = field(default_factory=dict)
    texts: int = 0
    tokens: int | None = None
    seconds: float = 0.0
    command: str = ""
    versions: Mapping[str, str | None] = field(default_factory=lambda: package_versions())

    def __post_init__(self) -> None:
        for name in (self.main, self.paper):
            if name is not None and name not in self.scores:
                raise ValueError(f"{self.task}: {name!r} is none of the scores {sorted(self.scores)}.")
        if bad := [name for name, value in self.scores.items() if not math.isfinite(value)]:
            raise ValueError(f"{self.task}, {self.method}: {bad[0]} is {self.scores[bad[0]]}, not a number.")

    def to_json(self) -> dict[str, Any]:
        """All of it as values that JSON can hold."""
        return {"format": FORMAT, **asdict(self)}

    @classmethod
    def from_json(cls, values: Any, source: str) -> Result:
        """Read what `to_json` gave.

        Raises:
            ValueError: It is of another format, or no result; ``source`` is named.
        """
        if not isinstance(values, dict) or not isinstance(values.get("format"), int):
            raise ValueError(f"{source}: not a result of st-reba evaluate.")
        if values["format"] != FORMAT:
            raise ValueError(
                f"{source}: written by another version of st-reba (format {values['format']}, not {FORMAT}). Give "
                "another folder, or run it again there."
            )
        known = {each.name for each in fields(cls)}
        try:
            rest = {name: value for name, value in values.items() if name in known}
            rest["intervals"] = {name: (low, high) for name, (low, high) in rest["intervals"].items()}
            return cls(**rest)
        except (TypeError, ValueError, AttributeError, KeyError) as error:
            raise ValueError(f"{source}: not a whole result ({error}). Delete the file, and run it again.") from error


def identity(base: Base, method: Method, **settings: Any) -> str:
    """SHA-256 over all that decides a score: the weights, the method, the settings, and the packages' versions.

    Args:
        base: The base model.
        method: The method.
        **settings: What else: the data's fingerprint, a prompt, a budget, a seed.
    """
    values = [base.identity, method.identity, settings, package_versions()]
    return hashlib.sha256(json.dumps(values, sort_keys=True, default=str).encode()).hexdigest()


class Results:
    """A folder of results, each with the evidence of its items beside it.

    Args:
        folder: Made where it is not; one that holds something else is refused.

    Raises:
        FileExistsError: The folder holds other files.

    Example:
        >>> results = Results("found")
        >>> one = Result("STS", "pairs", "mini", "echo-2 last", "00ff", {"spearman": 0.5}, "spearman")
        >>> with results.writing():
        ...     results.add(one, np.array([[0.1, 0.2]]))
        >>> results.find("00ff") == one, results.evidence(one).shape
        (True, (1, 2))
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)
        if self.folder.exists() and not self.folder.is_dir():
            raise FileExistsError(f"{self.folder}: a file is there; name a folder (--out)")
        # What a killed writer left of a new folder is hidden.
        there = self.folder.is_dir() and any(not path.name.startswith(".") for path in self.folder.iterdir())
        if there and not (self.folder / MARK).is_file():
            raise FileExistsError(f"{self.folder}: it holds no results of st-reba; give another folder (--out)")
        self._known = _read(self.folder)

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Keep every other writer out for the time of the ``with`` block.

        Raises:
            BlockingIOError: Another process is writing there.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        with writers_lock(self.folder):
            for folder in (self.folder, *self.folder.glob("*/*/")):
                remove_leftovers(folder)
            if not (self.folder / MARK).is_file():
                with whole_file(self.folder / MARK) as stream:
                    stream.write(json.dumps({"format": FORMAT, "st-reba": __version__}).encode())
            self._known = _read(self.folder)
            yield

    def find(self, identity: str) -> Result | None:
        """A result that was made before."""
        return self._known.get(identity)

    def add(
        self,
        result: Result,
        evidence: Evidence | None = None,
        draws: Mapping[str, NDArray[np.float64]] | None = None,
    ) -> None:
        """Write a result; it is there when all that belongs to it is.

        Args:
            result: The result.
            evidence: What is known of each item, [items, numbers]; None of mteb's own tasks.
            draws: Of each metric, its values on items drawn again and again.
        """
        path = self._path(result)
        path.parent.mkdir(parents=True, exist_ok=True)
        if evidence is not None:
            arrays: dict[str, Any] = {f"draws {metric}": values for metric, values in (draws or {}).items()}
            with whole_file(path.with_suffix(".npz")) as stream:
                np.savez_compressed(stream, evidence=evidence, **arrays)
        with whole_file(path) as stream:
            stream.write(json.dumps(result.to_json(), ensure_ascii=False, indent=1).encode())
        self._known[result.identity] = result

    def evidence(self, result: Result) -> Evidence | None:
        """What is known of each item; None: nothing was kept, as of mteb's own tasks."""
        return self._arrays(result).get("evidence")

    def draws(self, result: Result) -> dict[str, NDArray[np.float64]]:
        """Of each metric, its values on items drawn again and again, by which results of the same data compare."""
        arrays = self._arrays(result)
        return {name.removeprefix("draws "): each for name, each in arrays.items() if name != "evidence"}

    def written(self, result: Result) -> float:
        """When a result was written, to sort by."""
        return self._path(result).stat().st_mtime

    def all(self) -> list[Result]:
        """All results, in the order of their files' names."""
        return sorted(self._known.values(), key=self._path)

    def _path(self, result: Result) -> Path:
        name = f"{slug(result.base)}--{slug(result.method)}--{result.identity[:12]}.json"
        return self.folder / slug(result.kind) / slug(result.task) / name

    def _arrays(self, result: Result) -> dict[str, NDArray[np.float64]]:
        path = self._path(result).with_suffix(".npz")
        if not path.is_file():
            return {}
        try:
            with np.load(path) as arrays:
                return dict(arrays)
        except (ValueError, OSError, EOFError, BadZipFile, KeyError) as error:
            told = one_line(error)
            raise ValueError(f"{path}: cannot be read ({told}). Delete it and its .json, and run it again.") from None


def read_results(folder: str | os.PathLike[str]) -> Results:
    """A folder of results, to be read.

    Raises:
        FileNotFoundError: It is not there, or holds no results.
        ValueError: A file in it is no result.
    """
    root = Path(folder)
    if not (root / MARK).is_file():
        raise FileNotFoundError(f"{root}: no results of st-reba evaluate there. Give its --out.")
    return Results(root)


def slug(text: str) -> str:
    """A text as part of a file's name, at most 80 bytes of it; Chinese characters stay."""
    return re.sub(r"[^\w.=+-]+", "-", text).strip("-.").encode()[:80].decode(errors="ignore") or "unnamed"


def one_line(error: BaseException) -> str:
    """An error's message, its lines joined."""
    return " ".join(str(error).split())[:500] or type(error).__name__


def _read(folder: Path) -> dict[str, Result]:
    """The results of a folder, by identity."""
    found = {}
    for path in sorted(folder.glob("*/*/*--*--*.json")):
        try:
            values = json.loads(path.read_text(encoding="utf-8"))
        except ValueError as error:
            raise ValueError(f"{path}: not JSON ({error}). Delete the file, and run it again.") from None
        result = Result.from_json(values, str(path))
        found[result.identity] = result
    return found
