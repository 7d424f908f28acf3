"""Filters behind the pooling: numbers against plain loops and scikit-learn, the bounded gain, the model, the file."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, cast

import numpy as np
import pytest
import reference_postfilter as reference
import torch
from numpy.typing import NDArray
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Dense

import st_reba
from st_reba import PostFilter
from st_reba.filters import KINDS, MOST_GAIN, least_texts, postfilter_of, sample_texts, told, with_postfilter
from st_reba.modules.filter import Filter

NAMES = ("Ann", "王芳", "Tom", "the old man", "my neighbour", "一个孩子", "nobody", "李老师")
DEEDS = ("sells", "likes", "买了", "忘记了")
THINGS = ("rice", "two boats", "苹果", "the rain", "a letter", "电影", "old maps", "红色的花")
# 256 different texts.
TEXTS = [" ".join(words) for words in itertools.product(NAMES, DEEDS, THINGS)]
ASKED = ["A cat sleeps on the roof.", "银行今天关门了。", "hi", "长" * 60, "Ann sells rice"]
# One layer tells as much as six.
LOW = [st_reba.ReadLayers(1)]
OPTIONS: dict[str, dict[str, Any]] = {
    "center": {},
    "abtt": {"r": 4},
    "standardize": {},
    "whiten": {"dimensions": 48},
}


def unit(vectors: Any) -> Any:
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def drawn(count: int, width: int, seed: int = 0) -> NDArray[np.float64]:
    """Correlated numbers, far from 0, that vary in all directions."""
    random = np.random.default_rng(seed)
    turned = np.linalg.qr(random.normal(size=(width, width)))[0]
    return random.normal(size=(count, width)) * np.linspace(3, 0.2, width) @ turned + 5


@pytest.fixture(scope="module")
def model() -> SentenceTransformer:
    return st_reba.build("mini", "echo", pooling="mean", stages=LOW, dtype="float32", device="cpu")


@pytest.fixture(scope="module")
def vectors(model: SentenceTransformer) -> Any:
    return model.encode(TEXTS)


@pytest.fixture(scope="module")
def asked(model: SentenceTransformer) -> Any:
    return model.encode(ASKED)


@pytest.fixture(scope="module")
def fitted(model: SentenceTransformer) -> dict[str, PostFilter]:
    return {kind: postfilter_of(model, TEXTS, kind, **OPTIONS[kind]) for kind in KINDS}


# The numbers


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("center", {}),
        ("abtt", {"r": 2}),
        ("standardize", {}),
        ("whiten", {"dimensions": 4}),
        ("whiten", {"power": 0.5}),
        ("whiten", {"dimensions": 2, "r": 3, "power": 0.75}),
    ],
)
def test_against_plain_loops(kind: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    sample, x = drawn(120, 6), drawn(5, 6, seed=1)
    rows, few = sample.tolist(), x.tolist()
    wanted = {
        "center": lambda: reference.center(rows, few),
        "abtt": lambda: reference.all_but_the_top(rows, few, 2),
        "standardize": lambda: reference.standardize(rows, few),
        "whiten": lambda: reference.whiten(rows, few, **{"dimensions": 6, **options}),
    }[kind]()
    found = PostFilter.fit(sample, cast(Any, kind), **options)
    np.testing.assert_allclose(found.apply(x), wanted, rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose((x - found.mean) @ found.matrix().T, wanted, rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose(found.apply(x[0]), wanted[0], rtol=1e-10, atol=1e-10)
    # Neither the order of the sample, nor the parts in which it is read, nor an eigenvector's sign matters.
    monkeypatch.setattr("st_reba.filters._ROWS", 50)
    again = PostFilter.fit(sample[::-1].copy(), cast(Any, kind), **options)
    np.testing.assert_allclose(again.matrix(), found.matrix(), rtol=1e-9, atol=1e-9)


def test_against_scikit_learn(vectors: Any, asked: Any) -> None:
    from sklearn.decomposition import PCA

    given, few = vectors.astype(np.float64), asked.astype(np.float64)
    rival = PCA(n_components=24, whiten=True, svd_solver="full").fit(given).transform(few)
    found = PostFilter.fit(vectors, "whiten", dimensions=24).apply(asked)
    # It divides variances by N − 1, and its signs differ with its version.
    found *= np.sqrt((len(given) - 1) / len(given))
    np.testing.assert_allclose(found * np.sign(found), rival * np.sign(rival), rtol=1e-6, atol=1e-8)


def test_what_is_left(vectors: Any) -> None:
    options = {**OPTIONS, "whiten": {"dimensions": 24}}
    left = {kind: PostFilter.fit(vectors, kind, **options[kind]).apply(vectors) for kind in KINDS}
    for found in left.values():
        assert np.abs(found.mean(axis=0)).max() < 1e-10
    assert left["whiten"].shape == (256, 24) and np.abs(np.cov(left["whiten"].T, bias=True) - np.eye(24)).max() < 1e-9
    assert np.abs(left["standardize"].std(axis=0) - 1).max() < 1e-12
    before, after = (np.linalg.eigvalsh(np.cov(each.T, bias=True)) for each in (vectors.astype(float), left["abtt"]))
    assert np.abs(after[:4]).max() < 1e-12 and np.allclose(after[4:], before[:-4], rtol=1e-8, atol=1e-14)


def test_the_gain_is_bounded() -> None:
    """Directions in which the sample hardly varies are divided by the bound; all others by what they were."""
    sample = drawn(900, 6) * 1e-3 + np.array([5, 0, 0, 0, 0, 0])
    length = float(np.sqrt((sample**2).sum(axis=1).mean()))
    for scale in (1.0, 1e-6, 1e6):
        for kind in ("whiten", "standardize"):
            found = PostFilter.fit(sample * scale, cast(Any, kind))
            assert found.scale is not None
            gain = np.linalg.svd(found.matrix(), compute_uv=False)[0] * length * scale
            assert gain == pytest.approx(MOST_GAIN) and len(set(found.scale.round(9))) < 6
        half = PostFilter.fit(sample * scale, "whiten", power=0.5)
        assert half.scale is not None and half.scale.min() == pytest.approx((length * scale / MOST_GAIN) ** 0.5)
    wide = drawn(900, 6)
    found = PostFilter.fit(wide, "whiten")
    assert found.scale is not None
    np.testing.assert_allclose(found.scale**2, np.linalg.eigvalsh(np.cov(wide.T, bias=True))[::-1])


@pytest.mark.parametrize("pooling", ["last", "mean"])
def test_whitened_vectors_depend_on_the_text_alone(pooling: str) -> None:
    """Also where a sample of 900 short texts hardly varies in some directions: without a bound, by 1.5e-5 and more."""
    random = Random(0)
    others = "北京 go went not never 都 very ship moon king road fish gold tree we he 他"
    vocabulary = sorted(set(" ".join([*ASKED, *TEXTS, others]).split()))
    drawn_texts = (" ".join(random.choices(vocabulary, k=random.randint(2, 4))) for _ in range(2000))
    sample = list(dict.fromkeys(drawn_texts))[:900]
    plain = st_reba.build("mini", "classical", pooling=pooling, stages=[st_reba.ReadLayers(1)], device="cpu")
    model = st_reba.fit_postfilter(plain, sample, "whiten")
    texts = [*ASKED, *sample[:200:8], *(" ".join(sample[at : at + 1 + at % 9]) for at in range(20))]
    alone = np.stack([model.encode(text) for text in texts])
    for size in (3, 16, len(texts)):
        assert np.abs(model.encode(texts, batch_size=size) - alone).max() < 1e-5


# The model


@pytest.mark.parametrize("kind", KINDS)
def test_vectors_are_the_filtered_ones(
    model: SentenceTransformer, fitted: dict[str, PostFilter], asked: Any, kind: str
) -> None:
    found = with_postfilter(model, fitted[kind])
    names = ["RepeatTransformer", "Pooling", "Normalize", "Dense", "Normalize"]
    assert [type(module).__name__ for module in found] == names
    dense = cast(Any, found[3])
    assert type(dense) is Dense and isinstance(dense.activation_function, torch.nn.Identity)
    wanted = unit(fitted[kind].apply(asked))
    assert found.get_embedding_dimension() == wanted.shape[1] == fitted[kind].out_dimension
    for size in (1, 2, len(ASKED)):
        assert np.abs(found.encode(ASKED, batch_size=size) - wanted).max() < 2e-6


def test_the_model_is_not_changed(model: SentenceTransformer, asked: Any) -> None:
    before = cast(Any, model[0]).get_config_dict()
    found = st_reba.fit_postfilter(model, TEXTS[:100], "center")
    assert len(model) == 3 and cast(Any, model[0]).get_config_dict() == before
    assert np.array_equal(model.encode(ASKED), asked) and model.model_card_data.model is model
    assert cast(Any, found[0]).model is cast(Any, model[0]).model and found.model_card_data.model is found
    assert cast(Any, found[0]).stage("filter") == Filter("center", texts=100, sha256=sample_texts(TEXTS[:100])[1])


def test_the_rest_is_carried_over() -> None:
    prompts = {"query": "Query: ", "document": "Text: "}
    model = st_reba.build("mini", pooling="mean", stages=LOW, prompts=prompts, normalize=False, device="cpu")
    model.similarity_fn_name, model.truncate_dim, model.default_prompt_name = "dot", 20, "document"
    model.max_seq_length = 90
    found = st_reba.fit_postfilter(model, TEXTS[:100], "standardize")
    assert [type(module).__name__ for module in found] == ["RepeatTransformer", "ReBAPooling", "Dense"]
    carried = (found.prompts, found.truncate_dim, found.similarity_fn_name, found.default_prompt_name)
    assert carried == (prompts, 20, "dot", "document") and found.max_seq_length == 90
    found.prompts["query"] = ""
    assert model.prompts == prompts
    # The filter is fitted on whole vectors, with the default prompt, and cut behind it.
    model.truncate_dim = None
    wanted = PostFilter.fit(model.encode(TEXTS[:100]), "standardize").apply(model.encode_document(ASKED))
    given = found.encode_document(ASKED)
    assert given.shape == (5, 20) and np.abs(given - wanted[:, :20]).max() < 1e-3 * np.abs(wanted).max()


def test_half_precision(fitted: dict[str, PostFilter], asked: Any) -> None:
    half = st_reba.build("mini", "echo", pooling="mean", stages=LOW, dtype="bfloat16", device="cpu")
    for kind in ("abtt", "whiten"):
        found = with_postfilter(half, fitted[kind])
        assert cast(Any, found[3]).linear.weight.dtype == torch.bfloat16
        cosines = (unit(found.encode(ASKED).astype(np.float64)) * unit(fitted[kind].apply(asked))).sum(axis=1)
        assert cosines.min() > 0.998


def test_tokens_and_words_are_not_filtered(model: SentenceTransformer, fitted: dict[str, PostFilter]) -> None:
    found = with_postfilter(model, fitted["whiten"])
    one, two = (each.encode("你好 world", output_value="token_embeddings") for each in (model, found))
    assert torch.equal(cast(Any, one), cast(Any, two))
    items = [("他在银行取钱", (2, 4))]
    assert np.array_equal(st_reba.encode_words(found, items), st_reba.encode_words(model, items))


def test_save_and_load(model: SentenceTransformer, fitted: dict[str, PostFilter], tmp_path: Path) -> None:
    filtered = with_postfilter(model, fitted["whiten"])
    wanted = filtered.encode(ASKED)
    filtered.save_pretrained(str(tmp_path / "first"))
    again = SentenceTransformer(str(tmp_path / "first"), device="cpu")
    assert np.array_equal(again.encode(ASKED), wanted)
    assert cast(Any, again[0]).stage("filter") == fitted["whiten"].record()
    with pytest.raises(ValueError, match="already"):
        st_reba.fit_postfilter(again, TEXTS)
    again.save_pretrained(str(tmp_path / "second"))
    for name in ("modules.json", "sentence_bert_config.json", "3_Dense/config.json", "3_Dense/model.safetensors"):
        assert (tmp_path / "first" / name).read_bytes() == (tmp_path / "second" / name).read_bytes()


# The sample


def test_sample(model: SentenceTransformer, vectors: Any) -> None:
    texts = ["b", "a", "  ", "b", "c", "d", ""]
    assert sample_texts(texts)[0] == ["b", "a", "c", "d"]
    draws = {tuple(sample_texts(texts, 2, seed)[0]) for seed in range(20)}
    assert len(draws) > 3 and all(draw == tuple(t for t in "bacd" if t in draw) for draw in draws)
    assert sample_texts(texts, 2, 7) == sample_texts(iter(texts), 2, 7)
    assert sample_texts(["ab", "c"])[1] != sample_texts(["a", "bc"])[1]
    found = postfilter_of(model, TEXTS + TEXTS[:50], "center", sample=150, seed=3)
    chosen, digest = sample_texts(TEXTS, 150, 3)
    rows = [TEXTS.index(text) for text in chosen]
    np.testing.assert_allclose(found.mean, vectors[rows].mean(axis=0, dtype=np.float64), atol=1e-6)
    assert found.record() == Filter("center", texts=150, seed=3, sha256=digest)


def test_bad_samples(model: SentenceTransformer) -> None:
    for texts, options, message in (
        (TEXTS[:99], {"kind": "center"}, "sample of 99 different texts is too small.*at least 100"),
        (TEXTS[:5] * 50, {"kind": "center"}, "sample of 5 different texts"),
        (TEXTS[:191], {"kind": "abtt"}, "sample of 191.*192 dimensions need at least 192.*kind='center'"),
        (TEXTS, {"kind": "whiten"}, "sample of 256.*at least 768.*fewer dimensions"),
        (TEXTS, {"sample": 257}, "sample=257: there are only 256 different texts"),
        (TEXTS, {"sample": 0}, "sample=0 must be a whole number from 1"),
        (TEXTS, {"seed": -1}, "seed=-1 must be a whole number from 0"),
        ([], {}, "sample of 0"),
    ):
        with pytest.raises(ValueError, match=message):
            st_reba.fit_postfilter(model, texts, **cast(Any, options))
    for wrong in ("text", ["a", 3], ["a", None], ["a", 0]):
        with pytest.raises(TypeError, match="one str|(3|None|0), which is no str"):
            st_reba.fit_postfilter(model, cast(Any, wrong))
    assert [least_texts(kind, 192) for kind in KINDS] == [100, 192, 100, 768]


# What is refused


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kind": "zca"}, "filter: kind='zca' is not allowed.*'whiten'"),
        ({"kind": "center", "r": 4}, "filter: r=4 belongs to kind='abtt' or 'whiten', not to kind='center'"),
        ({"kind": "abtt", "dimensions": 4}, "filter: dimensions=4 belongs to kind='whiten'"),
        ({"kind": "abtt", "power": 0.5}, "filter: power=0.5 belongs to kind='whiten'"),
        ({"kind": "abtt", "r": 0}, "filter: r=0 takes no direction away.*kind='center'"),
        ({"kind": "abtt", "r": True}, "filter: r=True is not allowed"),
        ({"kind": "abtt", "r": 192}, "r=192: the vectors have 192 dimensions. Give at most 191"),
        ({"kind": "whiten", "dimensions": 193}, "dimensions=193: the vectors have 192 dimensions. Give at most 192"),
        ({"kind": "whiten", "dimensions": 2.0}, "filter: dimensions=2.0 is not allowed"),
        ({"kind": "whiten", "dimensions": 192, "r": 1}, "dimensions=192.*at most 191"),
        ({"kind": "whiten", "power": 0}, "filter: power=0 must be a number above 0"),
        ({"kind": "whiten", "power": 1.5}, "filter: power=1.5 is not allowed"),
    ],
)
def test_bad_options(model: SentenceTransformer, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        st_reba.fit_postfilter(model, TEXTS, **options)


def test_no_division_by_nothing() -> None:
    sample = drawn(200, 6)
    flat = sample.copy()
    flat[:, 2] = 7.0
    low = sample @ np.diag([1, 1, 1, 0, 0, 0]) @ np.linalg.qr(drawn(6, 6))[0]
    with pytest.raises(ValueError, match=r"of 6 dimensions, 1 have .nearly. no variance in the sample, as number 2"):
        PostFilter.fit(flat, "standardize")
    with pytest.raises(ValueError, match=r"dimensions=6 \(all\): .* vary in 5 directions only .of 6."):
        PostFilter.fit(flat, "whiten")
    with pytest.raises(ValueError, match=r"r=4: .* vary in 3 directions only .*Give r of at most 3"):
        PostFilter.fit(low, "abtt", r=4)
    with pytest.raises(ValueError, match="vary in 0 directions"):
        PostFilter.fit(np.ones((200, 6)), "abtt")
    with pytest.raises(ValueError, match="NaN or infinity"):
        PostFilter.fit(np.where(sample > 5, np.nan, sample), "center")
    for wrong in (sample[0], sample.astype(int), sample.tolist()):
        with pytest.raises(ValueError, match="must be a NumPy array"):
            PostFilter.fit(cast(Any, wrong), "center")


def test_models_without_a_place_for_it(model: SentenceTransformer, fitted: dict[str, PostFilter]) -> None:
    found = with_postfilter(model, fitted["abtt"])
    with pytest.raises(ValueError, match=r"has a post-filter already .abtt, r=4, fitted on 256 texts."):
        st_reba.fit_postfilter(found, TEXTS, "center")
    plain = SentenceTransformer(modules=[torch.nn.Identity()], device="cpu")
    with pytest.raises(ValueError, match="starts with Identity.*st_reba.build"):
        st_reba.fit_postfilter(plain, TEXTS)
    # A dense layer of another's is part of the model.
    trained = SentenceTransformer(modules=[*model, Dense(192, 16)], device="cpu")
    names = [type(each).__name__ for each in st_reba.fit_postfilter(trained, TEXTS)]
    assert names[-3:] == ["Normalize", "Dense", "Dense"]


def test_how_a_filter_is_told() -> None:
    assert told(Filter("abtt", 3, texts=200)) == "abtt, r=3, fitted on 200 texts"
    assert told(Filter("whiten", 2, 48, 0.5, 1000)) == "whiten, r=2, dimensions=48, power=0.5, fitted on 1,000 texts"


# The file


@pytest.mark.parametrize("kind", KINDS)
def test_file(model: SentenceTransformer, fitted: dict[str, PostFilter], kind: str, tmp_path: Path) -> None:
    file = tmp_path / "filter.safetensors"
    fitted[kind].save(file)
    again = PostFilter.load(file)
    assert again.record() == fitted[kind].record() and again.spread == fitted[kind].spread
    for name in ("mean", "directions", "scale", "probe"):
        one, two = getattr(fitted[kind], name), getattr(again, name)
        assert (one is None) == (two is None) and (one is None or np.array_equal(one, two) and one.dtype == two.dtype)
    if kind == "abtt":
        # The mean and four directions in float64, two probes in float32; no matrix.
        assert file.stat().st_size < 192 * 8 * 5 + 192 * 4 * 2 + 1500
    stages = [*LOW, Filter(file=str(file))]
    built = st_reba.build("mini", "echo", pooling="mean", stages=stages, device="cpu")
    assert np.array_equal(built.encode(ASKED), with_postfilter(model, fitted[kind]).encode(ASKED))
    assert [each.name for each in tmp_path.iterdir()] == ["filter.safetensors"]


def test_filter_of_another_model(model: SentenceTransformer, fitted: dict[str, PostFilter], tmp_path: Path) -> None:
    file = tmp_path / "filter.safetensors"
    fitted["abtt"].save(file)
    for options in (
        {"method": "reba", "pooling": "mean"},
        {"method": "echo", "pooling": "last"},
        {"method": "echo", "pooling": "mean", "repeats": 3},
        {"method": "echo", "pooling": "mean", "stages": [st_reba.ReadLayers(2)]},
        {"method": "echo", "pooling": "mean", "stages": [*LOW, st_reba.NoSink("mask0-bidir", k=1)]},
        {"method": "echo", "pooling": "mean", "normalize": False},
    ):
        other = st_reba.build("mini", device="cpu", check=False, **cast(Any, {"stages": LOW, **options}))
        with pytest.raises(ValueError, match="filter.safetensors' was fitted on vectors of another model.*fit_post"):
            with_postfilter(other, file)
    with pytest.raises(ValueError, match="fitted on vectors of 6 dimensions, but this model's have 192.*fit_post"):
        with_postfilter(model, PostFilter.fit(drawn(200, 6), "center"))
    with pytest.raises(FileNotFoundError, match="filter: file='none.safetensors': no such file"):
        with_postfilter(model, "none.safetensors")
    # The prompt is part of what a filter was fitted with.
    prompted = postfilter_of(model, TEXTS[:100], "center", prompt="Topic: ")
    np.testing.assert_allclose(prompted.mean, model.encode(TEXTS[:100], prompt="Topic: ").mean(axis=0), atol=1e-6)
    with_postfilter(model, prompted)
    with pytest.raises(ValueError, match="another model"):
        with_postfilter(model, PostFilter(**{**vars(prompted), "prompt": None}))


def test_damaged_files(fitted: dict[str, PostFilter], tmp_path: Path) -> None:
    from safetensors.numpy import load_file, save_file

    file = tmp_path / "filter.safetensors"
    fitted["whiten"].save(file)
    whole = file.read_bytes()
    arrays = load_file(file)
    about = json.loads(whole[8 : 8 + int.from_bytes(whole[:8], "little")])["__metadata__"]
    stored = json.loads(about["st_reba.postfilter"])

    def written(facts: dict[str, Any], **changed: Any) -> None:
        kept = {name: array for name, array in {**arrays, **changed}.items() if array is not None}
        save_file(kept, file, metadata={"st_reba.postfilter": json.dumps({**stored, **facts})})

    bad: list[Callable[[], object]] = [
        lambda: file.write_bytes(b"no tensors"),
        lambda: file.write_bytes(whole[:-100]),
        lambda: save_file(arrays, file),
        *(
            partial(written, facts)
            for facts in (
                {"kind": "zca"},
                {"kind": "abtt"},
                {"version": 2},
                {"count": "many"},
                {"sha256": "0"},
                {"prompt": 3},
                {"spread": -1},
                {"more": 1},
            )
        ),
        lambda: written({}, mean=arrays["mean"][1:]),
        lambda: written({}, mean=None),
        lambda: written({}, scale=-arrays["scale"]),
        lambda: written({}, directions=arrays["directions"] * np.nan),
        lambda: written({}, directions=arrays["directions"].astype(np.float32)),
    ]
    for damage in bad:
        damage()
        with pytest.raises(ValueError, match="is no post-filter, or damaged: .*st-reba postfilter MODEL TEXTS"):
            PostFilter.load(file)
    written({})
    PostFilter.load(file)
    for place in (tmp_path / "filter.npz", tmp_path / "none" / "filter.safetensors"):
        with pytest.raises(ValueError, match=r"ends in '.safetensors', in a folder that exists"):
            fitted["whiten"].save(place)
