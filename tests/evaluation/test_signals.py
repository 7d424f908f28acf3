"""Signals of unlabelled texts against plain loops, scipy and closed forms.

Those that tune does not use live in scripts.
"""

from __future__ import annotations

import importlib.util
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.spatial.distance import pdist, squareform
from scipy.stats import entropy, skew

from st_reba.evaluation.signals import Views, reciprocal_ranks, views

Vectors = Any
SCRIPTS = Path(__file__).parents[2] / "scripts" / "tune_evidence"


def script(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, SCRIPTS / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def measures() -> Any:
    return script("measures")


@pytest.fixture(scope="module")
def shown() -> Any:
    return script("shown")


def drawn(count: int = 60, width: int = 5, seed: int = 0) -> Vectors:
    return np.random.default_rng(seed).normal(0.3, 1.0, (count, width))


def unit(vectors: Vectors) -> Vectors:
    return np.array([row / math.sqrt(sum(value * value for value in row)) for row in vectors])


TEXTS = [" a b, c d e, f. ", "too short", "北京，今天下大雪"]


def test_views_are_parts_of_words_or_characters() -> None:
    found = views(TEXTS)
    assert found.rows == (0, 2)
    assert found.first == ("a b, c d", "北京，今天下")
    assert found.second == ("c d e, f.", "今天下大雪")
    # Of a long text both are in front, where models do not cut.
    long = views([" ".join(map(str, range(1000)))])
    assert long.first == (" ".join(map(str, range(100))),)
    assert long.second == (" ".join(map(str, range(50, 150))),)
    assert views(["one two three", "", "一二三"]) == Views((), (), ())


@pytest.mark.parametrize(
    ("how", "spaced", "dense"),
    [
        ("disjoint", ("a b, c", "d e, f."), ("北京，今天", "下大雪")),
        ("query", ("c d", "a b, c d e, f."), ("今天下", "北京，今天下大雪")),
        ("prefix", ("a b, c d", "a b, c d e, f."), ("北京，今天下", "北京，今天下大雪")),
        ("order", ("d e, f. a b, c", "a b, c d e, f."), ("下大雪北京，今天", "北京，今天下大雪")),
        ("template", ("This is about: a b, c d e, f.", TEXTS[0].strip()), (f"关于“{TEXTS[2]}”的内容", TEXTS[2])),
    ],
)
def test_other_ways(shown: Any, how: str, spaced: Any, dense: Any) -> None:
    assert shown.ways(TEXTS[0], how) == spaced
    assert shown.ways(TEXTS[2], how) == dense


def test_reciprocal_ranks_are_those_of_loops() -> None:
    first, second = drawn(seed=1), drawn(seed=1) + drawn(seed=2)
    # Two texts whose second views are equal cannot be told apart.
    second[4] = 2 * second[7]
    one, other = unit(first), unit(second)

    def rank(own: float, others: list[float]) -> int:
        return sum(round(each, 6) >= round(own, 6) for each in others)

    wanted = []
    for n in range(len(one)):
        own = one[n] @ other[n]
        ranks = rank(own, [one[n] @ each for each in other]), rank(own, [each @ other[n] for each in one])
        wanted.append((1 / ranks[0] + 1 / ranks[1]) / 2)
    assert reciprocal_ranks(first, second) == pytest.approx(wanted)
    assert reciprocal_ranks(second, first) == pytest.approx(wanted)
    assert 0 < min(wanted) < 0.1 < 0.9 < max(wanted)
    assert reciprocal_ranks(np.ones((8, 3)), np.ones((8, 3))) == pytest.approx(np.full(8, 1 / 8))


def test_hidden_words_are_taken_out_and_told_apart(shown: Any) -> None:
    hidden_words = shown.hidden_words
    words, signs = ("Kernel", "harbour"), ("电影", "足球")
    texts = [f"{n} on the {word}, kernels {n}" for word in words for n in range(100, 110)]
    texts += [f"{chr(0x5000 + n)}的{word}，{chr(0x6000 + n)}" for word in signs for n in range(9)]
    # "both" belong to no one class; and what stands in more than 3 % of the texts is no word.
    texts += [
        "the kernel in the harbour",
        *(f"{n} on the" for n in range(500)),
        *(f"的{chr(0x7000 + n)}" for n in range(500)),
    ]
    rows = hidden_words(texts)
    # "kernels" stands in 20, and comes first; where it does "kernel" is never alone.
    assert {word for _, word in rows} == {"kernels", *signs}
    assert rows[0] == ("100 on the Kernel, 100", "kernels")
    assert [text for text, word in rows if word == "电影"] == [
        f"{chr(0x5000 + n)}的，{chr(0x6000 + n)}" for n in range(9)
    ]
    assert hidden_words(texts, fewest=10) == rows[:20]
    assert len({word for _, word in hidden_words(texts, classes=2)}) == 2
    assert hidden_words(texts[:20]) == []


def test_neighbours_are_those_of_loops(measures: Any) -> None:
    first, second, k = drawn(seed=1), drawn(width=7, seed=2), 4
    near = []
    for space in (unit(first), unit(second)):
        apart = squareform(pdist(space, "cosine"))
        near.append([set(sorted(set(range(60)) - {n}, key=lambda other: apart[n, other])[:k]) for n in range(60)])
    wanted = sum(len(one & other) for one, other in zip(*near, strict=True)) / (60 * k)
    assert 0 < wanted < 1
    assert measures.agreement(first, second, k) == pytest.approx(wanted)
    times = [sum(n in one for one in near[0]) for n in range(60)]
    assert measures.hubness(first, k) == pytest.approx(skew(times))
    labels = np.arange(60) % 3
    alike = sum(labels[other] == labels[n] for n in range(60) for other in near[0][n])
    assert measures.same_near(first, labels, k) == pytest.approx(alike / (60 * k))


def test_spread_is_that_of_closed_forms_and_loops(measures: Any) -> None:
    vectors = drawn(seed=3)
    assert measures.rank_me(np.eye(6)) == pytest.approx(6, rel=1e-4)
    assert measures.rank_me(np.ones((6, 3))) == pytest.approx(1, rel=1e-4)
    wanted = math.exp(entropy(np.sqrt(np.linalg.eigvalsh(unit(vectors).T @ unit(vectors)))))
    assert measures.rank_me(vectors) == pytest.approx(wanted, rel=1e-4)
    assert measures.uniformity(vectors) == pytest.approx(
        math.log(np.mean(np.exp(-2 * pdist(unit(vectors), "sqeuclidean"))))
    )
    other = drawn(seed=4)
    apart = [math.dist(one, two) ** 2 for one, two in zip(unit(vectors), unit(other), strict=True)]
    assert measures.alignment(vectors, other) == pytest.approx(sum(apart) / 60)
    directions = np.linalg.svd(unit(vectors))[2]
    sums = [sum(math.exp(sign * float(row @ each)) for row in unit(vectors)) for each in directions for sign in (1, -1)]
    assert measures.isotropy(vectors) == pytest.approx(min(sums) / max(sums))


@pytest.mark.parametrize("dimension", [2, 5])
def test_two_nearest_neighbours_tell_the_dimension(measures: Any, dimension: int) -> None:
    # Gaussian directions fill the sphere, which has one dimension less; they lie in a space of 20.
    inside = np.random.default_rng(0).normal(size=(1500, dimension + 1))
    turned = inside @ np.linalg.qr(np.random.default_rng(1).normal(size=(20, 20)))[0][: dimension + 1]
    assert measures.two_nn(turned) == pytest.approx(dimension, rel=0.1)
    some = unit(inside[:40])
    ratios = []
    for n in range(40):
        near = sorted(math.dist(some[n], some[m]) for m in range(40) if m != n)
        ratios.append(math.log(near[1] / near[0]))
    pairs = [(ratio, -math.log(1 - place / 40)) for place, ratio in enumerate(sorted(ratios)[:36], 1)]
    slope = sum(x * y for x, y in pairs) / sum(x * x for x, _ in pairs)
    assert measures.two_nn(inside[:40]) == pytest.approx(slope)
