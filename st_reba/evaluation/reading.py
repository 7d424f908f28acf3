"""Files of every layout → the items of one kind."""

from __future__ import annotations

import csv
import hashlib
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any, Literal, NamedTuple

from ..corpus.records import Reject, clean_text
from ..modules.options import unknown
from .columns import ROLES, TABLES, TITLE, TOLD, Record, Table, beir_files, content, first_line, lines, suffix
from .items import Classes, Clusters, Items, LabelledPairs, Ranking, Retrieval, ScoredPairs, Tags, Triples
from .words import Questions, read_questions

KINDS: Mapping[str, type[Items]] = {
    each.kind: each
    for each in (ScoredPairs, LabelledPairs, Triples, Classes, Clusters, Ranking, Retrieval, Tags, Questions)
}
Source = str | PathLike[str] | Mapping[str, str | PathLike[str]]

_TABLE_SUFFIXES = (".csv", ".tsv", ".jsonl", ".json", ".ndjson", ".parquet")
_UNFIT = {
    "Reranking": "queries without both a relevant and an irrelevant document",
    "Retrieval": "queries without a relevant document",
}
_TAG = re.compile(r"O|[BIES]-\S+")


class _BadLine(ValueError):
    """What is wrong with one line, and the remedy."""


@dataclass
class Reader:
    """One source's reading: what is asked of it (see ``read_task``), what it leaves out, and how it was read."""

    kind: str | None = None
    columns: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[Any, Any] | None = None
    bad_lines: Literal["error", "skip"] = "error"
    separator: str = " "
    subtoken: Literal["first", "last"] = "first"
    limit: int | None = None
    seed: int = 0
    left_out: dict[str, list[str]] = field(default_factory=dict, init=False)
    how: str = field(default="", init=False)

    def __post_init__(self) -> None:
        self.kind = None if self.kind is None else _kind_named(self.kind)
        self.labels = None if self.labels is None else {str(label): value for label, value in self.labels.items()}
        if self.limit is not None and (type(self.limit) is not int or self.limit < 1):
            raise ValueError(f"limit={self.limit!r} must be a whole number from 1 on (--limit).")
        for name, allowed in (("bad_lines", ("error", "skip")), ("subtoken", ("first", "last"))):
            if (value := getattr(self, name)) not in allowed:
                raise ValueError(unknown(f"{name}={value!r}", value, allowed))

    def read(self, source: Source) -> Items:
        """The items of a file, a folder, or several files."""
        if isinstance(source, Mapping):
            files = {role: Path(file) for role, file in source.items()}
            return self._ranking(files) if set(files) == set(TABLES) else self._parallel(files)
        path = Path(source)
        if path.is_dir():
            return self._ranking(beir_files(path))
        first = first_line(path)
        if self.kind in (None, "STS", "PairClassification") and (layout := _bare_layout(path, first)):
            return self._bare(path, layout)
        if self.kind == "WordSense" or (self.kind is None and _is_words(path, first)):
            self.how = "questions"
            questions, self.left_out = read_questions(path, seed=self.seed)
            return self.limited(questions)
        if self.kind != "NER":
            if suffix(path) in _TABLE_SUFFIXES:
                return self._table(path)
            if self.kind is not None:
                raise ValueError(
                    f"{path}: {self.kind} is read from .csv, .tsv, .jsonl, .json or .parquet, not from {first!r:.80}"
                )
        return self._tagged(path)

    # Layouts

    def _table(self, path: Path) -> Items:
        """A file with named columns, which tell the kind where it is not given."""
        table = Table(path, TOLD if self.kind is None else {self.kind: ROLES[self.kind]}, self.columns)
        records = list(table.records())
        self.how = ", ".join(f"{role} from {name!r}" for role, name in table.names.items())
        return self.made(path, table.kind or "", records)

    def _bare(self, path: Path, layout: _Bare) -> Items:
        """Pairs in a file without a header."""
        if self.columns:
            raise ValueError(
                f"{path}: columns={self.columns!r}: the file has no header ({layout.name}). Drop --columns."
            )
        self.how = layout.name
        return self.made(path, self.kind or "STS", _bare_records(path, layout))

    def _parallel(self, files: Mapping[str, Path]) -> Items:
        """Files of one role each, a value a line."""
        kind = self.kind or ""
        if kind not in ROLES:
            raise ValueError(f"kind={self.kind!r}: of several files it must be one of {list(ROLES)}.")
        roles = ROLES[kind]
        if set(files) != set(roles):
            raise ValueError(f"files has {sorted(files)}, but {kind} needs one each of {list(roles)}.")
        columns = {role: content(files[role]).removesuffix("\n").split("\n") for role in roles}
        if len(set(map(len, columns.values()))) > 1:
            raise ValueError(
                f"{', '.join(f'{files[role]} has {len(values)} lines' for role, values in columns.items())}: line n of "
                "each belongs to line n of the others, so they must be as many. Look for a missing or a broken line."
            )
        rows = enumerate(zip(*columns.values(), strict=True), 1)
        return self.made(files[next(iter(roles))], kind, [(f"line {number}", row) for number, row in rows])

    def _tagged(self, path: Path) -> Items:
        """Sentences, a word and its tag a line."""
        if wrong := [role for role in self.columns if role != "label"]:
            raise ValueError(f"{path}: columns={self.columns!r}: {wrong[0]!r} is not 'label', the one role of tags.")
        sentences = [each for each in _sentences(content(path)) if each[1][0][0] != "-DOCSTART-"]
        column = _tag_column(path, sentences, self.columns.get("label"))
        self.how = f"tags in column {column + 1}"
        found = []
        for number, rows in sentences:
            if bad := [fields for fields in rows if len(fields) <= column or not _TAG.fullmatch(fields[column])]:
                reason = f"the sentence's line {' '.join(bad[0])!r:.60} has no tag O, B-…, I-… in column {column + 1}"
                self._bad(f"{path.name}, line {number}", reason)
            else:
                found.append(([fields[0] for fields in rows], [fields[column] for fields in rows]))
        return self.tags(found, f"{path}: ")

    def _ranking(self, files: Mapping[str, Path]) -> Items:
        """Queries, documents and judgements, a table each."""
        kind, columns = self.kind or "Retrieval", self.columns
        if kind not in _UNFIT:
            raise ValueError(f"queries, documents and relevance make Reranking or Retrieval, not {kind}.")
        roles = [role for _, names in TABLES.values() for role in names]
        if wrong := [role for role in columns if role not in (*roles, *TITLE)]:
            raise ValueError(unknown(f"columns={columns!r}: {wrong[0]!r}", wrong[0], roles) + " (--columns)")

        def records(part: str) -> Iterator[Record]:
            names, optional = TABLES[part][1], TITLE if part == "documents" else {}
            known = {role: name for role, name in columns.items() if role in (*names, *optional)}
            return Table(files[part], {part: names}, known, optional).records()

        texts: dict[str, dict[str, str]] = {"queries": {}, "documents": {}}
        for part, of in texts.items():
            for place, (key, *rest) in self._kept(records(part)):
                # A title stands before its text.
                text = " ".join(clean_text(str(each).strip()) for each in reversed(rest) if each)
                if str(key) in of or not text:
                    self._bad(place, f"the id {key!r} {'stands twice' if text else 'has no text'}")
                else:
                    of[str(key)] = text

        def judgements() -> Iterator[Record]:
            for place, (*keys, marked) in self._kept(records("relevance")):
                pairs = list(zip(keys, texts, strict=True))
                if strange := [(key, part) for key, part in pairs if str(key) not in texts[part]]:
                    yield Reject(place, f"the id {strange[0][0]!r} is not in {files[strange[0][1]].name}")
                else:
                    yield place, (*(texts[part][str(key)] for key, part in pairs), marked)

        self.how = "queries, documents and relevance"
        where = files["relevance"]
        return self.made(where, kind, judgements(), texts["queries"].values(), texts["documents"].values())

    # Rows → items

    def made(
        self,
        where: object,
        kind: str,
        records: Iterable[Record],
        queries: Iterable[str] = (),
        documents: Iterable[str] = (),
    ) -> Items:
        """Items of records; of a ranking also the queries and documents that no record may judge."""
        rows = []
        for place, values in self._kept(records):
            try:
                if (row := self._checked(kind, values)) is not None:
                    rows.append(row)
            except _BadLine as error:
                self._bad(place, str(error))
        if not rows:
            reasons = "; ".join(f"{len(names)}: {reason}" for reason, names in self.left_out.items())
            raise ValueError(f"{where}: no line is left to use ({reasons or 'there is none below the header'}).")
        if kind in _UNFIT:
            judged: dict[str, dict[str, float]] = {query: {} for query in queries}
            for query, document, grade in rows:
                grades = judged.setdefault(query, {})
                # Of contrary judgements the highest counts.
                grades[document] = max(grade, grades.get(document, grade))
            return self._judged(kind, judged, documents)
        number: dict[str, int] = {}
        width = KINDS[kind].width
        numbered = [(*(number.setdefault(text, len(number)) for text in row[:width]), *row[width:]) for row in rows]
        items = self.limited(KINDS[kind](tuple(number), tuple(numbered)))
        if kind in _VALUES and len({item[-1] for item in items.items}) < 2:
            role, value = [*ROLES[kind]][-1], items.items[0][-1]
            raise ValueError(f"{where}: all {len(items)} items have the {role} {value!r}; two are needed.")
        return items

    def tags(self, sentences: Sequence[tuple[Sequence[str], Sequence[str]]], where: str = "") -> Items:
        """Items of sentences, each its words and their tags."""
        if not any(tag != "O" for _, tags in sentences for tag in tags):
            raise ValueError(f"{where}no entity is tagged, only O.")
        return self.limited(Tags.of(sentences, self.separator, self.subtoken))

    def limited(self, items: Items) -> Items:
        """As many of the items as the limit allows, of each label its share."""
        if self.limit is None or self.limit >= len(items):
            return items
        return items.subset(drawn([items.label(item) for item in items.items], self.limit, self.seed))

    def _judged(self, kind: str, judged: Mapping[str, Mapping[str, float]], others: Iterable[str]) -> Items:
        def fits(grades: Mapping[str, float]) -> bool:
            return any(grades.values()) and (kind == "Retrieval" or not all(grades.values()))

        usable = [query for query, grades in judged.items() if fits(grades)]
        if len(usable) < len(judged):
            kept = set(usable)
            self.left_out[_UNFIT[kind]] = [query for query in judged if query not in kept]
        if not usable:
            raise ValueError(f"{kind}: all {len(judged)} are {_UNFIT[kind]}.")
        chosen = {usable[row]: judged[usable[row]] for row in drawn([""] * len(usable), self.limit, self.seed)}
        if kind == "Reranking":
            return Ranking.of(chosen)
        # All documents are searched, those of queries that cannot be scored too; of a sample only its own.
        every = [*others, *(text for grades in judged.values() for text in grades)]
        return Retrieval.of(chosen, every if len(chosen) == len(usable) else ())

    def _checked(self, kind: str, row: tuple[Any, ...]) -> tuple[Any, ...] | None:
        """The values of a row, checked; None: its label leaves it out."""
        roles = list(ROLES[kind])
        if len(row) != len(roles):
            raise _BadLine(f"{len(row)} values, but {kind} has {len(roles)}: {', '.join(roles)}")
        if kind not in _VALUES:
            return tuple(map(_text, row, roles))
        *texts, marked = row
        if self.labels is not None:
            label = _label(f"{marked:g}" if isinstance(marked, float) else marked)
            if (marked := self.labels.get(label)) is None:
                self.left_out.setdefault(f"label {label!r}", []).append(str(texts[0])[:40])
                return None
        value = _VALUES[kind](marked)
        return (*map(_text, texts, roles), value)

    def _kept(self, records: Iterable[Record]) -> Iterator[tuple[str, tuple[Any, ...]]]:
        for record in records:
            if isinstance(record, Reject):
                self._bad(record.place, record.reason)
            else:
                yield record

    def _bad(self, place: str, reason: str) -> None:
        if self.bad_lines == "error":
            raise ValueError(
                f"{place}: {reason}. Correct the line, or leave such lines out: bad_lines='skip' (--skip-bad-lines)."
            )
        self.left_out.setdefault("cannot be read", []).append(place)


