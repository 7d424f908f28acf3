"""Files of labelled items → tasks: one reader for every kind."""

from __future__ import annotations

import csv
import hashlib
import math
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import yaml

from ..corpus.records import Reject, clean_text
from ..modules.options import unknown
from .columns import ROLES, TABLES, TITLE, TOLD, Table, beir_files, content, first_line, lines, suffix
from .items import Classes, Clusters, Items, LabelledPairs, Ranking, Retrieval, ScoredPairs, Tags, Triples
from .words import Questions, read_questions

KINDS: Mapping[str, type[Items]] = {
    each.kind: each
    for each in (ScoredPairs, LabelledPairs, Triples, Classes, Clusters, Ranking, Retrieval, Tags, Questions)
}
Source = str | os.PathLike[str] | Mapping[str, str | os.PathLike[str]]
BadLines = Literal["error", "skip"]

_TABLE_SUFFIXES = (".csv", ".tsv", ".jsonl", ".json", ".ndjson", ".parquet")
_UNFIT = {
    "Reranking": "queries without both a relevant and an irrelevant document",
    "Retrieval": "queries without a relevant document",
}
_TAG = re.compile(r"O|[BIES]-\S+")
# STSBenchmark has no header: genre, file, year, number, score, sentence, sentence.
_STSB_SCORE, _STSB_FIELDS = 4, 7


@dataclass(frozen=True)
class Task:
    """Labelled items, and where they came from.

    Args:
        name: What people call it.
        items: What is scored.
        train: What a classifier learns from, where that is kept apart.
        left_out: What cannot be used: the reason, and which lines, words or queries.
        how: How the columns were read, for people.
    """

    name: str
    items: Items
    train: Items | None = None
    left_out: Mapping[str, list[str]] = field(default_factory=dict)
    how: str = ""

    def __post_init__(self) -> None:
        for part, what in ((self.items, "items"), (self.train, "items to learn from")):
            if part is not None and len(part) < part.fewest:
                raise ValueError(
                    f"{self.name}: {len(part)} {what}, but {part.fewest} are needed at the least. Use a larger file, "
                    "or raise --limit."
                )
        if self.train is not None and not self.items.learns:
            raise ValueError(f"{self.name}: nothing is trained on {self.items.kind}. Drop train=…")

    @property
    def kind(self) -> str:
        """Of its items."""
        return self.items.kind

    @property
    def fingerprint(self) -> str:
        """Changes with the items, and with nothing else."""
        return self.items.fingerprint + (f"+{self.train.fingerprint}" if self.train is not None else "")

    def __str__(self) -> str:
        trained = f", {len(self.train)} more to learn from" if self.train is not None else ""
        left = sum(map(len, self.left_out.values()))
        return (
            f"{self.name}: {self.kind}, {len(self.items)} items{trained}"
            + (f", {left} left out" if left else "")
            + (f" ({self.how})" if self.how else "")
        )


