"""Readings behind filters, each of which is fitted on other items than those it is scored on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import spearmanr
from searched import task_of
from sklearn.linear_model import LogisticRegression

import st_reba
from st_reba import PostFilter
from st_reba.evaluation.crossfit import Sample, enough, folds_of, score_reads
from st_reba.evaluation.items import units
from st_reba.evaluation.passes import Encoded
from st_reba.evaluation.trials import Filter, Read

FILTERS = (
    Filter("center"),
    Filter("abtt", 1),
    Filter("abtt", 5),
    Filter("standardize"),
    Filter("whiten"),
    Filter("whiten", share=0.5),
    Filter("whiten", 2, power=0.75),
    Filter("whiten", 3, 0.25, 0.5),
)


def test_filters_are_those_that_are_fitted_afterwards() -> None:
    generator = np.random.default_rng(0)
    vectors = units(generator.normal(size=(200, 24)) * np.linspace(3, 0.3, 24) + 2)
    new = units(generator.normal(size=(30, 24)) + 1)
    sample = Sample(vectors, new)
    for wanted in FILTERS:
        found, reference = sample.filtered(wanted), PostFilter.fit(vectors, **wanted.options(24)).apply(new)
        assert found is not None
        # By the cosines, as a principal direction may point either way.
        assert np.allclose(found @ found.T, reference @ reference.T), wanted
    # Of fewer texts than dimensions they come from another decomposition.
    few = Sample(vectors[:20, :10].repeat(10, axis=1), new[:, :10].repeat(10, axis=1))
    assert few.count < few.width and len(few._principal[0]) == 20


def test_a_filter_that_would_be_refused_afterwards_is_not_tried() -> None:
    generator = np.random.default_rng(0)
    vectors = units(generator.normal(size=(130, 24)) + 1)
    flat = vectors.copy()
    flat[:, 3] = 0.5
    flat[:, 20:] = flat[:, :4]
    # Of two dimensions one varies 70 parts in a million as much as the other.
    thin = generator.normal(size=(120, 2)) * [1, 7e-5]
    cases = [(vectors[:99], Filter("center")), (vectors[:95], Filter("whiten")), (vectors, Filter("abtt", 24))]
    cases += [(flat, Filter("standardize")), (flat[:, :20], Filter("whiten")), (flat, Filter("abtt", 22))]
    cases += [(thin, Filter("standardize")), (thin, Filter("whiten"))]
    for sample, wanted in cases:
        width = sample.shape[1]
        assert Sample(sample, sample).filtered(wanted) is None, wanted
        if wanted.kind != "whiten" or enough(wanted, len(sample), width):
            with pytest.raises(ValueError):
                PostFilter.fit(sample, **wanted.options(width))
    assert Sample(flat, flat).filtered(Filter("abtt", 3)) is not None


def kept(folder: Path, vectors: dict[Read, Any]) -> Encoded:
    count = len(next(iter(vectors.values())))
    folder.mkdir()
    encoded = Encoded(folder, list(vectors), count, 0)
    for read, each in vectors.items():
        encoded.write(read, range(count), each.astype(np.float32))
    encoded.flush()
    return encoded


def test_filters_are_fitted_on_the_other_items(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    # Every text stands in two items, so that folds share texts.
    rows = [(f"a{n}", f"a{(n + 1) % 240}", float(generator.integers(6))) for n in range(240)]
    items = st_reba.evaluation.make_task("STS", rows).items
    vectors = units(generator.normal(size=(240, 6)) * [3, 2, 1, 1, 0.5, 0.2] + 0.5).astype(np.float32)
    read = Read(1, 1, True, "mean")
    wanted = Filter("whiten", 1)

    def score(fit: Callable[[list[int], list[int]], Any]) -> float:
        """The mean of both halves' Spearman, every second item a half, each by a filter fitted on texts."""
        scores = []
        for own in (0, 1):
            ours = [item for n, item in enumerate(items.items) if n % 2 == own]
            others = [item for n, item in enumerate(items.items) if n % 2 != own]
            texts = fit(sorted({p for item in ours for p in item[:2]}), sorted({p for i in others for p in i[:2]}))
            filtered = units(PostFilter.fit(vectors[texts].astype(float), **wanted.options(6)).apply(vectors))
            cosines = [float(filtered[item[0]] @ filtered[item[1]]) for item in ours]
            scores.append(spearmanr(np.round(cosines, 6), [item[2] for item in ours]).statistic)
        return float(np.mean(scores))

    with pytest.raises(ValueError, match="sample of 0"):
        score(lambda own, others: sorted(set(others) - set(own)))
    # Here all texts are shared, so no filter is tried; of the second half of the texts each stands in one item.
    assert [
        each.filter for each in score_reads(folds_of(items, parts=2), kept(tmp_path / "a", {read: vectors}), (wanted,))
    ] == []
    rows = [(f"a{n}", f"b{n // 4 * 4 + n % 2}", float(generator.integers(6))) for n in range(400)]
    items = st_reba.evaluation.make_task("STS", rows).items
    vectors = units(generator.normal(size=(len(items.texts), 6)) * [3, 2, 1, 1, 0.5, 0.2] + 0.5).astype(np.float32)
    (found,) = score_reads(folds_of(items, parts=2), kept(tmp_path / "b", {read: vectors}), (wanted,))
    right = score(lambda own, others: sorted(set(others) - set(own)))
    assert found.score == pytest.approx(right, abs=1e-9)
    # What the old rule gave, the scored texts among those that are fitted on, is another number.
    assert abs(found.score - score(lambda own, others: own)) > 1e-6
    assert abs(found.score - score(lambda own, others: sorted({*own, *others}))) > 1e-6


