"""Readers of labelled files: scored pairs, classified texts, triples, queries with documents, tagged sentences."""

from __future__ import annotations

import io
import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, Literal, get_args

from ..tables import csv_rows

Kind = Literal["pairs", "classes", "tags", "triples", "ranking"]
BadLines = Literal["error", "skip"]
Pair = tuple[str, str, float]
Example = tuple[str, str]
Sentence = tuple[tuple[str, ...], tuple[str, ...]]

# What the columns of each kind are called in the wild, the most telling name first.
COLUMNS: dict[Kind, dict[str, tuple[str, ...]]] = {
    "pairs": {
        "text1": ("text1", "sentence1", "text_a", "question1", "s1", "sent1"),
        "text2": ("text2", "sentence2", "text_b", "question2", "s2", "sent2"),
        "score": ("score", "similarity_score", "similarity", "gold", "label"),
    },
    "classes": {
        "text": ("text", "sentence", "review", "content", "question", "query", "title"),
        "label": ("label", "class", "category", "intent", "sentiment"),
    },
    "tags": {"label": ()},
    "triples": {
        "anchor": ("anchor", "query", "text", "sentence"),
        "positive": ("positive", "pos", "nearer"),
        "negative": ("negative", "neg", "farther"),
    },
    "ranking": {
        "query": ("query", "question", "anchor"),
        "document": ("document", "passage", "doc", "title", "text"),
        "relevance": ("relevance", "grade", "score", "label"),
    },
}
TABLES = {".jsonl": "json", ".json": "json", ".ndjson": "json", ".csv": "csv", ".tsv": "csv"}
# No other kind has columns of these names.
_TELLING = ("positive", "negative")
_TAG = re.compile(r"O|[BIES]-\S+")
MOST_GRADE = 30
# STSBenchmark has no header: genre, file, year, number, score, sentence, sentence.
_STSB_SCORE, _STSB_FIELDS = 4, 7


@dataclass(frozen=True)
class Labelled:
    """What a file holds.

    Args:
        kind: Of all its items.
        items: In the file's order: (text1, text2, score), (text, label), (words, tags), (anchor, positive, negative) or
            (query, document, relevance) each.
        layout: How they were read, for people.
        bad: The numbers of the lines that were skipped.
    """

    kind: Kind
    items: list[Any]
    layout: str
    bad: list[int] = field(default_factory=list)


class BadLine(Exception):
    """What is wrong with one line, and the remedy."""


def read_labelled(
    path: Path, kind: Kind | None = None, columns: Mapping[str, str] | None = None, bad_lines: BadLines = "error"
) -> Labelled:
    """Read a labelled file.

    Args:
        path: The file. ``.csv`` and ``.tsv`` have a header, or are STSBenchmark's; ``.jsonl`` (``.json``) one object a
            line; others hold ``id||text1||text2||score`` lines, or a word and its columns a line with a blank line
            after each sentence.
        kind: What it holds; None: recognized.
        columns: Where the columns (keys) have names that are not guessed: the role, such as ``text1``, to the name.
            For tags ``{"label": "2"}`` counts the columns from 1.
        bad_lines: ``"error"``, or ``"skip"``: leave out what cannot be read, and count it.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: The kind does not show or does not fit, a column is missing, or a line cannot be read.
    """
    if kind is not None and kind not in get_args(Kind):
        raise ValueError(f"kind={kind!r} is not known: choose one of {list(get_args(Kind))}.")
    if bad_lines not in get_args(BadLines):
        raise ValueError(f"bad_lines={bad_lines!r} is not known: choose one of {list(get_args(BadLines))}.")
    text = content(path)
    columns = dict(columns or {})
    first = next((line for line in text.split("\n") if line.strip()), None)
    if first is None:
        raise ValueError(f"{path}: the file is empty.")
    table = TABLES.get(path.suffix.lower())
    if (fixed := headerless(path, first)) is not None:
        return _fixed(path, text, *fixed, kind, columns, bad_lines)
    if table is None:
        if kind not in (None, "tags"):
            raise ValueError(
                f"{path}: kind={kind!r} is read from {', '.join(TABLES)}"
                f"{', or from lines of id||text1||text2||score' if kind == 'pairs' else ''}, not from {first!r:.80}."
            )
        return _read_tags(path, text, columns, bad_lines)
    if kind == "tags":
        raise ValueError(f"{path}: tags are read from lines of a word and its columns, as a .txt file; convert it.")
    return _read_table(path, text, table, kind, columns, bad_lines)


