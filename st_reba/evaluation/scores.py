"""Scores of tasks: from vectors to evidence (a row of numbers an item), and from evidence to metrics."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .statistics import Evidence
from .tasks import Task

Vectors = NDArray[Any]
Metric = Callable[[Evidence], float]

# Cosines are rounded to so many digits: what float32 cannot tell apart is equal.
DIGITS = 6
FOLDS = 5
# Clusterings that a v-measure is the mean of, each from another start.
CLUSTERINGS = 5
# As many documents of a ranking as mteb takes.
CUTOFF = 1000
# Sums of distances that differ by less than this share are tied.
TIE = 1e-9


@dataclass(frozen=True)
class Scoring:
    """How tasks of a kind are scored: evidence [items, numbers] of vectors, metrics of evidence; more is better.

    ``main`` is the metric that tables show, ``paper`` the papers' where it is another; ``recentred`` as for
    ``paired_bootstrap``.
    """

    evidence: Callable[[Task, Vectors], Evidence]
    metrics: Mapping[str, Metric]
    main: str
    paper: str | None = None
    recentred: bool = False


def cosines(vectors: Vectors, first: Any, second: Any) -> NDArray[np.float64]:
    """Cosines of pairs of rows, rounded to six digits; a zero vector has 0 with all."""
    unit = _units(vectors)
    found = np.einsum("nd,nd->n", unit[np.asarray(first)], unit[np.asarray(second)])
    return np.asarray(np.round(found, DIGITS))


def odd_one_out(vectors: NDArray[np.floating]) -> dict[str, NDArray[np.intp]]:
    """Of each group of vectors, the one whose distances to the others have the largest sum; of several, the first.

    Args:
        vectors: [groups, n, d].

    Returns:
        By distance (``"euclidean"``, ``"cosine"``: 1 − cos), an index from 0 to n − 1 a group.

    Source:
        ReBA, section 4 (word embedding evaluation).

    Example:
        >>> group = np.array([[[1.0, 0.0], [2.0, 0.0], [9.0, 0.0], [1.0, 1.0]]])
        >>> {name: odd.tolist() for name, odd in odd_one_out(group).items()}
        {'euclidean': [2], 'cosine': [3]}
    """
    exact = vectors.astype(np.float64)
    unit = _units(exact)
    sums = {name: np.zeros(vectors.shape[:2]) for name in ("euclidean", "cosine")}
    for first, second in combinations(range(vectors.shape[1]), 2):
        apart = {
            "euclidean": np.linalg.norm(exact[:, first] - exact[:, second], axis=1),
            "cosine": np.clip(1 - np.sum(unit[:, first] * unit[:, second], axis=1), 0, 2),
        }
        for name, distance in apart.items():
            sums[name][:, first] += distance
            sums[name][:, second] += distance
    return {name: np.argmax(each >= each.max(axis=1, keepdims=True) * (1 - TIE), axis=1) for name, each in sums.items()}


def classify(known: Vectors, labels: Sequence[str], asked: Vectors) -> list[str]:
    """The labels that the papers' linear classifier gives: logistic regression, LBFGS, 100 iterations.

    Source:
        NoSink, section 4.1 (domain tasks) and 3.2 (entities).
    """
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression

    if len(set(labels)) == 1:
        return [labels[0]] * len(asked)
    with warnings.catch_warnings():
        # 100 iterations are the papers' protocol, whether or not they converge.
        warnings.simplefilter("ignore", ConvergenceWarning)
        classifier = LogisticRegression(max_iter=100).fit(np.asarray(known, np.float32), np.asarray(labels))
    return list(classifier.predict(np.asarray(asked, np.float32)).tolist())


def _units(vectors: Vectors) -> Vectors:
    exact: Vectors = np.array(vectors, np.float64)
    exact /= np.maximum(np.linalg.norm(exact, axis=-1, keepdims=True), np.finfo(np.float64).tiny)
    return exact


# Evidence


def _pairs(task: Task, vectors: Vectors) -> Evidence:
    """Cosine and score of each pair."""
    first, second, known = zip(*task.items, strict=True)
    return np.stack([cosines(vectors, first, second), np.asarray(known, np.float64)], axis=1)


def _triples(task: Task, vectors: Vectors) -> Evidence:
    """Cosines with the nearer and the farther."""
    anchor, near, far = zip(*task.items, strict=True)
    return np.stack([cosines(vectors, anchor, near), cosines(vectors, anchor, far)], axis=1)


def _classes(task: Task, vectors: Vectors) -> Evidence:
    """Found and known class of each item, as numbers; without texts to learn from, in five folds."""
    places, labels = (np.asarray(each) for each in zip(*task.items, strict=True))
    found = np.empty(len(labels), dtype=object)
    if task.train:
        known, wanted = zip(*task.train, strict=True)
        found[:] = classify(vectors[list(known)], wanted, vectors[places])
    else:
        from sklearn.model_selection import StratifiedGroupKFold

        with warnings.catch_warnings():
            # A class with fewer texts than folds is missing in some.
            warnings.filterwarnings("ignore", "The least populated class", UserWarning)
            folds = list(StratifiedGroupKFold(FOLDS).split(places, labels, places))
        for learn, rest in folds:
            found[rest] = classify(vectors[places[learn]], labels[learn].tolist(), vectors[places[rest]])
    codes = {label: code for code, label in enumerate(sorted({*labels.tolist(), *found}))}
    return np.array([[codes[one], codes[other]] for one, other in zip(found, labels.tolist(), strict=True)], np.float64)


def _clusters(task: Task, vectors: Vectors) -> Evidence:
    """Label and cluster of each item, a column a clustering; as mteb: mini-batches of 512."""
    from sklearn.cluster import MiniBatchKMeans

    places, labels = zip(*task.items, strict=True)
    codes = {label: code for code, label in enumerate(sorted(set(labels)))}
    points = np.asarray(vectors[list(places)], np.float32)
    found = [
        MiniBatchKMeans(len(codes), batch_size=512, n_init="auto", random_state=start).fit_predict(points)
        for start in range(CLUSTERINGS)
    ]
    return np.array([[codes[label] for label in labels], *found], np.float64).T


def _ranked(task: Task, vectors: Vectors) -> Evidence:
    """The ranking metrics of each query, over its judged documents (reranking) or over all."""
    unit, rows = _units(vectors), []
    for query, documents, grades in task.items:
        places, known = np.asarray(documents), np.asarray(grades)
        if task.kind == "Retrieval":
            known = np.zeros(len(unit) - task.queries)
            known[places - task.queries] = grades
            places = np.arange(task.queries, len(unit))
        rows.append(_of_ranking(np.round(unit[places] @ unit[query], DIGITS), known))
    return np.asarray(rows, np.float64)


RANKED = ("map_at_1000", "ndcg_at_10", "mrr_at_10", "recall_at_10", "recall_at_1000")


def _of_ranking(near: NDArray[np.float64], known: NDArray[np.float64]) -> list[float]:
    """The values of ``RANKED``. Of equal cosines the lower grade stands first: what is not told apart earns nothing."""
    from sklearn.metrics import average_precision_score, ndcg_score

    order = np.lexsort((known, -near))
    places, relevant = -np.arange(len(order), dtype=np.float64), known[order[:CUTOFF]] > 0
    count = int((known > 0).sum())
    precision = float(average_precision_score(relevant, places[:CUTOFF])) if relevant.any() else 0.0
    precision *= relevant.sum() / count
    gain = float(ndcg_score(known[order][None], places[None], k=10))
    first = np.flatnonzero(relevant[:10])
    mrr = 1 / (first[0] + 1) if len(first) else 0.0
    return [precision, gain, mrr, relevant[:10].sum() / count, relevant.sum() / count]


def _senses(task: Task, vectors: Vectors) -> Evidence:
    """Whether the odd sentence is found, by cosine and by Euclidean distance."""
    places = np.array([item[0] for item in task.items])
    fours, answers = vectors[places], np.array([item[1] for item in task.items])
    odd = odd_one_out(fours)
    return np.stack([odd[name] == answers for name in ("cosine", "euclidean")], axis=1).astype(np.float64)


def _tagged(task: Task, vectors: Vectors) -> Evidence:
    """Entities that are right, found and wanted, in each sentence; vectors are a row a word, text after text."""
    from seqeval.metrics.sequence_labeling import get_entities

    lengths = {item[0]: len(item[1]) for item in (*task.items, *task.train)}
    ends = np.cumsum([0, *(lengths[place] for place in range(len(task.texts)))])

    def rows(items: Sequence[tuple[Any, ...]]) -> Vectors:
        return np.asarray(vectors[np.concatenate([np.arange(ends[item[0]], ends[item[0] + 1]) for item in items])])

    tags = iter(classify(rows(task.train), [tag for item in task.train for tag in item[2]], rows(task.items)))
    counts = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _, words, known in task.items:
            wanted, found = set(get_entities(list(known))), set(get_entities([next(tags) for _ in words]))
            counts.append([len(wanted & found), len(found), len(wanted)])
    return np.asarray(counts, np.float64)


# Metrics


def _correlation(rows: Evidence, name: str) -> float:
    """scipy's; 0 where one side is constant."""
    from scipy import stats

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        value = float(getattr(stats, name)(*rows.T).statistic)
    return value if np.isfinite(value) else 0.0


