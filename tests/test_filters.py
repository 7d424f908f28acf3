"""Filters behind the pooling: numbers against a singular value decomposition, the bounded gain, the model, the file."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.numpy import save
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
OPTIONS: dict[Any, dict[str, Any]] = {"center": {}, "abtt": {"r": 4}, "whiten": {"dimensions": 48}}
# One layer tells as much as six.
LOW: dict[str, Any] = {"layer": 1, "device": "cpu", "check": False}
ECHO = {**LOW, "method": "echo", "pooling": "mean", "dtype": "float32"}


def drawn(count: int, width: int, seed: int = 0) -> NDArray[np.float64]:
    """Correlated numbers, far from 0, that vary in all directions."""
    random = np.random.default_rng(seed)
    turned = np.linalg.qr(random.normal(size=(width, width)))[0]
    return random.normal(size=(count, width)) * np.linspace(3, 0.2, width) @ turned + 5


@pytest.fixture(scope="module")
def model() -> SentenceTransformer:
    return st_reba.build("mini", **ECHO)


@pytest.fixture(scope="module")
def fitted(model: SentenceTransformer) -> dict[str, Filter]:
    vectors = model.encode(TEXTS)
    return {kind: Filter.fit(vectors, kind, model=model, **options) for kind, options in OPTIONS.items()}


@pytest.mark.parametrize(
    ("kind", "options", "about"),
    [
        ("center", {}, ""), ("abtt", {"r": 1}, "r=1,"), ("abtt", {}, "r=3,"),
        ("whiten", {"dimensions": 4}, "dimensions=4,"), ("whiten", {}, ""),
    ],
)  # fmt: skip
def test_against_singular_vectors(kind: Any, options: dict[str, Any], about: str) -> None:
    sample, x = drawn(5000, 6), drawn(5, 6, seed=1)  # more rows than are copied at a time
    mean = sample.mean(axis=0)
    _, sizes, directions = np.linalg.svd(sample - mean, full_matrices=False)
    top, kept = directions[: options.get("r", 3)], directions[: options.get("dimensions", 6)]
    kept = kept * np.sign(kept[np.arange(len(kept)), np.abs(kept).argmax(axis=1)])[:, None]
    wanted = {
        "center": x - mean,
        "abtt": (x - mean) - (x - mean) @ top.T @ top,
        "whiten": (x - mean) @ kept.T / sizes[: len(kept)] * np.sqrt(len(sample)),
    }[kind]
    found = Filter.fit(sample, kind, **options)
    assert found.about == f"{kind}:{about}texts=5000"
    np.testing.assert_allclose(found.apply(x), wanted, rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose(found.apply(x[0]), wanted[0], rtol=1e-10, atol=1e-10)


def test_the_gain_is_bounded() -> None:
    sample = drawn(900, 6) * 1e-3 + np.array([5, 0, 0, 0, 0, 0])
    length = float(np.sqrt((sample**2).sum(axis=1).mean()))
    for scale in (1.0, 1e-6, 1e6):
        gain = np.linalg.norm(Filter.fit(sample * scale, "whiten").weight, ord=2)
        assert gain * length * scale == pytest.approx(MOST_GAIN)


def test_whitened_vectors_depend_on_the_text_alone() -> None:
    """Also where a sample of 900 short texts hardly varies in some directions: without a bound, by 1.5e-5 and more."""
    random = Random(0)
    others = "北京 go went not never 都 very ship moon king road fish gold tree we he 他"
    words = sorted(set(" ".join([*ASKED, *TEXTS, others]).split()))
    sample = list({" ".join(random.choices(words, k=random.randint(2, 4))): None for _ in range(2000)})[:900]
    model = st_reba.fit_filter(st_reba.build("mini", "classical", pooling="mean", **LOW), sample, "whiten")
    texts = [*ASKED, *sample[:200:8], *(" ".join(sample[at : at + 1 + at % 9]) for at in range(20))]
    alone = np.stack([model.encode(text) for text in texts])
    for size in (3, 16, len(texts)):
        assert np.abs(model.encode(texts, batch_size=size) - alone).max() < 1e-5


@pytest.mark.parametrize("kind", OPTIONS)
def test_vectors_are_the_filtered_ones(model: Any, fitted: dict[str, Filter], kind: str) -> None:
    found: Any = with_filter(model, fitted[kind])
    assert type(found[3]) is Dense and isinstance(found[3].activation_function, torch.nn.Identity)
    wanted = fitted[kind].apply(model.encode(ASKED))
    wanted /= np.linalg.norm(wanted, axis=1, keepdims=True)
    assert found.get_embedding_dimension() == wanted.shape[1]
    assert np.abs(found.encode(ASKED) - wanted).max() < 2e-6
    # Those of tokens, and so of words, are not filtered.
    assert np.array_equal(*(st_reba.encode_tokens(each, ["你好 world"])[0] for each in (model, found)))


def test_the_model_is_not_changed(model: Any) -> None:
    vectors, config = model.encode(ASKED), model[0].get_config_dict()
    found: Any = st_reba.fit_filter(model, [*TEXTS[:100], *TEXTS[:10], " "], "center")
    assert len(model) == 3 and np.array_equal(model.encode(ASKED), vectors) and model[0].get_config_dict() == config
    assert found[0].model is model[0].model
    assert found.model_card_data.model is found and model.model_card_data.model is model
    assert str(method_of(found)) == 'echo:pooling=mean,layer=1,filter="center:texts=100"'


def test_the_rest_is_carried_over() -> None:
    prompts = {"query": "Query: ", "document": "Text: "}
    model = st_reba.build("mini", "reba", pooling="mean", prompts=prompts, normalize=False, **LOW)
    model.similarity_fn_name, model.truncate_dim, model.default_prompt_name = "dot", 20, "document"
    model.max_seq_length = 90
    found = st_reba.fit_filter(model, TEXTS, "abtt")
    assert [type(module) for module in found] == [type(module) for module in model] + [Dense]
    carried = (found.prompts, found.truncate_dim, found.similarity_fn_name, found.default_prompt_name)
    assert carried == (prompts, 20, "dot", "document") and found.max_seq_length == 90
    found.prompts["query"] = ""
    assert model.prompts == prompts
    # The filter is fitted on whole vectors, with the default prompt, and cut behind it.
    model.truncate_dim = None
    wanted = Filter.fit(model.encode(TEXTS), "abtt").apply(model.encode_document(ASKED))
    given = found.encode_document(ASKED)
    assert given.shape == (5, 20) and np.abs(given - wanted[:, :20]).max() < 1e-3 * np.abs(wanted).max()


def test_refused(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the work of encoding; and vectors of which a filter would divide by nothing."""
    monkeypatch.setattr("st_reba.filters.encode_texts", lambda *_, **__: pytest.fail("it ran"))
    for texts, kind, options in (
        (TEXTS[:99], "center", {}), (TEXTS[:5] * 50, "center", {}), (TEXTS[:191], "abtt", {}), (TEXTS, "whiten", {}),
        ("".join(map(chr, range(200, 500))), "center", {}), ([*TEXTS, 5], "abtt", {}), (TEXTS, "zca", {}),
        (TEXTS, "center", {"r": 4}), (TEXTS, "abtt", {"dimensions": 4}), (TEXTS, "abtt", {"r": 0}),
        (TEXTS, "abtt", {"r": True}), (TEXTS, "abtt", {"r": 192}), (TEXTS, "whiten", {"dimensions": 193}),
        (TEXTS, "whiten", {"dimensions": 2.0}),
    ):  # fmt: skip
        with pytest.raises((ValueError, TypeError)):
            st_reba.fit_filter(model, texts, kind, **options)
    sample = drawn(200, 6)
    low = sample @ np.diag([1, 1, 1, 1e-6, 1e-6, 1e-6]) @ np.linalg.qr(drawn(6, 6))[0]
    for vectors, kind, r in (
        (low, "whiten", None), (low, "abtt", 4), (np.ones((200, 6)), "abtt", None), (drawn(119, 30), "whiten", None),
        (np.where(sample > 5, np.nan, sample), "center", None), (sample[0], "center", None),
    ):  # fmt: skip
        with pytest.raises(ValueError):
            Filter.fit(vectors, kind, r=r)
    Filter.fit(low, "abtt", r=3)
    Filter.fit(drawn(120, 30), "whiten")


