"""Scores of tasks: from vectors to evidence (a row of numbers an item), and from evidence to metrics."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
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
_TOGETHER = 128


@dataclass(frozen=True)
class Scoring:
    """How tasks of a kind are scored.

    Args:
        evidence: Makes [items, numbers] of a task and its vectors.
        metrics: Scores of evidence, by name; more is better.
        main: The metric that tables show.
        paper: The papers' metric, where it is another.
        recentred: As for ``paired_bootstrap``.
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


def _units(vectors: Vectors) -> NDArray[np.float64]:
    exact = np.asarray(vectors, np.float64)
    return exact / np.maximum(np.linalg.norm(exact, axis=-1, keepdims=True), np.finfo(np.float64).tiny)


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
    """Found and known class of each item, as numbers."""
    places, labels = (np.asarray(each) for each in zip(*task.items, strict=True))
    found = np.empty(len(labels), dtype=object)
    if task.train:
        known, wanted = zip(*task.train, strict=True)
        found[:] = classify(vectors[list(known)], wanted, vectors[places])
    else:
        for learn, rest in _folds(labels, places):
            found[rest] = classify(vectors[places[learn]], labels[learn].tolist(), vectors[places[rest]])
    codes = {label: code for code, label in enumerate(sorted({*labels.tolist(), *found}))}
    return np.array([[codes[one], codes[other]] for one, other in zip(found, labels.tolist(), strict=True)], np.float64)


def _folds(labels: Sequence[Any] | NDArray[Any], groups: Sequence[Any] | NDArray[Any]) -> Iterator[tuple[Any, Any]]:
    """Rows to learn from and rows to score, five times; equal groups stand in one fold, labels have their shares."""
    from sklearn.model_selection import StratifiedGroupKFold

    with warnings.catch_warnings():
        # A class with fewer texts than folds is missing in some.
        warnings.filterwarnings("ignore", "The least populated class", UserWarning)
        yield from StratifiedGroupKFold(FOLDS).split(np.zeros(len(labels)), labels, groups)


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
    """The ranking metrics of each query, of the judged documents (reranking) or of all."""
    unit, rows = _units(vectors), []
    for start in range(0, len(task.items), _TOGETHER):
        together = task.items[start : start + _TOGETHER]
        every = None
        if task.kind == "Retrieval":
            every = unit[[query for query, _, _ in together]] @ unit[task.queries :].T
        for number, (query, documents, grades) in enumerate(together):
            if every is None:
                near, known = unit[list(documents)] @ unit[query], np.asarray(grades)
            else:
                near, known = every[number], np.zeros(len(unit) - task.queries)
                known[np.asarray(documents) - task.queries] = grades
            rows.append(_of_ranking(np.round(near, DIGITS), known))
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

    def rows(items: Sequence[tuple[Any, ...]]) -> NDArray[np.intp]:
        return np.concatenate([np.arange(ends[item[0]], ends[item[0] + 1]) for item in items])

    def learnt(known: Sequence[tuple[Any, ...]], asked: Sequence[tuple[Any, ...]]) -> list[str]:
        return classify(vectors[rows(known)], [tag for item in known for tag in item[2]], vectors[rows(asked)])

    found: dict[int, list[str]] = {}
    every = np.arange(len(task.items))
    folds = [(None, every)] if task.train else _folds(np.zeros(len(every)), [item[0] for item in task.items])
    for learn, rest in folds:
        asked = [task.items[row] for row in rest]
        tags = iter(learnt(task.train if learn is None else [task.items[row] for row in learn], asked))
        found |= {row: [next(tags) for _ in item[1]] for row, item in zip(rest, asked, strict=True)}
    counts = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for row, item in enumerate(task.items):
            wanted, guessed = set(get_entities(list(item[2]))), set(get_entities(found[row]))
            counts.append([len(wanted & guessed), len(guessed), len(wanted)])
    return np.asarray(counts, np.float64)


# Metrics


def _spearman(rows: Evidence) -> float:
    from scipy.stats import spearmanr

    return _finite(spearmanr, *rows.T)


def _pearson(rows: Evidence) -> float:
    from scipy.stats import pearsonr

    return _finite(pearsonr, *rows.T)


def _finite(correlation: Callable[..., Any], first: Any, second: Any) -> float:
    """0 where one side is constant."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        value = float(correlation(first, second).statistic)
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


def _entity_f1(rows: Evidence) -> float:
    right, found, wanted = rows.sum(axis=0)
    return float(2 * right / (found + wanted)) if found + wanted else 0.0


def _share(rows: Evidence, part: int, whole: int) -> float:
    return float(rows[:, part].sum() / rows[:, whole].sum()) if rows[:, whole].any() else 0.0


def _means(*names: str) -> dict[str, Metric]:
    return {name: partial(_mean, column=column) for column, name in enumerate(names)}


def _mean(rows: Evidence, column: int) -> float:
    return float(rows[:, column].mean())


_PAIRED = {"cosine_spearman": _spearman, "cosine_pearson": _pearson}
_TOLD = {"cosine_ap": _average_precision, "cosine_accuracy": _best_accuracy}
_NEAR = {"accuracy": _nearer, **_means("mean cosine nearer", "mean cosine farther")}
_CLASSES = {"accuracy": _accuracy, "f1": partial(_f1, average="macro"), "weighted_f1": partial(_f1, average="weighted")}
_SENSES = _means("accuracy cosine", "accuracy euclidean")
_TAGS = {
    "entity_f1": _entity_f1,
    "precision": partial(_share, part=0, whole=1),
    "recall": partial(_share, part=0, whole=2),
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
