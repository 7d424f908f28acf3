"""Named entities: sentences with a tag for each word, which a linear classifier learns from the vectors of words."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ...optional import required
from ..measures import classify
from ..tables import Location
from ..task import Evidence, Task, TaskKind, TextIndex, TextSpan, Vectors, declare_kind
from ..task_source import TaskSource


class TaggedSentence(NamedTuple):
    """Words, and the tag of each."""

    words: tuple[str, ...]
    tags: tuple[str, ...]


Item = tuple[int, tuple[str, ...], tuple[str, ...]]
"""Index of a text, its words, their tags."""


def read_conll(location: Location | None) -> list[TaggedSentence]:
    """Read CoNLL lines: a word first, and the tags in the last column that holds some; blank lines end a sentence.

    Raises:
        ValueError: The file cannot be read, or no column holds tags.
    """
    if location is None:
        return []
    if not isinstance(location, (str, os.PathLike)) or not Path(location).is_file():
        raise ValueError(
            f"{location!r:.80} is not a file: entities are read from CoNLL lines. Give a file."
        )
    path = Path(location)
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: not UTF-8, at byte {error.start:,}. Save it as UTF-8.") from None
    sentences = _split_sentences(text)
    tag_column = _find_tag_column([cells for sentence in sentences for cells in sentence])
    if tag_column is None:
        raise ValueError(f"{path}: no column holds tags such as O, B-PER, I-PER.")
    tagged_sentences: list[TaggedSentence] = []
    for sentence_lines in sentences:
        words = tuple(cells[0] for cells in sentence_lines)
        tags = tuple(cells[tag_column] for cells in sentence_lines)
        tagged_sentences.append(TaggedSentence(words, tags))
    return tagged_sentences


def _split_sentences(text: str) -> list[list[list[str]]]:
    """The cells of each line of each sentence; a sentence ends at a blank line, and where a document starts."""
    sentences: list[list[list[str]]] = [[]]
    for line in text.split("\n"):
        cells = line.split()
        if cells and cells[0] != "-DOCSTART-":
            sentences[-1].append(cells)
        else:
            sentences.append([])
    return [sentence for sentence in sentences if sentence]


def _find_tag_column(sentence_lines: Sequence[Sequence[str]]) -> int | None:
    """The last column in which every cell is a tag."""
    column_count = min(map(len, sentence_lines), default=0)
    for column in range(column_count - 1, 0, -1):
        if all(cells[column] == "O" or cells[column][1:2] == "-" for cells in sentence_lines):
            return column
    return None


def _index_sentences(
    sentences: Iterable[TaggedSentence], texts: TextIndex[str]
) -> tuple[Item, ...]:
    return tuple((texts.add(" ".join(words)), words, tags) for words, tags in sentences)


def entity_score(evidence: Evidence, denominators: Sequence[int]) -> float:
    """F1, precision or recall: the right entities of those that are predicted, expected, or both.

    Args:
        evidence: As :meth:`NER.evidence` gives it.
        denominators: Columns whose sums are the denominators: predicted, expected, or both.
    """
    entity_count = evidence[:, denominators].sum()
    if not entity_count:
        return 0.0
    return float(len(denominators) * evidence[:, 0].sum() / entity_count)


class NER(TaskKind):
    """How many entities are found whole."""

    name = "NER"
    detection_order = 10
    metrics = {
        "entity_f1": partial(entity_score, denominators=[1, 2]),
        "precision": partial(entity_score, denominators=[1]),
        "recall": partial(entity_score, denominators=[2]),
    }
    main_metric = "entity_f1"
    takes_train = True
    needs_train = True

    def matches(self, task_source: TaskSource) -> bool:
        """Files whose name ends in .conll."""
        return task_source.is_conll

    def read(self, task_source: TaskSource) -> Task:
        """Read sentences; the limit also applies to those that a classifier learns from."""
        task_source.refuse(self.name, "columns", "labels", "encoding")
        texts: TextIndex[str] = TextIndex()
        tagged_items = _index_sentences(
            task_source.subsample(read_conll(task_source.location)), texts
        )
        train = _index_sentences(task_source.subsample(read_conll(task_source.train)), texts)
        return Task(task_source.task_name, self.name, texts.texts, tagged_items, train)

    def list_words(self, task: Task) -> list[TextSpan]:
        """Every word, text after text."""
        text_spans: list[TextSpan] = []
        for text, words in zip(task.texts, _words_of_texts(task), strict=True):
            start = 0
            for word in words:
                end = start + len(word)
                text_spans.append((text, (start, end)))
                start = end + 1
        return text_spans

    def evidence(self, task: Task, vectors: Vectors) -> Evidence:
        """Entities of each sentence that are right, predicted and expected; vectors have one row per word."""
        get_entities = required("seqeval.metrics.sequence_labeling", "evaluation").get_entities
        ends = np.cumsum(list(map(len, _words_of_texts(task))))
        rows_of_text = np.split(vectors, ends[:-1])
        train_vectors = np.concatenate(
            [rows_of_text[text_index] for text_index, _, _ in task.train]
        )
        train_tags = [tag for _, _, tags in task.train for tag in tags]
        vectors_of_items = np.concatenate(
            [rows_of_text[text_index] for text_index, _, _ in task.items]
        )
        predicted_tags = iter(classify(train_vectors, train_tags, vectors_of_items))
        counts: list[list[int]] = []
        for _, words, tags in task.items:
            expected = set(get_entities(list(tags)))
            predicted = set(get_entities([next(predicted_tags) for _ in words]))
            counts.append([len(expected & predicted), len(predicted), len(expected)])
        return np.asarray(counts, np.float64)


def _words_of_texts(task: Task) -> list[tuple[str, ...]]:
    """The words of each text."""
    words_of_text = {text_index: words for text_index, words, _ in (*task.items, *task.train)}
    return [words_of_text[text_index] for text_index in range(len(task.texts))]


declare_kind(NER())