def read_task(
    source: Source,
    kind: str | None = None,
    *,
    name: str | None = None,
    train: Source | None = None,
    columns: Mapping[str, str] | None = None,
    labels: Mapping[str, Any] | None = None,
    limit: int | None = None,
    seed: int = 0,
    bad_lines: BadLines = "error",
    separator: str = " ",
    subtoken: Literal["first", "last"] = "first",
) -> Task:
    """Read labelled items from a file.

    ==================  ==========================================  ===================================================
    kind                columns                                     score
    ==================  ==========================================  ===================================================
    STS                 text1, text2, score                         Spearman's correlation of cosine and score
    PairClassification  text1, text2, label (0 or 1)                average precision
    Triples             anchor, positive, negative                  how often the positive is nearer
    Classification      text, label                                 accuracy of a logistic regression
    Clustering          text, label                                 v-measure of k-means
    Reranking           query, document, relevance (0, 1, 2, …)     MAP over the documents judged for a query
    Retrieval           query, document, relevance                  nDCG@10 over all documents
    NER                 a word and its tag a line                   entity F1 of a logistic regression
    WordSense           word, sentence1 to sentence4, answer        how often the odd one out is found
    ==================  ==========================================  ===================================================

    Args:
        source: ``.csv``, ``.tsv`` (with a header), ``.jsonl``, ``.json`` (a list, or an object a line), ``.parquet``;
            ``id||text1||text2||score`` lines, STSBenchmark's own files, CoNLL lines, each also with ``.gz``; of a
            ranking also a folder as BEIR has it. Or a mapping of roles to files:
            ``{"text": "titles.txt", "label": "topics.txt"}``, line n of each belonging together;
            ``{"queries": …, "documents": …, "relevance": …}``.
        kind: What it holds; None: the columns tell. Reranking, Retrieval, PairClassification and Clustering have the
            columns of other kinds, so they must be named.
        name: What results call it; None: the file's name.
        train: What a classifier learns from; None: the items are scored in five parts, each by what the others teach.
        columns: The column of a role, where its name is not guessed.
        labels: What stands for each label, as ``{"entailment": 1, "contradiction": 0}``; others are left out.
        limit: Use so many items, drawn by the seed: of each label its share; of a ranking queries. Retrieval then
            searches only the documents that these judge, which is easier.
        seed: Of the draw, which no version of a library changes.
        bad_lines: ``"error"``, or ``"skip"``: leave out what cannot be read, and name it.
        separator: Between two words of a tagged sentence; "" in Chinese.
        subtoken: Which token stands for a tagged word of several.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: The kind does not show, a column is missing (the message has those that are there), a line cannot
            be read, or there are too few items.

    Example:
        >>> with open("pairs.tsv", "w", encoding="utf-8") as file:
        ...     _ = file.write("s1\\ts2\\tscore\\n")
        ...     _ = file.writelines(f"text {n}\\ttext {n % 7}\\t{n % 5}\\n" for n in range(40))
        >>> print(read_task("pairs.tsv"))
        pairs: STS, 40 items (text1 from 's1', text2 from 's2', score from 'score')
    """
    named = {str(label): value for label, value in labels.items()} if labels is not None else None
    options: Any = (dict(columns or {}), named, bad_lines, separator, subtoken, limit, seed)
    reader = _Reader(None if kind is None else kind_named(kind), *options)
    made = reader.read(source)
    learnt = None
    if train is not None:
        other = _Reader(made.kind, *options)
        learnt = other.read(train)
        _same_labels(made, learnt, str(source))
        for reason, names in other.left_out.items():
            reader.left_out.setdefault(reason, []).extend(names)
    if name is None:
        path = Path(source if isinstance(source, (str, os.PathLike)) else next(iter(source.values())))
        name = path.name.removesuffix(".gz").removesuffix(suffix(path)) or path.resolve().name
    return Task(name, made, learnt, reader.left_out, reader.how)


def read_tasks(words: Sequence[str], **options: Any) -> list[Task]:
    """Tasks as people name them on a command line.

    Args:
        words: A file, ``KIND=FILE``, or a ``.yaml`` file with a list of arguments of :func:`read_task`, whose files
            are relative to it (``file`` or ``files`` for the source).
        **options: Further arguments of :func:`read_task`, for all of them; those of a ``.yaml`` file come first, but
            of two limits the smaller counts.

    Raises:
        ValueError: As :func:`read_task`; or two tasks have one name.
    """
    found: list[Task] = []
    for word in words:
        head, equals, rest = word.partition("=")
        if word.endswith((".yaml", ".yml")) and not equals:
            found += _listed(Path(word), options)
        elif equals and head.isalpha() and not Path(word).exists():
            found.append(read_task(rest, kind_named(head), **options))
        else:
            found.append(read_task(word, **options))
    names = [task.name for task in found]
    if twice := [name for name in names if names.count(name) > 1]:
        raise ValueError(f"two tasks are called {twice[0]!r}, so tables could not tell them apart. Rename a file.")
    return found


def kind_named(word: str) -> str:
    """A kind, however its letters are written."""
    for each in KINDS:
        if each.casefold() == word.casefold():
            return each
    raise ValueError(unknown(f"kind={word!r}", word, list(KINDS)))


