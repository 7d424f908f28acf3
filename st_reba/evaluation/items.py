"""Labelled items, and what vectors say about each of them: the one place where a score is made.

Every kind of item gives *evidence*, a row of numbers an item; a metric makes a score of some items' rows. So any two
methods can be compared item by item.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property, partial
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray
from sentence_transformers import SentenceTransformer

from ..encode import Task, encode_batch, in_order, planned_batches
from ..optional import required
from .statistics import Evidence, Metric, bootstrap

Vectors = NDArray[Any]
Rows = NDArray[np.intp]
# Called with the number of texts that have just been encoded, and of their positions, where these are counted.
Progress = Callable[..., object]

# Cosines are rounded to so many digits: what float32 cannot tell apart is equal.
DIGITS = 6
# Clusterings that a v-measure is the mean of, each from another start.
CLUSTERINGS = 5
# Queries whose cosines with all documents are held at once.
_TOGETHER = 128


class UnusableVectors(ValueError):
    """Vectors that are zero or not finite, of which no score can be made."""


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
        return item

    def moved(self, item: tuple[Any, ...], places: Mapping[int, int]) -> tuple[Any, ...]:
        """The item, its texts at other places."""
        return tuple(places[place] for place in item)

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
        """The items of both, this one's first; each text once."""
        keys = sorted(dict.fromkeys((*self._keys, *other._keys)), key=lambda key: key[0])
        place = {key: number for number, key in enumerate(keys)}
        items: list[tuple[Any, ...]] = []
        for part in (self, other):
            places = {old: place[key] for old, key in enumerate(part._keys)}
            items += (part.moved(item, places) for item in part.items)
        return replace(
            self,
            texts=tuple(text for _, text in keys),
            items=tuple(items),
            names=(*self.names, *other.names) if self.names and other.names else (),
            groups=(*self.groups, *other.groups) if self.groups and other.groups else (),
        )

    @property
    def _keys(self) -> list[tuple[int, str]]:
        """What tells texts apart: 0 and the text; of the documents of a ranking 1, as they stand behind all queries."""
        return [(0, text) for text in self.texts]

    def folds(self, count: int = 2) -> list[Rows]:
        """The items in parts, each of which can be scored by what the others teach.

        Labels have their shares in each, whatever order the items are in; what asks for the same stands in one part.
        """
        order = sorted(self.same(), key=lambda rows: self.label(self.items[rows[0]]))
        parts = [[row for rows in order[start::count] for row in rows] for start in range(count)]
        return [np.sort(np.asarray(part, np.intp)) for part in parts if part]

    def unseen(self, vectors: Vectors) -> list[str]:
        """What a method does not see whole, by name: items with a row of NaN."""
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


@dataclass(frozen=True)
class Prompts:
    """What stands before texts.

    Args:
        query: Before queries, and before texts that are neither; None: what the model has saved.
        document: Before documents.

    Example:
        >>> Prompts("Say it: ").of("document") is None
        True
    """

    query: str | None = None
    document: str | None = None

    def of(self, role: Task | None) -> str | None:
        """Before texts of a role; None: neither query nor document."""
        return self.document if role == "document" else self.query


def encoded(
    model: SentenceTransformer,
    texts: Sequence[str],
    role: Task | None = None,
    *,
    progress: Progress | None = None,
    prompts: Prompts | None = None,
    **sizes: Any,
) -> NDArray[np.float32]:
    """Vectors of texts, all of which are finite and none of which is zero."""
    prompt = None if prompts is None else prompts.of(role)
    given: dict[str, Any] = {} if prompt is None else {"prompt": prompt}
    batches, counts = planned_batches(model, texts, task=role, **sizes, **given)
    rows = []
    for batch in batches:
        rows.append(encode_batch(model, [texts[place] for place in batch], task=role, **given))
        if progress is not None:
            progress(len(batch), None if counts is None else sum(counts[place] for place in batch))
    vectors = in_order(rows, batches)
    check_usable(vectors, texts)
    return vectors


