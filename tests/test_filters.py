"""Filters behind the pooling: numbers against a singular value decomposition, the bounded gain, the model, the file."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from random import Random
from typing import Any, cast

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Dense

import st_reba
from st_reba import Filter
from st_reba.filters import MOST_GAIN, with_filter
from st_reba.methods import method_of

NAMES = ("Ann", "王芳", "Tom", "the old man", "my neighbour", "一个孩子", "nobody", "李老师")
DEEDS = ("sells", "likes", "买了", "忘记了")
THINGS = ("rice", "two boats", "苹果", "the rain", "a letter", "电影", "old maps", "红色的花")
# 256 different texts.
TEXTS = [" ".join(words) for words in itertools.product(NAMES, DEEDS, THINGS)]
ASKED = ["A cat sleeps on the roof.", "银行今天关门了。", "hi", "长" * 60, "Ann sells rice"]
OPTIONS: dict[str, dict[str, Any]] = {"center": {}, "abtt": {"r": 4}, "whiten": {"dimensions": 48}}
# One layer tells as much as six.
LOW: dict[str, Any] = {"layer": 1, "device": "cpu", "check": False}


def unit(vectors: Any) -> Any:
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def drawn(count: int, width: int, seed: int = 0) -> NDArray[np.float64]:
    """Correlated numbers, far from 0, that vary in all directions."""
    random = np.random.default_rng(seed)
    turned = np.linalg.qr(random.normal(size=(width, width)))[0]
    return random.normal(size=(count, width)) * np.linspace(3, 0.2, width) @ turned + 5


@pytest.fixture(scope="module")
def model() -> SentenceTransformer:
    return st_reba.build("mini", "echo", pooling="mean", dtype="float32", **LOW)


@pytest.fixture(scope="module")
def asked(model: SentenceTransformer) -> Any:
    return model.encode(ASKED)


@pytest.fixture(scope="module")
def fitted(model: SentenceTransformer) -> dict[str, Filter]:
    vectors = model.encode(TEXTS)
    return {kind: Filter.fit(vectors, cast(Any, kind), model=model, **OPTIONS[kind]) for kind in OPTIONS}


@pytest.mark.parametrize(
    ("kind", "options"),
    [("center", {}), ("abtt", {"r": 1}), ("abtt", {}), ("whiten", {"dimensions": 4}), ("whiten", {})],
)
def test_against_singular_vectors(kind: str, options: dict[str, Any]) -> None:
    sample, x = drawn(120, 6), drawn(5, 6, seed=1)
    mean = sample.mean(axis=0)
    _, sizes, directions = np.linalg.svd(sample - mean)
    top, variances = directions[: options.get("r", 3)], sizes**2 / len(sample)
    kept = directions[: options.get("dimensions", 6)]
    kept = kept * np.sign(kept[np.arange(len(kept)), np.abs(kept).argmax(axis=1)])[:, None]
    wanted = {
        "center": x - mean,
        "abtt": (x - mean) - (x - mean) @ top.T @ top,
        "whiten": (x - mean) @ kept.T / np.sqrt(variances[: len(kept)]),
    }[kind]
    found = Filter.fit(sample, cast(Any, kind), **options)
    used = {"r": 3, **options} if kind == "abtt" else options
    listed = [*(f"{name}={number}" for name, number in used.items()), "texts=120"]
    assert found.about == f"{kind}:{','.join(listed)}"
    np.testing.assert_allclose(found.apply(x), wanted, rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose(found.apply(x[0]), wanted[0], rtol=1e-10, atol=1e-10)
    # The order of the sample does not matter.
    again = Filter.fit(sample[::-1].copy(), cast(Any, kind), **options)
    np.testing.assert_allclose(again.weight, found.weight, rtol=1e-9, atol=1e-9)


def test_the_gain_is_bounded() -> None:
    """Directions in which the sample hardly varies are divided by the bound; all others by what they were."""
    sample = drawn(900, 6) * 1e-3 + np.array([5, 0, 0, 0, 0, 0])
    length = float(np.sqrt((sample**2).sum(axis=1).mean()))
    for scale in (1.0, 1e-6, 1e6):
        matrix = Filter.fit(sample * scale, "whiten").weight
        assert np.linalg.svd(matrix, compute_uv=False)[0] * length * scale == pytest.approx(MOST_GAIN)
    wide = drawn(5000, 6)  # more rows than are copied at a time
    gains = np.linalg.svd(Filter.fit(wide, "whiten").weight, compute_uv=False)
    np.testing.assert_allclose(gains**-2, np.linalg.eigvalsh(np.cov(wide.T, bias=True)))


@pytest.mark.parametrize("pooling", ["last", "mean"])
def test_whitened_vectors_depend_on_the_text_alone(pooling: str) -> None:
    """Also where a sample of 900 short texts hardly varies in some directions: without a bound, by 1.5e-5 and more."""
    random = Random(0)
    others = "北京 go went not never 都 very ship moon king road fish gold tree we he 他"
    vocabulary = sorted(set(" ".join([*ASKED, *TEXTS, others]).split()))
    drawn_texts = (" ".join(random.choices(vocabulary, k=random.randint(2, 4))) for _ in range(2000))
    sample = list(dict.fromkeys(drawn_texts))[:900]
    plain = st_reba.build("mini", "classical", pooling=pooling, **LOW)
    model = st_reba.fit_filter(plain, sample, "whiten")
    texts = [*ASKED, *sample[:200:8], *(" ".join(sample[at : at + 1 + at % 9]) for at in range(20))]
    alone = np.stack([model.encode(text) for text in texts])
    for size in (3, 16, len(texts)):
        assert np.abs(model.encode(texts, batch_size=size) - alone).max() < 1e-5


@pytest.mark.parametrize("kind", OPTIONS)
def test_vectors_are_the_filtered_ones(
    model: SentenceTransformer, fitted: dict[str, Filter], asked: Any, kind: str
) -> None:
    found = with_filter(model, fitted[kind])
    names = ["RepeatTransformer", "Pooling", "Normalize", "Dense", "Normalize"]
    assert [type(module).__name__ for module in found] == names
    dense = cast(Any, found[3])
    assert type(dense) is Dense and isinstance(dense.activation_function, torch.nn.Identity)
    wanted = unit(fitted[kind].apply(asked))
    assert found.get_embedding_dimension() == wanted.shape[1]
    # Those of tokens, and so of words, are not filtered.
    assert np.array_equal(*(st_reba.encode_tokens(each, ["你好 world"])[0] for each in (model, found)))
    for size in (1, 2, len(ASKED)):
        assert np.abs(found.encode(ASKED, batch_size=size) - wanted).max() < 2e-6


def test_the_model_is_not_changed(model: SentenceTransformer, asked: Any) -> None:
    before = cast(Any, model[0]).get_config_dict()
    found = st_reba.fit_filter(model, [*TEXTS[:100], *TEXTS[:10], " "], "center")
    assert len(model) == 3 and cast(Any, model[0]).get_config_dict() == before
    assert np.array_equal(model.encode(ASKED), asked) and model.model_card_data.model is model
    assert cast(Any, found[0]).model is cast(Any, model[0]).model and found.model_card_data.model is found
    method = method_of(found)
    assert method is not None and (method.name, method.layer, method.filter) == ("echo", 1, "center:texts=100")


def test_the_rest_is_carried_over() -> None:
    prompts = {"query": "Query: ", "document": "Text: "}
    model = st_reba.build("mini", "reba", pooling="mean", prompts=prompts, normalize=False, **LOW)
    model.similarity_fn_name, model.truncate_dim, model.default_prompt_name = "dot", 20, "document"
    model.max_seq_length = 90
    found = st_reba.fit_filter(model, TEXTS, "abtt")
    assert [type(module).__name__ for module in found] == ["RepeatTransformer", "ReBAPooling", "Dense"]
    carried = (found.prompts, found.truncate_dim, found.similarity_fn_name, found.default_prompt_name)
    assert carried == (prompts, 20, "dot", "document") and found.max_seq_length == 90
    found.prompts["query"] = ""
    assert model.prompts == prompts
    # The filter is fitted on whole vectors, with the default prompt, and cut behind it.
    model.truncate_dim = None
    wanted = Filter.fit(model.encode(TEXTS), "abtt").apply(model.encode_document(ASKED))
    given = found.encode_document(ASKED)
    assert given.shape == (5, 20) and np.abs(given - wanted[:, :20]).max() < 1e-3 * np.abs(wanted).max()


@pytest.mark.parametrize(
    ("texts", "options"),
    [
        (TEXTS[:99], {"kind": "center"}), (TEXTS[:5] * 50, {"kind": "center"}), (TEXTS[:191], {"kind": "abtt"}),
        (TEXTS, {"kind": "whiten"}), ([], {}), ("".join(map(chr, range(200, 500))), {"kind": "center"}),
        ([*TEXTS, 5], {}), (TEXTS, {"kind": "zca"}),
        (TEXTS, {"kind": "center", "r": 4}), (TEXTS, {"kind": "abtt", "dimensions": 4}),
        (TEXTS, {"kind": "abtt", "r": 0}), (TEXTS, {"kind": "abtt", "r": True}), (TEXTS, {"kind": "abtt", "r": 192}),
        (TEXTS, {"kind": "whiten", "dimensions": 193}), (TEXTS, {"kind": "whiten", "dimensions": 2.0}),
    ],
)  # fmt: skip
def test_refused(model: SentenceTransformer, texts: Any, options: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the work of encoding."""
    monkeypatch.setattr("st_reba.filters.encode_texts", lambda *_, **__: pytest.fail("it ran"))
    with pytest.raises((ValueError, TypeError)):
        st_reba.fit_filter(model, texts, **options)


