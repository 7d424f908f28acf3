"""Post-filters: numbers against plain loops and scikit-learn, the model around them, what is refused, what survives."""

from __future__ import annotations

import copy
import itertools
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import reference_postfilter as reference
import torch
from marks import slow_but
from numpy.typing import NDArray
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Dense

import st_reba
from st_reba import PostFilter, zoo
from st_reba.cli import main
from st_reba.cli.options import FILTERS
from st_reba.describe import describe
from st_reba.filtered import postfilter_of, sample_texts, with_postfilter
from st_reba.fingerprint import difference, fingerprint
from st_reba.hub.facts import facts_of_model, facts_of_recipe
from st_reba.hub.golden import compare, read_golden
from st_reba.hub.saving import save
from st_reba.modules.record import check_record
from st_reba.postfilter import KINDS, least_texts

NAMES = ("Ann", "王芳", "Tom", "the old man", "my neighbour", "一个孩子", "nobody", "李老师")
DEEDS = ("sells", "likes", "买了", "忘记了")
THINGS = ("rice", "two boats", "苹果", "the rain", "a letter", "电影", "old maps", "红色的花")
# 256 different texts.
TEXTS = [" ".join(words) for words in itertools.product(NAMES, DEEDS, THINGS)]
ASKED = ["A cat sleeps on the roof.", "银行今天关门了。", "hi", "长" * 60, "Ann sells rice"]
OPTIONS: dict[str, dict[str, Any]] = {
    "center": {},
    "abtt": {"r": 4},
    "standardize": {},
    "whiten": {"dimensions": 48},
}


def unit(vectors: Any) -> Any:
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def drawn(count: int, width: int, seed: int = 0) -> NDArray[np.float64]:
    """Correlated numbers, far from 0."""
    random = np.random.default_rng(seed)
    return random.normal(size=(count, width)) * np.linspace(3, 0.2, width) @ random.normal(size=(width, width)) + 5


@pytest.fixture(scope="module")
def model() -> SentenceTransformer:
    return st_reba.build("mini", "echo", pooling="mean", dtype="float32", device="cpu")


@pytest.fixture(scope="module")
def vectors(model: SentenceTransformer) -> Any:
    return model.encode(TEXTS)


@pytest.fixture(scope="module")
def asked(model: SentenceTransformer) -> Any:
    return model.encode(ASKED)


@pytest.fixture(scope="module")
def fitted(model: SentenceTransformer) -> Callable[[str], PostFilter]:
    made: dict[str, PostFilter] = {}

    def get(kind: str) -> PostFilter:
        if kind not in made:
            made[kind] = postfilter_of(model, TEXTS, cast(Any, kind), **OPTIONS[kind])
        return made[kind]

    return get


# The numbers


WHITENINGS: tuple[dict[str, Any], ...] = (
    {"dimensions": 4},
    {"power": 0.5},
    {"dimensions": 2, "r": 3, "power": 0.75},
    {"r": 2},
)


@pytest.mark.parametrize(
    ("kind", "options"),
    [("center", {}), ("abtt", {"r": 2}), ("standardize", {}), *(("whiten", each) for each in WHITENINGS)],
)
def test_against_plain_loops(kind: str, options: dict[str, Any]) -> None:
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
    if kind != "center":
        # The sign, and the order, are fixed too.
        again = PostFilter.fit(sample[::-1].copy(), cast(Any, kind), **options)
        np.testing.assert_allclose(again.matrix(), found.matrix(), rtol=1e-9, atol=1e-9)


def test_against_scikit_learn(vectors: Any, asked: Any) -> None:
    from sklearn.decomposition import PCA
    from sklearn.preprocessing import StandardScaler

    given, few = vectors.astype(np.float64), asked.astype(np.float64)
    found = PostFilter.fit(vectors, "standardize").apply(asked)
    np.testing.assert_allclose(found, StandardScaler().fit(given).transform(few), rtol=1e-7, atol=1e-9)
    rival = PCA(n_components=48, whiten=True, svd_solver="full").fit(given).transform(few)
    found = PostFilter.fit(vectors, "whiten", dimensions=48).apply(asked)
    # It divides variances by N − 1, and its signs differ with its version.
    found *= np.sqrt((len(given) - 1) / len(given))
    np.testing.assert_allclose(found * np.sign(found), rival * np.sign(rival), rtol=1e-6, atol=1e-8)
    top = PCA(n_components=4, svd_solver="full").fit(given)
    centred = few - top.mean_
    wanted = centred - centred @ top.components_.T @ top.components_
    np.testing.assert_allclose(PostFilter.fit(vectors, "abtt", r=4).apply(asked), wanted, rtol=1e-6, atol=1e-9)