def headerless(path: Path, first: str) -> tuple[Callable[[str], Pair], str] | None:
    """How a file of pairs without a header is read.

    Args:
        path: The file.
        first: Its first line.

    Returns:
        What reads a line, and what the layout is called; None: the file has a header, or needs none.
    """
    table = TABLES.get(path.suffix.lower())
    if table != "json" and _is_stsb(first):
        return _stsb, "STSBenchmark, score in column 5"
    if table is None and "||" in first:
        return _bars, "id||text1||text2||score"
    return None


def content(path: Path) -> str:
    """A file's text, which must be UTF-8; ends of lines are ``\\n``."""
    if not path.is_file():
        raise FileNotFoundError(f"{path}: {'not a file' if path.exists() else 'no such file'}")
    data = path.read_bytes()
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ValueError(
            f"{path}, line {line}: not UTF-8 (byte 0x{data[error.start]:02x}); save the file as UTF-8, for example "
            "with: iconv -f gb18030 -t utf-8"
        ) from None
    return text.replace("\r\n", "\n")


def _collect(
    path: Path, rows: Iterable[tuple[int, Any]], item: Callable[[Any], Any], bad_lines: BadLines
) -> tuple[list[Any], list[int]]:
    """The items of rows, and the numbers of those that are none."""
    items, bad = [], []
    for line, row in rows:
        try:
            items.append(item(row))
        except BadLine as error:
            if bad_lines == "error":
                raise ValueError(
                    f"{path}, line {line}: {error}. Correct the line, or leave such lines out with bad_lines='skip' "
                    "(--skip-bad-lines)."
                ) from None
            bad.append(line)
    return items, bad


# --- values


def as_text(value: object, role: str) -> str:
    """A value that must be a text, and not blank."""
    if not isinstance(value, str):
        raise BadLine(f"{role} is {value!r:.60}, not a text")
    if not value.strip():
        raise BadLine(f"{role} is empty")
    return value


def as_score(value: object) -> float:
    """A value that must be a number."""
    try:
        score = math.nan if isinstance(value, bool) else float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        score = math.nan
    if not math.isfinite(score):
        raise BadLine(f"the score is {value!r:.60}, not a number")
    return score


def as_grade(value: object) -> float:
    """A value that must be a grade of relevance: gains grow as 2 to its power."""
    try:
        grade = as_score(value)
    except BadLine:
        grade = -1.0
    if not 0 <= grade <= MOST_GRADE:
        raise BadLine(f"the relevance is {value!r:.60}, not a grade from 0 to {MOST_GRADE}")
    return grade


def as_label(value: object) -> str:
    """A value that must be a name or a number, as a name."""
    if not isinstance(value, (str, int, float)) or not str(value).strip():
        raise BadLine(f"the label is {value!r:.60}, not a name or a number")
    return str(value).strip()


def _value(role: str, value: object, name: str) -> Any:
    """What stands in the column of a role."""
    if role == "score":
        return as_score(value)
    if role == "relevance":
        return as_grade(value)
    return as_label(value) if role == "label" else as_text(value, name)


# --- pairs without a header