def check_usable(vectors: NDArray[np.float32], texts: Sequence[str]) -> None:
    """Refuse vectors that are zero or not finite.

    Raises:
        UnusableVectors: The message has how many, and the first one's text.
    """
    bad = np.flatnonzero(~np.isfinite(vectors).all(axis=1) | ~vectors.any(axis=1))
    if len(bad):
        raise UnusableVectors(
            f"{len(bad)} of {len(vectors)} vectors are zero or not finite; the first is that of {texts[bad[0]]!r:.80}"
        )


def check_memory(rows: int, dimension: int) -> None:
    """Refuse vectors that do not fit into the machine's memory, where that is known.

    Raises:
        ValueError: The message has both sizes.
    """
    try:
        memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return
    needed = rows * dimension * 4
    if needed > memory > 0:
        raise ValueError(
            f"the vectors of {rows:,} words of {dimension} dimensions take {needed / 2**30:.1f} GiB, but the machine "
            f"has {memory / 2**30:.1f} GiB of memory. Use a sample: limit=… (--limit)."
        )


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

    @property
    def metrics(self) -> Mapping[str, Metric]:
        return {"cosine_spearman": spearman, "cosine_pearson": pearson}

    def evidence(self, vectors: Vectors, rows: Rows | None = None, learn: Rows | None = None) -> Evidence:
        first, second, scores = zip(*_chosen(self.items, rows), strict=True)
        return np.stack([cosines(vectors, first, second), np.asarray(scores, np.float64)], axis=1)

    def texts_of(self, item: tuple[Any, ...]) -> Sequence[int]:
        return item[:2]

    def moved(self, item: tuple[Any, ...], places: Mapping[int, int]) -> tuple[Any, ...]:
        return (places[item[0]], places[item[1]], item[2])

    def asked(self, item: tuple[Any, ...]) -> object:
        return frozenset(self.texts[place] for place in item[:2])


@dataclass(frozen=True)
class LabelledPairs(ScoredPairs):
    """Items (text, text, 0 or 1): whether pairs of 1 have the larger cosines."""

    kind: ClassVar[str] = "PairClassification"
    main: ClassVar[str] = "cosine_ap"
    paper: ClassVar[str | None] = "cosine_accuracy"

    @property
    def metrics(self) -> Mapping[str, Metric]:
        return {"cosine_ap": average_precision, "cosine_accuracy": best_accuracy}

    def label(self, item: tuple[Any, ...]) -> str:
        return str(item[2])


