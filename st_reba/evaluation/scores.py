"""Scores of tasks: from vectors to evidence (a row of numbers an item), and from evidence to metrics."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import entr
from scipy.stats import rankdata
from sentence_transformers.sentence_transformer.evaluation import BinaryClassificationEvaluator
from sklearn.cluster import MiniBatchKMeans
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import average_precision_score, f1_score, ndcg_score
from sklearn.model_selection import StratifiedGroupKFold

from ..optional import required
from .statistics import Evidence
from .tasks import FOLDS, Task

Vectors = NDArray[Any]
Metric = Callable[[Evidence], float]

# Cosines are rounded to so many digits: what float32 cannot tell apart is equal.
DIGITS = 6
# Of k-means: mteb's one start, and more, as one is partly luck.
SEEDS = range(42, 52)
# As many documents of a ranking as mteb takes; sums of distances that differ by less than this share are tied.
CUTOFF, TIE = 1000, 1e-9
RANKED = ("map_at_1000", "ndcg_at_10", "mrr_at_10", "recall_at_10", "recall_at_1000")


@dataclass(frozen=True)
class Scoring:
    """Scoring of a kind of task: evidence [items, numbers] of vectors, and metrics of evidence; more is better."""

    evidence: Callable[[Task, Vectors], Evidence]
    metrics: Mapping[str, Metric]
    main: str  # the metric that tables show
    paper: str | None = None  # the papers', if another
    recentred: bool = False  # as for paired_bootstrap


def cosines(vectors: Vectors, first: Any, second: Any) -> NDArray[np.float64]:
    """Cosines of pairs of rows, rounded to six digits; a zero vector has 0 with all."""
    unit = _units(vectors)
    return np.asarray(np.round((unit[np.asarray(first)] * unit[np.asarray(second)]).sum(axis=1), DIGITS))


def odd_one_out(vectors: NDArray[np.floating]) -> dict[str, NDArray[np.intp]]:
    """Find the vector of each group whose distances to the others have the largest sum; if several, the first.

    Args:
        vectors: [groups, n, d].

    Returns:
        By distance (``"cosine"``: 1 − cos, ``"euclidean"``), an index from 0 to n − 1 a group.

    Source:
        ReBA, section 4 (word embedding evaluation).

    Example:
        >>> group = np.array([[[1.0, 0.0], [2.0, 0.0], [9.0, 0.0], [1.0, 1.0]]])
        >>> {name: odd.tolist() for name, odd in odd_one_out(group).items()}
        {'cosine': [3], 'euclidean': [2]}
    """
    exact, unit = vectors.astype(np.float64), _units(vectors)
    apart = {
        "cosine": np.clip(1 - unit @ unit.swapaxes(1, 2), 0, 2),
        "euclidean": np.linalg.norm(exact[:, :, None] - exact[:, None], axis=3),
    }
    sums = {name: each.sum(axis=2) for name, each in apart.items()}
    return {name: np.argmax(each >= each.max(axis=1, keepdims=True) * (1 - TIE), axis=1) for name, each in sums.items()}


def classify(known: Vectors, labels: Sequence[str], asked: Vectors, *, balanced: bool = False) -> list[str]:
    """The labels that the papers' linear classifier gives: logistic regression, LBFGS, 100 iterations.

    Args:
        known, labels, asked: Vectors [N, d], their labels, and the vectors [M, d] to classify.
        balanced: Weight classes alike: else the largest would get all vectors of length 1 that lie close together.

    Source:
        NoSink, section 4.1 (domain tasks) and 3.2 (entities).
    """
    if len(set(labels)) == 1:
        return [labels[0]] * len(asked)
    with warnings.catch_warnings():
        # 100 iterations are the papers' protocol, whether or not they converge.
        warnings.simplefilter("ignore", ConvergenceWarning)
        classifier = LogisticRegression(max_iter=100, class_weight="balanced" if balanced else None)
        classifier.fit(np.asarray(known, np.float32), np.asarray(labels))
    return list(classifier.predict(np.asarray(asked, np.float32)).tolist())


def _units(vectors: Vectors) -> Vectors:
    exact: Vectors = np.array(vectors, np.float64)
    exact /= np.maximum(np.linalg.norm(exact, axis=-1, keepdims=True), np.finfo(np.float64).tiny)
    return exact


def _pairs(task: Task, vectors: Vectors) -> Evidence:
    first, second, known = zip(*task.items, strict=True)
    return np.stack([cosines(vectors, first, second), np.asarray(known, np.float64)], axis=1)


def _triples(task: Task, vectors: Vectors) -> Evidence:
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
        with warnings.catch_warnings():
            # A class with fewer texts than folds is missing in some.
            warnings.filterwarnings("ignore", "The least populated class", UserWarning)
            folds = list(StratifiedGroupKFold(FOLDS).split(places, labels, places))
        for learn, rest in folds:
            learned = vectors[places[learn]], labels[learn].tolist()
            found[rest] = classify(*learned, vectors[places[rest]], balanced=True)
    codes = np.unique(np.array([found, labels], dtype=str), return_inverse=True)[1]
    return codes.reshape(2, -1).T.astype(np.float64)


def _clusters(task: Task, vectors: Vectors) -> Evidence:
    places, labels = zip(*task.items, strict=True)
    names, known = np.unique(np.asarray(labels), return_inverse=True)
    points, options = np.asarray(vectors[list(places)], np.float32), {"batch_size": 500, "n_init": "auto"}
    found = [MiniBatchKMeans(len(names), random_state=seed, **options).fit_predict(points) for seed in SEEDS]
    return np.stack([known, *found], axis=1).astype(np.float64)


def _ranked(task: Task, vectors: Vectors) -> Evidence:
    """The values of ``RANKED`` for each query, over its judged documents (reranking) or over all."""
    unit, rows = _units(vectors), []
    for query, documents, grades in task.items:
        places, known = np.asarray(documents), np.asarray(grades)
        if task.kind == "Retrieval":
            known = np.zeros(len(unit) - task.queries)
            known[places - task.queries] = grades
            places = np.arange(task.queries, len(unit))
        # Of equal cosines the lower grade stands first: what is not told apart earns nothing.
        order = np.lexsort((known, -np.round(unit[places] @ unit[query], DIGITS)))
        known, ranks = known[order], -np.arange(len(order), dtype=np.float64)
        relevant, count = known[:CUTOFF] > 0, int((known > 0).sum())
        precision = average_precision_score(relevant, ranks[:CUTOFF]) if relevant.any() else 0.0
        first = relevant[:10].argmax()
        shares = [float(relevant[:most].sum()) / count for most in (10, CUTOFF)]
        gain, mrr = ndcg_score(known[None], ranks[None], k=10), relevant[first] / (first + 1)
        rows.append([precision * shares[1], gain, mrr, *shares])
    return np.asarray(rows, np.float64)


def _senses(task: Task, vectors: Vectors) -> Evidence:
    places, answers = (np.array(each) for each in zip(*task.items, strict=True))
    return np.stack([odd == answers for odd in odd_one_out(vectors[places]).values()], axis=1).astype(np.float64)


def _tagged(task: Task, vectors: Vectors) -> Evidence:
    """Entities that are right, found and wanted, in each sentence; vectors are a row a word, text after text."""
    get_entities = required("seqeval.metrics.sequence_labeling", "evaluation").get_entities
    lengths = {item[0]: len(item[1]) for item in (*task.items, *task.train)}
    ends = np.cumsum([0, *(lengths[place] for place in range(len(task.texts)))])

    def rows(items: Sequence[tuple[Any, ...]]) -> Vectors:
        return np.asarray(vectors[np.concatenate([np.arange(ends[item[0]], ends[item[0] + 1]) for item in items])])

    tags = iter(classify(rows(task.train), [tag for item in task.train for tag in item[2]], rows(task.items)))
    counts = []
    for _, words, known in task.items:
        wanted, found = set(get_entities(list(known))), set(get_entities([next(tags) for _ in words]))
        counts.append([len(wanted & found), len(found), len(wanted)])
    return np.asarray(counts, np.float64)


def _correlation(rows: Evidence, *, of_ranks: bool) -> float:
    """0 where one side is constant. scipy's functions also compute p-values, which takes ten times as long."""
    values: Any = rankdata(rows, axis=0) if of_ranks else rows
    widths = np.ptp(values, axis=0)
    if not widths.all():
        return 0.0
    # Scaled: the squares of the smallest numbers would be 0.
    return float(np.corrcoef(((values - values.min(axis=0)) / widths).T)[0, 1])