def in_parts(task: Task, shares: Mapping[str, float], seed: int = 0) -> dict[str, Items]:
    """The items in parts, drawn by the seed, so that no two parts ask for the same.

    Args:
        task: The task.
        shares: By part, what share of the items; together 1.
        seed: Of the draw.

    Returns:
        The parts. Items that ask for the same (the same text, the same two texts in either order, the same query)
        stand in one part; labels have their shares in each.

    Example:
        >>> task = make_task("STS", [(f"text {n}", f"text {n + 1}", n) for n in range(40)], "numbers")
        >>> {name: len(part) for name, part in in_parts(task, {"validation": 0.5, "heldout": 0.5}).items()}
        {'validation': 20, 'heldout': 20}
    """
    items = task.items
    strata: dict[str, list[list[int]]] = {}
    for rows in items.same():
        strata.setdefault(items.label(items.items[rows[0]]), []).append(rows)
    found: dict[str, list[int]] = {name: [] for name in shares}
    done = 0
    for label, together in sorted(strata.items()):
        for place in shuffled(range(len(together)), seed, label):
            rows = together[place]
            done += len(rows)
            # To the part that lacks most of its share: so rare labels, too, are spread over the parts.
            lacking = max(shares, key=lambda name: shares[name] * done - len(found[name]))
            found[lacking] += rows
    return {name: items.subset(sorted(rows)) for name, rows in found.items()}


def make_task(kind: str, rows: Iterable[Sequence[Any]], name: str = "items", **options: Any) -> Task:
    """A task of rows in memory.

    Args:
        kind: See :func:`read_task`.
        rows: The values of its columns, in the order of that table; of NER (words, tags), of WordSense (word, four
            sentences, the odd one's number from 0).
        name: What results call it.
        **options: ``limit``, ``seed``, ``separator``, ``subtoken`` as there.

    Example:
        >>> make_task("Triples", [("cat", "kitten", "ship")] * 10).items.items[0]
        (0, 1, 2)
    """
    kind = kind_named(kind)
    reader = _Reader(kind, **options)
    if kind == "NER":
        items: Items = reader.tags([(tuple(words), tuple(tags)) for words, tags in rows])
    elif kind == "WordSense":
        items = reader.limited(Questions.of((word, list(sentences), answer) for word, *sentences, answer in rows))
    else:
        items = reader.made(name, kind, [(f"row {number}", tuple(row)) for number, row in enumerate(rows)])
    return Task(name, items, None, reader.left_out)


# Reading


class _BadLine(ValueError):
    """What is wrong with one line, and the remedy."""


