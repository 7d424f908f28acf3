"""What an evaluation found, a file a result: runs go on where they were stopped, and reports read them."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from ..files import whole_file
from ..version import __version__

FORMAT = 1
MARK = "results.json"
_PACKAGES = ("sentence-transformers", "transformers", "torch", "numpy", "scipy", "scikit-learn", "mteb", "seqeval")


@dataclass(frozen=True)
class Result:
    """One method's scores on one task.

    Args:
        kind: Of the task, as tables are headed: ``"word sense"``, ``"STS"``, ``"NER"``, …
        task: Its name.
        base: What tables call the base model.
        method: The method's name (``Method.name``).
        identity: See :func:`st_reba.evaluation.methods.identity`: equal ones are the same result.
        scores: Every metric, by name; fractions, more is better unless the name says otherwise.
        main: Name of the metric that tables show; mteb's own, where it is one of its tasks.
        paper: Name of the papers' metric, where that is another.
        intervals: Bounds of a metric's 95 % interval, by its name.
        settings: What else was chosen: layer, prompt, budget, seed, …; results that differ only here make a curve.
        arguments: Keyword arguments of ``build``, without the base.
        items: Number of items scored.
        left_out: Items that could not be used: the reason, and their names.
        texts: Number of texts encoded.
        tokens: Positions encoded, all copies included; None: not counted.
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
    def from_json(cls, values: Mapping[str, Any], source: str = "result") -> Result:
        """Read what :meth:`to_json` gave.

        Args:
            values: The parsed JSON.
            source: Where it stood, for messages.

        Raises:
            ValueError: It is of a later format, or no result.
        """
        if not isinstance(values, Mapping) or not isinstance(values.get("format"), int):
            raise ValueError(f"{source}: not a result of st-reba evaluate.")
        if values["format"] > FORMAT:
            raise ValueError(
                f"{source}: written by a later st-reba (format {values['format']}). Run: pip install -U st-reba"
            )
        known = {each.name for each in fields(cls)}
        rest = {name: value for name, value in values.items() if name in known}
        try:
            rest["intervals"] = {name: (low, high) for name, (low, high) in rest.get("intervals", {}).items()}
            return cls(**rest)
        except (TypeError, ValueError, AttributeError) as error:
            raise ValueError(f"{source}: not a whole result ({error}). Delete the file, and run it again.") from error


class Results:
    """A folder of results.

    Args:
        folder: Made where it is not; one that holds something else is refused.

    Raises:
        FileExistsError: The folder holds other files.

    Example:
        >>> results = Results("found")
        >>> one = Result("STS", "pairs", "mini", "echo-2 last", "00ff", {"spearman": 0.5}, "spearman")
        >>> results.add(one)
        >>> results.find("00ff") == one, len(Results("found").all())
        (True, 1)
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)
        if self.folder.exists() and not self.folder.is_dir():
            raise FileExistsError(f"{self.folder}: a file is there; name a folder")
        if self.folder.is_dir() and any(self.folder.iterdir()) and not (self.folder / MARK).is_file():
            raise FileExistsError(f"{self.folder}: holds no results of st-reba; give another folder")
        self.folder.mkdir(parents=True, exist_ok=True)
        if not (self.folder / MARK).is_file():
            with whole_file(self.folder / MARK) as stream:
                stream.write(json.dumps({"format": FORMAT, "st-reba": __version__}).encode())
        self._known = {result.identity: result for result in self.all()}

    def find(self, identity: str) -> Result | None:
        """A result that was made before."""
        return self._known.get(identity)

    def add(self, result: Result) -> None:
        """Write a result, whole or not at all."""
        path = self.path(result)
        path.parent.mkdir(parents=True, exist_ok=True)
        with whole_file(path) as stream:
            stream.write(json.dumps(result.to_json(), ensure_ascii=False, indent=1).encode())
        self._known[result.identity] = result

    def path(self, result: Result) -> Path:
        """Where a result stands."""
        name = f"{slug(result.base)}--{slug(result.method)}--{result.identity[:12]}.json"
        return self.folder / slug(result.kind) / slug(result.task) / name

    def all(self) -> list[Result]:
        """All results, in the order of their files' names.

        Raises:
            ValueError: A file is none.
        """
        return read_results(self.folder)


def read_results(folder: str | os.PathLike[str]) -> list[Result]:
    """Read a folder of results without changing it.

    Raises:
        FileNotFoundError: It is not there, or is no folder of results.
        ValueError: A file in it is no result.
    """
    root = Path(folder)
    if not (root / MARK).is_file():
        raise FileNotFoundError(f"{root}: no results of st-reba evaluate there")
    found = []
    for path in sorted(root.glob("*/*/*--*--*.json")):
        try:
            values = json.loads(path.read_text(encoding="utf-8"))
        except ValueError as error:
            raise ValueError(f"{path}: not JSON ({error}). Delete the file, and run it again.") from None
        found.append(Result.from_json(values, str(path)))
    return found


def package_versions() -> dict[str, str | None]:
    """Versions of what can move a score by more than rounding; None: not installed."""
    return {"st-reba": __version__, **{package: _version(package) for package in _PACKAGES}}


def slug(text: str) -> str:
    """A text as part of a file's name; Chinese characters stay."""
    return re.sub(r"[^\w.=+-]+", "-", text).strip("-.")[:80] or "unnamed"


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
