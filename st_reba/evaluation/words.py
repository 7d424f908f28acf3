"""Words in their sentences: which of four sentences uses a word in another sense, and vectors for taggers."""

from __future__ import annotations

import json
import random
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from .tasks import Task, drawn, frame_of

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

# Sentences of the common sense.
ALIKE = 3
_CHINESE = ("问题", "选项1", "选项2", "选项3", "选项4", "答案")
_ENGLISH = ("word", "sentence1", "sentence2", "sentence3", "sentence4", "answer")
_OPTIONS = "ABCD"
_QUOTED = re.compile("“([^”]+)”|「([^」]+)」|『([^』]+)』|‘([^’]+)’|\"([^\"]+)\"|'([^']+)'")

# A word, its four sentences, and the number of the odd one.
Question = tuple[str, Sequence[str], int]


def word_sense_task(source: Any, *, name: str = "words", limit: int | None = None, seed: int = 0) -> Task:
    """Questions: in which of four sentences does a word (its first occurrence) mean something else?

    Args:
        source: A table with the columns 问题 (the word in quotation marks), 选项1 to 选项4 and 答案 (A to D), as
            SLPWC and WSD were published, or word, sentence1 to sentence4, answer; or a .json file with
            ``{word: {sense: [sentences]}}``, of which a question a word is drawn.
        name, limit, seed: As for :func:`~st_reba.evaluation.tasks.read_task`.

    Raises:
        ValueError: The columns are missing, or no question can be used.

    Source:
        ReBA, section 4 and appendix (SLPWC, WSD).

    Example:
        >>> import pandas as pd
        >>> texts = ["The bank pays.", "A bank lends.", "The bank is steep.", "My bank shut."]
        >>> table = pd.DataFrame([["bank", *texts, "C"]], columns=list(_ENGLISH))
        >>> task = word_sense_task(table)
        >>> task.texts[2], task.spans[2], task.items
        ('The bank is steep.', (4, 8), (((0, 1, 2, 3), 2),))
    """
    rows = _senses(Path(source), seed) if str(source).endswith(".json") else _questions(frame_of(source))
    dropped: Counter[str] = Counter()
    questions = []
    for each in rows:
        if isinstance(each, str):
            dropped[each] += 1
        elif not all(word_span(each[0], sentence) for sentence in each[1]):
            dropped["the word is not in a sentence"] += 1
        else:
            questions.append(each)
    place: dict[tuple[str, tuple[int, int]], int] = {}
    items = []
    for word, sentences, answer in drawn(questions, limit, seed):
        spans = [(sentence, word_span(word, sentence) or (0, 0)) for sentence in sentences]
        items.append((tuple(place.setdefault(each, len(place)) for each in spans), answer))
    texts, where = tuple(text for text, _ in place), tuple(span for _, span in place)
    return Task(name, "WordSense", texts, tuple(items), spans=where, dropped=dict(dropped))


def word_span(word: str, sentence: str) -> tuple[int, int] | None:
    """Where a word first stands in a sentence, in characters; a Latin word is first looked for by itself.

    Example:
        >>> word_span("art", "The party of art"), word_span("意思", "这意思是什么意思"), word_span("art", "party")
        ((13, 16), (1, 3), (1, 4))
    """
    start = sentence.find(word)
    if word.isascii() and (alone := re.search(rf"(?<![0-9A-Za-z]){re.escape(word)}(?![0-9A-Za-z])", sentence)):
        start = alone.start()
    return None if start < 0 else (start, start + len(word))


def tokens_of(offsets: Sequence[tuple[int, int]], start: int, end: int) -> list[int]:
    """The tokens that stand for some of the characters from start to end."""
    return [token for token, (first, last) in enumerate(offsets) if first < end and last > start and last > first]


def draw_question(word: str, senses: Mapping[str, Iterable[str]], seed: int) -> Question | str:
    """Draw three sentences of one sense and one of another, in a random order; or say why there are none.

    A sentence counts once; one of several senses is not drawn. The draw depends on the seed and the word.

    Example:
        >>> word, sentences, answer = draw_question("bank", {"money": ["a", "b", "c"], "river": ["d"]}, seed=0)
        >>> sorted(sentences), sentences[answer]
        (['a', 'b', 'c', 'd'], 'd')
    """
    distinct = {sense: list(dict.fromkeys(sentences)) for sense, sentences in senses.items()}
    times = Counter(sentence for sentences in distinct.values() for sentence in sentences)
    usable = {sense: [each for each in sentences if times[each] == 1] for sense, sentences in distinct.items()}
    usable = {sense: sentences for sense, sentences in usable.items() if sentences}
    large = [sense for sense, sentences in usable.items() if len(sentences) >= ALIKE]
    if len(usable) < 2 or not large:
        return f"no sense with {ALIKE} sentences beside another"
    generator = random.Random(f"{seed}:{word}")
    common = generator.choice(large)
    odd = generator.choice(usable[generator.choice([sense for sense in usable if sense != common])])
    four = [*generator.sample(usable[common], ALIKE), odd]
    generator.shuffle(four)
    return word, four, four.index(odd)


