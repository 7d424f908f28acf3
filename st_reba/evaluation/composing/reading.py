"""Labelled files → parts: items that choose, and items that only report."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np

from ..labelled import BadLines, Labelled, read_labelled
from ..reading import arguments_of, check_draws, divide, sampled, skipped
from .parts import MIN_ITEMS, Classes, Indices, Kind, Pairs, Part, Ranking, Triples, fingerprint

_PARTS: dict[Kind, Any] = {"pairs": Pairs, "triples": Triples, "classes": Classes, "ranking": Ranking}
# How many of an item's values are texts; of a ranking they are grouped first.
_TEXTS: dict[Kind, int] = {"pairs": 2, "triples": 3, "classes": 1}


@dataclass(frozen=True)
class Parted:
    """A labelled file in two parts.

    Args:
        name: For people.
        validation: What choices may look at.
        heldout: What they may not.
        note: How it was read, for people.
        arguments: The command's, its file first, to read it again; empty for what no file holds.
        seed: By which the parts were drawn.
    """

    name: str
    validation: Part
    heldout: Part
    note: str = ""
    arguments: tuple[str, ...] = ()
    seed: int = 0

    def __post_init__(self) -> None:
        for name, part in (("validation", self.validation), ("held-out", self.heldout)):
            if len(part) < MIN_ITEMS:
                raise ValueError(
                    f"{self.name}{f' ({self.note})' if self.note else ''}: {len(part)} items for {name}, but a choice "
                    f"among many methods needs {MIN_ITEMS} at the least. Use a larger file, or another fraction "
                    "(validation=…)."
                )

    @property
    def fingerprint(self) -> str:
        """Changes with the items and their parts."""
        return f"{fingerprint(self.validation)}:{fingerprint(self.heldout)}"

    def describe(self) -> str:
        """In one line: the kind, how it was read, the metric, and the size of each part."""
        how = f" ({self.note})" if self.note else ""
        sizes = f"{len(self.validation)} validation, {len(self.heldout)} held-out"
        if self.shared:
            sizes += f" ({self.shared} of its {len(self.heldout.texts)} texts are in the validation part too)"
        return f"{self.name}: {self.validation.kind}{how}, {self.validation.metric}; {sizes}"

    @property
    def shared(self) -> int:
        """Held-out texts that stand in the validation part too: filters are fitted on them, without their labels."""
        return len(set(self.validation.texts) & set(self.heldout.texts))

    def joined(self) -> tuple[Part, Indices, Indices]:
        """Both parts as one, and the items of each: a classifier learns from the one and is scored on the other."""
        both, cut = self.validation.joined(self.heldout), len(self.validation)
        return both, np.arange(cut), np.arange(cut, len(both))


def part_of(kind: Kind, items: Sequence[tuple[Any, ...]]) -> Part:
    """A part of items that hold their texts.

    Args:
        kind: What they are.
        items: (text, text, score), (text, nearer, farther) or (text, label) each; of a ranking (query, document,
            relevance), a document each, which are put together by their queries.

    Example:
        >>> part_of("triples", [("cat", "kitten", "ship")]).items
        ((0, 1, 2),)
    """
    places: dict[str, int] = {}

    def place(text: str) -> int:
        return places.setdefault(text, len(places))

    made: list[Any] = []
    if kind == "ranking":
        graded = {query: _graded(rows) for query, rows in _by_query(items).items()}
        telling = {query: found for query, found in graded.items() if _tells(found)}
        made = [(place(query), tuple(map(place, found)), tuple(found.values())) for query, found in telling.items()]
    else:
        texts = _TEXTS[kind]
        made = [(*map(place, item[:texts]), *item[texts:]) for item in items]
    return cast(Part, _PARTS[kind](tuple(places), tuple(made)))


def read_parts(
    path: str | os.PathLike[str],
    kind: Kind | None = None,
    *,
    columns: Mapping[str, str] | None = None,
    test: str | os.PathLike[str] | None = None,
    validation: float | None = None,
    limit: int | None = None,
    seed: int = 0,
    bad_lines: BadLines = "error",
) -> Parted:
    """Read a labelled file for a search.

    ========  ==========================================================  ========================================
    kind      file                                                        score
    ========  ==========================================================  ========================================
    pairs     as for :func:`st_reba.evaluation.read_task`                 Spearman of cosine and number
    classes   as there                                                    accuracy of a logistic regression
    triples   ``.csv``, ``.tsv``, ``.jsonl`` with three texts             share in which the second is nearer
    ranking   ``.csv``, ``.tsv``, ``.jsonl`` with a query, a document     nDCG@10 of each query's documents
              and its relevance (0 and more) a line
    ========  ==========================================================  ========================================

    Args:
        path: The file; without ``test`` half of its items choose, and the others report. Of a ranking a query's lines
            stay together, of classes every class is halved. What is asked for in the validation part (a text of
            classes, both texts of a pair, a triple's three, a ranking's query) is left out where the held-out part asks
            for it again.
        kind: What it holds; None: recognized.
        columns: Names of columns that are not guessed, by role: ``text1``, ``text2``, ``score``; ``text``, ``label``;
            ``anchor``, ``positive``, ``negative``; ``query``, ``document``, ``relevance``.
        test: A further file that reports, whole.
        validation: Fraction of ``path`` that chooses.
        limit: Use so many items of each file, drawn by the seed.
        seed: Of the draws.
        bad_lines: ``"error"``, or ``"skip"``: leave out lines that cannot be read.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: The kind does not show or cannot be searched with, a line cannot be read, or items are too few.
    """
    check_draws(limit, seed)
    arguments = arguments_of(
        path,
        columns,
        kind=kind,
        test=test,
        validation=validation,
        limit=limit,
        seed=seed or None,
        skip_bad_lines=bad_lines == "skip",
    )
    main = read_labelled(Path(path), kind, columns, bad_lines)
    if main.kind not in _PARTS:
        raise ValueError(
            f"{path} holds {main.kind}, whose words have vectors of their own: tune them without the composed search "
            "(without --compose)."
        )
    files = {"validation": main}
    if test is not None:
        files["heldout"] = read_labelled(Path(test), main.kind, columns, bad_lines)
    read = {part: _groups(labelled) for part, labelled in files.items()}
    groups = {part: sampled(found, limit, seed) for part, (found, _) in read.items()}
    missing = ["validation"] if test is not None else ["validation", "heldout"]
    groups.update(divide(groups["validation"], missing, validation, seed, stratify=main.kind == "classes"))
    asked = {_asked(main.kind, group) for group in groups["validation"]}
    kept = [group for group in groups["heldout"] if _asked(main.kind, group) not in asked]
    again = len(groups["heldout"]) - len(kept)
    groups["heldout"] = kept
    if main.kind == "ranking":
        groups = {part: [row for rows in found for row in rows] for part, found in groups.items()}
    made = {part: part_of(main.kind, found) for part, found in groups.items()}
    note = main.layout + skipped(main)
    if mute := sum(count for _, count in read.values()):
        note += f"; {mute} queries left out, whose documents are all alike to them"
    if test is not None:
        note += f"; held-out from {Path(test).name}{skipped(files['heldout'])}"
    if again:
        note += f"; {again} left out of held-out, as they are in the validation part"
    return Parted(Path(path).name, made["validation"], made["heldout"], note, arguments, seed)


def _asked(kind: Kind, group: Any) -> Any:
    """What an item, or a query's rows, asks for: it must not both choose and report."""
    if kind == "ranking":
        return group[0][0]
    return frozenset(group[:2]) if kind == "pairs" else tuple(group[: _TEXTS[kind]])


def _groups(labelled: Labelled) -> tuple[list[Any], int]:
    """Items; of a ranking lists of a query's rows, which must stay in one part, and how many tell nothing."""
    if labelled.kind != "ranking":
        return labelled.items, 0
    queries = _by_query(labelled.items)
    # Left out before any is drawn, so that a limit counts what can be scored.
    telling = [rows for rows in queries.values() if _tells(_graded(rows))]
    return telling, len(queries) - len(telling)


def _by_query(rows: Sequence[Any]) -> dict[str, list[Any]]:
    queries: dict[str, list[Any]] = {}
    for row in rows:
        queries.setdefault(row[0], []).append(row)
    return queries


def _graded(rows: Sequence[Any]) -> dict[str, float]:
    """A query's documents and their relevances; of a document that stands there twice the first line counts."""
    found: dict[str, float] = {}
    for _, document, relevance in rows:
        found.setdefault(document, relevance)
    return found


def _tells(graded: Mapping[str, float]) -> bool:
    """Whether a query's documents differ in relevance: else they say nothing of an order."""
    return len(set(graded.values())) > 1
