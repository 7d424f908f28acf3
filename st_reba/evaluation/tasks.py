"""Labelled tasks: pairs, classes, clusters, rankings, word senses and entities, read from files."""

from __future__ import annotations

import logging
import math
import os
import random
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from ..corpus.tables import is_dataset, read_table
from .beir import is_beir_folder, read_beir
from .numbers import LARGEST_NUMBER, is_number

logger = logging.getLogger(__name__)

# Names of columns by what they hold, the first that is there counts.
COLUMNS: dict[str, tuple[str, ...]] = {
    "text1": ("text1", "sentence1", "sentence_1", "sent1", "s1", "premise"),
    "text2": ("text2", "sentence2", "sentence_2", "sent2", "s2", "hypothesis"),
    "score": ("score", "similarity", "similarity_score", "gold"),
    "text": ("text", "sentence", "review", "content", "title", "body"),
    "label": ("label", "labels", "class", "category"),
    "query": ("query", "question"),
    "document": ("document", "passage", "title", "text", "answer"),
    "relevance": ("relevance", "grade", "score", "label"),
    "anchor": ("anchor",),
    "positive": ("positive", "pos"),
    "negative": ("negative", "neg"),
}
# Columns of questions about a word: SLPWC's and WSD's, and the same in English.
QUESTIONS = (
    ("问题", "选项1", "选项2", "选项3", "选项4", "答案"),
    ("word", "sentence1", "sentence2", "sentence3", "sentence4", "answer"),
)
# What a row of each kind holds. Where no kind is given, the first whose columns are there.
ROLES: dict[str, tuple[str, ...]] = {
    "Triples": ("anchor", "positive", "negative"),
    "Reranking": ("query", "document", "relevance"),
    "STS": ("text1", "text2", "score"),
    "PairClassification": ("text1", "text2", "label"),
    "Classification": ("text", "label"),
    "Clustering": ("text", "label"),
    "Retrieval": ("query", "document", "relevance"),
}
KINDS = (*ROLES, "WordSense", "NER")
_FEWEST = 10
# A classifier that is given no texts to learn from is tried in so many folds.
FOLDS = 5
# Files of pairs without a header or quotes: separator, fields, places of score and texts. STS-B-zh; STSBenchmark, where
# some rows have more fields; SemEval.
_BARE = (("||", 4, (3, 1, 2)), ("\t", 7, (4, 5, 6)), ("\t", 3, (0, 1, 2)))
_TRUE = {"1": 1, "1.0": 1, "true": 1, "0": 0, "0.0": 0, "false": 0}


@dataclass(frozen=True)
class Task:
    """Labelled items over a list of texts.

    Args:
        name: Its name in tables.
        kind: One of ``KINDS``; or ``"Views"``, of unlabelled texts.
        texts: Each once; the queries of a ranking stand in front. Vectors are a row a text.
        items: The scored items: places of texts first, then what is known: a score, a label, (documents, grades), …
        train: Items that a classifier learns from, over the same texts; empty: the items are scored in five folds.
        queries: How many of the texts are queries.
        spans: For words: the characters (start, end) of each text that its vector stands for; empty: whole texts.
        groups: A group an item; items of one group are alike, and are drawn together in a bootstrap.
        dropped: Rows that could not be used, counted by reason.

    Raises:
        ValueError: Too few items, or a label that there is nothing to learn from.
    """

    name: str
    kind: str
    texts: tuple[str, ...]
    items: tuple[tuple[Any, ...], ...]
    train: tuple[tuple[Any, ...], ...] = ()
    queries: int = 0
    spans: tuple[tuple[int, int], ...] = ()
    groups: tuple[str, ...] = ()
    dropped: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        least = 1 if self.kind in ("WordSense", "Views", "Reranking", "Retrieval") else _FEWEST
        if len(self.items) < least:
            raise ValueError(f"{self}; {least} are needed.")
        if self.kind == "Retrieval" and len(self.texts) - self.queries < 2:
            raise ValueError(f"{self.name}: a ranking of one document says nothing. Give two documents at least.")
        needs, takes = self.kind == "NER", self.kind in ("NER", "Classification")
        if needs > bool(self.train) or (self.train and not takes):
            raise ValueError(f"{self.name}: {self.kind} {'needs' if needs else 'takes no'} train=… (--train FILE).")
        if self.kind in ("Classification", "Clustering", "PairClassification", "STS"):
            values, known = {item[-1] for item in self.items}, {item[-1] for item in self.train}
            if len(values) < 2:
                raise ValueError(f"{self.name}: all {len(self.items)} items have the value {values.pop()!r}.")
            if known and not values <= known:
                raise ValueError(f"{self.name}: no text of train has the label {min(values - known)!r}.")
        if self.kind == "Classification" and not self.train:
            self._check_folds()

    def _check_folds(self) -> None:
        label_counts = Counter(label for _, label in self.items)
        remedy = "Give more items, or the texts to learn from: train=… (--train FILE)."
        if max(label_counts.values()) < FOLDS:
            raise ValueError(f"{self.name}: no label has {FOLDS} texts, as {FOLDS} folds need. {remedy}")
        text_count = len({place for place, _ in self.items})
        if text_count < FOLDS:
            raise ValueError(f"{self.name}: {text_count} different texts are too few for {FOLDS} folds. {remedy}")

    def __str__(self) -> str:
        dropped = "".join(f", {number} dropped ({reason})" for reason, number in self.dropped.items())
        train = f", {len(self.train)} to learn from" if self.train else ""
        return f"{self.name}: {self.kind}, {len(self.items)} items{train}{dropped}"