@dataclass(frozen=True)
class Triples(Items):
    """Items (text, nearer, farther): how often the cosine with the nearer is larger; a tie counts half."""

    kind: ClassVar[str] = "Triples"
    main: ClassVar[str] = "accuracy"

    @property
    def metrics(self) -> Mapping[str, Metric]:
        return {
            "accuracy": lambda evidence: float((np.sign(evidence[:, 0] - evidence[:, 1]).mean() + 1) / 2),
            "ties": lambda evidence: float((evidence[:, 0] == evidence[:, 1]).mean()),
            "mean cosine nearer": lambda evidence: float(evidence[:, 0].mean()),
            "mean cosine farther": lambda evidence: float(evidence[:, 1].mean()),
        }

    def evidence(self, vectors: Vectors, rows: Rows | None = None, learn: Rows | None = None) -> Evidence:
        anchor, near, far = np.asarray(_chosen(self.items, rows), np.intp).T
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
    learns: ClassVar[bool] = True

    @property
    def metrics(self) -> Mapping[str, Metric]:
        return {"accuracy": lambda evidence: float((evidence[:, 0] == evidence[:, 1]).mean()), "f1": macro_f1}

    def evidence(self, vectors: Vectors, rows: Rows | None = None, learn: Rows | None = None) -> Evidence:
        known = _chosen(self.items, learn)
        asked = _chosen(self.items, rows)
        place = {label: code for code, label in enumerate(sorted({item[1] for item in self.items}))}
        predicted = classify(
            vectors[[item[0] for item in known]], [item[1] for item in known], vectors[[item[0] for item in asked]]
        )
        codes = [(place[label], place[item[1]]) for label, item in zip(predicted, asked, strict=True)]
        return np.asarray(codes, np.float64)

    def texts_of(self, item: tuple[Any, ...]) -> Sequence[int]:
        return item[:1]

    def moved(self, item: tuple[Any, ...], places: Mapping[int, int]) -> tuple[Any, ...]:
        return (places[item[0]], item[1])

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

    @property
    def metrics(self) -> Mapping[str, Metric]:
        return {"v_measure": _mean_v_measure}

    def evidence(self, vectors: Vectors, rows: Rows | None = None, learn: Rows | None = None) -> Evidence:
        asked = _chosen(self.items, rows)
        place = {label: code for code, label in enumerate(sorted({item[1] for item in asked}))}
        points = np.asarray(vectors[[item[0] for item in asked]], np.float32)
        found = [
            required("sklearn.cluster", "evaluation")
            # As mteb: mini-batches of 512.
            .MiniBatchKMeans(len(place), batch_size=512, n_init="auto", random_state=start)
            .fit_predict(points)
            for start in range(CLUSTERINGS)
        ]
        return np.asarray([[place[item[1]] for item in asked], *found], np.float64).T


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
        each = {f"f1 {name}": partial(entity_f1, place=place) for place, name in enumerate(self.types)}
        return {
            "entity_f1": entity_f1,
            "precision": lambda evidence: _share(evidence[:, 0::3].sum(), evidence[:, 1::3].sum()),
            "recall": lambda evidence: _share(evidence[:, 0::3].sum(), evidence[:, 2::3].sum()),
            **each,
        }

    def vectors(self, model: SentenceTransformer, *, prompts: Prompts | None = None, **options: Any) -> Vectors:
        from .vectors import word_vectors

        options |= {"separator": self.separator, "subtoken": self.subtoken}
        words = [item[1] for item in self.items]
        check_memory(sum(map(len, words)), model.get_embedding_dimension() or 0)
        return word_vectors(model, words, prompt=None if prompts is None else prompts.of(None), **options)

    def unseen(self, vectors: Vectors) -> list[str]:
        rows = np.flatnonzero(np.isnan(vectors[self._ends[:-1], 0]))
        return [f"{row + 1}: {self.texts[self.items[row][0]]:.40}" for row in rows]

    def evidence(self, vectors: Vectors, rows: Rows | None = None, learn: Rows | None = None) -> Evidence:
        ends, seen, asked = self._ends, np.isfinite(vectors[:, 0]), _every(self.items, rows)
        tags = np.asarray([tag for item in self.items for tag in item[2]])

        def visible(chosen: Sequence[int]) -> Rows:
            places = np.concatenate([np.arange(ends[row], ends[row + 1]) for row in chosen])
            return np.asarray(places[seen[places]])

        known, wanted = visible(_every(self.items, learn)), visible(asked)
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

    def texts_of(self, item: tuple[Any, ...]) -> Sequence[int]:
        return item[:1]

    def moved(self, item: tuple[Any, ...], places: Mapping[int, int]) -> tuple[Any, ...]:
        return (places[item[0]], *item[1:])


# Rankings