def _kind_named(word: str) -> str:
    """A kind, however its letters are written."""
    for each in KINDS:
        if each.casefold() == word.casefold():
            return each
    raise ValueError(unknown(f"kind={word!r}", word, list(KINDS)))


# Layouts without named columns


class _Bare(NamedTuple):
    """A layout of lines without a header: so many fields, or also more, of which three are both texts and the score."""

    name: str
    separator: str
    fields: int
    more: bool
    used: tuple[int, int, int]

    def fits(self, count: int) -> bool:
        return count == self.fields or (self.more and count > self.fields)


_STSB = _Bare("STSBenchmark, score in column 5", "\t", 7, True, (5, 6, 4))
_BARS = _Bare("id||text1||text2||score", "||", 4, False, (1, 2, 3))


def _bare_layout(path: Path, first: str) -> _Bare | None:
    fields = first.split("\t")
    if suffix(path) not in (".jsonl", ".json") and _STSB.fits(len(fields)):
        with suppress(_BadLine):
            _number(fields[_STSB.used[2]], "score")
            return _STSB
    return _BARS if suffix(path) not in _TABLE_SUFFIXES and "||" in first else None


def _bare_records(path: Path, layout: _Bare) -> Iterator[Record]:
    for number, line in lines(path):
        fields, place = line.split(layout.separator), f"{path.name}, line {number}"
        if layout.fits(len(fields)):
            yield place, tuple(fields[column] for column in layout.used)
        else:
            wanted = f"{layout.fields}{' or more' * layout.more}"
            yield Reject(place, f"{len(fields)} fields between {layout.separator!r}, but {layout.name} has {wanted}")


