"""Plain files → items of a benchmark's task, each value checked where it stands."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from ..labelled import (
    COLUMNS,
    TABLES,
    BadLine,
    BadLines,
    as_label,
    as_score,
    as_text,
    content,
    headerless,
    json_rows,
    numbered,
    table_rows,
)

KINDS = ("STS", "PairClassification", "Classification", "Clustering", "Reranking", "Retrieval")
# A file, or one of each role: lines that belong together by their numbers.
Source = Path | Mapping[str, Path]
Row = tuple[int, dict[str, Any] | str]

_PAIR = {role: COLUMNS["pairs"][role] for role in ("text1", "text2")}
_RANKING = {
    "query": ("query", "question"),
    "document": ("document", "passage", "doc", "text", "title", "answer"),
    "relevance": ("relevance", "label", "score"),
}
# What the columns of each kind are called in the wild, the most telling name first.
ROLES: dict[str, dict[str, tuple[str, ...]]] = {
    "STS": COLUMNS["pairs"],
    "PairClassification": {**_PAIR, "label": ("label", "labels", "gold_label", "score")},
    "Classification": COLUMNS["classes"],
    "Clustering": COLUMNS["classes"],
    "Reranking": _RANKING,
    "Retrieval": _RANKING,
}
# Columns that a file need not have.
_OPTIONAL: dict[str, dict[str, tuple[str, ...]]] = {
    kind: {"query_id": ("query_id", "qid"), "document_id": ("document_id", "doc_id", "docid", "pid")}
    for kind in ("Reranking", "Retrieval")
}
# The role that ``labels`` speaks of: the last.
MARKED = {kind: list(roles)[-1] for kind, roles in ROLES.items()}
LEFT_OUT_LINE = "cannot be read"


@dataclass(frozen=True)
class Items:
    """What a source holds.

    Args:
        where: The source, for messages.
        items: In the files' order: the values of the roles, as tuples; where there may be ids, both last (or None).
        lines: The line of each.
        left_out: Lines that are no items: the reason, and which.
    """

    where: str
    items: list[tuple[Any, ...]]
    lines: list[int]
    left_out: dict[str, list[str]] = field(default_factory=dict)


def read_items(
    source: Source,
    kind: str,
    *,
    columns: Mapping[str, str] | None = None,
    labels: Mapping[str, Any] | None = None,
    bad_lines: BadLines = "error",
) -> Items:
    """Read the items of a task.

    Args:
        source: A ``.csv`` or ``.tsv`` with a header, ``.jsonl`` or ``.json`` (an array, or an object a line), pairs
            without a header as :func:`st_reba.evaluation.labelled.read_labelled` takes them, or one ``.txt`` a role.
        kind: One of ``KINDS``.
        columns: Where the columns (keys) have names that are not guessed: the role to the name.
        labels: What stands for a label, score or relevance of the file; None: such lines are left out.
        bad_lines: ``"error"``, or ``"skip"``: leave out what cannot be read, and count it.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: A file is empty, a column is missing, or a line cannot be read.

    Example:
        >>> _ = Path("pairs.tsv").write_text("s1\\ts2\\tlabel\\na cat\\ta dog\\tno\\na\\tb\\t-\\n")
        >>> found = read_items(Path("pairs.tsv"), "PairClassification", labels={"yes": 1, "no": 0, "-": None})
        >>> found.items, found.left_out
        ([('a cat', 'a dog', 0)], {"label '-'": ['pairs.tsv, line 3']})
    """
    where, rows, names = _rows(source, kind, dict(columns or {}))
    given = None if labels is None else {str(key).strip(): value for key, value in labels.items()}
    item = partial(_item, kind=kind, names=names, labels=given)
    found, lines, left_out = [], [], dict[str, list[str]]()
    for line, row in rows:
        try:
            value = item(row)
        except BadLine as error:
            if bad_lines == "error":
                raise ValueError(
                    f"{where}, line {line}: {error}. Correct the line, or leave such lines out with bad_lines: skip in "
                    "a tasks file."
                ) from None
            left_out.setdefault(LEFT_OUT_LINE, []).append(f"{Path(where).name}, line {line}")
            continue
        if isinstance(value, str):
            reason = f"{MARKED[kind]} {value!r}"
            left_out.setdefault(reason, []).append(f"{Path(where).name}, line {line}")
            continue
        found.append(value)
        lines.append(line)
    if not found:
        raise ValueError(f"{where}: no line is left to use ({ {key: len(each) for key, each in left_out.items()} }).")
    return Items(where, found, lines, left_out)


def read_table(path: Path, roles: Mapping[str, Sequence[str]], columns: Mapping[str, str]) -> list[dict[str, Any]]:
    """Rows of a table, its columns under their roles, and ``"line"``; as :func:`read_items` otherwise.

    Args:
        path: The file.
        roles: Each role's guessed columns; one whose guesses begin with ``""`` may be missing.
        columns: Names that are not guessed, by role.
    """
    rows = list(_table(path, content(path)))
    needed = {role: guesses for role, guesses in roles.items() if "" not in guesses}
    rest = {role: guesses for role, guesses in roles.items() if role not in needed}
    names = _names(path, rows, needed, rest, columns)
    found = []
    for line, row in rows:
        if isinstance(row, str) or (absent := [names[role] for role in needed if names[role] not in row]):
            raise ValueError(f"{path}, line {line}: {row if isinstance(row, str) else f'no {absent[0]!r}'}.")
        found.append({"line": line, **{role: row.get(name) for role, name in names.items()}})
    return found


# --- rows


def _rows(source: Source, kind: str, columns: dict[str, str]) -> tuple[str, list[Row], dict[str, str]]:
    roles, optional = ROLES[kind], _OPTIONAL.get(kind, {})
    if not isinstance(source, Path):
        if columns:
            raise ValueError(f"columns={columns!r}: files of one role each have no columns. Drop it.")
        return _parallel(source, kind, roles)
    text = content(source)
    first = next((line for line in text.split("\n") if line.strip()), None)
    if first is None:
        raise ValueError(f"{source}: the file is empty.")
    if (fixed := headerless(source, first)) is not None:
        read, layout = fixed
        if kind not in ("STS", "PairClassification"):
            raise ValueError(f"{source}: the file looks like {layout}, which holds pairs, not {kind}.")
        if columns:
            raise ValueError(f"{source}: columns={columns!r}: the file has no header ({layout}). Drop it.")
        return str(source), list(_pairs(text, read, list(roles))), {role: role for role in roles}
    if source.suffix.lower() not in TABLES:
        raise ValueError(
            f"{source}: {kind} is read from {', '.join(TABLES)}, or from one .txt a role, as files: "
            f"{{{', '.join(f'{role}: {role}.txt' for role in roles)}}} in a tasks file."
        )
    rows = list(_table(source, text))
    return str(source), rows, _names(source, rows, roles, optional, columns)


def _pairs(text: str, read: Callable[[str], tuple[str, str, float]], roles: list[str]) -> Iterator[Row]:
    for number, line in numbered(text):
        try:
            text1, text2, score = read(line)
        except BadLine as error:
            yield number, str(error)
            continue
        yield number, dict(zip(roles, (text1, text2, score), strict=True))


def _table(path: Path, text: str) -> Iterator[Row]:
    if TABLES.get(path.suffix.lower()) == "csv":
        return table_rows(path, text)
    return _array_rows(path, text) if text.lstrip().startswith("[") else json_rows(text)


def _array_rows(path: Path, text: str) -> Iterator[Row]:
    """The objects of one JSON array, each with the number of the line that it begins on."""
    decoder, place, line = json.JSONDecoder(), text.index("[") + 1, 1 + text.count("\n", 0, text.index("["))
    first = True
    while True:
        start = place
        place = _past_blanks(text, place)
        if text[place : place + 1] == "]":
            if rest := text[place + 1 :].strip():
                raise ValueError(f"{path}: after the array stands {rest!r:.60}; write one array, or an object a line.")
            return
        if not first:
            if text[place : place + 1] != ",":
                raise ValueError(f"{path}, line {line + text.count(chr(10), start, place)}: ',' or ']' is missing.")
            place = _past_blanks(text, place + 1)
        line += text.count("\n", start, place)
        try:
            value, end = decoder.raw_decode(text, place)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{path}, line {line}: not JSON ({error}).") from None
        yield line, value if isinstance(value, dict) else f"{value!r:.60} is not one JSON object"
        line += text.count("\n", place, end)
        place, first = end, False


def _past_blanks(text: str, place: int) -> int:
    while text[place : place + 1].isspace():
        place += 1
    return place


def _parallel(
    source: Mapping[str, Path], kind: str, roles: Mapping[str, Sequence[str]]
) -> tuple[str, list[Row], dict[str, str]]:
    """Files of one role each, a value a line."""
    if set(source) != set(roles):
        raise ValueError(f"files has {sorted(source)}, but {kind} needs one file each of {list(roles)}.")
    columns = {role: content(path).removesuffix("\n").split("\n") for role, path in source.items()}
    if empty := [role for role, values in columns.items() if values == [""]]:
        raise ValueError(f"{source[empty[0]]}: the file is empty.")
    lengths = {str(source[role]): len(values) for role, values in columns.items()}
    if len(set(lengths.values())) > 1:
        raise ValueError(
            f"{', '.join(f'{name} has {length} lines' for name, length in lengths.items())}: line n of each belongs to "
            "line n of the others, so they must be as many. Look for a missing or a broken line."
        )
    rows: list[Row] = [
        (number, dict(zip(columns, values, strict=True)))
        for number, values in enumerate(zip(*columns.values(), strict=True), 1)
    ]
    return ", ".join(map(str, source.values())), rows, {role: role for role in roles}


def _names(
    path: Path,
    rows: Sequence[Row],
    roles: Mapping[str, Sequence[str]],
    optional: Mapping[str, Sequence[str]],
    columns: Mapping[str, str],
) -> dict[str, str]:
    """The column of each role."""
    there = list(next((row for _, row in rows if isinstance(row, dict)), {}))
    if not there:
        what = f", line {rows[0][0]}: {rows[0][1]}" if rows else ": there are no rows below the header"
        raise ValueError(f"{path}{what}.")
    known = [*roles, *optional]
    if unknown := [role for role in columns if role not in known]:
        raise ValueError(f"{path}: columns={dict(columns)!r}: {unknown[0]!r} is none of the roles {known}.")
    names = {}
    for role, guesses in {**roles, **optional}.items():
        wanted = columns.get(role)
        name = wanted or next((guess for guess in guesses if guess in there), None)
        if name is not None and name in there:
            names[role] = name
        elif role in roles or wanted is not None:
            shown = [each[:60] for each in there[:20]]
            raise ValueError(
                f"{path}: no column {wanted!r} for {role}; there are {shown}."
                if wanted
                else f"{path}: no column for {role} was found, as {', '.join(guesses)}; there are {shown}. Name it in "
                f"a tasks file, as columns: {{{role}: …}}."
            )
    if twice := [role for role in roles if list(names.values()).count(names[role]) > 1]:
        raise ValueError(
            f"{path}: {names[twice[0]]!r} stands for {twice} alike; there are {there[:20]}. Name them in a tasks file, "
            f"as columns: {{{twice[0]}: …}}."
        )
    return names


# --- items


def _item(
    row: dict[str, Any] | str, *, kind: str, names: Mapping[str, str], labels: Mapping[str, Any] | None
) -> tuple[Any, ...] | str:
    """An item, or the label that leaves it out."""
    if isinstance(row, str):
        raise BadLine(row)
    if missing := [names[role] for role in ROLES[kind] if names[role] not in row]:
        raise BadLine(f"no {missing[0]!r}")
    *texts, marked = ROLES[kind]
    value = row[names[marked]]
    if labels is not None:
        key = as_label(f"{value:g}" if isinstance(value, float) else value)
        if key not in labels:
            raise BadLine(
                f"the {marked} {key!r} is not among labels, which has {list(labels)[:20]}; add it there, with null to "
                "leave such lines out"
            )
        if labels[key] is None:
            return key
        value = labels[key]
    item = (*(as_text(row[names[role]], names[role]) for role in texts), _VALUES[kind](value))
    ids = _OPTIONAL.get(kind, {})
    return (*item, *(as_label(row.get(names[role])) if role in names else None for role in ids))


def _truth(value: object) -> int:
    if as_label(value).lower() in ("0", "0.0", "false"):
        return 0
    if as_label(value).lower() in ("1", "1.0", "true"):
        return 1
    raise BadLine(f"the label is {value!r:.60}, not 0 or 1; say in a tasks file what it is, as labels: {{{value}: 1}}")


def as_relevance(value: object) -> int:
    """A value that must be a grade: 0 is irrelevant."""
    score = as_score(value)
    if score < 0 or score != int(score):
        raise BadLine(f"the relevance is {value!r:.60}, not a whole number from 0 on")
    return int(score)


_VALUES: dict[str, Callable[[Any], Any]] = {
    "STS": as_score,
    "PairClassification": _truth,
    "Classification": as_label,
    "Clustering": as_label,
    "Reranking": as_relevance,
    "Retrieval": as_relevance,
}


def merged(parts: Iterable[Mapping[str, list[str]]]) -> dict[str, list[str]]:
    """What several sources leave out, together."""
    together: dict[str, list[str]] = {}
    for part in parts:
        for reason, names in part.items():
            together.setdefault(reason, []).extend(names)
    return together