def test_no_division_by_nothing() -> None:
    sample = drawn(200, 6)
    low = sample @ np.diag([1, 1, 1, 1e-6, 1e-6, 1e-6]) @ np.linalg.qr(drawn(6, 6))[0]
    bad: list[tuple[Any, str, dict[str, Any]]] = [
        (low, "whiten", {}), (low, "abtt", {"r": 4}), (np.ones((200, 6)), "abtt", {}),
        (np.where(sample > 5, np.nan, sample), "center", {}), (sample[0], "center", {}),
        (drawn(119, 30), "whiten", {}), (sample, "abtt", {"r": 6}),
    ]  # fmt: skip
    for vectors, kind, options in bad:
        with pytest.raises(ValueError):
            Filter.fit(vectors, cast(Any, kind), **options)
    Filter.fit(low, "abtt", r=3)
    Filter.fit(drawn(120, 30), "whiten")


def test_models_without_a_place_for_it(model: SentenceTransformer, fitted: dict[str, Filter]) -> None:
    plain = SentenceTransformer(modules=[torch.nn.Identity()], device="cpu")
    for other in (with_filter(model, fitted["abtt"]), plain):
        with pytest.raises(ValueError):
            st_reba.fit_filter(other, TEXTS, "center")
    # A dense layer of another's is part of the model.
    trained = SentenceTransformer(modules=[*model, Dense(192, 16)], device="cpu")
    names = [type(each).__name__ for each in st_reba.fit_filter(trained, TEXTS)]
    assert names[-3:] == ["Normalize", "Dense", "Dense"]


