"""Word senses: in which of four sentences does a word mean something else?"""

from __future__ import annotations

import hashlib
import io
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from ..tables import csv_rows
from .columns import content, suffix
from .encoding import Prompts
from .items import Items, Rows, Vectors, chosen
from .metrics import means
from .statistics import Evidence, Metric

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

    from ..layers import Layers
    from ..words import Item

# Sums of distances that differ by less than this share of the largest are tied: that is rounding.
TIE = 1e-9
# Sentences of the common sense.
ALIKE = 3
_CHINESE = ("问题", "选项1", "选项2", "选项3", "选项4", "答案")
_ENGLISH = ("word", "sentence1", "sentence2", "sentence3", "sentence4", "answer")
_OPTIONS = "ABCD"
_QUOTED = re.compile("“([^”]+)”|「([^」]+)」|『([^』]+)』|‘([^’]+)’|\"([^\"]+)\"|'([^']+)'")
_SHAPE = "{word: {sense: [sentences]}}"


@dataclass(frozen=True)
class Questions(Items):
    """Items (word, where it stands in four sentences, the odd one's number).

    The answer is the sentence whose word vector has the largest sum of distances to the other three; of several, the
    first. ``vectors`` are four rows an item. A row of NaN is a word that the method does not see: its item is wrong.

    Source:
        ReBA, section 4 and appendix (SLPWC, WSD).
    """

    kind: ClassVar[str] = "WordSense"
    main: ClassVar[str] = "accuracy cosine"
    paper: ClassVar[str | None] = "accuracy euclidean"
    fewest: ClassVar[int] = 1
    metrics: ClassVar[Mapping[str, Metric]] = means("accuracy cosine", "accuracy euclidean")

    @classmethod
    def of(cls, questions: Iterable[tuple[str, Sequence[str], int]], names: Sequence[str] = ()) -> Questions:
        """Items of words, each with four sentences that hold it and the number of the odd one."""
        place: dict[str, int] = {}
        items = []
        for word, sentences, answer in questions:
            if len(sentences) != len(_OPTIONS) or answer not in range(len(_OPTIONS)):
                raise ValueError(
                    f"{word!r}: {len(sentences)} sentences, answer {answer!r}; four are needed, and 0 to 3."
                )
            places = []
            for sentence in sentences:
                if (span := word_span(word, sentence)) is None:
                    raise ValueError(f"the word {word!r} does not stand in {sentence!r:.80}")
                places.append((place.setdefault(sentence, len(place)), *span))
            items.append((word, tuple(places), answer))
        return cls(tuple(place), tuple(items), tuple(names) or tuple(word for word, *_ in items))

    @property
    def words(self) -> list[Item]:
        """The word of each row of the vectors, in its sentence."""
        return [(self.texts[text], (start, end)) for item in self.items for text, start, end in item[1]]

    def vectors(self, model: SentenceTransformer, **options: Any) -> Vectors:
        return np.asarray(self.layers(model, "last", **options)[0])

    def layers(
        self, model: SentenceTransformer, layers: Layers, *, prompts: Prompts | None = None, **options: Any
    ) -> NDArray[np.float32]:
        """The vectors by the hidden states of several layers, all from one run: [layers, rows, d]."""
        from ..words import encode_word_layers, unseen_words  # here, as files are read before torch is loaded

        prompt = None if prompts is None else prompts.of(None)
        place = {item: row for row, item in enumerate(dict.fromkeys(self.words))}
        unseen = unseen_words(model, list(place), prompt=prompt)
        run = [item for item, row in place.items() if row not in unseen]
        if not run:
            raise ValueError("the method sees none of the words. Raise --max-tokens.")
        found = encode_word_layers(model, run, layers, prompt=prompt, **options)
        every = np.full((len(found), len(place), found.shape[2]), np.nan, np.float32)
        every[:, [place[item] for item in run]] = found
        return np.asarray(every[:, [place[item] for item in self.words]])

    def evidence(self, vectors: Vectors, rows: Rows | None = None, learn: Rows | None = None) -> Evidence:
        fours = vectors.reshape(len(self), len(_OPTIONS), -1)
        fours = fours if rows is None else fours[rows]
        answers = np.array([answer for *_, answer in chosen(self.items, rows)])
        seen = np.asarray(np.isfinite(fours).all(axis=(1, 2)))
        odd = odd_one_out(np.where(seen[:, None, None], fours, 0.0))
        return np.stack([(odd[name] == answers) & seen for name in ("cosine", "euclidean")], axis=1).astype(np.float64)

    def unseen(self, vectors: Vectors) -> list[str]:
        blind = np.isnan(vectors[:, 0]).reshape(len(self), len(_OPTIONS))
        return [self.names[row] for row in np.flatnonzero(blind.any(axis=1))]

    def texts_of(self, item: tuple[Any, ...]) -> Sequence[int]:
        return [text for text, _, _ in item[1]]

    def moved(self, item: tuple[Any, ...], places: Mapping[int, int]) -> tuple[Any, ...]:
        return (item[0], tuple((places[text], start, end) for text, start, end in item[1]), item[2])


