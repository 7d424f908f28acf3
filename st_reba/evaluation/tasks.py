"""Labelled tasks: pairs, classes, clusters, rankings, word senses and entities, read from files."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..tables import read_table

if TYPE_CHECKING:
    import pandas as pd

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
# Files of pairs without a header or quotes: separator, fields, places of score and texts. STS-B-zh; STSBenchmark, where
# some rows have more fields; SemEval.
_BARE = (("||", 4, (3, 1, 2)), ("\t", 7, (4, 5, 6)), ("\t", 3, (0, 1, 2)))
_TRUE = {"1": 1, "1.0": 1, "true": 1, "0": 0, "0.0": 0, "false": 0}


@dataclass(frozen=True)
class Task:
    """Labelled items over a list of texts.

    Args:
        name: What tables call it.
        kind: One of ``KINDS``; or ``"Views"``, of unlabelled texts.
        texts: Each once; the queries of a ranking stand in front. Vectors are a row a text.
        items: What is scored: places of texts first, then what is known: a score, a label, (documents, grades), …
        train: What a classifier learns from, over the same texts; empty: the items are scored in five folds.
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
        least = 1 if self.kind in ("WordSense", "Views") else _FEWEST
        if len(self.items) < least:
            left = "".join(f"; {number} rows dropped: {reason}" for reason, number in self.dropped.items())
            raise ValueError(f"{self.name}: {len(self.items)} items, but {least} are needed{left}.")
        if bool(self.train) and self.kind not in ("Classification", "NER") or (self.kind == "NER" and not self.train):
            raise ValueError(f"{self.name}: {self.kind} {'needs' if self.kind == 'NER' else 'takes no'} train=….")
        if self.kind in ("Classification", "Clustering", "PairClassification", "STS"):
            values = {item[-1] for item in self.items}
            if len(values) < 2:
                raise ValueError(f"{self.name}: all {len(self.items)} items have the value {values.pop()!r}.")
        known = {item[-1] for item in self.train}
        if known and self.kind == "Classification" and (missing := {item[-1] for item in self.items} - known):
            raise ValueError(f"{self.name}: no text of train has the label {min(missing)!r}.")

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
        source: A DataFrame; a file or folder of named columns that :func:`st_reba.tables.read_table` reads;
            STSBenchmark's and SemEval's tab-separated files without a header; ``id||text1||text2||score`` lines; a
            BEIR folder; SLPWC's columns or ``{word: {sense: [sentences]}}`` (kind WordSense); CoNLL lines (kind NER).
        kind: One of ``KINDS``; None: the first of ``ROLES`` whose columns are there.
        name: None: the file's name.
        train: What a classifier learns from, read alike.
        columns: The column of a role, such as ``{"text1": "a"}``, where it has another name than usual.
        labels: Value of each label, such as ``{"entailment": 1, "contradiction": 0}``; other rows are dropped.
        limit: Use so many items, drawn by the seed; of a ranking so many queries.
        seed: Of that draw, and of the questions that are drawn from senses.

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
    kind = None if kind is None else _kind(kind)
    if limit is not None and limit < 1:
        raise ValueError(f"limit={limit} must be 1 at least.")
    from .words import entity_task, word_sense_task

    path = Path(source) if isinstance(source, (str, os.PathLike)) else None
    name = name or ("table" if path is None else path.name.partition(".")[0] if path.is_file() else path.name)
    if kind == "NER" or (path is not None and path.suffix == ".conll"):
        _refuse("NER", columns=columns, labels=labels)
        return entity_task(name, source, train, limit, seed)
    if path is not None and path.is_dir() and (path / "corpus.jsonl").is_file():
        _refuse("a BEIR folder", columns=columns, labels=labels, train=train)
        return _ranking(name, kind or "Retrieval", *_beir(path), limit, seed)
    if kind == "WordSense" or _is_questions(path):
        _refuse("WordSense", columns=columns, labels=labels, train=train)
        return word_sense_task(source, name=name, limit=limit, seed=seed)
    kind, rows, dropped = labelled_rows(source, kind, columns, labels)
    if kind in ("Reranking", "Retrieval"):
        _refuse(kind, train=train)
        judged: dict[str, dict[str, float]] = {}
        for query, document, grade in rows:
            grades = judged.setdefault(query, {})
            grades[document] = max(grade, grades.get(document, grade))
        return _ranking(name, kind, judged, [text for _, text, _ in rows], limit, seed, dropped)
    known = [] if train is None else labelled_rows(train, kind, columns, labels)[1]
    width = 1 if kind in ("Classification", "Clustering") else 3 if kind == "Triples" else 2
    place: dict[str, int] = {}
    items, learnt = (
        tuple((*(place.setdefault(text, len(place)) for text in row[:width]), *row[width:]) for row in part)
        for part in (drawn(rows, limit, seed), known)
    )
    return Task(name, kind, tuple(place), items, learnt, dropped=dropped)


def _kind(word: str) -> str:
    for each in KINDS:
        if each.casefold() == word.casefold():
            return each
    raise ValueError(f"kind={word!r} is not known. Choose from {', '.join(KINDS)}.")