def read_task(
    source: Any,
    kind: str | None = None,
    *,
    name: str | None = None,
    train: Any = None,
    columns: Mapping[str, str] | None = None,
    labels: Mapping[Any, Any] | None = None,
    limit: int | None = None,
    seed: int = 0,
) -> Task:
    """Read a labelled task; docs/how-to/evaluate.md lists the kinds, their columns and scores.

    Args:
        source: A DataFrame; a file or folder of named columns that :func:`st_reba.corpus.tables.read_table` reads;
            STSBenchmark's and SemEval's tab-separated files without a header; ``id||text1||text2||score`` lines; a
            BEIR folder; CoNLL lines (kind NER).
        kind: One of ``KINDS``; None: WordSense, or the first of ``ROLES``, whose columns are there.
        name: None: the file's name.
        train: Source of the items that a classifier learns from, read alike.
        columns: The column of a role, such as ``{"text1": "a"}``, where it has another name than usual.
        labels: Value of each label, such as ``{"entailment": 1, "contradiction": 0}``; other rows are dropped.
        limit: Use so many items, drawn by the seed; of a ranking so many queries.
        seed: Seed of that draw.

    Raises:
        ValueError: Columns or values that the kind cannot use.

    Example:
        >>> import pandas as pd
        >>> pairs = pd.DataFrame({"text1": list("abcdefghijk"), "text2": list("kjihgfedcba"), "score": range(11)})
        >>> print(read_task(pairs, name="letters"))
        letters: STS, 11 items
    """
    if isinstance(source, Task):
        return source
    if kind is not None:
        if kind.casefold() not in (kinds := {each.casefold(): each for each in KINDS}):
            raise ValueError(f"kind={kind!r} is not known. Choose from {', '.join(KINDS)}.")
        kind = kinds[kind.casefold()]
    from .words import entity_task, word_sense_task

    check_source(source)
    check_source(train)
    path = Path(source) if isinstance(source, (str, os.PathLike)) else None
    name = name or ("table" if path is None else path.name.partition(".")[0] if path.is_file() else path.name)
    if kind == "NER" or (path is not None and path.suffix == ".conll"):
        _refuse("NER", columns=columns, labels=labels, kind=None if kind == "NER" else kind)
        return entity_task(name, source, train, limit, seed)
    if path is not None and is_beir_folder(path):
        other = None if kind in ("Reranking", "Retrieval") else kind
        _refuse("a BEIR folder", columns=columns, labels=labels, train=train, kind=other)
        beir = read_beir(path)
        return _ranking(name, kind or "Retrieval", beir.grades, beir.documents, beir.dropped, limit, seed)
    frame = frame_of(source)
    if kind == "WordSense" or (kind is None and any({*each} <= {*frame.columns} for each in QUESTIONS)):
        _refuse("WordSense", columns=columns, labels=labels, train=train)
        return word_sense_task(frame, name=name, limit=limit, seed=seed)
    table_name = "the table" if path is None else str(path)
    kind, rows, dropped = _labelled_rows(frame, kind, columns, labels, table_name)
    if kind in ("Reranking", "Retrieval"):
        _refuse(kind, train=train)
        judged: dict[str, dict[str, float]] = {}
        for query, document, grade in rows:
            grades = judged.setdefault(query, {})
            grades[document] = max(grade, grades.get(document, grade))
        return _ranking(name, kind, judged, [text for _, text, _ in rows], dropped, limit, seed)
    train_name = "train" if isinstance(train, pd.DataFrame) else str(train)
    known = [] if train is None else _labelled_rows(frame_of(train), kind, columns, labels, train_name)[1]
    width = len(ROLES[kind]) - (kind != "Triples")
    place: dict[str, int] = {}
    items, learnt = (
        tuple((*(place.setdefault(text, len(place)) for text in row[:width]), *row[width:]) for row in part)
        for part in (drawn(rows, limit, seed), known)
    )
    return Task(name, kind, tuple(place), items, learnt, dropped=dropped)