def _average_precision(rows: Evidence) -> float:
    return float(average_precision_score(rows[:, 1], rows[:, 0])) if rows[:, 1].any() else 0.0


def _best_accuracy(rows: Evidence) -> float:
    return float(BinaryClassificationEvaluator.find_best_acc_and_threshold(rows[:, 0], rows[:, 1], True)[0])


def _nearer(rows: Evidence) -> float:
    """The share of triples whose positive is nearer; a tie counts half."""
    return float((np.sign(rows[:, 0] - rows[:, 1]).mean() + 1) / 2)


def _f1(rows: Evidence, average: str) -> float:
    return float(f1_score(rows[:, 1], rows[:, 0], average=average))


def _v_measure(rows: Evidence, starts: int) -> float:
    """The mean over k-means' starts. It is asked for at every draw, and scikit-learn's function is slow."""
    known, *found = rows[:, : starts + 1].astype(np.int64).T
    apart = [_entropy(known) + _entropy(each) for each in found]
    joint = [_entropy(known * (each.max() + 1) + each) for each in found]
    return float(np.mean([2 - 2 * both / sums if sums else 1 for both, sums in zip(joint, apart, strict=True)]))


def _entropy(codes: NDArray[np.int64]) -> float:
    return float(entr(np.bincount(codes) / len(codes)).sum())