def _fixed(
    path: Path,
    text: str,
    item: Callable[[str], Pair],
    layout: str,
    kind: Kind | None,
    columns: Mapping[str, str],
    bad_lines: BadLines,
) -> Labelled:
    if kind not in (None, "pairs"):
        raise ValueError(f"{path}: the file looks like {layout}, which holds pairs, not kind={kind!r}.")
    if columns:
        raise ValueError(f"{path}: columns={columns!r}: the file has no header ({layout}). Drop the option.")
    items, bad = _collect(path, numbered(text), item, bad_lines)
    return Labelled("pairs", items, layout, bad)


def numbered(text: str) -> Iterator[tuple[int, str]]:
    """Lines that are not blank, with their numbers."""
    return ((number, line) for number, line in enumerate(text.split("\n"), 1) if line.strip())


def _is_stsb(line: str) -> bool:
    fields = line.split("\t")
    try:
        return len(fields) >= _STSB_FIELDS and math.isfinite(float(fields[_STSB_SCORE]))
    except ValueError:
        return False


def _stsb(line: str) -> Pair:
    fields = line.split("\t")
    if len(fields) < _STSB_FIELDS:
        raise BadLine(f"{len(fields)} fields between tabs, but STSBenchmark has {_STSB_FIELDS} or more")
    text1, text2 = fields[_STSB_SCORE + 1 : _STSB_FIELDS]
    return as_text(text1, "text1"), as_text(text2, "text2"), as_score(fields[_STSB_SCORE])


def _bars(line: str) -> Pair:
    fields = line.split("||")
    if len(fields) != 4:
        raise BadLine(f"{len(fields)} fields between ||, but id||text1||text2||score has 4")
    return as_text(fields[1], "text1"), as_text(fields[2], "text2"), as_score(fields[3])


# --- tables: CSV, TSV and JSON lines


def _read_table(
    path: Path, text: str, table: str, kind: Kind | None, columns: Mapping[str, str], bad_lines: BadLines
) -> Labelled:
    rows = list(json_rows(text) if table == "json" else table_rows(path, text))
    there = list(next((row for _, row in rows if isinstance(row, dict)), {}))
    if not there:
        _collect(path, rows, _no_row, "error")
        raise ValueError(f"{path}: there are no rows below the header.")
    kind, names = _names(path, there, kind, columns)

    def item(row: dict[str, Any] | str) -> tuple[Any, ...]:
        if isinstance(row, str):
            raise BadLine(row)
        if missing := [name for name in names.values() if name not in row]:
            raise BadLine(f"no {missing[0]!r}")
        return tuple(_value(role, row[name], name) for role, name in names.items())

    items, bad = _collect(path, rows, item, bad_lines)
    return Labelled(kind, items, ", ".join(f"{role} from {name!r}" for role, name in names.items()), bad)


def _no_row(row: str) -> None:
    raise BadLine(row)


def _names(
    path: Path, there: Sequence[str], kind: Kind | None, columns: Mapping[str, str]
) -> tuple[Kind, dict[str, str]]:
    """The kind of a table, and the column of each role."""
    kinds: list[Kind] = ["pairs", "classes"] if kind is None else [kind]
    if kind is None and all(any(name in there for name in COLUMNS["triples"][role]) for role in _TELLING):
        kinds = ["triples"]
    roles = {role for each in kinds for role in COLUMNS[each]}
    if unknown := [role for role in columns if role not in roles]:
        raise ValueError(f"{path}: columns={dict(columns)!r}: {unknown[0]!r} is none of the roles {sorted(roles)}.")
    for each in kinds:
        if any(role not in COLUMNS[each] for role in columns):
            continue
        names = {
            role: columns.get(role) or next((name for name in guesses if name in there), None)
            for role, guesses in COLUMNS[each].items()
        }
        found = {role: name for role, name in names.items() if name is not None and name in there}
        if len(found) == len(names):
            return each, found
    wanted = " or ".join(f"{', '.join(COLUMNS[each])} (for {each})" for each in kinds)
    raise ValueError(
        f"{path}: no columns for {wanted} were found; there are {[name[:60] for name in there[:20]]}. Name them, as "
        f"columns={{{next(iter(COLUMNS[kinds[-1]]))!r}: '…'}} (--column {next(iter(COLUMNS[kinds[-1]]))}=…)."
    )


