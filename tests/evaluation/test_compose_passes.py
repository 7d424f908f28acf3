"""One pass gives what models of their own give: every layer, pooling, join and filter, on several architectures."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import pytest
from composing_data import TEXTS

import st_reba
from st_reba import PostFilter
from st_reba.evaluation import Filter, Space
from st_reba.evaluation.composing.costs import costs_of, laid_out
from st_reba.evaluation.composing.passes import encode_arm
from st_reba.evaluation.composing.scoring import Sample, enough, score_reads, units
from st_reba.evaluation.composing.space import KINDS_OF_LAYERS
from st_reba.evaluation.composing.trial import POOLED, Arm, Read, Trial

# Of many lengths, one of them repeated.
ASKED = [*TEXTS[:4], "hi", "雨", *TEXTS[160:163], TEXTS[0] + TEXTS[1], TEXTS[0]]
EVERYTHING = Space(
    templates=(None, "echo", "prompteol"),
    repeats=(1, 2, 3),
    separators=("", " / "),
    kinds=KINDS_OF_LAYERS,
    norms=(True, False),
)


@pytest.mark.parametrize(
    ("name", "options", "arms", "each"),
    [
        # The deepest has few arms, as each of its layers is a method: most arms are the tiny ones'.
        ("mini", {}, 4, 2),
        ("mini", {"max_seq_length": 40}, 3, 1),
        ("gpt2", {}, 6, 4),
        ("qwen2", {}, 6, 4),
    ],
)
def test_a_pass_gives_what_models_give(
    base: Callable[..., str], name: str, options: dict[str, object], arms: int, each: int
) -> None:
    drawn = random.Random(f"{name}{options}")
    loading = {"device": "cpu", "dtype": "float32", "check": False, **options}
    transformer = st_reba.build(base(name), "classical", **loading)[0]
    depth = transformer.depth
    every = EVERYTHING.arms(depth)
    plain = [arm for arm in every if arm.kind == "forward"]
    sinks = [arm for arm in every if arm.sink is not None]
    chosen = [*drawn.sample(plain, 2), drawn.choice(sinks), *drawn.sample(every, arms - 3)]
    seen = set()
    for arm in chosen:
        reads = EVERYTHING.reads(arm, depth)
        encoded = encode_arm(transformer, arm, reads, ASKED)
        assert set(encoded.vectors) == set(reads)
        assert encoded.tokens == costs_of(transformer, [arm], ASKED).total(arm, ASKED)
        # Where no layer is read above some other, none is run, and all that is read below stays what it was.
        cut = [read for read in reads if read.runs < depth]
        for read, vectors in encode_arm(transformer, arm, cut, ASKED).vectors.items():
            assert np.abs(vectors - encoded.vectors[read]).max() < 2e-6, f"{arm}; {read}"
        by_pooled = {pooled: [read for read in reads if read.pooled == pooled] for pooled in POOLED}
        some = [drawn.choice(found) for found in by_pooled.values() if found]
        for read in [*some, *drawn.sample(reads, each)]:
            model = st_reba.build(base(name), **Trial(arm, read).arguments(depth), **loading)
            wanted = model.encode(ASKED)
            assert np.abs(encoded.vectors[read] - wanted).max() < 2e-6, f"{arm}; {read}"
            seen.add(read.pooled)
    assert {"mean", "last"} < seen
    # Nothing of the arms is left behind in the backbone that they share.
    again = encode_arm(transformer, Arm(), [Read(depth, depth, True, "mean")], ASKED)
    plainly = st_reba.build(base(name), "classical", pooling="mean", **loading).encode(ASKED)
    assert np.abs(again.vectors[Read(depth, depth, True, "mean")] - plainly).max() < 2e-6


def test_the_tokens_of_a_pass_are_those_that_the_model_runs() -> None:
    transformer = st_reba.build("mini", "classical", device="cpu", max_seq_length=40)[0]
    for arm in (Arm(), Arm(repeats=3, separator=" / "), Arm("echo"), Arm("prompteol")):
        running = laid_out(transformer, arm.layout)
        positions = [int(running.preprocess([text])["attention_mask"].sum()) for text in ASKED]
        assert encode_arm(transformer, arm, [Read(0, 0, True, "last")], ASKED).tokens == sum(positions)
        assert max(positions) <= 40
        costs = costs_of(transformer, [arm], list(dict.fromkeys(ASKED)))
        # A text that stands twice is counted twice in a total, and once in the mean.
        assert costs.total(arm, ASKED) == sum(positions)
        assert costs.tokens(arm) == pytest.approx(np.mean(positions[:-1]))


def test_the_cost_of_a_method_is_positions_times_layers() -> None:
    transformer = st_reba.build("mini", "classical", device="cpu")[0]
    costs = costs_of(transformer, [Arm(repeats=2)], ["你好", "雨"])
    once, twice = costs.tokens(Arm()), costs.tokens(Arm(repeats=2))
    assert costs.of(Trial(Arm(), Read(6, 6, True, "mean"))) == 1
    assert costs.of(Trial(Arm(repeats=2), Read(1, 3, True, "mean"))) == pytest.approx(twice / once * 3 / 6)
    # Embeddings come through one layer at the least.
    assert costs.of(Trial(Arm(), Read(0, 0, True, "mean"))) == pytest.approx(1 / 6)


@pytest.mark.parametrize(
    "wanted",
    [
        Filter("center"),
        Filter("abtt", 1),
        Filter("abtt", 5),
        Filter("standardize"),
        Filter("whiten"),
        Filter("whiten", share=0.5),
        Filter("whiten", 2, power=0.75),
        Filter("whiten", 3, 0.25, 0.5),
    ],
)
def test_filters_are_those_that_are_fitted_afterwards(wanted: Filter) -> None:
    generator = np.random.default_rng(0)
    vectors = units(generator.normal(size=(200, 24)) * np.linspace(3, 0.3, 24) + 2)
    fitted = Sample(vectors).fitted(wanted)
    reference = PostFilter.fit(vectors, **wanted.options(24))
    assert fitted is not None and (fitted.kind, fitted.out_dimension) == (reference.kind, reference.out_dimension)
    new = units(generator.normal(size=(30, 24)) + 1)
    # By the cosines, as a principal direction may point either way.
    assert np.allclose(fitted.apply(new) @ fitted.apply(new).T, reference.apply(new) @ reference.apply(new).T)


def test_a_filter_that_would_be_refused_afterwards_is_not_tried() -> None:
    generator = np.random.default_rng(0)
    vectors = units(generator.normal(size=(130, 24)) + 1)
    flat = vectors.copy()
    flat[:, 3] = 0.5
    flat[:, 20:] = flat[:, :4]
    cases = [
        (vectors[:99], Filter("center")),
        (vectors[:95], Filter("whiten")),
        (vectors, Filter("abtt", 24)),
    ]
    cases += [(flat, Filter("standardize")), (flat[:, :20], Filter("whiten")), (flat, Filter("abtt", 22))]
    # Of two dimensions one varies 70 parts in a million as much as the other.
    thin = generator.normal(size=(120, 2)) * [1, 7e-5]
    cases += [(thin, Filter("standardize")), (thin, Filter("whiten"))]
    for sample, wanted in cases:
        width = sample.shape[1]
        assert Sample(sample).fitted(wanted) is None, wanted
        if wanted.kind != "whiten" or enough(wanted, len(sample), width):
            with pytest.raises(ValueError):
                PostFilter.fit(sample, **wanted.options(width))
    assert Sample(vectors).fitted(Filter()) is None and Sample(flat).fitted(Filter("abtt", 3)) is not None


def test_what_is_looked_at_behind_every_filter() -> None:
    from st_reba.evaluation.composing.reading import part_of

    generator = np.random.default_rng(0)
    part = part_of("pairs", [(f"a{n}", f"b{n}", float(n % 7)) for n in range(60)])
    reads = [Read(layer, layer, True, "mean") for layer in range(5)]
    vectors = {read: units(generator.normal(size=(120, 8)) + 1).astype(np.float32) for read in reads}
    vectors[reads[4]][3] = np.nan
    filters = (Filter(), Filter("center"), Filter("abtt", 1), Filter("whiten", power=0.5))
    every = {(each.read, each.filter): each.score for each in score_reads(part, vectors, filters)}
    assert set(every) == {(read, each) for read in reads[:4] for each in filters}
    some = {(each.read, each.filter): each.score for each in score_reads(part, vectors, filters, looked_at=2)}
    assert all(every[key] == score for key, score in some.items())
    plain = max(reads[:4], key=lambda read: every[read, filters[0]])
    behind = max(reads[:4], key=lambda read: every[read, filters[3]])
    # All without a filter and behind the last; the best of either order behind all.
    wanted = {(read, each) for read in reads[:4] for each in (filters[0], filters[3])}
    assert wanted | {(read, each) for read in (plain, behind) for each in filters} <= set(some)
    assert len(some) == 8 + 2 * 2