def _average_precision(rows: Evidence) -> float:
    from sklearn.metrics import average_precision_score

    return float(average_precision_score(rows[:, 1], rows[:, 0])) if rows[:, 1].any() else 0.0


def _best_accuracy(rows: Evidence) -> float:
    from sentence_transformers.sentence_transformer.evaluation import BinaryClassificationEvaluator

    found = BinaryClassificationEvaluator.find_best_acc_and_threshold(rows[:, 0], rows[:, 1], True)
    return float(found[0])


def _nearer(rows: Evidence) -> float:
    """How often the nearer is nearer; a tie counts half."""
    return float((np.sign(rows[:, 0] - rows[:, 1]).mean() + 1) / 2)


def _accuracy(rows: Evidence) -> float:
    return float((rows[:, 0] == rows[:, 1]).mean())


def _f1(rows: Evidence, average: str) -> float:
    from sklearn.metrics import f1_score

    return float(f1_score(rows[:, 1], rows[:, 0], average=average, zero_division=0))


def _v_measure(rows: Evidence) -> float:
    from sklearn.metrics import v_measure_score

    labels, *clusterings = rows.T
    return float(np.mean([v_measure_score(labels, each) for each in clusterings]))


def _entities(rows: Evidence, ends: tuple[int, ...]) -> float:
    """F1, or precision or recall: twice the right ones among those of both sides, or once among those of one."""
    whole = rows[:, ends].sum()
    return float(len(ends) * rows[:, 0].sum() / whole) if whole else 0.0


