"""Tasks: labelled items, and where they came from."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from inspect import signature
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import yaml

from ..modules.options import unknown
from .columns import content, suffix
from .items import Classes, Items, Vectors, scored
from .reading import Reader, Source, shuffled
from .statistics import Evidence
from .words import Questions


@dataclass(frozen=True)
class Task:
    """Labelled items, and where they came from.

    Args:
        name: What people call it.
        items: What is scored.
        train: What a classifier learns from, where that is kept apart.
        left_out: What cannot be used: the reason, and which lines, words or queries.
        how: How the columns were read, for people.

    Raises:
        ValueError: There are too few items, or what is to be learnt from does not fit them.
    """

    name: str
    items: Items
    train: Items | None = None
    left_out: Mapping[str, list[str]] = field(default_factory=dict)
    how: str = ""

    # The instructions that belong to it, as mteb's tasks may have: none.
    prompts: ClassVar[None] = None

    def __post_init__(self) -> None:
        for part, what in ((self.items, "items"), (self.train, "items to learn from")):
            if part is not None and len(part) < part.fewest:
                raise ValueError(
                    f"{self.name}: {len(part)} {what}, but {part.fewest} are needed at the least. Use a larger file, "
                    "or raise --limit."
                )
        if self.train is not None and not self.items.learns:
            raise ValueError(f"{self.name}: nothing is trained on {self.items.kind}. Drop train=…")
        if isinstance(self.train, Classes):
            asked, known = ({label for _, label in part.items} for part in (self.items, self.train))
            if strange := sorted(asked - known):
                raise ValueError(
                    f"{self.name}: it has the label {strange[0]!r}, which there is no text of to learn from; those are "
                    f"{sorted(known)[:20]}. Take files of the same labels."
                )

    @property
    def kind(self) -> str:
        """Of its items."""
        return self.items.kind

    @property
    def names(self) -> list[str]:
        """By which instructions may name it."""
        return [self.name]

    @property
    def fingerprint(self) -> str:
        """Changes with the items, and with nothing else."""
        return self.items.fingerprint + (f"+{self.train.fingerprint}" if self.train is not None else "")

    @cached_property
    def whole(self) -> Items:
        """All items: what a classifier learns from, where that is kept apart, and behind it what is scored."""
        return self.items if self.train is None else self.train.joined(self.items)

    def evidence(self, vectors: Vectors) -> Evidence:
        """What vectors of the whole say about each item that is scored."""
        if self.train is None:
            return scored(self.items, vectors)
        first = len(self.train)
        return self.whole.evidence(vectors, np.arange(first, first + len(self.items)), np.arange(first))

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
    labels: Mapping[Any, Any] | None = None,
    limit: int | None = None,
    seed: int = 0,
    bad_lines: Literal["error", "skip"] = "error",
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
    options: Any = (columns or {}, labels, bad_lines, separator, subtoken, limit, seed)
    reader = Reader(kind, *options)
    items = reader.read(source)
    learnt = None
    if train is not None:
        other = Reader(items.kind, *options)
        learnt = other.read(train)
        for reason, names in other.left_out.items():
            reader.left_out.setdefault(reason, []).extend(names)
    if name is None:
        path = Path(source if isinstance(source, (str, os.PathLike)) else next(iter(source.values())))
        name = path.name.removesuffix(".gz").removesuffix(suffix(path)) or path.resolve().name
    return Task(name, items, learnt, reader.left_out, reader.how)


def read_tasks(words: Sequence[str], **options: Any) -> list[Task]:
    """Tasks as people name them on a command line.

    Args:
        words: A file, ``KIND=FILE``, or a ``.yaml`` file with a list of arguments of :func:`read_task`, whose files
            are relative to it (``file`` or ``files`` for the source).
        **options: Further arguments of :func:`read_task`, for all of them; those of a ``.yaml`` file come first, but
            of two limits the smaller counts.

    Raises:
        ValueError: As :func:`read_task`.
    """
    found: list[Task] = []
    for word in words:
        head, equals, rest = word.partition("=")
        if word.endswith((".yaml", ".yml")) and not equals:
            found += _listed(Path(word), options)
        elif equals and head.isalpha() and not Path(word).exists():
            found.append(read_task(rest, head, **options))
        else:
            found.append(read_task(word, **options))
    return found


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
    reader = Reader(kind, **options)
    if reader.kind == "NER":
        items: Items = reader.tags([(words, tags) for words, tags in rows])
    elif reader.kind == "WordSense":
        items = reader.limited(Questions.of((word, list(sentences), answer) for word, *sentences, answer in rows))
    else:
        items = reader.made(name, reader.kind or "", ((f"row {n}", tuple(row)) for n, row in enumerate(rows)))
    return Task(name, items, None, reader.left_out)


def _listed(path: Path, options: Mapping[str, Any]) -> list[Task]:
    """The tasks of a YAML file."""
    try:
        entries = yaml.safe_load(content(path))
    except yaml.YAMLError as error:
        raise ValueError(f"{path}: not YAML ({error}).") from None
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise ValueError(f"{path}: write a list of tasks, each with kind and file, as '- kind: STS'.")
    allowed = ["file", "files", *(name for name in signature(read_task).parameters if name != "source")]

    def beside(source: Any) -> Any:
        if isinstance(source, Mapping):
            return {role: path.parent / str(file) for role, file in source.items()}
        return path.parent / str(source)

    found = []
    for number, entry in enumerate(entries, 1):
        if wrong := [key for key in entry if key not in allowed]:
            raise ValueError(f"{path}, task {number}: {unknown(repr(wrong[0]), wrong[0], allowed)}")
        if ("file" in entry) == ("files" in entry):
            raise ValueError(f"{path}, task {number}: give either file or files.")
        given = {**options, **entry}
        source = given.pop("file", None) or given.pop("files")
        limits = [each["limit"] for each in (options, entry) if each.get("limit") is not None]
        given["limit"] = min(limits, default=None)
        if "train" in entry:
            given["train"] = beside(entry["train"])
        found.append(read_task(beside(source), **given))
    return found
