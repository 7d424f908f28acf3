"""Items' evidence, against scikit-learn, scipy and plain loops."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy.stats import spearmanr
from sklearn.metrics import average_precision_score
from torch import Tensor

from st_reba.evaluation import Task
from st_reba.evaluation.kinds.views import information, views_of
from st_reba.evaluation.texts import draw_texts, script_of


def _units(count: int, width: int = 6, seed: int = 0) -> Tensor:
    made = torch.randn(count, width, generator=torch.manual_seed(seed))
    return torch.nn.functional.normalize(made, dim=1)


def test_information_is_the_log_rank_in_both_directions() -> None:
    first = _units(30)
    second = torch.nn.functional.normalize(first + 0.8 * _units(30, seed=1), dim=1)
    near = (first @ second.T).tolist()
    expected = []
    for row in range(30):
        across = sum(near[row][other] >= near[row][row] for other in range(30))
        down = sum(near[other][row] >= near[row][row] for other in range(30))
        expected.append(1 - (math.log(across) + math.log(down)) / 2 / math.log(30))
    found = information(first, second)
    np.testing.assert_allclose(found, expected, atol=1e-6)
    # The premise: there are several ranks. Vectors that are all alike say nothing.
    assert len(set(expected)) > 3
    alike = torch.ones(20, 4) / 2
    assert information(alike, alike).abs().max() < 1e-6


def test_views_are_judged_by_what_shares_little() -> None:
    task = views_of([f"{n} two three four five six {n} eight" for n in range(12)])
    units = _units(len(task.texts))
    first, last, early, late = (units[[places[column] for places in task.items]] for column in range(4))
    expected = (information(early, late) + information(first, late) + information(early, last)) / 3
    np.testing.assert_allclose(task.task_kind.score_items(task, units), expected, atol=1e-6)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a b c d", ("a b c", "b c d", "a b", "c d")),
        ("今天下大雪，路滑", ("今天下大雪，", "下大雪，路滑", "今天下", "大雪，路滑")),
        ("x " * 1000, (("x " * 100).strip(),) * 2 + (("x " * 75).strip(),) * 2),
        ("one, two! three four five", ("one, two! three four", "two! three four five", "one, two!", "three four five")),
    ],
)
def test_views_of_a_text(text: str, shown: tuple[str, ...]) -> None:
    task = views_of([text, "a b c", ""])
    (item,) = task.items
    assert tuple(task.texts[place] for place in item) == shown


def test_pairs_are_spearmans_correlation_with_ties() -> None:
    task = Task("t", "STS", tuple(map(str, range(51))), tuple((n % 11, 11 + n, float(n % 5)) for n in range(40)))
    units = _units(51)
    cosines = [float(units[first] @ units[second]) for first, second, _ in task.items]
    expected = spearmanr(cosines, [item[-1] for item in task.items])[0]
    assert float(task.task_kind.score_items(task, units).mean()) == pytest.approx(expected, abs=1e-5)


def test_classes_ask_the_centroids_of_the_others() -> None:
    labels = [*"abc" * 5, "d", "d", "e"]
    task = Task("t", "Classification", tuple(map(str, range(18))), tuple(enumerate(labels)))
    units = torch.nn.functional.normalize(_units(18) + torch.eye(3).repeat(6, 2) * 0.7, dim=1)
    units[16] = units[15]
    expected = []
    for row, label in enumerate(labels):
        nearest = {}
        for name in {*labels[:row], *labels[row + 1 :]}:
            members = [units[n] for n in range(18) if n != row and labels[n] == name]
            nearest[name] = float(torch.nn.functional.cosine_similarity(units[row], torch.stack(members).sum(0), dim=0))
        expected.append(float(max(nearest, key=lambda name: nearest[name]) == label))
    assert task.task_kind.score_items(task, units).tolist() == expected
    assert [0 < sum(expected[:15]) < 15, *expected[15:]] == [True, 1, 1, 0]


def test_reranking_is_the_average_precision_of_each_query() -> None:
    items = tuple((n, tuple(range(10 + n, 50, 10)), tuple(float((n + m) % 3) for m in range(4))) for n in range(10))
    task, units = Task("t", "Reranking", tuple(map(str, range(50))), items, queries=10), _units(50)
    expected = [
        average_precision_score([grade > 0 for grade in grades], [float(units[query] @ units[d]) for d in documents])
        for query, documents, grades in items
    ]
    np.testing.assert_allclose(task.task_kind.score_items(task, units), expected, atol=1e-6)


def test_draws_are_of_different_texts_that_have_views() -> None:
    texts = [f"text number {n} here" for n in range(300)]
    found = draw_texts([*texts, *texts, "too short"], 100, seed=3)
    assert len(found) == len(set(found)) == 100
    assert found == draw_texts(texts, 100, seed=3) != draw_texts(texts, 100, seed=0) == draw_texts(texts, 100)
    assert sorted(draw_texts(texts[:50], 60)) == sorted(texts[:50])
    for few in (texts[:49] * 2, [f"only three {n}" for n in range(100)]):
        with pytest.raises(ValueError):
            draw_texts(few, 60)


def test_the_script_of_a_text_is_that_of_most_letters() -> None:
    texts = {"hello 你": "LATIN", "你好 a": "CJK", "ひらカタ abc": "CJK", "Привет, a": "CYRILLIC", "12 !": ""}
    assert {text: script_of(text) for text in texts} == texts
