"""Scores by hand; test_papers.py holds them against mteb's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sklearn.metrics import v_measure_score

from st_reba.evaluation import Task
from st_reba.evaluation.kinds.word_sense import find_odd_vectors
from st_reba.evaluation.measures import classify, pair_cosines
from st_reba.evaluation.task import KINDS

RANDOM = np.random.default_rng(0)


def scored(task: Task, vectors: Any) -> dict[str, float]:
    evidence = KINDS[task.kind].evidence(task, np.asarray(vectors, np.float32))
    return {name: metric(evidence) for name, metric in KINDS[task.kind].metrics.items()}


def test_of_equal_cosines_the_irrelevant_stands_first() -> None:
    vectors = np.ones((14, 2))
    items = tuple((n, (10, 11, 12, 13), (3.0, 0.0, 1.0, 0.0)) for n in range(10))
    found = scored(Task("t", "Reranking", tuple(map(str, range(14))), items, queries=10), vectors)
    assert found["mrr_at_10"] == pytest.approx(1 / 3) and found["recall_at_10"] == found["recall_at_1000"] == 1
    assert found["map_at_1000"] == pytest.approx((1 / 3 + 2 / 4) / 2)
    gains = 1 / np.log2(np.arange(2, 6))
    assert found["ndcg_at_10"] == pytest.approx((1 * gains[2] + 3 * gains[3]) / (3 * gains[0] + 1 * gains[1]))


def test_the_first_ten_and_the_first_thousand() -> None:
    vectors = np.array([[1.0, 0.0], *([1.0, n / 10] for n in range(1001))])
    items = ((0, (11, 1001), (1.0, 1.0)),) * 10
    found = scored(Task("t", "Retrieval", tuple("t" * 1002), items, queries=1), vectors)
    expected = {"map_at_1000": 1 / 11 / 2, "ndcg_at_10": 0, "mrr_at_10": 0, "recall_at_10": 0, "recall_at_1000": 0.5}
    assert found == pytest.approx(expected)


def test_cosines_that_float32_cannot_tell_apart_are_equal() -> None:
    vectors = np.array([[1, 0], [0.6, 0.8], [0.6 + 2e-7, 0.8], [0, 0]])
    first, second, zero = pair_cosines(vectors, [0, 0, 0], [1, 2, 3])
    assert (first, second, zero) == (0.6, 0.6, 0)


def test_pairs_and_their_classes() -> None:
    vectors = np.array([[1, 0], [1, 0.1], [1, 0.5], [1, 1], [0, 1]])
    grades = (5.0, 4.0, 0.0, 1.0)
    items = tuple((0, n + 1, grade) for n, grade in enumerate(grades)) * 3
    found = scored(Task("t", "STS", tuple("abcde"), items), vectors)
    angles = [float(vectors[0] @ each / np.linalg.norm(each)) for each in vectors[1:]]
    assert found["cosine_pearson"] == pytest.approx(np.corrcoef(angles, grades)[0, 1])
    assert found["cosine_spearman"] == pytest.approx(0.8)
    # A constant side has no correlation.
    assert set(scored(Task("t", "STS", tuple("abcde"), items), np.ones((5, 2)) * [0.6, 0.1]).values()) == {0}
    items = tuple((0, n, known) for n, known in ((1, 1), (2, 0), (3, 1), (4, 0))) * 3
    found = scored(Task("t", "PairClassification", tuple("abcde"), items), vectors)
    # Ranks 1 and 3 of 4; the best threshold is wrong for one of four.
    assert found["cosine_ap"] == pytest.approx((1 + 2 / 3) / 2) and found["cosine_accuracy"] == 0.75


def test_triples() -> None:
    near, far = [1.0, 0.1], [0.1, 1.0]
    vectors = np.array([[1.0, 0.0], near, far])
    items = ((0, 1, 2),) * 6 + ((0, 2, 1),) * 3 + ((0, 1, 1),) * 1
    assert scored(Task("t", "Triples", ("q", "near", "far"), items), vectors)["accuracy"] == pytest.approx(0.65)


@pytest.mark.filterwarnings("error::UserWarning")
def test_classes_learn_from_train_or_in_folds_that_share_no_text() -> None:
    vectors = np.concatenate([RANDOM.normal(place, 0.1, (20, 4)) for place in (0, 1)])
    items = tuple((n, "ab"[n // 20]) for n in range(40))
    texts = tuple(map(str, range(40)))
    assert scored(Task("t", "Classification", texts, items[1::2], items[::2]), vectors)["accuracy"] == 1
    # No class of the second has more texts than there are folds.
    few = [0] * 5 + [1] * 3 + [2] * 2
    for asked, given in ((items, vectors), (tuple(enumerate(few)), np.eye(3)[few])):
        found = scored(Task("t", "Classification", texts, asked), given)
        assert found == {"accuracy": 1, "f1": 1, "weighted_f1": 1}
    # Each text stands twice, and nothing else tells its label: whoever saw its twin would know it.
    alone = np.eye(40)
    twice = tuple((n, "ab"[n % 2]) for n in range(40)) * 2
    assert scored(Task("t", "Classification", texts, twice), alone)["accuracy"] < 0.7
    wrong = tuple((n, "ab"[n // 20] if n % 4 else "b") for n in range(40))
    found = scored(Task("t", "Classification", texts, wrong, items), vectors)
    assert found["accuracy"] == 0.875
    assert found["f1"] == pytest.approx((2 * 15 / 35 + 2 * 20 / 45) / 2)
    assert classify(vectors, ["a"] * 40, vectors[:2]) == ["a", "a"]


def test_a_large_class_does_not_take_all_of_vectors_that_lie_close_together() -> None:
    vectors = np.concatenate(
        [[1.0, 0.0, 0.03 * side] + RANDOM.normal(0, 0.005, (n, 3)) for side, n in ((-1, 30), (1, 10))]
    )
    items = tuple((n, "large" if n < 30 else "small") for n in range(40))
    assert scored(Task("t", "Classification", tuple(map(str, range(40))), items), vectors)["accuracy"] > 0.95
    given = (vectors, [label for _, label in items], vectors[30:31])
    assert classify(*given) == ["large"] and classify(*given, is_balanced=True) == ["small"]


def test_clusters() -> None:
    assert [name for name, each in KINDS.items() if each.is_recentred] == ["Clustering"]
    vectors = np.concatenate([RANDOM.normal(place, 0.1, (20, 4)) for place in (0, 5)])
    turns = [n % 2 for n in range(40)]
    apart, mixed = (Task("t", "Clustering", tuple("t" * 40), tuple(enumerate(each))) for each in (sorted(turns), turns))
    assert scored(apart, vectors) == {"v_measure": pytest.approx(1), "v_measure, one start": pytest.approx(1)}
    cloud = RANDOM.normal(size=(40, 4)).astype(np.float32)
    starts = [v_measure_score(turns, each) for each in KINDS["Clustering"].evidence(mixed, cloud).T[1:]]
    assert KINDS["Clustering"].metrics["v_measure"](np.zeros((3, 11))) == 1
    assert len(set(starts)) > 1 and list(scored(mixed, cloud).values()) == pytest.approx([sum(starts) / 10, starts[0]])


def test_the_two_distances_of_word_senses_are_two_measures() -> None:
    four = np.array([[1.0, 0.0], [2.0, 0.0], [9.0, 0.0], [1.0, 1.0]])
    task = Task("t", "WordSense", tuple("abcd"), (((0, 1, 2, 3), 3), ((0, 1, 3, 2), 2), ((0, 1, 2, 3), 2)))
    assert scored(task, four) == {"accuracy cosine": pytest.approx(2 / 3), "accuracy euclidean": pytest.approx(1 / 3)}
    found = find_odd_vectors(np.array([[[1.0, 0.0]] * 4, [[1.0, 0.0], [1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]]]))
    assert found["cosine"].tolist() == found["euclidean"].tolist() == [0, 3]


def test_entities_are_counted_whole() -> None:
    words, tags = ("New", "York", "sleeps"), ("B-LOC", "I-LOC", "O")
    vectors = np.tile(np.eye(3), (2, 1)) * 30
    train = ((0, words, tags),) * 10
    asked: Any = ((1, words, ("B-LOC", "I-LOC", "O")),) * 6 + ((1, words, ("B-LOC", "O", "O")),) * 2
    asked += ((1, words, ("O", "O", "O")),) * 2
    found = scored(Task("t", "NER", ("New York sleeps", "other"), asked, train), vectors)
    # 10 are found, 8 wanted, 6 right.
    assert found == {"entity_f1": pytest.approx(12 / 18), "precision": 0.6, "recall": 0.75}
    none = ((1, words, ("O", "O", "O")),) * 10
    assert scored(Task("t", "NER", ("New York sleeps", "other"), none, train), vectors)["recall"] == 0
