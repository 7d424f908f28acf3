"""Labelled items, and what vectors say about each of them: the one place where a score is made.

Every kind of item gives *evidence*, a row of numbers an item; a metric makes a score of some items' rows. So any two
methods can be compared item by item.
"""

from __future__ import annotations

import hashlib
import json
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from ..optional import required
from . import metrics as scores
from .encoding import Prompts, check_memory, encoded
from .statistics import Evidence, Metric, bootstrap

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

Vectors = NDArray[Any]
Rows = NDArray[np.intp]

# Cosines are rounded to so many digits: what float32 cannot tell apart is equal.
DIGITS = 6
# Clusterings that a v-measure is the mean of, each from another start.
CLUSTERINGS = 5
# As many documents of a ranking as mteb takes.
CUTOFF = 1000
# Queries whose cosines with all documents are held at once.
_TOGETHER = 128


@dataclass(frozen=True)
class Items(ABC):
    """Items over a list of texts.

    Args:
        texts: Each once.
        items: Of each item the places of its texts, and what is known of it.
        names: What people call each item, where they have names.
        groups: Items of one group are alike, and are drawn together when intervals are made; none: each is by itself.
    """

    texts: tuple[str, ...]
    items: tuple[tuple[Any, ...], ...]
    names: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()

    kind: ClassVar[str]
    # The metric that tables show, and the papers' where that is another.
    main: ClassVar[str]
    paper: ClassVar[str | None] = None
    # So many values of an item, the first ones, are places of texts.
    width: ClassVar[int]
    # Whether others of the items are needed to learn from.
    learns: ClassVar[bool] = False
    # Below so many a score says next to nothing.
    fewest: ClassVar[int] = 10
    # Whether a score rises when items stand twice, as they do in a bootstrap.
    recentred: ClassVar[bool] = False

    def __len__(self) -> int:
        return len(self.items)

    @property
    @abstractmethod
    def metrics(self) -> Mapping[str, Metric]:
        """What makes a score of evidence, by name; fractions, more is better."""

    @property
    def fitted_on(self) -> tuple[str, ...]:
        """The texts that a method's filter is fitted on."""
        return self.texts

    @abstractmethod
    def evidence(self, vectors: Vectors, rows: Rows | None = None, learn: Rows | None = None) -> Evidence:
        """What vectors say about items.

        Args:
            vectors: [texts, d].
            rows: Which items; None: all.
            learn: Which others a classifier learns from, for kinds that do.

        Returns:
            [items, numbers].
        """

    def vectors(self, model: SentenceTransformer, *, prompts: Prompts | None = None, **options: Any) -> Vectors:
        """The vectors of all texts [texts, d], each text run once.

        Args:
            model: Any SentenceTransformer.
            prompts: What stands before texts, by their role; None: what the model has saved.
            **options: ``progress`` (called after each batch; see ``Progress``), ``batch_size`` or ``batch_tokens``.

        Raises:
            UnusableVectors: One is zero or not finite.
        """
        return encoded(model, self.texts, prompts=prompts, **options)

    def texts_of(self, item: tuple[Any, ...]) -> Sequence[int]:
        """The places of an item's texts."""
        return item[: self.width]

    def moved(self, item: tuple[Any, ...], places: Mapping[int, int]) -> tuple[Any, ...]:
        """The item, its texts at other places."""
        return (*(places[place] for place in item[: self.width]), *item[self.width :])

    def asked(self, item: tuple[Any, ...]) -> object:
        """What an item asks for: two that ask for the same must not stand in two parts."""
        return tuple(self.texts[place] for place in self.texts_of(item))

    def label(self, item: tuple[Any, ...]) -> str:
        """What every part of the items must hold its share of; "" where there are no labels."""
        return ""

    def same(self) -> list[list[int]]:
        """Rows of items that ask for the same, together."""
        rows: dict[object, list[int]] = {}
        for row, item in enumerate(self.items):
            rows.setdefault(self.asked(item), []).append(row)
        return list(rows.values())

    def needed(self, rows: Sequence[int] | Rows) -> list[int]:
        """The places of the texts that some items need, in their order."""
        return sorted({place for row in rows for place in self.texts_of(self.items[row])})

    def subset(self, rows: Sequence[int] | Rows) -> Self:
        """Some of the items, with the texts that they need."""
        needed = self.needed(rows)
        places = {place: new for new, place in enumerate(needed)}
        return replace(
            self,
            texts=tuple(self.texts[place] for place in needed),
            items=tuple(self.moved(self.items[row], places) for row in rows),
            names=tuple(self.names[row] for row in rows) if self.names else (),
            groups=tuple(self.groups[row] for row in rows) if self.groups else (),
        )

    def joined(self, other: Self) -> Self:
        """The items of both, this one's first; each text once, so not for rankings, where a query may be a document."""
        place = {text: number for number, text in enumerate(dict.fromkeys((*self.texts, *other.texts)))}
        items: list[tuple[Any, ...]] = []
        for part in (self, other):
            places = {old: place[text] for old, text in enumerate(part.texts)}
            items += (part.moved(item, places) for item in part.items)
        names, groups = (*self.names, *other.names), (*self.groups, *other.groups)
        return replace(self, texts=tuple(place), items=tuple(items), names=names, groups=groups)

    def folds(self, count: int = 2) -> list[Rows]:
        """The items in parts, each of which can be scored by what the others teach.

        Labels have their shares in each, whatever order the items are in; what asks for the same stands in one part.
        """
        order = sorted(self.same(), key=lambda rows: self.label(self.items[rows[0]]))
        parts = [[row for rows in order[start::count] for row in rows] for start in range(count)]
        return [np.sort(np.asarray(part, np.intp)) for part in parts if part]

    def unseen(self, vectors: Vectors) -> list[str]:
        """What a method does not see whole, by name: items with a row of NaN; vectors of others may stand in front."""
        return []

    def draws(self, evidence: Evidence, metric: str) -> NDArray[np.float64]:
        """A metric's values on items drawn again and again: see :func:`~st_reba.evaluation.statistics.bootstrap`."""
        # Two tasks with as many items must not be drawn alike: their average would seem less certain than it is.
        seed = int(self.fingerprint[:8], 16)
        score, groups = self.metrics[metric], self.groups or None
        return bootstrap(evidence, score, groups=groups, recentred=self.recentred, seed=seed)

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 over the kind, the texts, the items, and what else decides a score."""
        content = [getattr(self, each.name) for each in fields(self) if each.name not in ("names", "groups")]
        return hashlib.sha256(json.dumps([self.kind, *content]).encode()).hexdigest()


def units(vectors: Vectors) -> NDArray[np.float64]:
    """Vectors scaled to length 1, in float64; zero stays zero."""
    exact = np.array(vectors, np.float64)
    exact /= np.maximum(np.linalg.norm(exact, axis=-1, keepdims=True), np.finfo(np.float64).tiny)
    return exact


def cosines(vectors: Vectors, first: Any, second: Any) -> NDArray[np.float64]:
    """Cosines of pairs of texts, by their places; those that float32 cannot tell apart are equal."""
    unit = units(vectors)
    found = np.einsum("nd,nd->n", unit[np.asarray(first)], unit[np.asarray(second)])
    return np.asarray(np.round(found, DIGITS))


# Pairs


@dataclass(frozen=True)
class ScoredPairs(Items):
    """Items (text, text, score): how well the order of the cosines follows that of the scores.

    Example:
        >>> pairs = ScoredPairs(("a", "b", "c"), ((0, 1, 5.0), (0, 2, 1.0)))
        >>> evidence = pairs.evidence(np.array([[1.0, 0.0], [0.8, 0.6], [0.6, 0.8]]))
        >>> round(pairs.metrics["cosine_spearman"](evidence), 6)
        1.0
    """

    kind: ClassVar[str] = "STS"
    main: ClassVar[str] = "cosine_spearman"
    paper: ClassVar[str | None] = "cosine_pearson"
    width: ClassVar[int] = 2
    metrics: ClassVar[Mapping[str, Metric]] = {"cosine_spearman": scores.spearman, "cosine_pearson": scores.pearson}

    def evidence(self, vectors: Vectors, rows: Rows | None = None, learn: Rows | None = None) -> Evidence:
        first, second, known = zip(*chosen(self.items, rows), strict=True)
        return np.stack([cosines(vectors, first, second), np.asarray(known, np.float64)], axis=1)

    def asked(self, item: tuple[Any, ...]) -> object:
        return frozenset(self.texts[place] for place in item[:2])


@dataclass(frozen=True)
class LabelledPairs(ScoredPairs):
    """Items (text, text, 0 or 1): whether pairs of 1 have the larger cosines."""

    kind: ClassVar[str] = "PairClassification"
    main: ClassVar[str] = "cosine_ap"
    paper: ClassVar[str | None] = "cosine_accuracy"
    metrics: ClassVar[Mapping[str, Metric]] = {
        "cosine_ap": scores.average_precision,
        "cosine_accuracy": scores.best_accuracy,
    }

    def label(self, item: tuple[Any, ...]) -> str:
        return str(item[2])


@dataclass(frozen=True)
class Triples(Items):
    """Items (text, nearer, farther): how often the cosine with the nearer is larger; a tie counts half."""

    kind: ClassVar[str] = "Triples"
    main: ClassVar[str] = "accuracy"
    width: ClassVar[int] = 3
    metrics: ClassVar[Mapping[str, Metric]] = {
        "accuracy": lambda evidence: float((np.sign(evidence[:, 0] - evidence[:, 1]).mean() + 1) / 2),
        "ties": scores.accuracy,
        **scores.means("mean cosine nearer", "mean cosine farther"),
    }

    def evidence(self, vectors: Vectors, rows: Rows | None = None, learn: Rows | None = None) -> Evidence:
        anchor, near, far = np.asarray(chosen(self.items, rows), np.intp).T
        return np.stack([cosines(vectors, anchor, near), cosines(vectors, anchor, far)], axis=1)


# Labels


@dataclass(frozen=True)
class Classes(Items):
    """Items (text, label): a logistic regression (LBFGS, 100 iterations) that learns from other items.

    Source:
        NoSink, section 4.1 (domain tasks), without its oversampling of small data.
    """

    kind: ClassVar[str] = "Classification"
    main: ClassVar[str] = "accuracy"
    width: ClassVar[int] = 1
    learns: ClassVar[bool] = True
    metrics: ClassVar[Mapping[str, Metric]] = {
        "accuracy": scores.accuracy,
        "f1": scores.class_f1,
        "weighted_f1": partial(scores.class_f1, weighted=True),
    }

    def evidence(self, vectors: Vectors, rows: Rows | None = None, learn: Rows | None = None) -> Evidence:
        known, labels = zip(*chosen(self.items, learn), strict=True)
        asked, wanted = zip(*chosen(self.items, rows), strict=True)
        found = classify(vectors[list(known)], labels, vectors[list(asked)])
        codes = {label: code for code, label in enumerate(sorted({label for _, label in self.items}))}
        return np.asarray([[codes[label] for label in each] for each in (found, wanted)], np.float64).T

    def label(self, item: tuple[Any, ...]) -> str:
        return str(item[1])


@dataclass(frozen=True)
class Clusters(Classes):
    """Items (text, label): how well k-means, with as many clusters as labels, finds the labels: the v-measure.

    It is the mean of five clusterings, each from another start.
    """

    kind: ClassVar[str] = "Clustering"
    main: ClassVar[str] = "v_measure"
    learns: ClassVar[bool] = False
    recentred: ClassVar[bool] = True
    metrics: ClassVar[Mapping[str, Metric]] = {"v_measure": scores.mean_v_measure}

    def evidence(self, vectors: Vectors, rows: Rows | None = None, learn: Rows | None = None) -> Evidence:
        asked, labels = zip(*chosen(self.items, rows), strict=True)
        codes = {label: code for code, label in enumerate(sorted(set(labels)))}
        # As mteb: mini-batches of 512.
        means = partial(required("sklearn.cluster", "evaluation").MiniBatchKMeans, batch_size=512, n_init="auto")
        points = np.asarray(vectors[list(asked)], np.float32)
        found = [means(len(codes), random_state=start).fit_predict(points) for start in range(CLUSTERINGS)]
        return np.asarray([[codes[label] for label in labels], *found], np.float64).T


@dataclass(frozen=True)
class Tags(Items):
    """Items (words, tags), a sentence each: entities by a logistic regression on the vectors of words.

    ``vectors`` have a row for each word of each item, one item after the other. A row of NaN is a word that the method
    does not see: nothing is learnt from it, and it is tagged O.

    Args:
        separator: Between two words.
        subtoken: Which token stands for a word of several: ``"first"`` or ``"last"``.

    Source:
        NoSink, section 3.2 (CoNLL-2003); it does not tell how the linear classifier is trained.
    """

    separator: str = " "
    subtoken: str = "first"

    kind: ClassVar[str] = "NER"
    main: ClassVar[str] = "entity_f1"
    width: ClassVar[int] = 1
    learns: ClassVar[bool] = True

    @classmethod
    def of(
        cls, sentences: Sequence[tuple[Sequence[str], Sequence[str]]], separator: str = " ", subtoken: str = "first"
    ) -> Tags:
        """Items of sentences, each its words and their tags."""
        place: dict[str, int] = {}
        items = []
        for words, tags in sentences:
            text = separator.join(words)
            if len(words) != len(tags):
                raise ValueError(f"the sentence {text!r:.60} has {len(words)} words, but {len(tags)} tags. Correct it.")
            items.append((place.setdefault(text, len(place)), tuple(words), tuple(tags)))
        return cls(tuple(place), tuple(items), separator=separator, subtoken=subtoken)

    @property
    def types(self) -> list[str]:
        """The types of entities, in order."""
        return sorted({tag[2:] for _, _, tags in self.items for tag in tags if tag != "O"})

    @property
    def metrics(self) -> Mapping[str, Metric]:
        return scores.entity_metrics(self.types)

    def vectors(self, model: SentenceTransformer, *, prompts: Prompts | None = None, **options: Any) -> Vectors:
        from .vectors import word_vectors

        options |= {"separator": self.separator, "subtoken": self.subtoken}
        words = [item[1] for item in self.items]
        check_memory(sum(map(len, words)), model.get_embedding_dimension() or 0)
        return word_vectors(model, words, prompt=None if prompts is None else prompts.of(None), **options)

    def unseen(self, vectors: Vectors) -> list[str]:
        # Those of words that are only learnt from stand in front.
        own = vectors[len(vectors) - self._ends[-1] :]
        rows = np.flatnonzero(np.isnan(own[self._ends[:-1], 0]))
        return [f"{row + 1}: {self.texts[self.items[row][0]]:.40}" for row in rows]

    def evidence(self, vectors: Vectors, rows: Rows | None = None, learn: Rows | None = None) -> Evidence:
        ends, seen, every = self._ends, np.isfinite(vectors[:, 0]), np.arange(len(self))
        asked = every if rows is None else rows
        tags = np.asarray([tag for item in self.items for tag in item[2]])

        def visible(chosen: Rows) -> Rows:
            places = np.concatenate([np.arange(ends[row], ends[row + 1]) for row in chosen])
            return np.asarray(places[seen[places]])

        known, wanted = visible(every if learn is None else learn), visible(asked)
        if not len(known):
            raise ValueError("no word to learn from is seen whole. Raise --max-tokens, or use shorter sentences.")
        found = np.full(len(tags), "O", dtype=tags.dtype)
        if len(wanted):
            found[wanted] = classify(vectors[known], tags[known].tolist(), vectors[wanted])
        types = {name: place for place, name in enumerate(self.types)}
        evidence = np.zeros((len(asked), len(types) * 3))
        for place, row in enumerate(asked):
            right, guessed = _entities(self.items[row][2]), _entities(found[ends[row] : ends[row + 1]].tolist())
            for column, side in enumerate((right & guessed, guessed, right)):
                for entity in side:
                    evidence[place, 3 * types[entity[0]] + column] += 1
        return evidence

    @property
    def _ends(self) -> Rows:
        """Where the words of each sentence begin among those of all, and where the last one's end."""
        return np.cumsum([0, *(len(item[1]) for item in self.items)])