def test_what_is_left(vectors: Any) -> None:
    left = {kind: PostFilter.fit(vectors, kind, **OPTIONS[kind]).apply(vectors) for kind in KINDS}
    for found in left.values():
        assert np.abs(found.mean(axis=0)).max() < 1e-10
    covariance = np.cov(left["whiten"].T, bias=True)
    assert left["whiten"].shape == (len(TEXTS), 48) and np.abs(covariance - np.eye(48)).max() < 1e-9
    assert np.abs(left["standardize"].std(axis=0) - 1).max() < 1e-12
    before, after = (np.linalg.eigvalsh(np.cov(each.T, bias=True)) for each in (vectors.astype(float), left["abtt"]))
    assert np.abs(after[:4]).max() < 1e-12 and np.allclose(after[4:], before[:-4], rtol=1e-8, atol=1e-14)


def test_parts_make_no_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    sample = drawn(301, 6)
    whole = PostFilter.fit(sample, "whiten").matrix()
    monkeypatch.setattr("st_reba.postfilter._ROWS", 50)
    np.testing.assert_allclose(PostFilter.fit(sample, "whiten").matrix(), whole, rtol=1e-9, atol=1e-9)


def test_integers_of_float16(vectors: Any) -> None:
    half = vectors.astype(np.float16)
    np.testing.assert_array_equal(PostFilter.fit(half, "center").mean, half.astype(np.float64).mean(axis=0))


# The model


@pytest.mark.parametrize("kind", slow_but(KINDS, "whiten"))
def test_vectors_are_the_filtered_ones(
    model: SentenceTransformer, fitted: Callable[[str], PostFilter], asked: Any, kind: str
) -> None:
    found = with_postfilter(model, fitted(kind))
    assert [type(module).__name__ for module in found] == [
        "RepeatTransformer",
        "Pooling",
        "Normalize",
        "Dense",
        "Normalize",
    ]
    wanted = unit(fitted(kind).apply(asked))
    assert found.get_embedding_dimension() == wanted.shape[1] == fitted(kind).out_dimension
    for size in (1, 2, len(ASKED)):
        assert np.abs(found.encode(ASKED, batch_size=size) - wanted).max() < 2e-6
    tokenizer = cast(Any, found[0]).text_tokenizer
    side = tokenizer.padding_side
    tokenizer.padding_side = {"left": "right", "right": "left"}[side]
    try:
        assert np.abs(found.encode(ASKED) - wanted).max() < 2e-6
    finally:
        tokenizer.padding_side = side


def test_dense_is_stock(fitted: Callable[[str], PostFilter]) -> None:
    for kind in KINDS:
        dense = fitted(kind).dense()
        assert type(dense) is Dense and isinstance(dense.activation_function, torch.nn.Identity) and dense.bias
        np.testing.assert_allclose(dense.linear.weight.detach().numpy(), fitted(kind).matrix(), rtol=1e-6, atol=1e-7)
        # The mean becomes zero.
        zero = dense({"sentence_embedding": torch.from_numpy(fitted(kind).mean[None]).float()})["sentence_embedding"]
        assert float(zero.detach().abs().max()) < 1e-5


def test_the_model_is_not_changed(model: SentenceTransformer, asked: Any) -> None:
    before = cast(Any, model[0]).get_config_dict()
    found = st_reba.fit_postfilter(model, TEXTS, "center")
    assert len(model) == 3 and cast(Any, model[0]).get_config_dict() == before and "postfilter" not in before
    assert np.array_equal(model.encode(ASKED), asked)
    assert found[1] is model[1] and cast(Any, found[0]).model is cast(Any, model[0]).model
    assert cast(Any, model[0]).postfilter is None and model.model_card_data.model is model
    record = cast(Any, found[0]).postfilter
    assert record == {"kind": "center", "texts": 256, "seed": 0, "sha256": sample_texts(TEXTS)[1]}


