"""Views of texts, draws of texts, and scores of single items against scikit-learn, scipy and plain loops."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.stats import spearmanr
from sklearn.metrics import average_precision_score
from torch import Tensor
from torch.nn.functional import cosine_similarity, normalize

from st_reba.evaluation import Task
from st_reba.evaluation.kinds.views import information, views_of
from st_reba.evaluation.texts import common_script, draw_texts, script_of


def random_units(row_count: int, width: int = 6, seed: int = 0) -> Tensor:
    return normalize(
        torch.randn(row_count, width, generator=torch.manual_seed(seed)),
        dim=1,
    )


def numbered_texts(count: int) -> tuple[str, ...]:
    return tuple(map(str, range(count)))


def test_information_is_the_log_rank_in_both_directions() -> None:
    first_views = random_units(30)
    second_views = normalize(first_views + 0.8 * random_units(30, seed=1), dim=1)
    cosines = (first_views @ second_views.T).tolist()
    expected_scores = []
    for row_index in range(30):
        rank_in_row = sum(
            cosines[row_index][other] >= cosines[row_index][row_index] for other in range(30)
        )
        rank_in_column = sum(
            cosines[other][row_index] >= cosines[row_index][row_index] for other in range(30)
        )
        expected_scores.append(
            1 - (math.log(rank_in_row) + math.log(rank_in_column)) / 2 / math.log(30)
        )
    np.testing.assert_allclose(information(first_views, second_views), expected_scores, atol=1e-6)
    # The premise: there are several ranks.
    assert len(set(expected_scores)) > 3


def test_equal_vectors_have_no_information() -> None:
    equal_vectors = torch.ones(20, 4) / 2
    for vectors in (equal_vectors, equal_vectors[:2]):
        assert information(vectors, vectors).abs().max() < 1e-6


def test_views_are_scored_by_parts_that_share_little() -> None:
    task = views_of(map("{0} two three four five six {0} eight".format, range(12)))
    unit_vectors = random_units(len(task.texts))
    columns = torch.tensor(task.items).T
    first_crop, last_crop, first_half, last_half = (unit_vectors[column] for column in columns)
    expected_scores = information(first_half, last_half) / 3
    expected_scores += information(first_crop, last_half) / 3
    expected_scores += information(first_half, last_crop) / 3
    np.testing.assert_allclose(
        task.task_kind.score_items(task, unit_vectors),
        expected_scores,
        atol=1e-6,
    )
    evidence = task.task_kind.evidence(task, unit_vectors.numpy())
    np.testing.assert_allclose(evidence[:, 0], expected_scores, atol=1e-6)


HUNDRED = ("x " * 100).strip()
SEVENTY_FIVE = ("x " * 75).strip()


@pytest.mark.parametrize(
    ("text", "views"),
    [
        ("a b c d", ("a b c", "b c d", "a b", "c d")),
        ("今天下大雪，路滑", ("今天下大雪，", "下大雪，路滑", "今天下", "大雪，路滑")),
        ("x " * 1000, (HUNDRED, HUNDRED, SEVENTY_FIVE, SEVENTY_FIVE)),
        (
            "one, two! three four five",
            ("one, two! three four", "two! three four five", "one, two!", "three four five"),
        ),
    ],
    ids=["words", "characters", "long", "punctuation"],
)
def test_views_are_crops_and_halves(text: str, views: tuple[str, ...]) -> None:
    task = views_of([text, "a b c", ""])
    (item,) = task.items
    assert tuple(task.texts[index] for index in item) == views


def test_mean_score_of_pairs_is_spearmans_correlation_with_ties() -> None:
    items = tuple(
        (row_number % 11, 11 + row_number, float(row_number % 5)) for row_number in range(40)
    )
    task = Task("t", "STS", numbered_texts(51), items)
    unit_vectors = random_units(51)
    cosines = [float(unit_vectors[first] @ unit_vectors[second]) for first, second, _ in items]
    expected_correlation, _ = spearmanr(cosines, [score for _, _, score in items])
    scores = task.task_kind.score_items(task, unit_vectors)
    assert float(scores.mean()) == pytest.approx(expected_correlation, abs=1e-5)


def nearest_label(unit_vectors: Tensor, labels: list[str], row_index: int) -> str:
    """The label of the nearest centroid of all other vectors."""
    similarities: dict[str, float] = {}
    for label in {
        *labels[:row_index],
        *labels[row_index + 1 :],
    }:
        members = [
            vector
            for other, vector in enumerate(unit_vectors)
            if other != row_index and labels[other] == label
        ]
        centroid = torch.stack(members).sum(dim=0)
        similarities[label] = float(cosine_similarity(unit_vectors[row_index], centroid, dim=0))
    return max(similarities, key=lambda label: similarities[label])


def test_classes_are_scored_by_the_centroids_of_the_others() -> None:
    labels = [*"abc" * 5, "d", "d", "e"]
    task = Task(
        "t",
        "Classification",
        numbered_texts(18),
        tuple(enumerate(labels)),
    )
    unit_vectors = normalize(random_units(18) + torch.eye(3).repeat(6, 2) * 0.7, dim=1)
    unit_vectors[16] = unit_vectors[15]
    expected_scores = [
        float(nearest_label(unit_vectors, labels, row_index) == label)
        for row_index, label in enumerate(labels)
    ]
    assert task.task_kind.score_items(task, unit_vectors).tolist() == expected_scores
    # The premise: some are right, twins are, and a label that is there once is not.
    assert 0 < sum(expected_scores[:15]) < 15
    assert expected_scores[15:] == [1, 1, 0]


def test_rankings_are_scored_by_average_precision() -> None:
    items = []
    for query in range(10):
        documents = tuple(range(10 + query, 50, 10))
        grades = tuple(float((query + row_number) % 3) for row_number in range(4))
        items.append((query, documents, grades))
    task = Task(
        "t",
        "Reranking",
        numbered_texts(50),
        tuple(items),
        query_count=10,
    )
    unit_vectors = random_units(50)
    expected_scores = []
    for query, documents, grades in items:
        cosines = [float(unit_vectors[query] @ unit_vectors[document]) for document in documents]
        expected_scores.append(average_precision_score([grade > 0 for grade in grades], cosines))
    np.testing.assert_allclose(
        task.task_kind.score_items(task, unit_vectors),
        expected_scores,
        atol=1e-6,
    )


TEXTS = list(map("text number {} here".format, range(300)))


def test_draws_are_of_different_texts_that_have_views() -> None:
    drawn_texts = draw_texts([*TEXTS, *TEXTS, "too short"], 100, seed=3)
    assert len(drawn_texts) == len(set(drawn_texts)) == 100
    assert "too short" not in drawn_texts


def test_draws_depend_on_the_seed() -> None:
    assert draw_texts(TEXTS, 100, seed=3) == draw_texts([*TEXTS, *TEXTS], 100, seed=3)
    assert draw_texts(TEXTS, 100, seed=3) != draw_texts(TEXTS, 100, seed=0)
    assert draw_texts(TEXTS, 100, seed=0) == draw_texts(TEXTS, 100)


def test_few_texts_are_all_drawn() -> None:
    assert sorted(draw_texts(TEXTS[:50], 60)) == sorted(TEXTS[:50])


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        ([*TEXTS, None, 3], r"^texts\[300\]=None is not a text\. Give a list of texts; st-reba tune reads a file\.$"),
        ([b"one text in bytes", *TEXTS], r"^texts\[0\]=b'one text in bytes' is not a text"),
        (3, r"^texts=3 \(int\) is no list\. Give a list"),
        ("/folder/texts.txt", r"^texts='/folder/texts.txt' \(str\) is no list\. .*; st-reba tune reads a file"),
        (Path("texts.txt"), "^texts=.*Path.* Give a list"),
        (b"texts", r"^texts=b'texts' \(bytes\)"),
        (dict.fromkeys(TEXTS), r"^texts={.* \(dict\)"),
        (pd.DataFrame({"text": TEXTS}), r"^texts=.* \(DataFrame\) is no list"),
    ],
    ids=["nothing", "bytes in a list", "number", "file name", "path", "bytes", "dict", "table"],
)  # fmt: skip
def test_what_is_no_list_of_texts_is_told(texts: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        draw_texts(texts, 60)


@pytest.mark.parametrize("make", [iter, tuple, pd.Series, np.array])
def test_texts_of_every_sequence_are_drawn(make: Any) -> None:
    assert draw_texts(make(TEXTS), 100) == draw_texts(TEXTS, 100)


@pytest.mark.parametrize(
    "texts",
    [
        TEXTS[:49] * 2,
        list(map("only three {}".format, range(100))),
    ],
    ids=["few", "short"],
)
def test_too_few_texts_are_refused(texts: list[str]) -> None:
    with pytest.raises(ValueError, match="give 50 at least"):
        draw_texts(texts, 60)


@pytest.mark.parametrize(
    ("text", "script"),
    [
        ("hello 你", "LATIN"),
        ("你好 a", "CJK"),
        ("ひらカタ abc", "CJK"),
        ("Привет, a", "CYRILLIC"),
        ("12 !", ""),
    ],
)
def test_the_script_of_a_text_is_that_of_most_letters(text: str, script: str) -> None:
    assert script_of(text) == script


def test_the_script_of_texts_is_that_of_most_texts() -> None:
    """Not that of most letters: here a long text is in another."""
    assert common_script(["猫从窗口看着一只鸟。" * 40, "A cat.", "A dog."]) == "LATIN"
