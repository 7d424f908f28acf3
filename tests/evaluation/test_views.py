"""Items' evidence, against scikit-learn, scipy and plain loops."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from scipy.stats import spearmanr
from sklearn.metrics import average_precision_score
from torch import Tensor

from st_reba.evaluation.views import drawn, information, pairs_of, views_of


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
    # The premise: there are several ranks.
    assert len(set(expected)) > 3


def test_vectors_that_are_all_alike_say_nothing() -> None:
    alike = torch.ones(20, 4) / 2
    assert information(alike, alike).abs().max() < 1e-6


def test_views_weigh_crops_twice_as_much_as_halves() -> None:
    items = views_of([f"{n} two three four five six {n} eight" for n in range(12)])
    units = _units(len(items.texts))
    columns = [units[[place[column] for place in items.places]] for column in range(4)]
    expected = (2 * information(columns[0], columns[1]) + information(columns[2], columns[3])) / 3
    np.testing.assert_allclose(items.evidence(units), expected, atol=1e-6)
    np.testing.assert_allclose(items.evidence(units, halves=0), information(columns[0], columns[1]), atol=1e-6)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a b c d", ("a b c", "b c d", "a b", "c d")),
        ("今天下大雪，路滑", ("今天下大雪，", "下大雪，路滑", "今天下", "大雪，路滑")),
        ("one, two! three four five", ("one, two! three four", "two! three four five", "one, two!", "three four five")),
        ("a b c", None),
        ("", None),
    ],
)
def test_views_of_a_text(text: str, shown: tuple[str, ...] | None) -> None:
    items = views_of([text])
    assert [tuple(items.texts[place] for place in places) for places in items.places] == ([shown] if shown else [])


def test_of_a_long_text_the_beginning_is_shown() -> None:
    items = views_of([" ".join(map(str, range(1000)))])
    assert items.texts[1].endswith(" 149")


def test_pairs_are_spearmans_correlation_with_ties() -> None:
    rows = [(f"a{n % 11}", f"b{n}", float(n % 5)) for n in range(40)]
    items = pairs_of(rows)
    units = _units(len(items.texts))
    cosines = [float(units[first] @ units[second]) for first, second in items.places]
    expected = spearmanr(cosines, [row[2] for row in rows])[0]
    assert float(items.evidence(units).mean()) == pytest.approx(expected, abs=1e-5)


def test_classes_ask_the_centroids_of_the_others() -> None:
    rows = [(f"text {n}", "abc"[n % 3]) for n in range(15)]
    items = pairs_of(rows, "classes")
    units = torch.nn.functional.normalize(_units(15) + torch.eye(3).repeat(5, 2) * 0.7, dim=1)
    expected = []
    for row in range(15):
        nearest = {}
        for name in "abc":
            members = [units[n] for n in range(15) if n != row and rows[n][1] == name]
            nearest[name] = float(torch.nn.functional.cosine_similarity(units[row], torch.stack(members).sum(0), dim=0))
        expected.append(float(max(nearest, key=lambda name: nearest[name]) == rows[row][1]))
    assert items.evidence(units).tolist() == expected
    assert 0 < sum(expected) < 15


def test_ranking_is_the_average_precision_of_each_query() -> None:
    rows = [(f"q{n % 4}", f"d{n}", float(n * 7 % 3)) for n in range(40)] + [("alone", "d1", 1.0), ("none", "d2", 0.0)]
    items = pairs_of(rows, "ranking")
    units = _units(len(items.texts))
    place = {text: row for row, text in enumerate(items.texts)}
    expected = []
    for query in ("q0", "q1", "q2", "q3"):
        mine = [(d, r) for q, d, r in rows if q == query]
        scores = [float(units[place[query]] @ units[place[d]]) for d, _ in mine]
        expected.append(average_precision_score([r > 0 for _, r in mine], scores))
    np.testing.assert_allclose(items.evidence(units), expected, atol=1e-6)


def test_parts_have_all_items_once_and_their_own_texts_only() -> None:
    items = pairs_of([(f"a{n}", f"b{n}", n) for n in range(30)])
    first, second = items.split(2 / 3, seed=1)
    assert (len(first.places), len(second.places)) == (20, 10)
    assert not set(first.texts) & set(second.texts)
    assert sorted([*first.labels, *second.labels]) == list(range(30))
    for part in (first, second):
        assert all(
            (part.texts[a], part.texts[b]) == (f"a{n}", f"b{n}")
            for (a, b), n in zip(part.places, part.labels, strict=True)
        )
    assert items.split(2 / 3, seed=1)[0] == first != items.split(2 / 3, seed=2)[0]
    assert len(items.at_most(7, 0).places) == 7
    assert items.at_most(30, 0) is items


def test_each_script_has_its_share_of_a_draw() -> None:
    english = [f"text number {n} of many texts" for n in range(300)]
    chinese = [f"第{n}个文本很短" for n in range(20)]
    found = drawn([*english, *english, *chinese, "too short"], 100, seed=3)
    assert len(found) == len(set(found)) == 100
    assert sum(text in chinese for text in found) == 20
    assert found == drawn([*english, *chinese], 100, seed=3) != drawn([*english, *chinese], 100, seed=4)


@pytest.mark.parametrize(
    "call",
    [
        lambda: drawn(["one two three four"] * 100, 60),
        lambda: drawn([f"short {n}" for n in range(100)], 60),
        lambda: pairs_of([("a", "b", 1.0), ("c", "d", 1.0)]),
        lambda: pairs_of([("a", "x"), ("b", "x")], "classes"),
        lambda: pairs_of([("a", "x"), ("b", "x"), ("c", "y")], "classes"),
        lambda: pairs_of([("q", "a", 1.0), ("q", "b", 2.0)], "ranking"),
    ],
)
def test_refusals(call: Callable[[], object]) -> None:
    with pytest.raises(ValueError):
        call()