def test_the_rest_is_carried_over() -> None:
    prompts = {"query": "Query: ", "document": "Text: "}
    model = st_reba.build("mini", pooling="mean", prompts=prompts, normalize=False, device="cpu")
    model.similarity_fn_name = "dot"
    model.truncate_dim = 20
    model.default_prompt_name = "document"
    model.max_seq_length = 90
    texts = TEXTS[:200]
    found = st_reba.fit_postfilter(model, texts, "standardize")
    assert [type(module).__name__ for module in found] == ["RepeatTransformer", "ReBAPooling", "Dense"]
    assert (found.prompts, found.truncate_dim, found.similarity_fn_name, found.default_prompt_name) == (
        prompts,
        20,
        "dot",
        "document",
    )
    assert found.max_seq_length == 90 and found.model_card_data.model is found and found.training == model.training
    found.prompts["query"] = ""
    assert model.prompts == prompts
    # The filter is fitted on whole vectors, with the default prompt, and cut behind it.
    model.truncate_dim = None
    assert model.encode("x").shape == (192,)
    wanted = PostFilter.fit(model.encode(texts), "standardize").apply(model.encode_document(ASKED))
    given = found.encode_document(ASKED)
    assert given.shape == (5, 20) and np.abs(given - wanted[:, :20]).max() < 1e-3 * np.abs(wanted).max()


def test_prompt_of_the_fit(model: SentenceTransformer) -> None:
    one = postfilter_of(model, TEXTS, "center", prompt="Topic: ")
    np.testing.assert_allclose(one.mean, model.encode(TEXTS, prompt="Topic: ").mean(axis=0), atol=1e-6)
    assert one.prompt == "Topic: "
    with_postfilter(model, one)
    with pytest.raises(ValueError, match="another model"):
        with_postfilter(model, PostFilter(**{**vars(one), "prompt": None}))


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["bfloat16"])
def test_half_precision(fitted: Callable[[str], PostFilter], asked: Any, dtype: str) -> None:
    half = st_reba.build("mini", "echo", pooling="mean", dtype=dtype, device="cpu")
    for kind in ("abtt", "whiten"):
        found = with_postfilter(half, fitted(kind))
        assert cast(Any, found[3]).linear.weight.dtype == getattr(torch, dtype)
        cosines = (unit(found.encode(ASKED).astype(np.float64)) * unit(fitted(kind).apply(asked))).sum(axis=1)
        assert cosines.min() > 0.998
    refit = postfilter_of(half, TEXTS, "center")
    assert refit.dtype == dtype and np.abs(refit.mean - fitted("center").mean).max() < 1e-3


def test_tokens_and_words_are_not_filtered(model: SentenceTransformer, fitted: Callable[[str], PostFilter]) -> None:
    found = with_postfilter(model, fitted("whiten"))
    one, two = (each.encode("你好 world", output_value="token_embeddings") for each in (model, found))
    assert torch.equal(cast(Any, one), cast(Any, two))
    items = [("他在银行取钱", (2, 4))]
    assert np.array_equal(st_reba.encode_words(found, items), st_reba.encode_words(model, items))


@pytest.mark.slow
def test_nosink_and_repository(model: SentenceTransformer, tmp_path: Path) -> None:
    converted = st_reba.build("mini", "nosink", setting="mask0-bidir", k=2, device="cpu")
    assert type(st_reba.fit_postfilter(converted, TEXTS, "abtt")[0]) is st_reba.NoSinkTransformer
    from sentence_transformers.sentence_transformer.modules import Pooling, Transformer

    base = cast(Any, model[0]).model.name_or_path
    plain = SentenceTransformer(modules=[Transformer(base), Pooling(192, "mean")], device="cpu")
    with pytest.raises(ValueError, match="starts with Transformer.*st_reba.build"):
        st_reba.fit_postfilter(plain, TEXTS)
    plain.save_pretrained(str(tmp_path / "plain"))
    options: dict[str, Any] = {"method": "nosink", "setting": "inplace-bidir", "device": "cpu"}
    kept = st_reba.build(tmp_path / "plain", **options)
    fitted = postfilter_of(kept, TEXTS, "center")
    found = st_reba.build(tmp_path / "plain", **options, postfilter=fitted)
    assert type(found[0]) is st_reba.DecoderTransformer and cast(Any, found[0]).postfilter["kind"] == "center"
    assert np.abs(found.encode(ASKED) - fitted.apply(kept.encode(ASKED))).max() < 1e-4


# The sample


def test_sample() -> None:
    texts = ["b", "a", "  ", "b", "c", "d", ""]
    assert sample_texts(texts)[0] == ["b", "a", "c", "d"]
    draws = {tuple(sample_texts(texts, 2, seed)[0]) for seed in range(20)}
    assert len(draws) > 3 and all(draw == tuple(t for t in "bacd" if t in draw) for draw in draws)
    assert sample_texts(texts, 2, 7) == sample_texts(iter(texts), 2, 7)
    assert sample_texts(["ab", "c"])[1] != sample_texts(["a", "bc"])[1]
    assert sample_texts(["a", "b"])[1] == sample_texts(["a", "a", "b"])[1]


