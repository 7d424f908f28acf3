"""Folders of results, read together."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..results import MARK, Result, read_results


@dataclass(frozen=True)
class Entry:
    """A result, and the folder that it stands in."""

    folder: str
    result: Result


@dataclass(frozen=True)
class Collection:
    """What some folders hold.

    Args:
        folders: Their labels, in the order that they were given in.
        entries: All results.
        shared: Number of results that stand in several folders alike.
        conflicts: Results that several folders give different numbers under one identity.
    """

    folders: tuple[str, ...]
    entries: tuple[Entry, ...]
    shared: int
    conflicts: tuple[str, ...]


def collect(folders: Sequence[str | os.PathLike[str]]) -> Collection:
    """Read folders of results.

    Args:
        folders: As ``st-reba evaluate`` writes them. One that is named twice counts once.

    Raises:
        FileNotFoundError: A folder is not there, or holds no results.
        ValueError: A file is no result, or of a later format; or two results of one folder cannot be told apart.
    """
    paths: dict[Path, None] = {}
    for folder in folders:
        path = Path(folder)
        if not path.is_dir():
            raise FileNotFoundError(f"{path}: there is no such folder. Make one: st-reba evaluate … --out {path}")
        paths.setdefault(path.resolve())
    labels = _labels(list(paths))
    entries: list[Entry] = []
    for path, label in zip(paths, labels, strict=True):
        if not (path / MARK).is_file():
            raise FileNotFoundError(
                f"{label}: no results of st-reba evaluate there (it has no {MARK}). Give its --out."
            )
        found = read_results(path)
        if not found:
            raise FileNotFoundError(f"{label}: it holds no results yet. Run: st-reba evaluate … --out FOLDER")
        _check_distinct(label, found)
        entries += [Entry(label, result) for result in found]
    by_identity: dict[str, list[Entry]] = {}
    for entry in entries:
        by_identity.setdefault(entry.result.identity, []).append(entry)
    several = [group for group in by_identity.values() if len(group) > 1]
    conflicts = [group for group in several if len({numbers(entry.result) for entry in group}) > 1]
    return Collection(
        tuple(labels),
        tuple(entries),
        len(several) - len(conflicts),
        tuple(sorted(_conflict(group) for group in conflicts)),
    )


def numbers(result: Result) -> str:
    """All that tables show of a result, as a text to compare."""
    values = [dict(result.scores), result.intervals, result.items, result.main, result.paper]
    return json.dumps(values, sort_keys=True)


def settings_key(settings: Mapping[str, Any]) -> str:
    """Settings as a text to compare."""
    return json.dumps(settings, sort_keys=True, ensure_ascii=False, default=str)


def _labels(paths: Sequence[Path]) -> list[str]:
    """The shortest ends of paths that tell them apart."""
    labels = []
    for path in paths:
        parts = path.parts
        length = 1
        while length < len(parts) and sum(other.parts[-length:] == parts[-length:] for other in paths) > 1:
            length += 1
        labels.append("/".join(parts[-length:]))
    return labels


def _check_distinct(label: str, found: Sequence[Result]) -> None:
    seen: dict[tuple[str, ...], Result] = {}
    for result in found:
        key = (result.kind, result.task, result.base, result.method, settings_key(result.settings))
        other = seen.setdefault(key, result)
        if other is not result and other.identity != result.identity:
            raise ValueError(
                f"{label}: two results are called {result.base}, {result.method}, on {result.task} ({result.kind}), "
                f"but their base, options or data differ: {_told_apart(other)} and {_told_apart(result)}. "
                "Give one run a folder of its own (--out), or delete its files; a report compares folders."
            )


def _told_apart(result: Result) -> str:
    return f"identity {result.identity[:12]} (by: {result.command or 'Python'})"


def _conflict(group: Sequence[Entry]) -> str:
    first = group[0].result
    names = [first.main, *sorted(first.scores)]
    # The first metric that differs; where none does, the intervals or the items do.
    name = next((name for name in names if len({entry.result.scores.get(name) for entry in group}) > 1), first.main)
    told = "; ".join(f"{entry.folder} {name} {entry.result.scores.get(name, float('nan')):.6g}" for entry in group)
    return f"{first.kind}, {first.task}, {first.base}, {first.method}: {told}"
