"""Words in their sentences: which of four sentences uses a word in another sense, and entities."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from ..words import words_of
from .tasks import QUESTIONS, Task, drawn

_OPTIONS = "ABCD"
_QUOTED = re.compile("“([^”]+)”|「([^」]+)」|『([^』]+)』|‘([^’]+)’|\"([^\"]+)\"|'([^']+)'")


def word_sense_task(table: pd.DataFrame, *, name: str = "words", limit: int | None = None, seed: int = 0) -> Task:
    """Questions: in which of four sentences does a word (its first occurrence) mean something else?

    Args:
        table: With the columns 问题 (the word in quotation marks), 选项1 to 选项4 and 答案 (A to D), as SLPWC and WSD
            were published; or word, sentence1 to sentence4, answer.
        name, limit, seed: As for :func:`~st_reba.evaluation.tasks.read_task`.

    Raises:
        ValueError: The columns are missing, or no question can be used.

    Source:
        ReBA, section 4 and appendix (SLPWC, WSD).

    Example:
        >>> import pandas as pd
        >>> texts = ["The bank pays.", "A bank lends.", "The bank is steep.", "My bank shut."]
        >>> task = word_sense_task(pd.DataFrame([["bank", *texts, "C"]], columns=list(QUESTIONS[1])))
        >>> task.texts[2], task.spans[2], task.items
        ('The bank is steep.', (4, 8), (((0, 1, 2, 3), 2),))
    """
    columns = next((each for each in QUESTIONS if {*each} <= {*table.columns}), None)
    if columns is None:
        wanted = " or ".join(", ".join(names) for names in QUESTIONS)
        raise ValueError(f"{name}: the columns {', '.join(map(str, table.columns))} are not {wanted}. Rename them.")
    dropped: Counter[str] = Counter()
    questions = []
    for row in table[list(columns)].itertuples(index=False, name=None):
        asked, *sentences, answer = (str(each).strip() for each in row)
        quoted = _QUOTED.search(asked) if columns is QUESTIONS[0] else None
        word = next(group for group in quoted.groups() if group).strip() if quoted else asked
        if not word or (columns is QUESTIONS[0] and not quoted):
            dropped["no word"] += 1
        elif not all(sentences):
            dropped["a sentence is missing"] += 1
        elif len(answer) != 1 or answer.upper() not in _OPTIONS:
            dropped[f"the answer is none of {', '.join(_OPTIONS)}"] += 1
        elif not all(found := [words_of(sentence, word) for sentence in sentences]):
            dropped["the word is not in a sentence"] += 1
        else:
            questions.append(([each[0] for each in found], _OPTIONS.index(answer.upper())))
    place: dict[tuple[str, tuple[int, int]], int] = {}
    items = []
    for four, answer in drawn(questions, limit, seed):
        items.append((tuple(place.setdefault(each, len(place)) for each in four), answer))
    texts, where = tuple(text for text, _ in place), tuple(span for _, span in place)
    return Task(name, "WordSense", texts, tuple(items), spans=where, dropped=dict(dropped))


TaggedSentence = tuple[tuple[str, ...], tuple[str, ...]]
"""The words of a sentence, and their tags."""


def read_conll(path: str | os.PathLike[str]) -> list[TaggedSentence]:
    """Read CoNLL lines: a word first, and the tags in the last column that holds some; empty lines end a sentence.

    Raises:
        ValueError: The file cannot be read, or no column holds tags.
    """
    if not Path(path).is_file():
        raise ValueError(f"{path} is no file: entities are read from CoNLL lines. Give a file.")
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: not UTF-8, at byte {error.start:,}. Save it as UTF-8.") from None
    sentences = []
    for block in text.replace("\r", "").split("\n\n"):
        lines = [line.split() for line in block.splitlines() if line.strip()]
        if lines and lines[0][0] != "-DOCSTART-":
            sentences.append(lines)
    column = _find_tag_column([cells for lines in sentences for cells in lines])
    if column is None:
        raise ValueError(f"{path}: no column holds tags such as O, B-PER, I-PER.")
    return [(tuple(cells[0] for cells in lines), tuple(cells[column] for cells in lines)) for lines in sentences]


def _find_tag_column(lines: Sequence[Sequence[str]]) -> int | None:
    """The last column in which every cell is a tag."""
    column_count = min(map(len, lines), default=0)
    for column in range(column_count - 1, 0, -1):
        if all(cells[column] == "O" or cells[column][1:2] == "-" for cells in lines):
            return column
    return None


def entity_task(name: str, source: Any, train: Any, limit: int | None, seed: int) -> Task:
    """Sentences of CoNLL lines: a word first, and the last column that holds IOB tags."""

    place: dict[str, int] = {}
    items, learnt = (
        tuple((place.setdefault(" ".join(each[0]), len(place)), *each) for each in drawn(part, limit, seed))
        for part in (read_conll(source), [] if train is None else read_conll(train))
    )
    return Task(name, "NER", tuple(place), items, learnt)


def tagged_words(task: Task) -> list[tuple[str, tuple[int, int]]]:
    """Every word of a task of entities with its text, in characters, text after text."""
    words, found = {item[0]: item[1] for item in (*task.items, *task.train)}, []
    for place, text in enumerate(task.texts):
        end = -1
        for word in words[place]:
            start, end = end + 1, end + 1 + len(word)
            found.append((text, (start, end)))
    return found