def check_source(source: Any) -> None:
    """Refuse what cannot be read as a table before it is opened: a pipe would never end.

    Raises:
        FileNotFoundError: Nothing is there.
        ValueError: It is no file and no folder of a layout that is known.
    """
    if not isinstance(source, (str, os.PathLike)):
        return
    path = Path(source)
    if not str(source).strip():
        raise ValueError(f"the path {str(source)!r} is empty. Give a file or a folder.")
    if not path.exists():
        raise FileNotFoundError(f"{path}: no such file or folder")
    if path.is_dir() and not is_beir_folder(path) and not is_dataset(path):
        raise ValueError(
            f"{path} is a folder, but neither in BEIR's layout (corpus.jsonl, queries.jsonl, qrels/*.tsv) "
            "nor saved by the datasets library. Give a file."
        )
    if not path.is_dir() and not path.is_file():
        raise ValueError(f"{path} is no file but a pipe or a device. Give a file.")


def warn_of_dropped(task: Task) -> None:
    """Say aloud what of a task is not scored."""
    if task.dropped:
        logger.warning("%s", task)


def _refuse(kind: str, /, **given: Any) -> None:
    for name, value in given.items():
        if value is not None:
            raise ValueError(f"{name}={value!r:.60}: {kind} takes none. Drop it.")


def drawn(rows: Sequence[Any], limit: int | None, seed: int) -> list[Any]:
    """So many of the rows, in their order; the draw depends on the seed and their number."""
    if limit is None or limit >= len(rows):
        return list(rows)
    return [rows[place] for place in sorted(random.Random(seed).sample(range(len(rows)), limit))]


def frame_of(source: Any) -> pd.DataFrame:
    """A source's rows with named columns; the field's files without a header get names."""
    if isinstance(source, pd.DataFrame):
        return source
    path = Path(source)
    if path.suffix not in (".tsv", ".csv", ".txt"):
        return read_table(path)
    try:
        lines = path.read_text(encoding="utf-8-sig").split("\n")
    except (OSError, UnicodeDecodeError):
        return read_table(path)
    for separator, fields, places in _BARE:
        cells = lines[0].split(separator)
        if (len(cells) == fields or len(cells) > fields > 4) and is_number(cells[places[0]]):
            rows = [line.split(separator) for line in lines if line]
            if wrong := [number for number, row in enumerate(rows, 1) if len(row) < fields]:
                raise ValueError(f"{path}, line {wrong[0]}: {fields} fields between {separator!r} are needed.")
            return pd.DataFrame([[row[place] for place in places] for row in rows], columns=["score", "text1", "text2"])
    return read_table(path)