def json_rows(text: str) -> Iterator[tuple[int, dict[str, Any] | str]]:
    """JSON objects, one a line, with the lines' numbers; in place of a bad one what is wrong with it."""
    for number, line in numbered(text):
        try:
            value = json.loads(line)
        except (ValueError, RecursionError) as error:
            yield number, f"not JSON ({error}): {line.strip()!r:.60}"
            continue
        yield number, value if isinstance(value, dict) else f"{line.strip()!r:.60} is not one JSON object"


def table_rows(path: Path, text: str) -> Iterator[tuple[int, dict[str, Any] | str]]:
    """Rows of .csv and .tsv, as :func:`json_rows`."""
    delimiter = "\t" if path.suffix.lower() == ".tsv" else ","
    for line, header, row in csv_rows(io.StringIO(text, newline=""), path, delimiter):
        if row is header:
            continue
        if len(row) != len(header):
            yield line, f"{len(row)} fields, but the header has {len(header)} columns"
        else:
            yield line, dict(zip(header, row, strict=True))


# --- tags


def _read_tags(path: Path, text: str, columns: Mapping[str, str], bad_lines: BadLines) -> Labelled:
    if unknown := [role for role in columns if role != "label"]:
        raise ValueError(f"{path}: columns={dict(columns)!r}: {unknown[0]!r} is not 'label', the one role of tags.")
    sentences = [sentence for sentence in _sentences(text) if sentence[1][0][0] != "-DOCSTART-"]
    column = _tag_column(path, sentences, columns.get("label"))

    def item(lines: list[list[str]]) -> Sentence:
        for fields in lines:
            if len(fields) <= column:
                raise BadLine(f"the sentence's line {' '.join(fields)!r:.60} has no column {column + 1}")
            if not _TAG.fullmatch(fields[column]):
                raise BadLine(
                    f"the sentence's tag {fields[column]!r:.60} is not O, B-…, I-…, E-… or S-…, which entity F1 needs"
                )
        return tuple(fields[0] for fields in lines), tuple(fields[column] for fields in lines)

    items, bad = _collect(path, sentences, item, bad_lines)
    return Labelled("tags", items, f"tags in column {column + 1}", bad)


def _sentences(text: str) -> Iterator[tuple[int, list[list[str]]]]:
    """Each sentence's first line, and the columns of all its lines."""
    lines: list[list[str]] = []
    first = 1
    for number, line in enumerate([*text.split("\n"), ""], 1):
        if fields := line.split():
            first = first if lines else number
            lines.append(fields)
        elif lines:
            yield first, lines
            lines = []


def _tag_column(path: Path, sentences: Sequence[tuple[int, list[list[str]]]], wanted: str | None) -> int:
    """The last column, counted from 0, that holds mostly IOB tags: CoNLL-2003's has chunks before its entities."""
    if wanted is not None:
        if not wanted.isdecimal() or int(wanted) < 2:
            raise ValueError(f"{path}: columns={{'label': {wanted!r}}} must be a number from 2 on: the tags' column.")
        return int(wanted) - 1
    sample = [fields for _, lines in islice(sentences, 1000) for fields in lines]
    for column in range(max(map(len, sample), default=0) - 1, 0, -1):
        if sum(len(fields) > column and _TAG.fullmatch(fields[column]) is not None for fields in sample) * 2 > len(
            sample
        ):
            return column
    raise ValueError(
        f"{path}: the kind of file is not recognized. Tags need a word and, in a later column, O, B-… or I-… a line; "
        f"pairs need id||text1||text2||score, or one of {', '.join(TABLES)}; classes one of these."
    )
