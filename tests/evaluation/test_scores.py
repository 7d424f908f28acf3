"""Scores of the kinds of tasks (`kinds/` and `measures.py`) by hand; test_papers.py compares them with mteb's."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import Any

import numpy as np
import pytest
from numpy.typing import ArrayLike, NDArray
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import v_measure_score

from st_reba.evaluation import Task
from st_reba.evaluation.kinds.word_sense import find_odd_vectors
from st_reba.evaluation.measures import classify, pair_cosines
from st_reba.evaluation.statistics import Evidence
from st_reba.evaluation.task import KINDS

RANDOM = np.random.default_rng(0)
Item = tuple[object, ...]


def compute_metrics(task: Task, evidence: Evidence) -> dict[str, float]:
    return {name: metric(evidence) for name, metric in task.task_kind.metrics.items()}


def score_task(
    kind: str,
    vectors: ArrayLike,
    items: Sequence[Item],
    *,
    train: Sequence[Item] = (),
    query_count: int = 0,
) -> dict[str, float]:
    """All metrics of vectors on items over as many texts."""
    rows = np.asarray(vectors, np.float32)
    texts = tuple(f"text {row_number}" for row_number in range(len(rows)))
    task = Task("t", kind, texts, tuple(items), tuple(train), query_count=query_count)
    evidence = task.task_kind.evidence(task, rows)
    return compute_metrics(task, evidence)


def test_irrelevant_documents_come_first_among_equal_cosines() -> None:
    items = [(query, (10, 11, 12, 13), (3.0, 0.0, 1.0, 0.0)) for query in range(10)]
    task_scores = score_task(
        "Reranking",
        np.ones((14, 2)),
        items,
        query_count=10,
    )
    assert task_scores["mrr_at_10"] == pytest.approx(1 / 3)
    assert task_scores["recall_at_10"] == task_scores["recall_at_1000"] == 1
    assert task_scores["map_at_1000"] == pytest.approx((1 / 3 + 2 / 4) / 2)
    discounts = 1 / np.log2(np.arange(2, 6))
    expected_gain = (1 * discounts[2] + 3 * discounts[3]) / (3 * discounts[0] + 1 * discounts[1])
    assert task_scores["ndcg_at_10"] == pytest.approx(expected_gain)


def test_rankings_are_cut_after_ten_and_a_thousand_documents() -> None:
    vectors = [[1.0, 0.0]] + [[1.0, row_number / 10] for row_number in range(1001)]
    items = [(0, (11, 1001), (1.0, 1.0))] * 10
    task_scores = score_task("Retrieval", vectors, items, query_count=1)
    expected_scores = {
        "map_at_1000": 1 / 11 / 2,
        "ndcg_at_10": 0,
        "mrr_at_10": 0,
        "recall_at_10": 0,
        "recall_at_1000": 0.5,
    }
    assert task_scores == pytest.approx(expected_scores)


def test_cosines_that_float32_cannot_tell_apart_are_equal() -> None:
    vectors = np.array(
        [
            [1, 0],
            [0.6, 0.8],
            [0.6 + 2e-7, 0.8],
            [0, 0],
        ],
        np.float32,
    )
    assert pair_cosines(vectors, [0, 0, 0], [1, 2, 3]).tolist() == [
        0.6,
        0.6,
        0,
    ]


PAIR_VECTORS = np.array(
    [
        [1, 0],
        [1, 0.1],
        [1, 0.5],
        [1, 1],
        [0, 1],
    ]
)
PAIR_SCORES = (5.0, 4.0, 0.0, 1.0)
SCORED_PAIRS = [(0, second, score) for second, score in enumerate(PAIR_SCORES, 1)] * 3


def test_pairs_are_scored_by_correlations() -> None:
    task_scores = score_task("STS", PAIR_VECTORS, SCORED_PAIRS)
    cosines = [vector[0] / np.linalg.norm(vector) for vector in PAIR_VECTORS[1:]]
    assert task_scores["cosine_pearson"] == pytest.approx(np.corrcoef(cosines, PAIR_SCORES)[0, 1])
    assert task_scores["cosine_spearman"] == pytest.approx(0.8)


def test_equal_cosines_have_no_correlation() -> None:
    task_scores = score_task("STS", np.ones((5, 2)) * [0.6, 0.1], SCORED_PAIRS)
    assert task_scores == {"cosine_spearman": 0, "cosine_pearson": 0}


def test_pair_classes_are_scored_by_precision_and_the_best_threshold() -> None:
    items = [(0, second, label) for second, label in ((1, 1), (2, 0), (3, 1), (4, 0))] * 3
    task_scores = score_task("PairClassification", PAIR_VECTORS, items)
    # The positives have ranks 1 and 3 of 4; the best threshold is wrong for one of four.
    assert task_scores["cosine_ap"] == pytest.approx((1 + 2 / 3) / 2)
    assert task_scores["cosine_accuracy"] == 0.75


def test_a_tie_of_a_triple_counts_half() -> None:
    vectors = [
        [1.0, 0.0],
        [1.0, 0.1],
        [0.1, 1.0],
    ]
    items = [(0, 1, 2)] * 6 + [(0, 2, 1)] * 3 + [(0, 1, 1)]
    assert score_task("Triples", vectors, items)["accuracy"] == pytest.approx(0.65)


def two_clouds(distance: float) -> NDArray[np.float64]:
    """Twenty vectors around 0, and twenty around a point."""
    return np.concatenate([RANDOM.normal(center, 0.1, (20, 4)) for center in (0, distance)])


CLASSES = list(enumerate("a" * 20 + "b" * 20))


@pytest.mark.filterwarnings("error::UserWarning")
def test_classes_are_learned_from_other_texts() -> None:
    task_scores = score_task(
        "Classification",
        two_clouds(1),
        CLASSES[1::2],
        train=CLASSES[::2],
    )
    assert task_scores["accuracy"] == 1


@pytest.mark.filterwarnings("error::UserWarning")
def test_classes_are_learned_in_folds() -> None:
    assert set(score_task("Classification", two_clouds(1), CLASSES).values()) == {1}


@pytest.mark.filterwarnings("error::UserWarning")
def test_small_classes_are_learned_in_folds() -> None:
    labels = [0] * 5 + [1] * 3 + [2] * 2
    task_scores = score_task(
        "Classification",
        np.eye(3)[labels],
        list(enumerate(labels)),
    )
    assert task_scores == {"accuracy": 1, "f1": 1, "weighted_f1": 1}


def test_folds_share_no_text() -> None:
    """Only its second occurrence tells the label of a text."""
    repeated_items = list(enumerate("ab" * 20)) * 2
    assert score_task("Classification", np.eye(40), repeated_items)["accuracy"] < 0.7


def test_f1_is_the_mean_over_classes() -> None:
    """A quarter of the first class has the other's label."""
    wrong_items = [(row_index, label if row_index % 4 else "b") for row_index, label in CLASSES]
    task_scores = score_task("Classification", two_clouds(1), wrong_items, train=CLASSES)
    assert task_scores["accuracy"] == 0.875
    assert task_scores["f1"] == pytest.approx((2 * 15 / 35 + 2 * 20 / 45) / 2)