def _refuse(kind: str, **given: Any) -> None:
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
    import pandas as pd

    if isinstance(source, pd.DataFrame):
        return source
    path = Path(source) if isinstance(source, (str, os.PathLike)) else None
    if path is None or not path.is_file() or path.suffix not in (".tsv", ".csv", ".txt"):
        return read_table(source)
    lines = path.read_text(encoding="utf-8").split("\n")
    for separator, fields, places in _BARE:
        cells = lines[0].split(separator)
        if (len(cells) == fields or len(cells) > fields > 4) and _is_number(cells[places[0]]):
            rows = [line.split(separator) for line in lines if line]
            if wrong := [number for number, row in enumerate(rows, 1) if len(row) < fields]:
                raise ValueError(f"{path}, line {wrong[0]}: {fields} fields between {separator!r} are needed.")
            return pd.DataFrame([[row[place] for place in places] for row in rows], columns=["score", "text1", "text2"])
    return read_table(source)


def labelled_rows(
    source: Any, kind: str | None = None, columns: Mapping[str, str] | None = None, labels: Any = None
) -> tuple[str, list[tuple[Any, ...]], dict[str, int]]:
    """Read a table; arguments as for `read_task`.

    Returns:
        The kind, each row's values in the order of ``ROLES``, and counts of what was dropped.
    """
    columns = columns or {}
    frame = frame_of(source)
    there = list(map(str, frame.columns))
    if missing := [column for column in columns.values() if column not in there]:
        raise ValueError(f"columns: there is no {missing[0]!r}. The columns are {', '.join(there[:20])}.")

    def column(role: str) -> str | None:
        return columns.get(role) or next((name for name in COLUMNS[role] if name in there), None)

    for each, roles in ROLES.items():
        names = [column(role) or (column("label") if role == "score" and kind else None) for role in roles]
        if None not in names and len(set(names)) == len(names) and kind in (None, each):
            kind = each
            break
    else:
        wanted = ROLES.get(kind or "", ("text1", "text2", "score"))
        raise ValueError(
            f"The columns {', '.join(there[:20])} are not {', '.join(wanted)}: name them, columns={{{wanted[0]!r}: …}}."
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
        try:
            rows.append((*map(_text, texts), _value(kind, last)))
        except ValueError as error:
            raise ValueError(f"row {number}: {error}") from None
    return kind, rows, dropped


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"{value!r:.60} is no text.")
    return value


def _value(kind: str, value: Any) -> Any:
    """A row's last value: a text, a number, 0 or 1, or a label."""
    if kind == "Triples":
        return _text(value)
    if value is None or value != value or not str(value).strip():
        raise ValueError("the label or score is missing.")
    if kind in ("STS", "Reranking", "Retrieval"):
        if not _is_number(value):
            raise ValueError(
                f"{value!r} is no number. For classes of pairs take kind='PairClassification' and labels=…."
            )
        return float(value)
    if kind == "PairClassification":
        if str(value).lower() not in _TRUE:
            raise ValueError(f"the label {value!r} is not 0 or 1: say what it stands for, labels={{{value!r}: 1, …}}.")
        return _TRUE[str(value).lower()]
    return str(value)


def _is_number(value: Any) -> bool:
    try:
        return float(value) - float(value) == 0
    except (TypeError, ValueError):
        return False


def _is_questions(path: Path | None) -> bool:
    if path is None or path.suffix not in (".csv", ".tsv") or not path.is_file():
        return False
    with open(path, encoding="utf-8-sig") as stream:
        header = stream.readline()
    return "选项4" in header or "sentence4" in header


def _beir(folder: Path) -> tuple[dict[str, dict[str, float]], list[str]]:
    """The grades of each query, and all documents, of a BEIR folder; judgements of test where there are several."""

    def records(name: str) -> dict[str, str]:
        texts = {}
        for line in (folder / name).read_text(encoding="utf-8").splitlines():
            record = json.loads(line)
            texts[str(record["_id"])] = " ".join(filter(None, (record.get("title"), record["text"]))).strip()
        return texts

    documents, queries = records("corpus.jsonl"), records("queries.jsonl")
    files = {file.stem: file for file in sorted((folder / "qrels").glob("*.tsv"))}
    if not files:
        raise ValueError(f"{folder}: there is no qrels/*.tsv.")
    judged: dict[str, dict[str, float]] = {}
    judgements = read_table(files.get("test", next(iter(files.values()))))
    for query, document, grade in judgements.itertuples(index=False, name=None):
        if str(query) not in queries or str(document) not in documents:
            raise ValueError(f"{folder}: qrels name {query!r}, {document!r}, which are not both there.")
        judged.setdefault(queries[str(query)], {})[documents[str(document)]] = float(grade)
    return judged, list(documents.values())


def _ranking(
    name: str,
    kind: str,
    judged: Mapping[str, Mapping[str, float]],
    documents: Iterable[str],
    limit: int | None,
    seed: int,
    dropped: Mapping[str, int] | None = None,
) -> Task:
    """A ranking: of reranking only the judged documents are ranked, of retrieval all."""
    usable = [
        query
        for query, grades in judged.items()
        if any(grades.values()) and (kind == "Retrieval" or not all(grades.values()))
    ]
    what = "a relevant document" if kind == "Retrieval" else "both relevant and irrelevant documents"
    without = {f"queries without {what}": len(judged) - len(usable)} if len(usable) < len(judged) else {}
    chosen = drawn(usable, limit, seed)
    ranked = list(dict.fromkeys(documents if kind == "Retrieval" else (text for one in chosen for text in judged[one])))
    place = {text: len(chosen) + number for number, text in enumerate(ranked)}
    items = tuple(
        (number, tuple(place[text] for text in judged[query]), tuple(map(float, judged[query].values())))
        for number, query in enumerate(chosen)
    )
    return Task(name, kind, (*chosen, *ranked), items, queries=len(chosen), dropped={**(dropped or {}), **without})