@dataclass
class _Reader:
    """One source's reading: what is asked of it, and what it leaves out."""

    kind: str | None = None
    columns: dict[str, str] = field(default_factory=dict)
    labels: Mapping[str, Any] | None = None
    bad_lines: BadLines = "error"
    separator: str = " "
    subtoken: str = "first"
    limit: int | None = None
    seed: int = 0
    left_out: dict[str, list[str]] = field(default_factory=dict)
    how: str = ""

    def __post_init__(self) -> None:
        if self.limit is not None and (type(self.limit) is not int or self.limit < 1):
            raise ValueError(f"limit={self.limit!r} must be a whole number from 1 on (--limit).")
        for name, value, allowed in (
            ("bad_lines", self.bad_lines, ("error", "skip")),
            ("subtoken", self.subtoken, ("first", "last")),
        ):
            if value not in allowed:
                raise ValueError(unknown(f"{name}={value!r}", value, allowed))

    def read(self, source: Source) -> Items:
        if isinstance(source, Mapping):
            files = {role: Path(file) for role, file in source.items()}
            return self._ranking(files) if set(files) == set(TABLES) else self._parallel(files)
        path = Path(source)
        if path.is_dir():
            return self._ranking(beir_files(path))
        first = first_line(path)
        if self.kind == "NER":
            return self._tagged(path)
        if self.kind in (None, "STS", "PairClassification") and (split := _headerless(path, first)):
            return self._fixed(path, *split)
        if self.kind == "WordSense" or (self.kind is None and _is_words(path, first)):
            self.how = "questions"
            questions, self.left_out = read_questions(path, seed=self.seed)
            return self.limited(questions)
        if suffix(path) in _TABLE_SUFFIXES:
            return self._table(path)
        if self.kind is not None:
            raise ValueError(
                f"{path}: {self.kind} is read from .csv, .tsv, .jsonl, .json or .parquet, not from {first!r:.80}"
            )
        return self._tagged(path)

    def _table(self, path: Path) -> Items:
        table = Table(path, TOLD if self.kind is None else {self.kind: ROLES[self.kind]}, self.columns)
        rows = list(self._kept(table))
        self.how = ", ".join(f"{role} from {name!r}" for role, name in table.names.items())
        return self.made(path, table.kind or "", rows)

    def _kept(self, table: Table) -> Iterator[tuple[str, tuple[Any, ...]]]:
        for record in table.records():
            if isinstance(record, Reject):
                self._bad(record.place, record.reason)
            else:
                yield record

    def made(self, where: object, kind: str, rows: Iterable[tuple[str, tuple[Any, ...]]]) -> Items:
        """Items of rows, each with its place and the values of the kind's roles."""
        found = []
        for place, row in rows:
            try:
                if (item := self._item(kind, row)) is not None:
                    found.append(item)
            except _BadLine as error:
                self._bad(place, str(error))
        if not found:
            reasons = "; ".join(f"{len(names)}: {reason}" for reason, names in self.left_out.items())
            raise ValueError(f"{where}: no line is left to use ({reasons or 'there is none below the header'}).")
        if kind in _UNFIT:
            judged: dict[str, dict[str, float]] = {}
            for query, document, grade in found:
                _judge(judged.setdefault(query, {}), document, grade)
            return self._judged(kind, judged)
        place_of: dict[str, int] = {}
        texts = len(ROLES[kind]) - (kind != "Triples")
        numbered = [
            (*(place_of.setdefault(text, len(place_of)) for text in item[:texts]), *item[texts:]) for item in found
        ]
        items = self.limited(KINDS[kind](tuple(place_of), tuple(numbered)))
        if kind != "Triples" and len({item[-1] for item in items.items}) < 2:
            role, value = [*ROLES[kind]][-1], items.items[0][-1]
            raise ValueError(f"{where}: all {len(items)} items have the {role} {value!r}; two are needed.")
        return items

    def _item(self, kind: str, row: tuple[Any, ...]) -> tuple[Any, ...] | None:
        """The values of a row, checked; None: its label leaves it out."""
        roles = ROLES[kind]
        if len(row) != len(roles):
            raise _BadLine(f"{len(row)} values, but {kind} has {len(roles)}: {', '.join(roles)}")
        *texts, marked = row
        if (value := self._value(kind, marked, texts[0])) is None:
            return None
        return (*(_text(text, role) for text, role in zip(texts, roles, strict=False)), value)

    def _value(self, kind: str, marked: Any, name: object) -> Any:
        """The last value of a row; None: its label leaves it out."""
        if self.labels is not None and kind != "Triples":
            label = _label(f"{marked:g}" if isinstance(marked, float) else marked)
            if self.labels.get(label) is None:
                self.left_out.setdefault(f"label {label!r}", []).append(str(name)[:40])
                return None
            marked = self.labels[label]
        return _VALUES[kind](marked)

    def limited(self, items: Items) -> Items:
        """As many of the items as the limit allows, of each label its share."""
        if self.limit is None or self.limit >= len(items):
            return items
        return items.subset(drawn([items.label(item) for item in items.items], self.limit, self.seed))

    def _judged(self, kind: str, judged: Mapping[str, Mapping[str, float]], others: Iterable[str] = ()) -> Items:
        def fits(grades: Mapping[str, float]) -> bool:
            return any(grades.values()) and (kind == "Retrieval" or not all(grades.values()))

        usable = {query: grades for query, grades in judged.items() if fits(grades)}
        if unfit := [query for query in judged if query not in usable]:
            self.left_out[_UNFIT[kind]] = unfit
        if not usable:
            raise ValueError(f"{kind}: all {len(judged)} are {_UNFIT[kind]}.")
        queries = list(usable)
        chosen = {queries[row]: usable[queries[row]] for row in drawn([""] * len(queries), self.limit, self.seed)}
        if kind == "Reranking":
            return Ranking.of(chosen)
        # All documents are searched, those of queries that cannot be scored too; of a sample only its own.
        every = [*others, *(text for grades in judged.values() for text in grades)]
        return Retrieval.of(chosen, every if len(chosen) == len(usable) else ())

    # Files without a header

    def _fixed(self, path: Path, split: Callable[[str], tuple[str, str, str]], layout: str) -> Items:
        if self.columns:
            raise ValueError(f"{path}: columns={self.columns!r}: the file has no header ({layout}). Drop --columns.")
        self.how = layout
        rows = []
        for number, line in lines(path):
            place = f"{path.name}, line {number}"
            try:
                rows.append((place, split(line)))
            except _BadLine as error:
                self._bad(place, str(error))
        return self.made(path, self.kind or "STS", rows)

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
        rows = zip(*columns.values(), strict=True)
        return self.made(files[next(iter(roles))], kind, [(f"line {n}", row) for n, row in enumerate(rows, 1)])

    def _tagged(self, path: Path) -> Items:
        if wrong := [role for role in self.columns if role != "label"]:
            raise ValueError(f"{path}: columns={self.columns!r}: {wrong[0]!r} is not 'label', the one role of tags.")
        sentences = [each for each in _sentences(content(path)) if each[1][0][0] != "-DOCSTART-"]
        column = _tag_column(path, sentences, self.columns.get("label"))
        found = []
        for number, rows in sentences:
            wrong_rows = [fields for fields in rows if len(fields) <= column or not _TAG.fullmatch(fields[column])]
            if wrong_rows:
                shown = " ".join(wrong_rows[0])
                self._bad(
                    f"{path.name}, line {number}",
                    f"the sentence's line {shown!r:.60} has no tag O, B-…, I-… in column {column + 1}",
                )
            else:
                found.append((tuple(fields[0] for fields in rows), tuple(fields[column] for fields in rows)))
        self.how = f"tags in column {column + 1}"
        return self.tags(found, f"{path}: ")

    def tags(self, sentences: Sequence[tuple[tuple[str, ...], tuple[str, ...]]], where: str = "") -> Items:
        """Items of sentences, each its words and their tags."""
        if not any(tag != "O" for _, tags in sentences for tag in tags):
            raise ValueError(f"{where}no entity is tagged, only O.")
        return self.limited(Tags.of(sentences, self.separator, self.subtoken))

    def _ranking(self, files: Mapping[str, Path]) -> Items:
        """Queries, documents and judgements, a table each."""
        kind = self.kind or "Retrieval"
        if kind not in _UNFIT:
            raise ValueError(f"queries, documents and relevance make Reranking or Retrieval, not {kind}.")
        roles = [role for _, names in TABLES.values() for role in names]
        if wrong := [role for role in self.columns if role not in (*roles, *TITLE)]:
            raise ValueError(unknown(f"columns={self.columns!r}: {wrong[0]!r}", wrong[0], roles) + " (--columns)")
        records: dict[str, list[tuple[str, tuple[Any, ...]]]] = {}
        for part, (_, names) in TABLES.items():
            optional = TITLE if part == "documents" else {}
            known = {role: name for role, name in self.columns.items() if role in {**names, **optional}}
            records[part] = list(self._kept(Table(files[part], {part: names}, known, optional)))
        texts: dict[str, dict[str, str]] = {"queries": {}, "documents": {}}
        for part, of in texts.items():
            for place, (key, *rest) in records[part]:
                # A title stands before its text.
                text = " ".join(clean_text(str(each).strip()) for each in reversed(rest) if each)
                if str(key) in of or not text:
                    self._bad(place, f"the id {key!r} {'stands twice' if text else 'has no text'}")
                else:
                    of[str(key)] = text
        judged: dict[str, dict[str, float]] = {text: {} for text in texts["queries"].values()}
        for place, (*keys, marked) in records["relevance"]:
            strange = [(key, part) for key, part in zip(keys, texts, strict=True) if str(key) not in texts[part]]
            try:
                if strange:
                    raise _BadLine(f"the id {strange[0][0]!r} is not in {files[strange[0][1]].name}")
                query, document = (texts[part][str(key)] for key, part in zip(keys, texts, strict=True))
                if (grade := self._value(kind, marked, query)) is not None:
                    _judge(judged[query], document, grade)
            except _BadLine as error:
                self._bad(place, str(error))
        self.how = "queries, documents and relevance"
        return self._judged(kind, judged, texts["documents"].values())

    def _bad(self, place: str, reason: str) -> None:
        if self.bad_lines == "error":
            raise ValueError(
                f"{place}: {reason}. Correct the line, or leave such lines out: bad_lines='skip' (--skip-bad-lines)."
            )
        self.left_out.setdefault("cannot be read", []).append(place)


