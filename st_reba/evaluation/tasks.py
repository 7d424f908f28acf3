"""Tasks: labelled texts in parts, and a model's score on each part."""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray
from sentence_transformers import SentenceTransformer

from ..optional import required
from .labelled import Example, Kind, Pair, Sentence
from .vectors import Subtoken, sentence_vectors, word_vectors

# Below these a score says next to nothing, and one item more or less decides.
MIN_ITEMS = 10


@dataclass(frozen=True)
class Scores:
    """A model's score on both parts of a task, as fractions: 1 is best.

    Args:
        validation: What a choice may look at.
        heldout: What it may not.
    """

    validation: float
    heldout: float


class Task(Protocol):
    """What :func:`st_reba.evaluation.tune` needs of a task; the classes here are some."""

    @property
    def name(self) -> str:
        """What people call it."""

    @property
    def arguments(self) -> tuple[str, ...]:
        """The command's, its file first, to read the task again; empty for a task that no file holds."""

    @property
    def kind(self) -> str:
        """What its data are, in a word."""

    @property
    def metric(self) -> str:
        """What a score is, in a word or two; more is better."""

    @property
    def fingerprint(self) -> str:
        """Changes with the data, their parts and all else that a score depends on."""

    def describe(self) -> str:
        """The task in one line."""

    def score(self, model: SentenceTransformer, *, batch_size: int = 64, prompt: str | None = None) -> Scores:
        """A model's scores."""


class _Parts:
    """What the three tasks share."""

    name: str
    note: str

    kind: ClassVar[Kind]
    metric: ClassVar[str]
    names: ClassVar[tuple[str, ...]]
    settings: ClassVar[tuple[str, ...]] = ()

    @property
    def parts(self) -> dict[str, Sequence[Any]]:
        """The items of each part."""
        return {name: getattr(self, name) for name in self.names}

    @property
    def fingerprint(self) -> str:
        """SHA-256 over the kind, the items of each part in their order, and what else a score depends on."""
        settings = {name: getattr(self, name) for name in self.settings}
        content = json.dumps([self.kind, self.metric, self.parts, settings], sort_keys=True)
        return hashlib.sha256(content.encode()).hexdigest()

    def describe(self) -> str:
        """The task in one line: its kind, how it was read, its metric, and the size of each part."""
        how = f" ({self.note})" if self.note else ""
        sizes = ", ".join(f"{len(items)} {_called(name)}" for name, items in self.parts.items())
        return f"{self.name}: {self.kind}{how}, {self.metric}; {sizes}"

    def _require(self, minimum: int, what: str) -> None:
        for name, items in self.parts.items():
            if len(items) < minimum:
                raise ValueError(
                    f"{self.name}: {len(items)} {what} for {_called(name)}, but {minimum} are needed at the least. "
                    "Use a larger file, or another fraction (validation=…)."
                )


@dataclass(frozen=True)
class PairTask(_Parts):
    """Pairs of texts with scores: Spearman's correlation of the cosines with the scores.

    Args:
        name: For people.
        validation: (text1, text2, score) each.
        heldout: Further ones.
        note: How they were read, for people.
        arguments: The command's, to read them again.

    Raises:
        ValueError: A part has fewer than 10 pairs, or one score only.

    Source:
        The metric of STS tasks in MTEB, which NoSink uses (section 3.2).

    Example:
        >>> import st_reba
        >>> pairs = [("a cat " * n, "a cat " * n + "and a dog", float(n)) for n in range(1, 21)]
        >>> task = PairTask("cats", tuple(pairs[::2]), tuple(pairs[1::2]))
        >>> task.describe()
        'cats: pairs, Spearman; 10 validation, 10 held-out'
        >>> 0.5 < task.score(st_reba.build("mini", "classical", pooling="mean")).heldout <= 1
        True
    """

    name: str
    validation: tuple[Pair, ...]
    heldout: tuple[Pair, ...]
    note: str = ""
    arguments: tuple[str, ...] = ()

    kind: ClassVar[Kind] = "pairs"
    metric: ClassVar[str] = "Spearman"
    names: ClassVar[tuple[str, ...]] = ("validation", "heldout")

    def __post_init__(self) -> None:
        self._require(MIN_ITEMS, "pairs")
        for name, pairs in self.parts.items():
            if len({score for _, _, score in pairs}) < 2:
                raise ValueError(
                    f"{self.name}: all pairs of {_called(name)} have the score {pairs[0][2]}, so that there is no "
                    "order to find. Use pairs of different scores."
                )

    def score(self, model: SentenceTransformer, *, batch_size: int = 64, prompt: str | None = None) -> Scores:
        """Score a model.

        Args:
            model: Any SentenceTransformer.
            batch_size: Texts a forward pass.
            prompt: As for ``encode``.

        Raises:
            UnusableVectors: A vector is zero or not finite.
        """
        pairs = self.validation + self.heldout
        texts = [text for text, _, _ in pairs] + [text for _, text, _ in pairs]
        vectors = sentence_vectors(model, texts, batch_size=batch_size, prompt=prompt).astype(np.float64)
        first, second = vectors[: len(pairs)], vectors[len(pairs) :]
        # √(x·x) of a square is exact, so that all pairs of equal texts tie at 1, and rounding does not rank them.
        lengths = np.sqrt(np.sum(first * first, axis=1) * np.sum(second * second, axis=1))
        cosines = np.sum(first * second, axis=1) / lengths
        scores = np.asarray([score for _, _, score in pairs])
        cut = len(self.validation)
        return Scores(spearman(cosines[:cut], scores[:cut]), spearman(cosines[cut:], scores[cut:]))