@dataclass(frozen=True)
class Ranking(Items):
    """Items (query, documents, grades): the order of each query's documents by their cosines with it.

    Queries stand before the documents. Of documents with equal cosines, those of the lower grade are taken to stand
    first: what a method does not tell apart earns nothing.
    """

    kind: ClassVar[str] = "Reranking"
    main: ClassVar[str] = "map_at_1000"
    # As many as mteb takes.
    cutoff: ClassVar[int] = 1000

    @classmethod
    def of(
        cls, judged: Mapping[str, Mapping[str, float]], others: Sequence[str] = (), names: Sequence[str] = ()
    ) -> Self:
        """Items of the grades that each query gives to documents; ``others`` are documents without any."""
        documents = list(dict.fromkeys([*(text for grades in judged.values() for text in grades), *others]))
        place = {text: len(judged) + number for number, text in enumerate(documents)}
        items = tuple(
            (number, tuple(place[text] for text in grades), tuple(map(float, grades.values())))
            for number, grades in enumerate(judged.values())
        )
        return cls((*judged, *documents), items, tuple(names))

    @cached_property
    def queries(self) -> int:
        """How many of the texts, from the first on, are queries; the others are documents."""
        return max((int(item[0]) for item in self.items), default=-1) + 1

    @property
    def metrics(self) -> Mapping[str, Metric]:
        names = ("map_at_1000", "ndcg_at_10", "mrr_at_10", "recall_at_10", "recall_at_1000")
        return {name: partial(_mean, column=column) for column, name in enumerate(names)}

    def vectors(self, model: SentenceTransformer, **options: Any) -> Vectors:
        queries = encoded(model, self.texts[: self.queries], "query", **options)
        return np.concatenate([queries, encoded(model, self.texts[self.queries :], "document", **options)])

    def evidence(self, vectors: Vectors, rows: Rows | None = None, learn: Rows | None = None) -> Evidence:
        found = []
        for near, known, judged in self._near(units(vectors), _chosen(self.items, rows)):
            near = np.round(near, DIGITS)
            places = np.arange(len(near))
            if len(near) > self.cutoff:
                # Only those that the ranking is cut to are sorted, and what is as near as the last of them.
                places = np.flatnonzero(near >= np.partition(near, -self.cutoff)[-self.cutoff])
            order = places[np.lexsort((known[places], -near[places]))][: self.cutoff]
            found.append(_ranked(known[order], judged))
        return np.asarray(found, np.float64)

    def _near(self, unit: Vectors, chosen: Sequence[tuple[Any, ...]]) -> Iterator[tuple[Any, Any, Any]]:
        """Of each query the cosines of the documents that are ranked, their grades, and the grades of all judged."""
        for query, documents, grades in chosen:
            known = np.asarray(grades)
            yield unit[list(documents)] @ unit[query], known, known

    def texts_of(self, item: tuple[Any, ...]) -> Sequence[int]:
        return (item[0], *item[1])

    def moved(self, item: tuple[Any, ...], places: Mapping[int, int]) -> tuple[Any, ...]:
        return (places[item[0]], tuple(places[place] for place in item[1]), item[2])

    def asked(self, item: tuple[Any, ...]) -> object:
        return self.texts[item[0]]

    @property
    def _keys(self) -> list[tuple[int, str]]:
        return [(int(place >= self.queries), text) for place, text in enumerate(self.texts)]


@dataclass(frozen=True)
class Retrieval(Ranking):
    """As :class:`Ranking`, but each query searches all documents, those without a grade being irrelevant."""

    kind: ClassVar[str] = "Retrieval"
    main: ClassVar[str] = "ndcg_at_10"
    paper: ClassVar[str | None] = "recall_at_1000"

    def _near(self, unit: Vectors, chosen: Sequence[tuple[Any, ...]]) -> Iterator[tuple[Any, Any, Any]]:
        for start in range(0, len(chosen), _TOGETHER):
            together = chosen[start : start + _TOGETHER]
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
    found = [
        items.evidence(vectors, part, np.sort(np.concatenate([other for other in parts if other is not part])))
        for part in parts
    ]
    return np.asarray(np.concatenate(found)[np.argsort(np.concatenate(parts))])


# Metrics


def spearman(evidence: Evidence) -> float:
    """Spearman's correlation of two columns; 0 where one is all alike."""
    # As scipy's spearmanr, which takes ten times as long, and intervals are made of thousands of these.
    return pearson(required("scipy.stats", "evaluation").rankdata(evidence, axis=0))


def pearson(evidence: Evidence) -> float:
    """Pearson's correlation of two columns; 0 where one is all alike."""
    if not np.ptp(evidence, axis=0).all():
        return 0.0
    one, other = (evidence - evidence.mean(axis=0)).T
    return _share(float(one @ other), math.sqrt(float(one @ one) * float(other @ other)))


def average_precision(evidence: Evidence) -> float:
    """Average precision of a column of scores for a column of 0 and 1; equal scores count as one step."""
    order = np.argsort(-evidence[:, 0], kind="stable")
    scores, labels = evidence[order].T
    if not labels.any():
        return 0.0
    last = np.flatnonzero(np.append(np.diff(scores) != 0, True))
    right = np.cumsum(labels)[last]
    return float(np.sum(np.diff(right, prepend=0) * right / (last + 1)) / labels.sum())