def odd_one_out(vectors: NDArray[np.floating]) -> dict[str, NDArray[np.intp]]:
    """Of each group of vectors, the one whose distances to the others have the largest sum; of several, the first.

    Args:
        vectors: [groups, n, d]. A zero vector has a cosine of 0 with all.

    Returns:
        By distance (``"euclidean"``, ``"cosine"``: 1 − cos), an index from 0 to n − 1 a group.

    Source:
        ReBA, section 4 (word embedding evaluation).

    Example:
        >>> group = np.array([[[1.0, 0.0], [2.0, 0.0], [9.0, 0.0], [1.0, 1.0]]])
        >>> {name: odd.tolist() for name, odd in odd_one_out(group).items()}
        {'euclidean': [2], 'cosine': [3]}
    """
    sums = {name: np.zeros(vectors.shape[:2]) for name in ("euclidean", "cosine")}
    lengths = np.linalg.norm(vectors.astype(np.float64), axis=2)
    # A pair at a time: the vectors of a thousand questions and a large model are not held twice.
    for first, second in combinations(range(vectors.shape[1]), 2):
        one, other = vectors[:, first].astype(np.float64), vectors[:, second].astype(np.float64)
        scale = lengths[:, first] * lengths[:, second]
        dots = np.sum(one * other, axis=1)
        cosine = np.divide(dots, scale, out=np.zeros_like(dots), where=scale > 0)
        apart = {"euclidean": np.linalg.norm(one - other, axis=1), "cosine": np.clip(1 - cosine, 0, 2)}
        for name, distance in apart.items():
            for place in (first, second):
                sums[name][:, place] += distance
    return {name: np.argmax(each >= each.max(axis=1, keepdims=True) * (1 - TIE), axis=1) for name, each in sums.items()}


def read_questions(path: Path, *, seed: int = 0) -> tuple[Questions, dict[str, list[str]]]:
    """Questions of a file, and what cannot be used: the reason, and which.

    ==============  ==================================================================================================
    file            holds
    ==============  ==================================================================================================
    .csv, .tsv      a question a row: columns 问题 (the word between quotation marks), 选项1 to 选项4 and 答案 (A to D),
                    as SLPWC and WSD were published; or word, sentence1 to sentence4, answer
    .json           ``{word: {sense: [sentences]}}``: of each word three sentences of one sense and one of another are
                    drawn by the seed, and their order
    ==============  ==================================================================================================

    In a sentence that holds its word several times, the first occurrence counts (of a word in plain Latin letters, the
    first that is no part of a longer one, if there is such).

    Raises:
        ValueError: The file has other columns or another shape, or holds no usable question.

    Example:
        >>> with open("banks.csv", "w", encoding="utf-8") as file:
        ...     _ = file.write("word,sentence1,sentence2,sentence3,sentence4,answer\\n")
        ...     _ = file.write("bank,The bank pays.,A bank lends.,The bank is steep.,My bank shut.,C\\n")
        >>> questions, left_out = read_questions(Path("banks.csv"))
        >>> len(questions), questions.words[2]
        (1, ('The bank is steep.', (4, 8)))
    """
    if suffix(path) not in (".csv", ".tsv", ".json"):
        raise ValueError(f"{path}: word senses are read from .csv, .tsv (a question a row) and .json (senses).")
    text = content(path)
    found, left_out = [], dict[str, list[str]]()
    for name, one in _senses(path, text, seed) if suffix(path) == ".json" else _rows(path, text):
        if isinstance(one, str):
            left_out.setdefault(one, []).append(name)
        else:
            found.append((name, *one))
    if not found:
        reasons = "; ".join(f"{len(names)}: {reason}" for reason, names in left_out.items())
        raise ValueError(f"{path}: no question can be used ({reasons or 'there are no rows below the header'}).")
    return Questions.of([each[1:] for each in found], [name for name, *_ in found]), left_out


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


_Question = tuple[str, list[str], int]


