"""One pass gives what models of their own give; filters are fitted on other items than those they are scored on."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from marks import slow_but
from scipy.stats import spearmanr
from searched import TEXTS, task_of
from sklearn.linear_model import LogisticRegression

import st_reba
from st_reba import PostFilter
from st_reba.evaluation import passes
from st_reba.evaluation.crossfit import Sample, enough, folds_of, score_reads
from st_reba.evaluation.items import units
from st_reba.evaluation.passes import Encoded, costs_of, encode_arm, laid_out
from st_reba.evaluation.space import Space
from st_reba.evaluation.trials import POOLED, Arm, Filter, Read, Trial

# Of many lengths, one of them repeated.
ASKED = [*TEXTS[:3], "hi", "雨", *TEXTS[160:162], TEXTS[0] + TEXTS[1]]
EVERYTHING = Space(
    templates=(None, "echo", "prompteol"),
    repeats=(1, 2, 3),
    separators=("", " / "),
    kinds=("bidirectional", "nosink-bidirectional", "nosink-forward", "backward", "rerouted"),
    norms=(True, False),
)
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


@pytest.mark.parametrize(
    ("name", "options", "arms", "each"),
    # The deepest has few arms, as each of its layers is a method: most arms are the tiny ones'.
    slow_but(
        [("mini", {"max_seq_length": 40}, 2, 1), ("gpt2", {}, 5, 2), ("qwen2", {}, 4, 2)], "gpt2", "qwen2", rows=True
    ),
)
def test_a_pass_gives_what_models_give(
    base: Callable[..., str], name: str, options: dict[str, object], arms: int, each: int, tmp_path: Path
) -> None:
    drawn = random.Random(f"{name}{options}")
    loading: dict[str, Any] = {"device": "cpu", "dtype": "float32", "check": False, **options}
    transformer: Any = st_reba.build(base(name), "classical", **loading)[0]
    depth = transformer.depth
    every = EVERYTHING.arms(depth)
    plain = [arm for arm in every if arm.kind == "forward"]
    sinks = [arm for arm in every if arm.sink is not None]
    seen = set()
    for number, arm in enumerate([drawn.choice(plain), drawn.choice(sinks), *drawn.sample(every, arms - 2)]):
        reads = EVERYTHING.reads(arm, depth)
        (tmp_path / f"{number}").mkdir()
        encoded = encode_arm(transformer, arm, reads, ASKED, tmp_path / f"{number}")
        assert encoded.reads == reads
        assert encoded.tokens == costs_of(transformer, [arm], ASKED).total(arm, ASKED)
        by_pooled = {pooled: [read for read in reads if read.pooled == pooled] for pooled in POOLED}
        some = [drawn.choice(found) for found in by_pooled.values() if found]
        for read in [*some, *drawn.sample(reads, each)]:
            model = st_reba.build(base(name), **Trial(arm, read).arguments(depth), **loading)
            assert np.abs(encoded[read] - model.encode(ASKED)).max() < 2e-6, f"{arm}; {read}"
            seen.add(read.pooled)
    assert {"mean", "last"} < seen
    # Nothing of the arms is left behind in the backbone that they share.
    whole = Read(depth, depth, True, "mean")
    (tmp_path / "again").mkdir()
    again = encode_arm(transformer, Arm(), [whole], ASKED, tmp_path / "again")
    plainly = st_reba.build(base(name), "classical", pooling="mean", **loading).encode(ASKED)
    assert np.abs(again[whole] - plainly).max() < 2e-6


def test_vectors_wait_on_disk(base: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    transformer: Any = st_reba.build(base("gpt2"), "classical", device="cpu")[0]
    reads = [Read(0, 0, True, "mean"), Read(1, 2, True, "mean", "concat")]
    found = []
    for waiting in (1 << 28, 0):
        monkeypatch.setattr(passes, "_WAITING", waiting)
        folder = tmp_path / str(waiting)
        folder.mkdir()
        encoded = encode_arm(transformer, Arm(), reads, ASKED, folder)
        width = transformer.get_embedding_dimension()
        sizes = {int(path.stem): path.stat().st_size for path in folder.iterdir()}
        assert sizes == {0: 4 * width * len(ASKED), 1: 8 * width * len(ASKED)}
        found.append([encoded[read] for read in reads])
        assert not encoded._waiting
    assert all(np.array_equal(*pair) for pair in zip(*found, strict=True))


def test_costs_by_hand() -> None:
    transformer: Any = st_reba.build("mini", "classical", device="cpu", max_seq_length=40)[0]
    for arm in (Arm(), Arm(repeats=3, separator=" / "), Arm("echo"), Arm("prompteol")):
        running = laid_out(transformer, arm.layout)
        positions = [int(running.preprocess([text])["attention_mask"].sum()) for text in ASKED]
        costs = costs_of(transformer, [arm], ASKED)
        assert costs.total(arm, ASKED) == sum(positions) and max(positions) <= 40
        assert costs.tokens(arm) == pytest.approx(np.mean(positions))
    costs = costs_of(transformer, [Arm(repeats=2)], ["你好", "雨"])
    once, twice = costs.tokens(Arm()), costs.tokens(Arm(repeats=2))
    assert costs.of(Trial(Arm(), Read(6, 6, True, "mean"))) == 1
    assert costs.of(Trial(Arm(repeats=2), Read(1, 3, True, "mean"))) == pytest.approx(twice / once * 3 / 6)
    # Embeddings come through one layer at the least; INTER runs k layers twice.
    assert costs.of(Trial(Arm(), Read(0, 0, True, "mean"))) == pytest.approx(1 / 6)
    inter = Arm(nosink=st_reba.NoSink("inter-bidir", k=2))
    assert costs.of(Trial(inter, Read(6, 6, True, "mean"))) == pytest.approx(8 / 6)
    with pytest.raises(ValueError, match="template 'echo': max_seq_length=9 leaves no room"):
        costs_of(st_reba.build("mini", "classical", max_seq_length=9)[0], [Arm("echo")], ["雨"])  # type: ignore[arg-type]


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