def best_accuracy(evidence: Evidence) -> float:
    """Accuracy at the threshold of the scores that makes it largest."""
    order = np.argsort(-evidence[:, 0], kind="stable")
    scores, labels = evidence[order].T
    last = np.append(np.diff(scores) != 0, True)
    # So many are right when all up to here are called 1.
    right = (np.cumsum(labels) + (1 - labels).sum() - np.cumsum(1 - labels))[last]
    return float(max(right.max(initial=0.0), (1 - labels).sum()) / len(labels))


def macro_f1(evidence: Evidence) -> float:
    """The mean F1 of the classes that are predicted (column 0) or wanted (column 1)."""
    codes = evidence.astype(np.intp)
    most = int(codes.max()) + 1
    guessed, wanted = np.bincount(codes[:, 0], minlength=most), np.bincount(codes[:, 1], minlength=most)
    right = np.bincount(codes[codes[:, 0] == codes[:, 1], 1], minlength=most)
    there = guessed + wanted > 0
    return float((2 * right[there] / (guessed + wanted)[there]).mean())


def entity_f1(evidence: Evidence, place: int | None = None) -> float:
    """F1 of columns right, found, wanted, of all types or of one; 0 where there is none."""
    columns = evidence if place is None else evidence[:, 3 * place : 3 * place + 3]
    right, found, wanted = (float(columns[:, column::3].sum()) for column in range(3))
    return _share(2 * right, found + wanted)


def v_measure(labels: NDArray[np.intp], clusters: NDArray[np.intp]) -> float:
    """The harmonic mean of homogeneity and completeness, by natural logarithms."""
    shape = (int(labels.max()) + 1, int(clusters.max()) + 1)
    table = np.bincount(labels * shape[1] + clusters, minlength=shape[0] * shape[1]).reshape(shape)

    def entropy(counts: NDArray[Any]) -> float:
        share = counts[counts > 0] / len(labels)
        return float(-(share * np.log(share)).sum())

    of_labels, of_clusters = entropy(table.sum(axis=1)), entropy(table.sum(axis=0))
    shared = of_labels + of_clusters - entropy(table)
    homogeneity = shared / of_labels if of_labels else 1.0
    completeness = shared / of_clusters if of_clusters else 1.0
    return _share(2 * homogeneity * completeness, homogeneity + completeness)


def _mean_v_measure(evidence: Evidence) -> float:
    labels, *clusterings = evidence.astype(np.intp).T
    return sum(v_measure(labels, clusters) for clusters in clusterings) / len(clusterings)


def _ranked(grades: NDArray[np.float64], known: NDArray[np.float64]) -> list[float]:
    """MAP, nDCG@10 (linear gains, as mteb), MRR@10, recall@10 and recall@1000 of one query's ranked grades.

    Args:
        grades: In the order of the ranking.
        known: Of all documents, in any order.
    """
    relevant = grades > 0
    count = max(1, int((known > 0).sum()))
    ranks = np.flatnonzero(relevant) + 1
    precision = float(np.sum(np.arange(1, len(ranks) + 1) / ranks)) / count
    discount = 1 / np.log2(np.arange(2, 12))
    best = np.sort(known)[::-1][:10]
    ideal = float(best @ discount[: len(best)])
    gain = float(grades[:10] @ discount[: len(grades[:10])])
    first = 1 / ranks[0] if len(ranks) and ranks[0] <= 10 else 0.0
    return [precision, _share(gain, ideal), float(first), relevant[:10].sum() / count, relevant.sum() / count]


def _mean(evidence: Evidence, column: int) -> float:
    return float(evidence[:, column].mean())


def _share(part: float, whole: float) -> float:
    return float(part / whole) if whole else 0.0


# Helpers


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


def _every(items: Sequence[Any], rows: Rows | None) -> Sequence[int]:
    return range(len(items)) if rows is None else [int(row) for row in rows]


def _chosen(items: Sequence[Any], rows: Rows | None) -> list[Any]:
    return [items[row] for row in _every(items, rows)]