def test_one_label_needs_no_classifier() -> None:
    vectors = np.ones((40, 4), np.float32)
    assert classify(vectors, ["a"] * 40, vectors[:2]) == ["a", "a"]


def test_the_classifier_takes_at_most_100_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the papers' does, whether or not it has come to its end."""
    step_counts: list[int] = []

    class CountingClassifier(LogisticRegression):
        def predict(self, vectors: ArrayLike) -> Any:
            step_counts.extend(self.n_iter_)
            return super().predict(vectors)

    monkeypatch.setattr("st_reba.evaluation.measures.LogisticRegression", CountingClassifier)
    vectors = RANDOM.normal(size=(60, 40)) * np.logspace(-1, 3, 40)
    classify(vectors.astype(np.float32), ["a", "b", "c"] * 20, vectors[:1])
    assert step_counts == [100]


def test_a_large_class_does_not_take_all_of_vectors_that_lie_close_together() -> None:
    clouds = [
        [1.0, 0.0, -0.03] + RANDOM.normal(0, 0.005, (30, 3)),
        [1.0, 0.0, 0.03] + RANDOM.normal(0, 0.005, (10, 3)),
    ]
    vectors = np.concatenate(clouds).astype(np.float32)
    labels = ["large"] * 30 + ["small"] * 10
    assert score_task("Classification", vectors, list(enumerate(labels)))["accuracy"] > 0.95
    assert classify(vectors, labels, vectors[30:31]) == ["large"]
    assert classify(vectors, labels, vectors[30:31], is_balanced=True) == ["small"]