def test_shared_texts_fit_no_filter() -> None:
    items = st_reba.evaluation.make_task("STS", [(f"a{n}", f"s{n % 3}", float(n % 5)) for n in range(40)]).items
    for fold, own in zip(folds_of(items, parts=2), (0, 1), strict=True):
        scored = {text for n, (one, two, _) in enumerate(items.items) if n % 2 == own for text in (one, two)}
        assert not scored & set(fold.fit.tolist())
        assert {items.texts[place] for place in fold.fit} == {f"a{n}" for n in range(40) if n % 2 != own}
        assert [fold.items.texts[item[0]] for item in fold.items.items] == [f"a{n}" for n in range(own, 40, 2)]


@pytest.mark.parametrize("apart", [False, True])
def test_classifiers_learn_from_the_other_items(apart: bool, tmp_path: Path) -> None:
    items, more = task_of("Classification", 100).items, task_of("Classification", 160).items.subset(range(100, 160))
    joined = items.joined(more) if apart else items
    generator = np.random.default_rng(0)
    vectors = generator.normal(size=(len(joined.texts), 8)).astype(np.float32)
    encoded = kept(tmp_path / "a", {Read(1, 1, True, "mean"): vectors})
    (found,) = score_reads(folds_of(joined, len(items), 2), encoded, (Filter(),))
    labels = np.array([item[1] for item in joined.items])
    places = np.array([item[0] for item in joined.items])
    scores = []
    parts = items.folds(2)
    for rows, others in (parts, parts[::-1]):
        learn = np.arange(100, 160) if apart else others
        fitted = LogisticRegression(max_iter=100).fit(vectors[places[learn]], labels[learn])
        scores.append(np.mean(fitted.predict(vectors[places[rows]]) == labels[rows]))
    assert found.score == pytest.approx(np.mean(scores), abs=1e-9)


def test_what_is_looked_at_behind_every_filter(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    items = st_reba.evaluation.make_task("STS", [(f"a{n}", f"b{n}", float(n % 7)) for n in range(120)]).items
    reads = [Read(layer, layer, True, "mean") for layer in range(5)]
    vectors = {read: units(generator.normal(size=(240, 8)) + 1) for read in reads}
    vectors[reads[4]][3] = np.nan
    encoded = kept(tmp_path / "a", vectors)
    filters = (Filter(), Filter("center"), Filter("abtt", 1), Filter("whiten", power=0.5))
    folds = folds_of(items, parts=2)
    every = {(each.read, each.filter): each.score for each in score_reads(folds, encoded, filters)}
    assert set(every) == {(read, each) for read in reads[:4] for each in filters}
    some = {(each.read, each.filter): each.score for each in score_reads(folds, encoded, filters, looked_at=2)}
    assert all(every[key] == score for key, score in some.items())
    plain = max(reads[:4], key=lambda read: every[read, filters[0]])
    behind = max(reads[:4], key=lambda read: every[read, filters[3]])
    # All without a filter and behind the last; the best of either order behind all.
    wanted = {(read, each) for read in reads[:4] for each in (filters[0], filters[3])}
    assert wanted | {(read, each) for read in (plain, behind) for each in filters} <= set(some)


def test_rankings_and_triples_are_scored_by_their_own_texts(tmp_path: Path) -> None:
    for kind in ("Reranking", "Triples", "PairClassification"):
        items = task_of(kind, 60).items
        vectors = np.random.default_rng(0).normal(size=(len(items.texts), 8)).astype(np.float32)
        encoded = kept(tmp_path / kind, {Read(1, 1, True, "mean"): vectors})
        (found,) = score_reads(folds_of(items, parts=2), encoded, (Filter(),))
        metric = items.metrics[items.main]
        wanted = [metric(items.evidence(vectors, rows)) for rows in items.folds(2)]
        assert found.score == pytest.approx(np.mean(wanted), abs=1e-9)
