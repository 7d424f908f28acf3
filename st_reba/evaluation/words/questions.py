"""Files of words in sentences → questions with four sentences, one of which is the odd one out."""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ...tables import csv_rows
from ...words import Item
from ..labelled import content
from .draw import draw, in_order, read_senses

CHINESE = ("问题", "选项1", "选项2", "选项3", "选项4", "答案")
ENGLISH = ("word", "sentence1", "sentence2", "sentence3", "sentence4", "answer")
OPTIONS = "ABCD"
# Changes where the same questions would be answered or scored in another way.
PROTOCOL = "odd one out, 1"
# What the published files are called in tables.
_KNOWN = {"slpwc_v1": "SLPWC", "wsd_v1": "WSD", "wsd_senses": "WSD senses"}
_QUOTED = re.compile("“([^”]+)”|「([^」]+)」|『([^』]+)』|‘([^’]+)’|\"([^\"]+)\"|'([^']+)'")


@dataclass(frozen=True)
class Question:
    """A word in four sentences.

    Args:
        name: For people: where it stood in its file, and the word.
        word: The word.
        sentences: (sentence, (start, end)) each, in characters, end excluded: where the word stands.
        answer: Which sentence uses it in another sense, from 0.
    """

    name: str
    word: str
    sentences: tuple[Item, ...]
    answer: int


@dataclass(frozen=True)
class WordTask:
    """Questions of one file.

    Args:
        name: As tables call it.
        questions: Those that can be used.
        left_out: Those that cannot: the reason, and their names.
        seed: Of the draw; None: nothing was drawn.
    """

    name: str
    questions: tuple[Question, ...]
    left_out: Mapping[str, list[str]] = field(default_factory=dict)
    seed: int | None = None

    @property
    def fingerprint(self) -> str:
        """SHA-256 over the questions in their order and the protocol; the file's name and place do not matter."""
        values = [[each.word, each.sentences, each.answer] for each in self.questions]
        content = json.dumps([PROTOCOL, values, self.left_out], ensure_ascii=False)
        return hashlib.sha256(content.encode(errors="surrogatepass")).hexdigest()


def read_words(path: str | os.PathLike[str], *, limit: int | None = None, seed: int = 0) -> WordTask:
    """Read a file of word-sense questions.

    ==============  ==================================================================================================
    file            holds
    ==============  ==================================================================================================
    .csv, .tsv      a question a row: columns 问题 (the word between quotation marks), 选项1 to 选项4 and 答案 (A to D),
                    as SLPWC and WSD were published; or word, sentence1 to sentence4, answer. Others are not looked at.
    .json           ``{word: {sense: [sentences]}}``: of each word three sentences of one sense and one of another are
                    drawn, and put in an order, by the seed.
    ==============  ==================================================================================================

    In a sentence that holds its word several times, the first occurrence counts (of a word in plain Latin letters, the
    first that is no part of a longer one, if there is such).

    Args:
        path: The file, in UTF-8.
        limit: Use so many questions, drawn by the seed.
        seed: Of the draws, which depend on nothing else: no version of a library changes them.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: The file has other columns or another shape, is empty, is not UTF-8, or holds no usable question.

    Example:
        >>> with open("banks.csv", "w", encoding="utf-8") as file:
        ...     _ = file.write("word,sentence1,sentence2,sentence3,sentence4,answer\\n")
        ...     _ = file.write("bank,The bank pays.,A bank lends.,The bank is steep.,My bank shut.,C\\n")
        >>> task = read_words("banks.csv")
        >>> task.name, len(task.questions), task.questions[0].sentences[2]
        ('banks', 1, ('The bank is steep.', (4, 8)))
    """
    path = Path(path)
    suffix = path.suffix.lower()
    if suffix not in (".csv", ".tsv", ".json"):
        raise ValueError(f"{path}: word senses are read from .csv, .tsv (a question a row) and .json (senses).")
    if limit is not None and (isinstance(limit, bool) or limit < 1):
        raise ValueError(f"limit={limit!r} must be a whole number from 1 on, or None.")
    text = content(path)
    if not text.strip():
        raise ValueError(f"{path}: the file is empty.")
    rows = _drawn(path, text, seed) if suffix == ".json" else _table(path, text, "\t" if suffix == ".tsv" else ",")
    questions: list[Question] = []
    left_out: dict[str, list[str]] = {}
    for name, one in rows:
        if isinstance(one, Question):
            questions.append(one)
        else:
            left_out.setdefault(one, []).append(name)
    if not questions:
        reasons = "; ".join(f"{len(names)}: {reason}" for reason, names in left_out.items())
        raise ValueError(f"{path}: no question can be used ({reasons or 'there are no rows below the header'}).")
    drawn = suffix == ".json"
    if limit is not None and limit < len(questions):
        drawn = True
        chosen = in_order([str(index) for index in range(len(questions))], seed, "limit")[:limit]
        questions = [questions[index] for index in sorted(map(int, chosen))]
    name = _KNOWN.get(path.stem.lower(), path.stem)
    return WordTask(name, tuple(questions), left_out, seed if drawn else None)