def _judge(known: dict[str, float], document: str, grade: float) -> None:
    """Of contrary judgements the highest counts."""
    known[document] = max(grade, known.get(document, grade))


def _listed(path: Path, options: Mapping[str, Any]) -> list[Task]:
    """The tasks of a YAML file."""
    try:
        entries = yaml.safe_load(content(path))
    except yaml.YAMLError as error:
        raise ValueError(f"{path}: not YAML ({error}).") from None
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise ValueError(f"{path}: write a list of tasks, each with kind and file, as '- kind: STS'.")
    allowed = ("name", "kind", "file", "files", "train", "columns", "labels", "limit", "seed", "bad_lines")
    found = []
    for number, entry in enumerate(entries, 1):
        if wrong := [key for key in entry if key not in (*allowed, "separator", "subtoken")]:
            raise ValueError(f"{path}, task {number}: {unknown(repr(wrong[0]), wrong[0], [*allowed])}")
        if ("file" in entry) == ("files" in entry):
            raise ValueError(f"{path}, task {number}: give either file or files.")
        given = {**options, **entry}
        source = given.pop("file", None) or given.pop("files")
        limits = [each["limit"] for each in (options, entry) if each.get("limit") is not None]
        given["limit"] = min(limits) if limits else None
        if "train" in entry:
            given["train"] = _beside(path, entry["train"])
        found.append(read_task(_beside(path, source), **given))
    return found