@dataclass(frozen=True)
class ClassTask(_Parts):
    """Texts with classes: accuracy of a logistic regression (LBFGS, 100 iterations) on frozen sentence vectors.

    Args:
        name: For people.
        train: (text, label) each.
        validation: Further ones.
        heldout: Further ones.
        note: How they were read, for people.
        arguments: The command's, to read them again.

    Raises:
        ValueError: A part has fewer than 10 texts, there is one class only, or a class has no text to train on.

    Source:
        NoSink, section 4.1 (domain tasks), without its oversampling of small data.

    Example:
        >>> import st_reba
        >>> texts = [(f"{n} cats sleep", "cat") if n % 2 else (f"{n} ships sail", "ship") for n in range(30)]
        >>> task = ClassTask("cats or ships", tuple(texts[:10]), tuple(texts[10:20]), tuple(texts[20:]))
        >>> task.score(st_reba.build("mini", "classical", pooling="mean"))
        Scores(validation=1.0, heldout=1.0)
    """

    name: str
    train: tuple[Example, ...]
    validation: tuple[Example, ...]
    heldout: tuple[Example, ...]
    note: str = ""
    arguments: tuple[str, ...] = ()

    kind: ClassVar[Kind] = "classes"
    metric: ClassVar[str] = "accuracy"
    names: ClassVar[tuple[str, ...]] = ("train", "validation", "heldout")

    def __post_init__(self) -> None:
        self._require(MIN_ITEMS, "texts")
        trained = {label for _, label in self.train}
        if len(trained) < 2:
            raise ValueError(f"{self.name}: all texts of train have the class {min(trained)!r}; two are needed.")
        for name, examples in self.parts.items():
            if strange := sorted({label for _, label in examples} - trained):
                raise ValueError(
                    f"{self.name}: {_called(name)} has the class {strange[0]!r}, which train has no text of; train's "
                    f"are {sorted(trained)[:20]}. Take files of the same classes."
                )

    def score(self, model: SentenceTransformer, *, batch_size: int = 64, prompt: str | None = None) -> Scores:
        """Score a model; as :meth:`PairTask.score`."""
        examples = self.train + self.validation + self.heldout
        vectors = sentence_vectors(model, [text for text, _ in examples], batch_size=batch_size, prompt=prompt)
        ends = list(accumulate(map(len, self.parts.values())))
        train, *tests = np.split(vectors, ends[:-1])
        classifier = logistic_regression(train, [label for _, label in self.train])
        validation, heldout = (
            float(np.mean(classifier.predict(test) == np.asarray([label for _, label in part])))
            for test, part in zip(tests, (self.validation, self.heldout), strict=True)
        )
        return Scores(validation, heldout)