def _rows(path: Path, text: str) -> Iterator[tuple[str, _Question | str]]:
    """Each row's name, and its question or why there is none."""
    for line, header, row in csv_rows(io.StringIO(text, newline=""), path, "\t" if suffix(path) == ".tsv" else ","):
        names = next((names for names in (_CHINESE, _ENGLISH) if set(names) <= set(header)), None)
        if names is None:
            shown = [name[:60] for name in header[:20]]
            raise ValueError(f"{path}: no columns {', '.join(_CHINESE)}, or {', '.join(_ENGLISH)}; there are {shown}.")
        if row is header:
            continue
        if len(row) != len(header):
            raise ValueError(f"{path}, line {line}: {len(row)} fields, but the header has {len(header)}. Correct it.")
        values = dict(zip(header, row, strict=True))
        asked, *sentences, answer = (values[name] for name in names)
        word = asked.strip() if names is _ENGLISH else _quoted(asked)
        name, letter = f"line {line}" + (f" ({word})" if word else ""), answer.strip().upper()
        if not word:
            yield name, "no word" if names is _ENGLISH else "no word between quotation marks"
        elif not all(sentence.strip() for sentence in sentences):
            yield name, "a sentence is missing"
        elif len(letter) != 1 or letter not in _OPTIONS:
            yield name, f"the answer is none of {', '.join(_OPTIONS)}"
        elif not all(word_span(word, sentence) for sentence in sentences):
            yield name, "the word is not in a sentence"
        else:
            yield name, (word, sentences, _OPTIONS.index(letter))


def _quoted(question: str) -> str:
    found = _QUOTED.search(question)
    return "" if found is None else next(group for group in found.groups() if group).strip()


def _senses(path: Path, text: str, seed: int) -> Iterator[tuple[str, _Question | str]]:
    """Each word, and its question or why there is none."""
    try:
        words = json.loads(text, object_pairs_hook=lambda pairs: _unique(path, pairs))
    except (json.JSONDecodeError, RecursionError) as error:
        raise ValueError(f"{path}: not JSON ({error}); it must hold {_SHAPE}.") from None
    if not isinstance(words, dict):
        raise ValueError(f"{path}: it does not hold {_SHAPE}.")
    for word, senses in words.items():
        if not word or not isinstance(senses, dict) or not all(map(_are_texts, senses.values())):
            raise ValueError(f"{path}: at {word!r:.60} it does not hold {_SHAPE}.")
        held = {sense: [one for one in sentences if word_span(word, one)] for sense, sentences in senses.items()}
        found = draw(word, held, seed)
        yield word, found if isinstance(found, str) else (word, *found)


def _are_texts(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(one, str) for one in value)


def draw(word: str, senses: Mapping[str, Iterable[str]], seed: int) -> tuple[list[str], int] | str:
    """Draw one question.

    Senses with three sentences at least are as likely as each other, and so are the others of the word then. A
    sentence counts once; one that stands under several senses is not drawn, as it has no right answer.

    Args:
        word: The word.
        senses: Sentences that hold it, by sense.
        seed: Of the draw, which depends on the word and its sentences beside, and on nothing else in the file.

    Returns:
        Four sentences and the number (from 0) of the odd one; or why there are none.

    Example:
        >>> draw("bank", {"money": ["a", "b", "c"], "river": ["d"]}, seed=0)
        (['c', 'd', 'a', 'b'], 1)
        >>> draw("bank", {"money": ["a", "b"], "river": ["d"]}, seed=0)
        'no sense with 3 sentences that hold the word'
    """
    distinct = {sense: list(dict.fromkeys(sentences)) for sense, sentences in senses.items()}
    places = Counter(sentence for sentences in distinct.values() for sentence in sentences)
    usable = {sense: [each for each in sentences if places[each] == 1] for sense, sentences in distinct.items()}
    there = [sense for sense, sentences in usable.items() if sentences]
    if len(there) < 2:
        return "fewer than 2 senses with a sentence that holds the word"
    large = [sense for sense in there if len(usable[sense]) >= ALIKE]
    if not large:
        return f"no sense with {ALIKE} sentences that hold the word"

    def drawn(values: Iterable[str], purpose: str) -> list[str]:
        """In an order that no other values and no library's version change."""

        def place(value: str) -> bytes:
            return hashlib.sha256(json.dumps([seed, word, purpose, value]).encode()).digest()

        return sorted(values, key=place)

    common = drawn(large, "sense")[0]
    other = drawn((sense for sense in there if sense != common), "other sense")[0]
    odd = drawn(usable[other], "odd one")[0]
    four = drawn([*drawn(usable[common], "alike")[:ALIKE], odd], "order")
    return four, four.index(odd)


def _unique(path: Path, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if twice := [name for name, times in Counter(name for name, _ in pairs).items() if times > 1]:
        raise ValueError(f"{path}: {twice[0]!r:.60} stands twice, so that one of both would be lost. Join them.")
    return dict(pairs)