def _beside(path: Path, source: Any) -> Any:
    if isinstance(source, Mapping):
        return {role: path.parent / str(file) for role, file in source.items()}
    return path.parent / str(source)


# Layouts


def _headerless(path: Path, first: str) -> tuple[Callable[[str], tuple[str, str, str]], str] | None:
    """How a line of pairs is split in a file without a header, and what the layout is called; None: it has one."""
    fields = first.split("\t")
    if suffix(path) not in (".jsonl", ".json") and len(fields) >= _STSB_FIELDS and _is_number(fields[_STSB_SCORE]):
        return _stsb, "STSBenchmark, score in column 5"
    if suffix(path) not in _TABLE_SUFFIXES and "||" in first:
        return _bars, "id||text1||text2||score"
    return None


def _stsb(line: str) -> tuple[str, str, str]:
    fields = line.split("\t")
    if len(fields) < _STSB_FIELDS:
        raise _BadLine(f"{len(fields)} fields between tabs, but STSBenchmark has {_STSB_FIELDS} or more")
    return fields[_STSB_SCORE + 1], fields[_STSB_SCORE + 2], fields[_STSB_SCORE]


def _bars(line: str) -> tuple[str, str, str]:
    fields = line.split("||")
    if len(fields) != 4:
        raise _BadLine(f"{len(fields)} fields between ||, but id||text1||text2||score has 4")
    return fields[1], fields[2], fields[3]


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


def _is_number(value: object) -> bool:
    try:
        return not isinstance(value, bool) and math.isfinite(float(value))  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        return False


def _score(value: Any) -> float:
    if not _is_number(value):
        raise _BadLine(
            f"the score is {value!r:.60}, not a number; for classes of pairs name the kind, PairClassification, "
            "and what 1 and 0 are (--labels)"
        )
    return float(value)


def _grade(value: Any) -> float:
    if not _is_number(value) or float(value) < 0:
        raise _BadLine(f"the relevance is {value!r:.60}, not a number from 0 on")
    return float(value)


def _label(value: Any) -> str:
    # A table without a label there may hold NaN.
    named = isinstance(value, (str, int)) or (isinstance(value, float) and math.isfinite(value))
    if not named or not str(value).strip():
        raise _BadLine(f"the label is {value!r:.60}, not a name or a number")
    return str(value).strip()


def _truth(value: Any) -> int:
    word = _label(value).lower()
    if word in ("0", "0.0", "false"):
        return 0
    if word in ("1", "1.0", "true"):
        return 1
    raise _BadLine(f"the label is {value!r:.60}, not 0 or 1; say what it stands for: --labels {word}=1")


_VALUES: Mapping[str, Callable[[Any], Any]] = {
    "STS": _score,
    "PairClassification": _truth,
    "Triples": lambda value: _text(value, "negative"),
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


def _same_labels(items: Items, train: Items, where: str) -> None:
    if not isinstance(items, Classes):
        return
    asked, known = ({item[1] for item in part.items} for part in (items, train))
    if strange := sorted(asked - known):
        raise ValueError(
            f"{where}: it has the label {strange[0]!r}, which there is no text of to learn from; those are "
            f"{sorted(known)[:20]}. Take files of the same labels."
        )