def word_span(word: str, sentence: str) -> tuple[int, int] | None:
    """Where a word first stands in a sentence, in characters; None: nowhere.

    Example:
        >>> word_span("art", "The party of art"), word_span("意思", "这意思是什么意思"), word_span("art", "party")
        ((13, 16), (1, 3), (1, 4))
    """
    start = sentence.find(word)
    if word.isascii():
        # Chinese writes no borders between words; a Latin word is better looked for by itself first.
        alone = re.search(rf"(?<![0-9A-Za-z]){re.escape(word)}(?![0-9A-Za-z])", sentence)
        start = alone.start() if alone else start
    return None if start < 0 else (start, start + len(word))


def _question(name: str, word: str, sentences: list[str], answer: int) -> Question | str:
    spans = [word_span(word, sentence) for sentence in sentences]
    if any(span is None for span in spans):
        return "the word is not in a sentence"
    items = tuple((sentence, span) for sentence, span in zip(sentences, spans, strict=True) if span is not None)
    return Question(name, word, items, answer)


def _table(path: Path, text: str, delimiter: str) -> Iterator[tuple[str, Question | str]]:
    """Each row's name, and its question or why there is none."""
    for line, header, row in csv_rows(io.StringIO(text, newline=""), path, delimiter):
        names = next((names for names in (CHINESE, ENGLISH) if set(names) <= set(header)), None)
        if names is None:
            raise ValueError(
                f"{path}: no columns {', '.join(CHINESE)}, or {', '.join(ENGLISH)}; there are "
                f"{[name[:60] for name in header[:20]]}. Name the columns in the file's first line."
            )
        if row is header:
            continue
        if len(row) != len(header):
            raise ValueError(f"{path}, line {line}: {len(row)} fields, but the header has {len(header)}. Correct it.")
        values = dict(zip(header, row, strict=True))
        asked, *sentences, answer = (values[name] for name in names)
        word = asked.strip() if names is ENGLISH else _quoted(asked)
        name = f"line {line}" + (f" ({word})" if word else "")
        letter = answer.strip().upper()
        if not word:
            yield name, "no word" if names is ENGLISH else "no word between quotation marks"
        elif not all(sentence.strip() for sentence in sentences):
            yield name, "a sentence is missing"
        elif len(letter) != 1 or letter not in OPTIONS:
            yield name, f"the answer is none of {', '.join(OPTIONS)}"
        else:
            yield name, _question(name, word, sentences, OPTIONS.index(letter))


def _quoted(question: str) -> str:
    found = _QUOTED.search(question)
    return "" if found is None else next(group for group in found.groups() if group).strip()


def _drawn(path: Path, text: str, seed: int) -> Iterator[tuple[str, Question | str]]:
    """Each word, and its question or why there is none."""
    for word, senses in read_senses(path, text).items():
        usable = {
            sense: [sentence for sentence in sentences if word_span(word, sentence)]
            for sense, sentences in senses.items()
        }
        drawn = draw(word, usable, seed)
        yield word, drawn if isinstance(drawn, str) else _question(word, word, *drawn)