def _is_words(path: Path, first: str) -> bool:
    """Whether a file holds word-sense questions: their columns, or senses of words."""
    if suffix(path) in (".csv", ".tsv"):
        header = next(csv.reader([first], delimiter="\t" if suffix(path) == ".tsv" else ","))
        return {"问题", "答案"} <= set(header) or {"word", "sentence4", "answer"} <= set(header)
    return suffix(path) == ".json" and re.match(r'\s*\{\s*("[^"]*"\s*:\s*)?(\{|$)', first) is not None


def _sentences(text: str) -> Iterator[tuple[int, list[list[str]]]]:
    """Each sentence's first line, and the columns of all its lines."""
    rows: list[list[str]] = []
    first = 1
    for number, line in enumerate([*text.split("\n"), ""], 1):
        if fields := line.split():
            first = first if rows else number
            rows.append(fields)
        elif rows:
            yield first, rows
            rows = []


def _tag_column(path: Path, sentences: Sequence[tuple[int, list[list[str]]]], wanted: str | None) -> int:
    """The last column, counted from 0, that holds mostly IOB tags: CoNLL-2003's has chunks before its entities."""
    if wanted is not None:
        if not wanted.isdecimal() or int(wanted) < 2:
            raise ValueError(f"{path}: the column of tags, label={wanted!r}, must be a number from 2 on.")
        return int(wanted) - 1
    sample = [fields for _, rows in sentences[:1000] for fields in rows]
    for column in range(max(map(len, sample), default=0) - 1, 0, -1):
        tagged = sum(len(fields) > column and _TAG.fullmatch(fields[column]) is not None for fields in sample)
        if tagged * 2 > len(sample):
            return column
    raise ValueError(
        f"{path}: the layout is not known; the first line is {' '.join(sample[0]) if sample else ''!r:.80}. "
        "Give .csv, .tsv, .jsonl, .json or .parquet with named columns, id||text1||text2||score lines, or a word and "
        "its tag a line."
    )