def _labelled_rows(
    frame: pd.DataFrame, kind: str | None, columns: Mapping[str, str] | None, labels: Any, table_name: str
) -> tuple[str, list[tuple[Any, ...]], dict[str, int]]:
    """The kind, each row's values in the order of ``ROLES``, and counts of what was dropped."""
    columns = columns or {}
    if frame.empty:
        raise ValueError(f"{table_name}: there are no rows. Give {_FEWEST} at least, below the names of the columns.")
    there = list(map(str, frame.columns))
    if unknown := columns.keys() - COLUMNS.keys():
        raise ValueError(f"columns (--column): {min(unknown)!r} is no role. The roles are {', '.join(COLUMNS)}.")
    if missing := [column for column in columns.values() if column not in there]:
        columns_there = ", ".join(there[:20])
        raise ValueError(f"columns (--column): there is no {missing[0]!r} in {table_name}, but {columns_there}.")

    def column(role: str) -> str | None:
        return columns.get(role) or next((name for name in COLUMNS[role] if name in there), None)

    for each, roles in ROLES.items():
        names = [column(role) or (column("label") if role == "score" and kind else None) for role in roles]
        if None not in names and len(set(names)) == len(names) and kind in (None, each):
            kind = each
            break
    else:
        wanted = ROLES.get(kind or "", ("text1", "text2", "score"))
        columns_there, example = ", ".join(there[:20]), f"columns={{{wanted[0]!r}: …}} (--column {wanted[0]}=…)"
        raise ValueError(
            f"{table_name}: the columns {columns_there} are not {', '.join(wanted)}: name them, {example}."
        )
    rows, dropped = [], dict[str, int]()
    values = {str(label): value for label, value in (labels or {}).items()}
    for number, row in enumerate(frame[names].itertuples(index=False, name=None), 1):
        *texts, last = row
        if labels is not None:
            if str(last) not in values:
                dropped["its label"] = dropped.get("its label", 0) + 1
                continue
            last = values[str(last)]
        cells: list[Any] = []
        for column_name, cell in zip(names, (*texts, last), strict=True):
            try:
                cells.append(_text(cell) if len(cells) < len(texts) else _value(kind, cell))
            except ValueError as error:
                raise ValueError(f"{table_name}, row {number}, column {column_name!r}: {error}") from None
        rows.append(tuple(cells))
    return kind, rows, dropped


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"{value!r:.60} is no text.")
    return value


def _value(kind: str, value: Any) -> Any:
    if kind == "Triples":
        return _text(value)
    if value is None or value != value or not str(value).strip():
        raise ValueError("the label or score is missing.")
    if kind in ("STS", "Reranking", "Retrieval"):
        if not is_number(value):
            raise ValueError(_why_no_score(value))
        return float(value)
    if kind == "PairClassification":
        if str(value).lower() not in _TRUE:
            example = f"labels={{{value!r}: 1, …}} (--label {value}=1)"
            raise ValueError(f"the label {value!r:.60} is not 0 or 1: say what it stands for, {example}.")
        return _TRUE[str(value).lower()]
    return str(value)


def _why_no_score(value: Any) -> str:
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if math.isfinite(number):
        return f"{value!r:.60} is too large; scores are at most {LARGEST_NUMBER:.0e}."
    remedy = "For classes take kind='PairClassification' (--kind) and labels=… (--label)."
    return f"{value!r:.60} is no number. {remedy}"


def _ranking(
    name: str,
    kind: str,
    judged: Mapping[str, Mapping[str, float]],
    documents: Iterable[str],
    dropped: Mapping[str, int],
    limit: int | None,
    seed: int,
) -> Task:
    every = kind == "Retrieval"
    # A grade below 0 is that of an irrelevant document.
    judged = {query: {text: max(0.0, grade) for text, grade in each.items()} for query, each in judged.items()}
    usable = [one for one, grades in judged.items() if any(grades.values()) and (every or not all(grades.values()))]
    if len(usable) < len(judged):
        what = "a relevant document" if every else "both relevant and irrelevant documents"
        dropped = {**dropped, f"queries without {what}": len(judged) - len(usable)}
    chosen = drawn(usable, limit, seed)
    ranked = list(dict.fromkeys(documents if every else (text for one in chosen for text in judged[one])))
    place = {text: len(chosen) + number for number, text in enumerate(ranked)}
    items = tuple(
        (number, tuple(place[text] for text in judged[query]), tuple(judged[query].values()))
        for number, query in enumerate(chosen)
    )
    return Task(name, kind, (*chosen, *ranked), items, queries=len(chosen), dropped=dropped)