def _questions(frame: Any) -> Iterator[Question | str]:
    names = next((names for names in (_CHINESE, _ENGLISH) if set(names) <= set(frame.columns)), None)
    if names is None:
        raise ValueError(f"No columns {', '.join(_CHINESE)}, or {', '.join(_ENGLISH)}.")
    for row in frame[list(names)].itertuples(index=False, name=None):
        asked, *sentences, answer = (str(each).strip() for each in row)
        quoted = _QUOTED.search(asked) if names is _CHINESE else None
        word = next(group for group in quoted.groups() if group).strip() if quoted else asked
        if not word or (names is _CHINESE and not quoted):
            yield "no word"
        elif not all(sentences):
            yield "a sentence is missing"
        elif len(answer) != 1 or answer.upper() not in _OPTIONS:
            yield f"the answer is none of {', '.join(_OPTIONS)}"
        else:
            yield word, sentences, _OPTIONS.index(answer.upper())


def _senses(path: Path, seed: int) -> Iterator[Question | str]:
    words = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(words, dict) or not all(isinstance(senses, dict) for senses in words.values()):
        raise ValueError(f"{path}: it does not hold {{word: {{sense: [sentences]}}}}.")
    for word, senses in words.items():
        held = {sense: [one for one in sentences if word_span(word, one)] for sense, sentences in senses.items()}
        yield draw_question(word, held, seed)


def entity_task(name: str, source: Any, train: Any, limit: int | None, seed: int) -> Task:
    """Sentences of CoNLL lines: a word first, and the last column that holds IOB tags."""

    def sentences(path: Any) -> list[tuple[tuple[str, ...], tuple[str, ...]]]:
        blocks = Path(path).read_text(encoding="utf-8").replace("\r", "").split("\n\n")
        rows = [[line.split() for line in block.splitlines() if line.strip()] for block in blocks]
        rows = [each for each in rows if each and each[0][0] != "-DOCSTART-"]
        lines = [line for each in rows for line in each]
        width = min(map(len, lines), default=0)
        tagged = [n for n in range(1, width) if all(line[n] == "O" or line[n][1:2] == "-" for line in lines)]
        if not tagged:
            raise ValueError(f"{path}: no column holds tags such as O, B-PER, I-PER.")
        return [(tuple(line[0] for line in each), tuple(line[tagged[-1]] for line in each)) for each in rows]

    place: dict[str, int] = {}
    parts: list[Any] = [
        tuple(
            (place.setdefault(" ".join(words), len(place)), words, tags)
            for words, tags in drawn(sentences(path), limit, seed)
        )
        for path in ([source] if train is None else [source, train])
    ]
    return Task(name, "NER", tuple(place), *parts)


def tagged_word_vectors(model: SentenceTransformer, task: Task) -> NDArray[np.float32]:
    """Vectors of the words of a task of entities, each the vector of its first token.

    Args:
        model: A model from :func:`st_reba.build`.
        task: Of entities: items are (text, words, tags).

    Returns:
        [words, d], text after text: the last hidden states (Echo: of the last copy), or the vectors e_i of ReBA.

    Raises:
        ValueError: A word that has no token, or lies past the cut.

    Source:
        NoSink, section 3.2; ReBA, section 3.3. The papers do not say which token stands for a word.
    """
    from ..words import encode_tokens

    words = {item[0]: item[1] for item in (*task.items, *task.train)}
    transformer: Any = model[0]
    offsets = transformer.content(list(task.texts), offsets=True)["offset_mapping"]
    vectors = encode_tokens(model, list(task.texts))
    rows = []
    for place, text in enumerate(task.texts):
        start = 0
        for word in words[place]:
            end = start + len(word)
            tokens = tokens_of(offsets[place], start, end)
            if not tokens or tokens[-1] >= len(vectors[place]):
                raise ValueError(
                    f"The word {word!r} of {text!r:.60} has no token, or lies past the cut: shorten the text."
                )
            rows.append(vectors[place][tokens[0]])
            start = end + 1
    return np.stack(rows).astype(np.float32)