def _means(*names: str) -> dict[str, Metric]:
    return {name: partial(_mean, column=column) for column, name in enumerate(names)}


def _mean(rows: Evidence, column: int) -> float:
    return float(rows[:, column].mean())


_PAIRED: dict[str, Metric] = {
    f"cosine_{name}": partial(_correlation, name=f"{name}r") for name in ("spearman", "pearson")
}
_TOLD = {"cosine_ap": _average_precision, "cosine_accuracy": _best_accuracy}
_NEAR: dict[str, Metric] = {"accuracy": _nearer, **_means("mean cosine nearer", "mean cosine farther")}
_CLASSES: dict[str, Metric] = {
    "accuracy": _accuracy,
    "f1": partial(_f1, average="macro"),
    "weighted_f1": partial(_f1, average="weighted"),
}
_SENSES = _means("accuracy cosine", "accuracy euclidean")
_TAGS = {
    name: partial(_entities, ends=ends) for name, ends in (("entity_f1", (1, 2)), ("precision", (1,)), ("recall", (2,)))
}

SCORINGS: dict[str, Scoring] = {
    "STS": Scoring(_pairs, _PAIRED, "cosine_spearman", "cosine_pearson"),
    "PairClassification": Scoring(_pairs, _TOLD, "cosine_ap", "cosine_accuracy"),
    "Triples": Scoring(_triples, _NEAR, "accuracy"),
    "Classification": Scoring(_classes, _CLASSES, "accuracy"),
    "Clustering": Scoring(_clusters, {"v_measure": _v_measure}, "v_measure", recentred=True),
    "Reranking": Scoring(_ranked, _means(*RANKED), "map_at_1000"),
    "Retrieval": Scoring(_ranked, _means(*RANKED), "ndcg_at_10", "recall_at_1000"),
    "WordSense": Scoring(_senses, _SENSES, "accuracy cosine", "accuracy euclidean"),
    "NER": Scoring(_tagged, _TAGS, "entity_f1"),
}
