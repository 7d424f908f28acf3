"""Results as one table, and how their settings are told."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from ..optional import required
from .papers import paper_rows
from .results import Result

Shown = Literal["main", "paper", "both"]
_LONG = 60


def table_of(located: Sequence[tuple[str, Result]], shown: Shown) -> Any:
    """A pandas table, a row a result and metric.

    Args:
        located: Results, each with the folder that its row names; "": none.
        shown: Which metrics.
    """
    varying = _varying([result for _, result in located])
    rows = []
    for folder, result in located:
        varied = {name: value for name, value in result.settings.items() if (result.kind, name) in varying}
        names = ("kind", "task", "base", "method", "identity", "data", "settings")
        about = {"folder": folder, "result": result, **{name: getattr(result, name) for name in names}}
        about["papers"] = paper_rows(result.base, result.arguments, result.settings)
        about |= {"varied": varied, "label": label_of(result.method, varied, folder)}
        other = result.paper not in (None, result.main)
        for name, metric in (("main", result.main), ("paper", result.paper or result.main)):
            if shown in (name, "both") and (name == "main" or other or shown == "paper"):
                low, high = result.intervals.get(metric, (math.nan, math.nan))
                more = {"shown": name, "metric": metric, "value": result.scores[metric], "low": low, "high": high}
                rows.append({**about, **more})
    frame = required("pandas", "evaluation").DataFrame(rows).drop_duplicates(["folder", "identity", "shown"])
    return frame.sort_values(["kind", "shown"], kind="stable")


def _varying(results: Sequence[Result]) -> set[tuple[str, str]]:
    """Settings, by kind, that differ: the others need not stand in every row."""
    values: dict[tuple[str, str], set[str]] = {}
    for name in {name for each in results for name in each.settings}:
        for each in results:
            values.setdefault((each.kind, name), set()).add(str(each.settings.get(name)))
    return {key for key, found in values.items() if len(found) > 1}


def key_of(result: Result) -> tuple[Any, ...]:
    """What people tell results by: the latest with the same counts."""
    return result.kind, result.task, result.base, result.method, told(result.settings)


def label_of(method: str, varied: Mapping[str, Any], folder: str) -> str:
    """What a row is called: the method, and what tells it from other rows of the method."""
    return method + (f" ({told(varied)})" if varied else "") + (f" [{folder}]" if folder else "")


def told(settings: Mapping[str, Any]) -> str:
    """Settings in words."""
    words = []
    for name, value in settings.items():
        if name == "max_tokens":
            words.append(f"{value} tokens" + (" a copy" if settings.get("budget") == "content" else ""))
        elif name != "budget" or "max_tokens" not in settings:
            words.append(f"{name.replace('_', ' ')} {cut(str(value))}")
    return ", ".join(words)


def cut(text: str) -> str:
    """The beginning of a text, on one line."""
    text = " ".join(text.split())
    return text if len(text) <= _LONG else f"{text[: _LONG - 1]}…"


def natural(text: str) -> tuple[Any, ...]:
    """A key to sort by, in which 10 comes after 9."""
    parts = re.split(r"(\d+)", text)
    return tuple((0, int(part), "") if part.isdecimal() else (1, 0, part) for part in parts)
