"""Golden vectors as a file: how it is written, where it is, and whether it holds what it should."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from sentence_transformers.util import load_file_path

from ..files import whole_file
from ..modules.limits import MOST_CHARACTERS

FILE = "golden.json"
FORMAT = 1
# Of an exported model, whose golden.json names it.
GRAPH = "onnx/model.onnx"
EXACT = ("float32", "float64")
# Each text is embedded alone; a file that another program wrote may hold more of them than ours, but not without end.
MOST_TEXTS = 1000
MOST_BYTES = 1 << 26
# Of a number: a vector's own are far smaller, and its squares must still be finite.
LARGEST = 1e38
_DIGITS = 7


def write_file(
    folder: str | os.PathLike[str], header: Mapping[str, Any], texts: Iterable[str], vectors: Iterable[Iterable[float]]
) -> None:
    """Write a golden.json, a text a line.

    Args:
        folder: The model's.
        header: All that it holds beside texts.
        texts: The texts.
        vectors: Their vectors.
    """
    lines = [json.dumps(header, indent=1, ensure_ascii=False)[:-2] + ',\n "texts": [']
    rows = [
        json.dumps({"text": text, "vector": [float(f"{x:.{_DIGITS}g}") for x in vector]}, ensure_ascii=False)
        for text, vector in zip(texts, vectors, strict=True)
    ]
    lines += [f"  {row}," for row in rows[:-1]] + [f"  {rows[-1]}", " ]", "}", ""]
    with whole_file(Path(folder) / FILE) as stream:
        stream.write("\n".join(lines).encode("utf-8"))


def read_golden(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Read a golden.json.

    Args:
        path: The file.

    Returns:
        What it holds, checked.

    Raises:
        ValueError: It is not what :func:`write_golden` writes, or is of a newer format.
    """
    if (size := os.path.getsize(path)) > MOST_BYTES:
        raise ValueError(f"{path}: {size} bytes are no golden vectors: at most {MOST_BYTES} are read.")
    try:
        value: Any = json.loads(Path(path).read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: not JSON ({error}). Save the model again.") from error
    format_ = value.get("format") if isinstance(value, dict) else None
    if type(format_) is not int:
        raise ValueError(f"{path}: no golden vectors, as it names no format. Save the model again.")
    if format_ > FORMAT:
        raise ValueError(f"{path}: format {format_} is newer than {FORMAT}, which this st_reba reads. Update st_reba.")
    wrong = next((name for name, fits in _FITS.items() if not fits(value.get(name), value)), None)
    if wrong is not None:
        raise ValueError(f"{path}: {wrong!r} is missing or not as written. Save the model again.")
    return dict(value)


def _number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < LARGEST


def _is_texts(value: object, whole: Mapping[str, Any]) -> bool:
    return (
        isinstance(value, list)
        and 0 < len(value) <= MOST_TEXTS
        and all(
            isinstance(each, dict)
            and isinstance(each.get("text"), str)
            and len(each["text"]) <= MOST_CHARACTERS
            and isinstance(each.get("vector"), list)
            and len(each["vector"]) == whole.get("dimension")
            and all(map(_number, each["vector"]))
            for each in value
        )
    )


def _is_strings(value: object, _: object) -> bool:
    return isinstance(value, dict) and all(
        isinstance(each, str) and len(each) <= MOST_CHARACTERS for each in value.values()
    )


_FITS: dict[str, Any] = {
    "dimension": lambda value, _: type(value) is int and value > 0,
    "dtype": lambda value, _: value in (*EXACT, "bfloat16", "float16"),
    # Of an exported model alone.
    "graph": lambda value, _: value is None or value == GRAPH,
    "device": lambda value, _: isinstance(value, str),
    "fields": _is_strings,
    "versions": _is_strings,
    "tolerance": lambda value, _: (
        isinstance(value, dict)
        and set(value) in ({"difference"}, {"cosine", "length"})
        and all(_number(each) and 0 < each < 0.1 for each in value.values())
    ),
    "texts": _is_texts,
}


def find_golden(path: str, hub: Mapping[str, Any]) -> str:
    """The golden.json of a folder or Hub repository; a file is one itself."""
    if os.path.isfile(path):
        return path
    try:
        file = load_file_path(path, FILE, **hub)
    except Exception as error:
        raise FileNotFoundError(f"MODEL={path!r}: {FILE} could not be fetched: {error}") from error
    if file is None:
        raise FileNotFoundError(
            f"MODEL={path!r} holds no {FILE} to verify it by. Save it again, with golden vectors: st-reba build, or "
            "st_reba.hub.saving.save(model, folder)."
        )
    return str(file)