def test_models_that_it_does_not_fit(model: Any, fitted: dict[str, Filter]) -> None:
    """With a filter, with another's modules, and other than the one whose vectors it was fitted on."""
    for other in (with_filter(model, fitted["abtt"]), SentenceTransformer(modules=[torch.nn.Identity()], device="cpu")):
        with pytest.raises(ValueError):
            st_reba.fit_filter(other, TEXTS, "center")
    other = st_reba.build("mini", **{**ECHO, "layer": 2})
    for each in (fitted["abtt"], Filter.fit(drawn(200, 6), "center")):
        with pytest.raises(ValueError):
            with_filter(other, each)
    # A dense layer of another's is part of the model.
    trained = SentenceTransformer(modules=[*model, Dense(192, 16)], device="cpu")
    assert [type(module) for module in st_reba.fit_filter(trained, TEXTS)][-2:] == [Dense, Dense]


def test_file(model: Any, fitted: dict[str, Filter], tmp_path: Path) -> None:
    file, whiten = tmp_path / "filter.safetensors", fitted["whiten"]
    whiten.save(file)
    again = Filter.load(file)
    assert np.array_equal(again.weight, whiten.weight) and np.array_equal(again.mean, whiten.mean)
    options = {**ECHO, "filter": file}
    assert np.array_equal(st_reba.build("mini", **options).encode(ASKED), with_filter(model, whiten).encode(ASKED))
    half = st_reba.build("mini", **{**options, "dtype": "bfloat16"})
    assert {each.dtype for each in half.parameters()} == {torch.bfloat16}
    assert [each.name for each in tmp_path.iterdir()] == ["filter.safetensors"]
    with pytest.raises(ValueError):
        again.save(tmp_path / "filter.npz")
    # Damaged files.
    arrays = {"mean": whiten.mean, "weight": whiten.weight}
    spoilt = np.concatenate([whiten.weight[1:], np.full((1, 192), np.nan)])

    def whole(facts: dict[str, Any], **changed: Any) -> bytes:
        about = json.dumps({"kind": "whiten", "about": "", "probe": None, **facts})
        return save({**arrays, **changed}, {"st_reba.filter": about})

    for damaged in (
        whole({})[:-100], save(arrays), whole({"kind": "zca"}), whole({"probe": {"vectors": "!"}}),
        whole({}, mean=whiten.mean[1:]), whole({}).replace(b"weight", b"height"), whole({}, weight=spoilt),
    ):  # fmt: skip
        file.write_bytes(damaged)
        with pytest.raises(ValueError):
            Filter.load(file)
    file.write_bytes(whole({}))
    Filter.load(file)