# Values


def _text(value: object, role: str) -> str:
    if not isinstance(value, str):
        raise _BadLine(f"{role} is {value!r:.60}, not a text")
    if not value.strip():
        raise _BadLine(f"{role} is empty")
    return clean_text(value)


def _number(value: Any, name: str, least: float = -math.inf, wanted: str = "") -> float:
    with suppress(TypeError, ValueError, OverflowError):
        number = float(value)
        if math.isfinite(number) and number >= least and not isinstance(value, bool):
            return number
    raise _BadLine(f"the {name} is {value!r:.60}, not a number{wanted}")


def _score(value: Any) -> float:
    remedy = "; for classes of pairs name the kind, PairClassification, and what 1 and 0 are (--labels)"
    return _number(value, "score", wanted=remedy)


def _grade(value: Any) -> float:
    return _number(value, "relevance", 0.0, " from 0 on")


def _label(value: Any) -> str:
    # A table without a label there may hold NaN.
    named = isinstance(value, (str, int)) or (isinstance(value, float) and math.isfinite(value))
    if not named or not str(value).strip():
        raise _BadLine(f"the label is {value!r:.60}, not a name or a number")
    return str(value).strip()


def _truth(value: Any) -> int:
    word = _label(value).lower()
    for truth, words in enumerate((("0", "0.0", "false"), ("1", "1.0", "true"))):
        if word in words:
            return truth
    raise _BadLine(f"the label is {value!r:.60}, not 0 or 1; say what it stands for: --labels {word}=1")


# Of the last column, where it is no text.
_VALUES: Mapping[str, Callable[[Any], Any]] = {
    "STS": _score,
    "PairClassification": _truth,
    "Classification": _label,
    "Clustering": _label,
    "Reranking": _grade,
    "Retrieval": _grade,
}


# Draws


def drawn(labels: Sequence[object], limit: int | None, seed: int) -> list[int]:
    """Which rows are used: all, or so many, one at least of each label and otherwise as many as its share."""
    if limit is None or limit >= len(labels):
        return list(range(len(labels)))
    groups: dict[object, list[int]] = {}
    for row in shuffled(range(len(labels)), seed, "limit"):
        groups.setdefault(labels[row], []).append(row)
    ranked = [
        ((rank + 0.5) / len(group) if rank else 0.0, order, row)
        for order, group in enumerate(groups.values())
        for rank, row in enumerate(group)
    ]
    return sorted(row for *_, row in sorted(ranked)[:limit])


def shuffled(rows: Sequence[int], seed: int, purpose: str) -> list[int]:
    """An order that depends on the seed and nothing else: no version of a library can change a draw."""
    return sorted(rows, key=lambda row: hashlib.sha256(f"{seed}:{purpose}:{row}".encode()).digest())