# Rankings


@dataclass(frozen=True)
class Ranking(Items):
    """Items (query, documents, grades): the order of each query's documents by their cosines with it.

    Queries stand before the documents. Of documents with equal cosines, those of the lower grade are taken to stand
    first: what a method does not tell apart earns nothing.
    """

    kind: ClassVar[str] = "Reranking"
    main: ClassVar[str] = "map_at_1000"
    metrics: ClassVar[Mapping[str, Metric]] = scores.means(*scores.RANKED)

    @classmethod
    def of(cls, judged: Mapping[str, Mapping[str, float]], others: Sequence[str] = ()) -> Self:
        """Items of the grades that each query gives to documents; ``others`` are documents without any."""
        documents = list(dict.fromkeys([*(text for grades in judged.values() for text in grades), *others]))
        place = {text: len(judged) + number for number, text in enumerate(documents)}
        items = tuple(
            (number, tuple(place[text] for text in grades), tuple(map(float, grades.values())))
            for number, grades in enumerate(judged.values())
        )
        return cls((*judged, *documents), items)

    @cached_property
    def queries(self) -> int:
        """How many of the texts, from the first on, are queries; the others are documents."""
        return max((int(item[0]) for item in self.items), default=-1) + 1

    def vectors(self, model: SentenceTransformer, **options: Any) -> Vectors:
        queries = encoded(model, self.texts[: self.queries], "query", **options)
        return np.concatenate([queries, encoded(model, self.texts[self.queries :], "document", **options)])

    def evidence(self, vectors: Vectors, rows: Rows | None = None, learn: Rows | None = None) -> Evidence:
        found = []
        for near, known, judged in self._near(units(vectors), chosen(self.items, rows)):
            near = np.round(near, DIGITS)
            places = np.arange(len(near))
            if len(near) > CUTOFF:
                # Only those that the ranking is cut to are sorted, and what is as near as the last of them.
                places = np.flatnonzero(near >= np.partition(near, -CUTOFF)[-CUTOFF])
            order = places[np.lexsort((known[places], -near[places]))][:CUTOFF]
            found.append(scores.ranked(known[order], judged))
        return np.asarray(found, np.float64)

    def _near(self, unit: Vectors, asked: Sequence[tuple[Any, ...]]) -> Iterator[tuple[Any, Any, Any]]:
        """Of each query the cosines of the documents that are ranked, their grades, and the grades of all judged."""
        for query, documents, grades in asked:
            known = np.asarray(grades)
            yield unit[list(documents)] @ unit[query], known, known

    def texts_of(self, item: tuple[Any, ...]) -> Sequence[int]:
        return (item[0], *item[1])

    def moved(self, item: tuple[Any, ...], places: Mapping[int, int]) -> tuple[Any, ...]:
        return (places[item[0]], tuple(places[place] for place in item[1]), item[2])

    def asked(self, item: tuple[Any, ...]) -> object:
        return self.texts[item[0]]