@dataclass(frozen=True)
class TagTask(_Parts):
    """Sentences with a tag a word: entity F1 of a logistic regression on frozen word vectors.

    Args:
        name: For people.
        train: (words, tags) each; the tags are O and B-…, I-… (or E-…, S-…).
        validation: Further ones.
        heldout: Further ones.
        separator: What stands between two words.
        subtoken: Which token stands for a word: ``"first"`` or ``"last"``.
        note: How they were read, for people.
        arguments: The command's, to read them again.

    Raises:
        ValueError: A part has fewer than 10 sentences or no entity, or a sentence's words and tags are not as many.

    Source:
        NoSink, section 3.2 (CoNLL-2003), where the linear classifier is trained in a way that is not told.

    Example:
        >>> import st_reba
        >>> towns = ["Rome", "Oslo", "Lima", "Cairo", "Paris"]
        >>> sentences = [((town, "is", "far"), ("B-LOC", "O", "O")) for town in towns * 2]
        >>> task = TagTask("towns", *[tuple(sentences)] * 3)
        >>> task.score(st_reba.build("mini", "classical", pooling="mean")).validation
        1.0
    """

    name: str
    train: tuple[Sentence, ...]
    validation: tuple[Sentence, ...]
    heldout: tuple[Sentence, ...]
    separator: str = " "
    subtoken: Subtoken = "first"
    note: str = ""
    arguments: tuple[str, ...] = ()

    kind: ClassVar[Kind] = "tags"
    metric: ClassVar[str] = "entity F1"
    names: ClassVar[tuple[str, ...]] = ("train", "validation", "heldout")
    settings: ClassVar[tuple[str, ...]] = ("separator", "subtoken")

    def __post_init__(self) -> None:
        if self.subtoken not in ("first", "last"):
            raise ValueError(f"subtoken={self.subtoken!r} is not known: choose 'first' or 'last'.")
        self._require(MIN_ITEMS, "sentences")
        for name, sentences in self.parts.items():
            if uneven := [words for words, tags in sentences if len(words) != len(tags) or not words]:
                raise ValueError(
                    f"{self.name}: {_called(name)} has a sentence with not one tag a word: {uneven[0]!r:.80}."
                )
            if not any(tag != "O" for _, tags in sentences for tag in tags):
                raise ValueError(f"{self.name}: {_called(name)} holds no entity, only O. Use more sentences.")
        if len({tag for _, tags in self.train for tag in tags}) < 2:
            raise ValueError(f"{self.name}: all words of train have one tag; two are needed.")

    def score(self, model: SentenceTransformer, *, batch_size: int = 64, prompt: str | None = None) -> Scores:
        """Score a model from :func:`st_reba.build`; as :meth:`PairTask.score`."""
        f1_score = required("seqeval.metrics", "evaluation").f1_score
        sentences = self.train + self.validation + self.heldout
        vectors = word_vectors(
            model,
            [words for words, _ in sentences],
            separator=self.separator,
            subtoken=self.subtoken,
            batch_size=batch_size,
            prompt=prompt,
        )
        sizes = [sum(len(words) for words, _ in part) for part in self.parts.values()]
        train, *tests = np.split(vectors, list(accumulate(sizes))[:-1])
        classifier = logistic_regression(train, [tag for _, tags in self.train for tag in tags])

        def f1(test: NDArray[np.float32], part: Sequence[Sentence]) -> float:
            predicted = iter(classifier.predict(test).tolist())
            found = [[next(predicted) for _ in tags] for _, tags in part]
            with warnings.catch_warnings():
                # Nothing found is an F1 of 0, which needs no warning.
                warnings.simplefilter("ignore")
                return float(f1_score([list(tags) for _, tags in part], found))

        return Scores(f1(tests[0], self.validation), f1(tests[1], self.heldout))


def _called(part: str) -> str:
    return "held-out" if part == "heldout" else part


def spearman(predicted: NDArray[np.float64], wanted: NDArray[np.float64]) -> float:
    if np.ptp(predicted) == 0:
        return 0.0  # Vectors that are all alike rank nothing; scipy's answer is NaN.
    return float(required("scipy.stats", "evaluation").spearmanr(predicted, wanted).statistic)


def logistic_regression(vectors: NDArray[np.float32], labels: Sequence[str]) -> Any:
    """The papers' linear classifier, fitted: LBFGS, 100 iterations."""
    classifier = required("sklearn.linear_model", "evaluation").LogisticRegression(solver="lbfgs", max_iter=100)
    with warnings.catch_warnings():
        # 100 iterations are the papers' protocol, whether or not they converge.
        warnings.simplefilter("ignore", required("sklearn.exceptions", "evaluation").ConvergenceWarning)
        classifier.fit(vectors, np.asarray(labels))
    return classifier