def test_only_clustering_is_recentred() -> None:
    recentred_kinds = filter(attrgetter("is_recentred"), KINDS.values())
    assert list(map(attrgetter("name"), recentred_kinds)) == ["Clustering"]


def test_separate_topics_are_found() -> None:
    task_scores = score_task("Clustering", two_clouds(5), CLASSES)
    assert task_scores == {
        "v_measure": pytest.approx(1),
        "v_measure, one start": pytest.approx(1),
    }


def test_v_measure_is_the_mean_over_starts() -> None:
    labels = [0, 1] * 20
    vectors = RANDOM.normal(size=(40, 4)).astype(np.float32)
    task = Task(
        "t",
        "Clustering",
        tuple("t" * 40),
        tuple(enumerate(labels)),
    )
    _, *clusterings = task.task_kind.evidence(task, vectors).T
    expected_scores = [v_measure_score(labels, clusters) for clusters in clusterings]
    assert len(set(expected_scores)) > 1
    task_scores = score_task("Clustering", vectors, list(enumerate(labels)))
    assert list(task_scores.values()) == pytest.approx(
        [
            sum(expected_scores) / 10,
            expected_scores[0],
        ]
    )


def test_one_topic_in_one_cluster_is_right() -> None:
    assert KINDS["Clustering"].metrics["v_measure"](np.zeros((3, 11))) == 1


def test_the_two_distances_of_word_senses_are_two_measures() -> None:
    vectors = [
        [1.0, 0.0],
        [2.0, 0.0],
        [9.0, 0.0],
        [1.0, 1.0],
    ]
    items = [
        ((0, 1, 2, 3), 3),
        ((0, 1, 3, 2), 2),
        ((0, 1, 2, 3), 2),
    ]
    task_scores = score_task("WordSense", vectors, items)
    assert task_scores == {
        "accuracy cosine": pytest.approx(2 / 3),
        "accuracy euclidean": pytest.approx(1 / 3),
    }


def test_the_first_of_equally_odd_vectors_is_found() -> None:
    groups = np.array(
        [
            [[1.0, 0.0]] * 4,
            [
                [1.0, 0.0],
                [1.0, 0.0],
                [0.0, 1.0],
                [-1.0, 0.0],
            ],
        ]
    )
    odd_vectors = find_odd_vectors(groups)
    assert (
        odd_vectors["cosine"].tolist()
        == odd_vectors["euclidean"].tolist()
        == [
            0,
            3,
        ]
    )


NEW_YORK = ("New", "York", "sleeps")
RIGHT_TAGS = ("B-LOC", "I-LOC", "O")
NO_TAGS = ("O", "O", "O")


def score_entities(tags_of_items: Sequence[tuple[str, ...]]) -> dict[str, float]:
    """Scores where New York is found in every item."""
    train = ((0, NEW_YORK, RIGHT_TAGS),) * 10
    items = tuple((1, NEW_YORK, tags) for tags in tags_of_items)
    task = Task("t", "NER", ("New York sleeps", "other"), items, train)
    evidence = task.task_kind.evidence(
        task,
        np.tile(np.eye(3, dtype=np.float32), (2, 1)) * 30,
    )
    return compute_metrics(task, evidence)


def test_entities_are_counted_whole() -> None:
    task_scores = score_entities([RIGHT_TAGS] * 6 + [("B-LOC", "O", "O")] * 2 + [NO_TAGS] * 2)
    # 10 are found, 8 expected, 6 right.
    assert task_scores == {
        "entity_f1": pytest.approx(12 / 18),
        "precision": 0.6,
        "recall": 0.75,
    }


def test_recall_without_entities_is_0() -> None:
    assert score_entities([NO_TAGS] * 10)["recall"] == 0