@dataclass(frozen=True)
class Retrieval(Ranking):
    """As :class:`Ranking`, but each query searches all documents, those without a grade being irrelevant."""

    kind: ClassVar[str] = "Retrieval"
    main: ClassVar[str] = "ndcg_at_10"
    paper: ClassVar[str | None] = "recall_at_1000"

    def _near(self, unit: Vectors, asked: Sequence[tuple[Any, ...]]) -> Iterator[tuple[Any, Any, Any]]:
        for start in range(0, len(asked), _TOGETHER):
            together = asked[start : start + _TOGETHER]
            cosines = unit[[query for query, _, _ in together]] @ unit[self.queries :].T
            for near, (_, documents, grades) in zip(cosines, together, strict=True):
                known = np.zeros(len(near))
                known[np.asarray(documents) - self.queries] = grades
                yield near, known, np.asarray(grades)

    def needed(self, rows: Sequence[int] | Rows) -> list[int]:
        return [*sorted({self.items[row][0] for row in rows}), *range(self.queries, len(self.texts))]


def scored(items: Items, vectors: Vectors, folds: int = 5) -> Evidence:
    """The evidence of all items; where a classifier has to learn, each part of them is scored by what the others teach.

    Args:
        items: The items.
        vectors: Of their texts, [texts, d].
        folds: Parts.
    """
    if not items.learns:
        return items.evidence(vectors)
    parts = items.folds(folds)
    every = np.arange(len(items))
    found = [items.evidence(vectors, part, np.setdiff1d(every, part)) for part in parts]
    return np.asarray(np.concatenate(found)[np.argsort(np.concatenate(parts))])


def chosen(items: Sequence[Any], rows: Rows | None) -> Sequence[Any]:
    """Some of the items; None: all."""
    return items if rows is None else [items[row] for row in rows]


def classify(known: Vectors, labels: Sequence[str], asked: Vectors) -> list[str]:
    """The labels that the papers' linear classifier gives: logistic regression, LBFGS, 100 iterations."""
    if len(set(labels)) == 1:
        return [labels[0]] * len(asked)
    classifier = required("sklearn.linear_model", "evaluation").LogisticRegression(solver="lbfgs", max_iter=100)
    with warnings.catch_warnings():
        # 100 iterations are the papers' protocol, whether or not they converge.
        warnings.simplefilter("ignore", required("sklearn.exceptions", "evaluation").ConvergenceWarning)
        classifier.fit(np.asarray(known, np.float32), np.asarray(labels))
    return list(classifier.predict(np.asarray(asked, np.float32)).tolist())


def _entities(tags: Sequence[str]) -> set[tuple[str, int, int]]:
    entities = required("seqeval.metrics.sequence_labeling", "evaluation").get_entities
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return set(entities(list(tags)))