@pytest.mark.parametrize("kind", OPTIONS)
def test_file(model: SentenceTransformer, fitted: dict[str, Filter], kind: str, tmp_path: Path) -> None:
    file = tmp_path / "filter.safetensors"
    fitted[kind].save(file)
    again = Filter.load(file)
    assert np.array_equal(again.weight, fitted[kind].weight) and np.array_equal(again.mean, fitted[kind].mean)
    built = st_reba.build("mini", "echo", pooling="mean", filter=file, dtype="float32", **LOW)
    assert np.array_equal(built.encode(ASKED), with_filter(model, fitted[kind]).encode(ASKED))
    half = st_reba.build("mini", "echo", pooling="mean", filter=file, dtype="bfloat16", **LOW)
    assert {each.dtype for each in half.parameters()} == {torch.bfloat16}
    assert [each.name for each in tmp_path.iterdir()] == ["filter.safetensors"]
    with pytest.raises(ValueError):
        again.save(tmp_path / "filter.npz")


@pytest.mark.parametrize(
    "options",
    [{"method": "reba"}, {"method": "echo", "layer": 2}, {"method": "echo", "normalize": False}],
    ids=str,
)
def test_filter_of_another_model(fitted: dict[str, Filter], options: dict[str, Any]) -> None:
    other = st_reba.build("mini", pooling="mean", **{**LOW, **options})
    for filter in (fitted["abtt"], Filter.fit(drawn(200, 6), "center")):
        with pytest.raises(ValueError):
            with_filter(other, filter)


def test_damaged_files(fitted: dict[str, Filter], tmp_path: Path) -> None:
    from safetensors.numpy import load_file, save_file

    file = tmp_path / "filter.safetensors"
    fitted["whiten"].save(file)
    whole, arrays = file.read_bytes(), load_file(file)
    spoilt = arrays["weight"] * np.where(np.arange(48) > 0, 1, np.nan)[:, None]
    header = json.loads(whole[8 : 8 + int.from_bytes(whole[:8], "little")])
    stored = json.loads(header["__metadata__"]["st_reba.filter"])

    def write(facts: dict[str, Any], **changed: Any) -> None:
        kept = {name: array for name, array in {**arrays, **changed}.items() if array is not None}
        save_file(kept, file, metadata={"st_reba.filter": json.dumps({**stored, **facts})})

    for damage in (
        lambda: file.write_bytes(whole[:-100]),
        lambda: save_file(arrays, file),
        lambda: write({"kind": "zca"}),
        lambda: write({"probe": {"vectors": "!"}}),
        lambda: write({}, mean=arrays["mean"][1:]),
        lambda: write({}, weight=None),
        lambda: write({}, weight=spoilt),
    ):
        damage()
        with pytest.raises(ValueError):
            Filter.load(file)
    write({})
    Filter.load(file)
