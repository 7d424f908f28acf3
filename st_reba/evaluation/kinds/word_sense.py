"""Word sense: in which of four sentences does a word mean something else?"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ...words import words_of
from ..measures import column_means
from ..task import Evidence, Task, TaskKind, TextIndex, TextSpan, declare_kind
from ..task_source import TaskSource
from ..vectors import Vectors, normalize_rows

# SLPWC's and WSD's columns, where the word is in quotation marks inside the question.
CHINESE_COLUMNS = ("问题", "选项1", "选项2", "选项3", "选项4", "答案")
QUESTION_COLUMNS = ("word", "sentence1", "sentence2", "sentence3", "sentence4", "answer")
_ANSWERS = ("A", "B", "C", "D")
_QUOTED_WORD = re.compile("“([^”]+)”|「([^」]+)」|『([^』]+)』|‘([^’]+)’|\"([^\"]+)\"|'([^']+)'")
# Sums of distances that differ by less than this share are equal.
_TIE = 1e-9


def find_odd_vectors(vectors: NDArray[np.floating]) -> dict[str, NDArray[np.intp]]:
    """Find the vector of each group whose distances to the others have the largest sum; if several, the first.

    Args:
        vectors: [groups, n, d].

    Returns:
        By distance (``"cosine"``: 1 − cos, ``"euclidean"``), an index from 0 to n − 1 for each
        group.

    Source:
        ReBA, section 4 (word embedding evaluation).

    Example:
        >>> group = np.array([[[1.0, 0.0], [2.0, 0.0], [9.0, 0.0], [1.0, 1.0]]])
        >>> {distance: index.tolist() for distance, index in find_odd_vectors(group).items()}
        {'cosine': [3], 'euclidean': [2]}
    """
    unit_vectors = normalize_rows(vectors, np.float64)
    cosines = unit_vectors @ unit_vectors.swapaxes(1, 2)
    exact_vectors = vectors.astype(np.float64)
    differences = exact_vectors[:, :, None] - exact_vectors[:, None]
    distances = {
        "cosine": np.clip(1 - cosines, 0, 2),
        "euclidean": np.linalg.norm(differences, axis=3),
    }
    odd_vectors: dict[str, NDArray[np.intp]] = {}
    for name, group_distances in distances.items():
        sums = group_distances.sum(axis=2)
        is_largest = sums >= sums.max(axis=1, keepdims=True) * (1 - _TIE)
        odd_vectors[name] = np.argmax(is_largest, axis=1)
    return odd_vectors


def _read_cell(cell: object) -> str:
    return str(cell).strip()


class WordSense(TaskKind):
    """How often the sentence is found in which a word (its first occurrence) means something else.

    Source:
        ReBA, section 4 and appendix (SLPWC, WSD).

    Example:
        >>> import pandas as pd
        >>> from st_reba.evaluation import read_task
        >>> texts = ["The bank pays.", "A bank lends.", "The bank is steep.", "My bank shut."]
        >>> task = read_task(pd.DataFrame([["bank", *texts, "C"]], columns=list(QUESTION_COLUMNS)))
        >>> task.texts[2], task.spans[2], task.items
        ('The bank is steep.', (4, 8), (((0, 1, 2, 3), 2),))
    """

    name = "WordSense"
    # Cells are read as they are: questions that cannot be used are counted.
    column_readers = dict.fromkeys(QUESTION_COLUMNS, _read_cell)
    column_names = {
        role: (role, chinese)
        for role, chinese in zip(QUESTION_COLUMNS, CHINESE_COLUMNS, strict=True)
    }
    detection_order = 30
    metrics = column_means(["accuracy cosine", "accuracy euclidean"])
    main_metric = "accuracy cosine"
    paper_metric = "accuracy euclidean"
    min_items = 1

    def read(self, task_source: TaskSource) -> Task:
        """Read the questions; those that cannot be used are counted."""
        task_source.refuse(self.name, "labels", "train")
        table_rows, _ = task_source.table.read_rows(self.column_readers)
        is_quoted = task_source.table.find_columns(["word"]) == [CHINESE_COLUMNS[0]]
        dropped_counts: Counter[str] = Counter()
        questions: list[tuple[list[TextSpan], int]] = []
        for word, *sentences, answer in table_rows:
            if is_quoted:
                word = find_quoted_word(word)
            try:
                questions.append(read_question(word, sentences, answer.upper()))
            except ValueError as reason:
                dropped_counts[str(reason)] += 1
        words: TextIndex[TextSpan] = TextIndex()
        question_items: list[tuple[tuple[int, ...], int]] = []
        for words_in_sentences, answer_index in task_source.subsample(questions):
            question_items.append((tuple(map(words.add, words_in_sentences)), answer_index))
        texts = tuple(text for text, _ in words.texts)
        spans = tuple(span for _, span in words.texts)
        return Task(
            task_source.task_name,
            self.name,
            texts,
            tuple(question_items),
            spans=spans,
            dropped=dict(dropped_counts),
        )

    def evidence(self, task: Task, vectors: Vectors) -> Evidence:
        """Whether the odd sentence is the right one, by each distance."""
        text_indices, answers = map(np.array, zip(*task.items, strict=True))
        odd_vectors = find_odd_vectors(vectors[text_indices])
        return np.stack([odd == answers for odd in odd_vectors.values()], axis=1).astype(np.float64)


def find_quoted_word(question: str) -> str:
    """The word in quotation marks; empty: there is none."""
    match = _QUOTED_WORD.search(question)
    if match is None:
        return ""
    return match.group(match.lastindex or 0).strip()


def read_question(
    word: str,
    sentences: Sequence[str],
    answer: str,
) -> tuple[list[TextSpan], int]:
    """The word in each sentence, and the index of the answer.

    Raises:
        ValueError: The question cannot be used; the reason is counted.
    """
    if not word:
        raise ValueError("no word")
    if not all(sentences):
        raise ValueError("a sentence is missing")
    if answer not in _ANSWERS:
        raise ValueError(f"the answer is none of {', '.join(_ANSWERS)}")
    words_in_sentences: list[TextSpan] = []
    for sentence in sentences:
        occurrences = words_of(sentence, word)
        if not occurrences:
            raise ValueError("the word is not in a sentence")
        words_in_sentences.append(occurrences[0])
    return words_in_sentences, _ANSWERS.index(answer)


declare_kind(WordSense())