def test_sample_is_what_is_fitted_on(model: SentenceTransformer, vectors: Any) -> None:
    found = postfilter_of(model, TEXTS + TEXTS[:50], "center", sample=150, seed=3)
    chosen, digest = sample_texts(TEXTS, 150, 3)
    rows = [TEXTS.index(text) for text in chosen]
    np.testing.assert_allclose(found.mean, vectors[rows].mean(axis=0, dtype=np.float64), atol=1e-6)
    assert found.record() == {"kind": "center", "texts": 150, "seed": 3, "sha256": digest}


def test_bad_samples(model: SentenceTransformer) -> None:
    for texts, options, message in (
        (TEXTS[:99], {"kind": "center"}, "sample of 99 different texts is too small.*at least 100"),
        (TEXTS[:5] * 50, {"kind": "center"}, "sample of 5 different texts"),
        (TEXTS[:191], {"kind": "abtt"}, "sample of 191.*192 dimensions need at least 192.*kind='center'"),
        (TEXTS, {"kind": "whiten"}, "sample of 256.*at least 768.*fewer dimensions"),
        (TEXTS, {"kind": "whiten", "dimensions": 65}, "at least 260"),
        (TEXTS, {"sample": 257}, "sample=257: there are only 256 different texts"),
        (TEXTS, {"sample": 0}, "sample=0 must be a whole number from 1"),
        (TEXTS, {"seed": -1}, "seed=-1 must be a whole number from 0"),
        ([], {}, "sample of 0"),
    ):
        with pytest.raises(ValueError, match=message):
            st_reba.fit_postfilter(model, texts, **cast(Any, options))
    with pytest.raises(TypeError, match="one str"):
        st_reba.fit_postfilter(model, "text")
    with pytest.raises(TypeError, match="3, which is no str"):
        st_reba.fit_postfilter(model, cast(Any, ["a", 3]))
    assert [least_texts(kind, 192) for kind in KINDS] == [100, 192, 100, 768]
    assert least_texts("whiten", 192, 64) == 256


def test_bad_options(model: SentenceTransformer) -> None:
    for options, message in (
        ({"kind": "zca"}, "kind='zca' is not known: choose one of .*'whiten'"),
        ({"kind": "center", "r": 4}, "r=4 belongs to kind='abtt' or 'whiten', not to kind='center'"),
        ({"kind": "abtt", "dimensions": 4}, "dimensions=4 belongs to kind='whiten'"),
        ({"kind": "abtt", "r": 0}, "r=0 must be a whole number from 1.*kind='center'"),
        ({"kind": "abtt", "r": True}, "r=True"),
        ({"kind": "abtt", "r": 192}, "r=192: the vectors have 192 dimensions. Give at most 191"),
        ({"kind": "whiten", "dimensions": 193}, "dimensions=193: the vectors have 192 dimensions. Give at most 192"),
        ({"kind": "whiten", "dimensions": 2.0}, "dimensions=2.0"),
        ({"kind": "whiten", "dimensions": 192, "r": 1}, "dimensions=192.*at most 191"),
        ({"kind": "whiten", "r": -1}, "r=-1 must be a whole number from 0"),
        ({"kind": "whiten", "power": 0}, "power=0 must be a number above 0"),
        ({"kind": "whiten", "power": 1.5}, "power=1.5 must be a number above 0, at most 1"),
        ({"kind": "abtt", "power": 0.5}, "power=0.5 belongs to kind='whiten'"),
    ):
        with pytest.raises(ValueError, match=message):
            st_reba.fit_postfilter(model, TEXTS, **cast(Any, options))