def _entities(rows: Evidence, ends: tuple[int, ...]) -> float:
    """F1, or precision or recall: twice the right ones among those of both sides, or once among those of one."""
    whole = rows[:, ends].sum()
    return float(len(ends) * rows[:, 0].sum() / whole) if whole else 0.0


def _mean(rows: Evidence, column: int) -> float:
    return float(rows[:, column].mean())


def _means(*names: str) -> dict[str, Metric]:
    return {name: partial(_mean, column=column) for column, name in enumerate(names)}


_PAIRED: dict[str, Metric] = {
    "cosine_spearman": partial(_correlation, of_ranks=True),
    "cosine_pearson": partial(_correlation, of_ranks=False),
}
_TOLD: dict[str, Metric] = {"cosine_ap": _average_precision, "cosine_accuracy": _best_accuracy}
_NEAR: dict[str, Metric] = {"accuracy": _nearer, **_means("mean cosine nearer", "mean cosine farther")}
_CLASSES: dict[str, Metric] = {"accuracy": lambda rows: float((rows[:, 0] == rows[:, 1]).mean())}
_CLASSES |= {"f1": partial(_f1, average="macro"), "weighted_f1": partial(_f1, average="weighted")}
_STARTED = {"v_measure": len(SEEDS), "v_measure, one start": 1}
_CLUSTERED: dict[str, Metric] = {name: partial(_v_measure, starts=starts) for name, starts in _STARTED.items()}
_SENSES = ("accuracy cosine", "accuracy euclidean")
_ENDS = {"entity_f1": (1, 2), "precision": (1,), "recall": (2,)}
_TAGS: dict[str, Metric] = {name: partial(_entities, ends=ends) for name, ends in _ENDS.items()}

SCORINGS: dict[str, Scoring] = {
    "STS": Scoring(_pairs, _PAIRED, "cosine_spearman", "cosine_pearson"),
    "PairClassification": Scoring(_pairs, _TOLD, "cosine_ap", "cosine_accuracy"),
    "Triples": Scoring(_triples, _NEAR, "accuracy"),
    "Classification": Scoring(_classes, _CLASSES, "accuracy"),
    "Clustering": Scoring(_clusters, _CLUSTERED, "v_measure", "v_measure, one start", recentred=True),
    "Reranking": Scoring(_ranked, _means(*RANKED), "map_at_1000"),
    "Retrieval": Scoring(_ranked, _means(*RANKED), "ndcg_at_10", "recall_at_1000"),
    "WordSense": Scoring(_senses, _means(*_SENSES), *_SENSES),
    "NER": Scoring(_tagged, _TAGS, "entity_f1"),
}