def test_no_division_by_nothing() -> None:
    sample = drawn(200, 6)
    flat = sample.copy()
    flat[:, 2] = 7.0
    nearly = flat + np.random.default_rng(0).normal(size=flat.shape) * [0, 0, 1e-6, 0, 0, 0]
    low = sample @ np.diag([1, 1, 1, 0, 0, 0]) @ np.linalg.qr(drawn(6, 6))[0]
    for each in (flat, nearly):
        with pytest.raises(
            ValueError, match=r"of 6 dimensions, 1 have .nearly. no variance in the sample, as number 2"
        ):
            PostFilter.fit(each, "standardize")
        with pytest.raises(ValueError, match=r"dimensions=6 \(all\): .* vary in 5 directions only .of 6."):
            PostFilter.fit(each, "whiten")
    with pytest.raises(ValueError, match=r"dimensions=5: .* vary in 3 directions only .*Give dimensions of at most 3"):
        PostFilter.fit(low.astype(np.float32), "whiten", dimensions=5)
    with pytest.raises(ValueError, match=r"r=4: .* vary in 3 directions only .*Give r of at most 3"):
        PostFilter.fit(low, "abtt", r=4)
    assert np.isfinite(PostFilter.fit(low, "whiten", dimensions=3).apply(low)).all()
    with pytest.raises(ValueError, match="vary in 0 directions"):
        PostFilter.fit(np.ones((200, 6)), "abtt")
    with pytest.raises(ValueError, match="NaN or infinity"):
        PostFilter.fit(np.where(sample > 5, np.nan, sample), "center")
    for wrong in (sample[0], sample.astype(int), sample.tolist()):
        with pytest.raises(ValueError, match="must be a NumPy array"):
            PostFilter.fit(cast(Any, wrong), "center")


def test_a_second_filter_is_refused(model: SentenceTransformer, fitted: Callable[[str], PostFilter]) -> None:
    found = with_postfilter(model, fitted("abtt"))
    with pytest.raises(ValueError, match=r"has a post-filter already .abtt, r=4, fitted on 256 texts."):
        st_reba.fit_postfilter(found, TEXTS, "center")
    with pytest.raises(ValueError, match="already"):
        with_postfilter(found, fitted("center"))
    # A dense layer of another's is part of the model.
    trained = SentenceTransformer(modules=[*model, Dense(192, 16)], device="cpu")
    assert [type(each).__name__ for each in st_reba.fit_postfilter(trained, TEXTS)][-3:] == [
        "Normalize",
        "Dense",
        "Dense",
    ]


# The file, and build


@pytest.mark.parametrize("kind", KINDS)
def test_file(model: SentenceTransformer, fitted: Callable[[str], PostFilter], kind: str, tmp_path: Path) -> None:
    file = tmp_path / "filter.safetensors"
    fitted(kind).save(file)
    again = PostFilter.load(file)
    assert again.record() == fitted(kind).record() and again.spread == fitted(kind).spread
    for name in ("mean", "directions", "scale", "probe"):
        one, two = getattr(fitted(kind), name), getattr(again, name)
        assert (one is None) == (two is None) and (one is None or np.array_equal(one, two) and one.dtype == two.dtype)
    if kind == "abtt":
        # The mean and four directions in float64, two probes in float32; no matrix.
        assert file.stat().st_size < 192 * 8 * 5 + 192 * 4 * 2 + 1500
    built = st_reba.build("mini", "echo", pooling="mean", postfilter=file, device="cpu")
    assert np.array_equal(built.encode(ASKED), with_postfilter(model, fitted(kind)).encode(ASKED))
    assert [each.name for each in tmp_path.iterdir()] == ["filter.safetensors"]


@pytest.mark.slow
def test_filter_of_another_model(fitted: Callable[[str], PostFilter], tmp_path: Path, base: Callable[..., str]) -> None:
    file = tmp_path / "filter.safetensors"
    fitted("abtt").save(file)
    for options in (
        {"method": "reba", "pooling": "mean"},
        {"method": "reba", "pooling": "mean", "variant": "published"},
        {"method": "echo", "pooling": "last"},
        {"method": "echo", "pooling": "mean", "repeats": 3},
        {"method": "echo", "pooling": "mean", "separator": " "},
        {"method": "echo", "pooling": "mean", "setting": "mask0-bidir", "k": 1},
        {"method": "echo", "pooling": "mean", "normalize": False},
    ):
        with pytest.raises(
            ValueError, match="filter.safetensors' was fitted on vectors of another model.*fit_postfilter"
        ):
            st_reba.build("mini", **cast(Any, options), postfilter=file)
    with pytest.raises(
        ValueError, match="fitted on vectors of 192 dimensions, but this model's have 32.*fit_postfilter"
    ):
        st_reba.build(base("llama"), "echo", pooling="mean", postfilter=file)
    with pytest.raises(FileNotFoundError, match="postfilter='none.safetensors': no such file"):
        st_reba.build("mini", postfilter="none.safetensors")
    # Where no model is known, the dimension alone can be compared.
    st_reba.build("mini", postfilter=PostFilter.fit(drawn(200, 192), "center"))


def test_damaged_files(fitted: Callable[[str], PostFilter], tmp_path: Path) -> None:
    from safetensors.numpy import load_file, save_file

    file = tmp_path / "filter.safetensors"
    fitted("whiten").save(file)
    whole = file.read_bytes()
    arrays = load_file(file)
    about = json.loads(whole[8 : 8 + int.from_bytes(whole[:8], "little")])["__metadata__"]
    stored = json.loads(about["st_reba.postfilter"])

    def written(facts: dict[str, Any], **changed: Any) -> None:
        given = {**arrays, **changed}
        kept = {name: array for name, array in given.items() if array is not None}
        save_file(kept, file, metadata={"st_reba.postfilter": json.dumps({**stored, **facts})})

    bad: list[Callable[[], object]] = [
        lambda: file.write_bytes(b"no tensors"),
        lambda: file.write_bytes(whole[:-100]),
        lambda: save_file(arrays, file),
        lambda: written({"kind": "zca"}),
        lambda: written({"version": 2}),
        lambda: written({"kind": "abtt"}),
        lambda: written({"count": "many"}),
        lambda: written({"sha256": "0"}),
        lambda: written({"prompt": 3}),
        lambda: written({"spread": -1}),
        lambda: written({"more": 1}),
        lambda: written({}, mean=arrays["mean"][1:]),
        lambda: written({}, mean=None),
        lambda: written({}, scale=-arrays["scale"]),
        lambda: written({}, directions=arrays["directions"] * np.nan),
        lambda: written({}, directions=arrays["directions"].astype(np.float32)),
        lambda: written({}, more=arrays["mean"]),
    ]
    for damage in bad:
        damage()
        with pytest.raises(ValueError, match="is no post-filter, or damaged: .*st-reba postfilter MODEL TEXTS"):
            PostFilter.load(file)
    written({})
    PostFilter.load(file)
    for place in (tmp_path / "filter.npz", tmp_path / "none" / "filter.safetensors"):
        with pytest.raises(ValueError, match=r"ends in '.safetensors'|does not exist"):
            fitted("whiten").save(place)


def test_recipe(fitted: Callable[[str], PostFilter], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "here" / "filters").mkdir(parents=True)
    fitted("abtt").save(tmp_path / "here" / "filters" / "one.safetensors")
    file = tmp_path / "here" / "my-recipe.yaml"
    file.write_text("base: mini\nmethod: echo\npooling: mean\npostfilter: filters/one.safetensors\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    recipe = zoo.load(file)
    found = [st_reba.build("here/my-recipe.yaml"), recipe.build()]
    assert all(cast(Any, each[0]).postfilter == fitted("abtt").record() for each in found)
    # What is told of a recipe names no folder of this machine.
    assert str(tmp_path) not in json.dumps(recipe.to_json())
    facts = facts_of_recipe(recipe)
    assert facts.postfilter == fitted("abtt").record() and facts.signature == facts_of_model(found[0]).signature
    assert facts.modules == facts_of_model(found[0]).modules
    other = st_reba.build(file, postfilter=fitted("center"))
    assert cast(Any, other[0]).postfilter["kind"] == "center"
    assert facts_of_model(other).signature != facts.signature


def test_record_is_checked() -> None:
    good = {"kind": "abtt", "r": 3, "texts": 200, "seed": 0, "sha256": "0" * 64}
    assert check_record(good) == good and check_record(good) is not good and check_record(None) is None
    for changed in (
        {"kind": "zca"},
        {"kind": "whiten"},
        {"r": 0},
        {"r": "3"},
        {"texts": -1},
        {"seed": 1.5},
        {"sha256": "0" * 63},
        {"sha256": "G" * 64},
        {"more": 1},
    ):
        with pytest.raises(ValueError, match="postfilter"):
            check_record({**good, **changed})
    for wrong in ("abtt", [good], {key: good[key] for key in ("kind", "r", "texts", "seed")}):
        with pytest.raises(ValueError, match="postfilter"):
            check_record(wrong)
    assert tuple(FILTERS) == KINDS


# What survives


@pytest.fixture(scope="module")
def filtered(model: SentenceTransformer, fitted: Callable[[str], PostFilter]) -> SentenceTransformer:
    return with_postfilter(model, fitted("whiten"))


@pytest.fixture(scope="module")
def saved(filtered: SentenceTransformer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("saved") / "model"
    save(filtered, folder)
    return folder


def test_plain_save_and_load(filtered: SentenceTransformer, saved: Path, tmp_path: Path) -> None:
    wanted, folder = filtered.encode(ASKED), saved
    for number in range(2):
        again = SentenceTransformer(str(folder), device="cpu")
        assert np.array_equal(again.encode(ASKED), wanted)
        assert cast(Any, again[0]).postfilter == cast(Any, filtered[0]).postfilter
        assert [type(module) for module in again] == [type(module) for module in filtered]
        with pytest.raises(ValueError, match="already"):
            st_reba.fit_postfilter(again, TEXTS)
        folder = tmp_path / str(number)
        again.save_pretrained(str(folder))
        for name in ("modules.json", "sentence_bert_config.json", "3_Dense/config.json", "3_Dense/model.safetensors"):
            assert (folder / name).read_bytes() == (saved / name).read_bytes()


def test_golden_card_and_description(saved: Path) -> None:
    report = compare(SentenceTransformer(str(saved), device="cpu"), read_golden(saved / "golden.json"))
    assert report.ok and len(read_golden(saved / "golden.json")["texts"][0]["vector"]) == 48
    described = describe(saved)
    assert described.postfilter == "whiten, dimensions=48, fitted on 256 texts" and described.dimension == 48
    card = (saved / "README.md").read_text(encoding="utf-8")
    assert "| post-filter | whiten, dimensions=48, fitted on 256 texts |" in card
    assert "first 48 principal directions" in card and "tokens and words are not filtered" in card
    assert "`Normalize` → `Dense` → `Normalize`" in card


def test_weights_left_at_the_base(base: Callable[..., str], tmp_path: Path) -> None:
    """The filter's own weights are stored, the backbone's are not."""
    model = st_reba.build(base("qwen3"), "echo", pooling="mean")
    filtered = st_reba.fit_postfilter(model, TEXTS, "whiten", power=0.5)
    save(filtered, tmp_path / "left", weights=False, base=base("qwen3"))
    assert not list((tmp_path / "left").glob("*.safetensors"))
    assert [path.parent.name for path in (tmp_path / "left").glob("*/*.safetensors")] == ["3_Dense"]
    loaded = SentenceTransformer(str(tmp_path / "left"), device="cpu")
    assert np.abs(loaded.encode(ASKED) - filtered.encode(ASKED)).max() < 1e-6


def test_card_of_abtt(model: SentenceTransformer, fitted: Callable[[str], PostFilter], tmp_path: Path) -> None:
    save(with_postfilter(model, fitted("abtt")), tmp_path / "model", golden=False)
    card = (tmp_path / "model" / "README.md").read_text(encoding="utf-8")
    assert "along its first 4 principal directions are taken away" in card and "mu2018allbutthetop" in card


def test_without_a_filter_nothing_is_said(model: SentenceTransformer, tmp_path: Path) -> None:
    save(model, tmp_path / "model", golden=False)
    assert "postfilter" not in (tmp_path / "model" / "sentence_bert_config.json").read_text(encoding="utf-8")
    assert describe(tmp_path / "model").postfilter is None
    assert "ilter" not in (tmp_path / "model" / "README.md").read_text(encoding="utf-8")


def test_a_bad_record_is_refused(saved: Path, tmp_path: Path) -> None:
    import shutil

    shutil.copytree(saved, tmp_path / "model")
    file = tmp_path / "model" / "sentence_bert_config.json"
    config = json.loads(file.read_text(encoding="utf-8"))
    config["postfilter"]["dimensions"] = -1
    file.write_text(json.dumps(config), encoding="utf-8")
    with pytest.raises(ValueError, match="postfilter: dimensions=-1"):
        SentenceTransformer(str(tmp_path / "model"), device="cpu")


@pytest.mark.slow
def test_vendored_route(filtered: SentenceTransformer, saved: Path, tmp_path: Path) -> None:
    script = (
        "import sys\n"
        "sys.modules['st_reba'] = None\n"
        "from sentence_transformers import SentenceTransformer\n"
        f"model = SentenceTransformer({str(saved)!r}, device='cpu', trust_remote_code=True)\n"
        "assert model[0].postfilter['dimensions'] == 48\n"
        f"import numpy; numpy.save({str(tmp_path / 'x.npy')!r}, model.encode({ASKED!r}))\n"
    )
    environment = {"HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": "1", "PATH": "", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, cwd=tmp_path, env=environment, check=False
    )
    assert done.returncode == 0, done.stderr
    assert np.abs(np.load(tmp_path / "x.npy") - filtered.encode(ASKED)).max() < 1e-6


@pytest.mark.slow
def test_fingerprint(model: SentenceTransformer, filtered: SentenceTransformer, saved: Path) -> None:
    mark = fingerprint(filtered)
    assert difference(mark, fingerprint(SentenceTransformer(str(saved), device="cpu"))) is None
    half = {"dtype": "bfloat16"}
    assert difference(mark, fingerprint(SentenceTransformer(str(saved), device="cpu", model_kwargs=half))) is None
    base = fingerprint(model)
    marks = [base]
    for kind, options in (
        ("center", {}),
        ("center", {"sample": 240}),
        ("center", {"sample": 240, "seed": 1}),
        ("abtt", {"r": 3}),
        ("abtt", {"r": 4}),
        ("standardize", {}),
    ):
        marks.append(fingerprint(st_reba.fit_postfilter(model, TEXTS, cast(Any, kind), **options)))
    for one, two in itertools.combinations(marks, 2):
        assert difference(one, two) is not None
    # Other weights under the same record are told by the vectors.
    changed = copy.deepcopy(filtered)
    with torch.no_grad():
        cast(Any, changed[3]).linear.weight[:, ::3] *= -1
    assert difference(mark, fingerprint(changed)) is not None


def test_index(filtered: SentenceTransformer, model: SentenceTransformer, tmp_path: Path) -> None:
    with st_reba.index.Index.build(filtered, TEXTS[:50], tmp_path / "index") as index:
        assert index.search(TEXTS[7], k=1, model=filtered)[0].text == TEXTS[7]
        with pytest.raises(ValueError, match="dimension"):
            index.search(TEXTS[7], k=1, model=model)


# The command line


def run(capfd: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    capfd.readouterr()
    status = main([str(each) for each in arguments])
    out, err = capfd.readouterr()
    return status, out, err


@pytest.mark.slow
def test_command(model: SentenceTransformer, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    model.save_pretrained(str(tmp_path / "model"))
    (tmp_path / "texts.txt").write_text("\n".join(TEXTS), encoding="utf-8")
    lines = [json.dumps({"body": text, "id": number}) for number, text in enumerate(TEXTS)]
    (tmp_path / "texts.jsonl").write_text("\n".join(lines), encoding="utf-8")
    plain = (tmp_path / "model", tmp_path / "texts.txt")
    out = tmp_path / "filtered"
    status, said, _ = run(capfd, "postfilter", *plain, out, "--sample", 200, "--seed", 5)
    assert status == 0 and said == f"{out}: abtt, r=3, fitted on 200 texts; vectors of 192 dimensions\n"
    wanted = st_reba.fit_postfilter(model, TEXTS, sample=200, seed=5)
    found = SentenceTransformer(str(out), device="cpu")
    assert np.abs(found.encode(ASKED) - wanted.encode(ASKED)).max() < 1e-5
    assert (out / "golden.json").is_file() and (out / "README.md").is_file()

    file = tmp_path / "one.safetensors"
    asked = ("--kind", "whiten", "--dimensions", 32, "--power", 0.75, "--r", 2, "--text-column", "body", "--json")
    status, said, _ = run(capfd, "postfilter", tmp_path / "model", tmp_path / "texts.jsonl", file, *asked)
    about = json.loads(said)
    assert status == 0 and (about["kind"], about["dimensions"], about["texts"], about["dimension"]) == (
        "whiten",
        32,
        256,
        32,
    )
    record = PostFilter.load(file).record()
    assert record["sha256"] == about["sha256"] == sample_texts(TEXTS)[1]
    assert (record["r"], record["power"]) == (about["r"], about["power"]) == (2, 0.75)

    for target in (out, file):
        status, said, err = run(capfd, "postfilter", *plain, target)
        assert status == 2 and said == "" and "already there" in err and "--overwrite" in err
    before = file.read_bytes()
    status, _, err = run(capfd, "postfilter", *plain, file, "--kind", "whiten", "--overwrite")
    assert status == 2 and "at least 768" in err and file.read_bytes() == before
    assert run(capfd, "postfilter", *plain, file, "--kind", "center", "--overwrite")[0] == 0
    assert PostFilter.load(file).kind == "center"
    status, _, err = run(capfd, "postfilter", out, tmp_path / "texts.txt", tmp_path / "twice")
    assert status == 2 and "has a post-filter already" in err and not (tmp_path / "twice").exists()
