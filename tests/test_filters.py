"""Models with a filter after the pooling."""

from __future__ import annotations

import copy
import itertools
import re
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from numpy.typing import NDArray
from oracle import unit_rows
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Dense

import st_reba
from st_reba import Filter
from st_reba.encode import encode_texts
from st_reba.filters import QUERY_SAMPLE, with_filter
from st_reba.methods import method_of
from st_reba.sentences import sample_sentences

Vectors = NDArray[np.float64]

NAMES = ("Ann", "王芳", "Tom", "the old man", "my neighbour", "一个孩子", "nobody", "李老师")
DEEDS = ("sells", "likes", "买了", "忘记了")
THINGS = ("rice", "two boats", "苹果", "the rain", "a letter", "电影", "old maps", "红色的花")
# 256 different texts.
TEXTS = [" ".join(words) for words in itertools.product(NAMES, DEEDS, THINGS)]
NEW_TEXTS = ["A cat sleeps on the roof.", "银行今天关门了。", "hi", "长" * 60, "Ann sells rice"]
KIND_OPTIONS: dict[Any, dict[str, Any]] = {
    "center": {},
    "abtt": {"r": 4},
    "whiten": {"dimensions": 48},
}
# One layer tells as much as six.
FIRST_LAYER: dict[str, Any] = {"layer": 1, "device": "cpu", "check": False}
ECHO = {**FIRST_LAYER, "method": "echo", "pooling": "mean", "dtype": "float32"}
SEARCH_TEMPLATE = {
    "query": "Query: {text} Word:",
    "document": "Passage: {text} Word:",
    "similarity": "Text: {text} Word:",
}


@pytest.fixture(scope="module")
def model() -> SentenceTransformer:
    return st_reba.build("mini", **ECHO)


@pytest.fixture(scope="module")
def search_model() -> SentenceTransformer:
    """Queries, documents and other texts have wordings of their own."""
    options = {**FIRST_LAYER, "dtype": "float32", "template": SEARCH_TEMPLATE}
    return st_reba.build("mini", "prompteol", **options)


@pytest.fixture(scope="module")
def fitted_filters(model: SentenceTransformer) -> dict[str, Filter]:
    vectors = model.encode(TEXTS)
    filters: dict[str, Filter] = {}
    for kind, options in KIND_OPTIONS.items():
        filters[kind] = Filter.fit(vectors, kind, model=model, **options)
    return filters


@pytest.mark.parametrize("power", [0.5, 0.25])
def test_whitened_vectors_depend_on_the_text_alone(power: float) -> None:
    """Also where a sample of 900 short texts hardly varies in some directions: without a bound, by 1.5e-5 and more."""
    random = Random(0)
    more_words = "北京 go went not never 都 very ship moon king road fish gold tree we he 他"
    words = sorted(set(" ".join([*NEW_TEXTS, *TEXTS, more_words]).split()))
    sample: dict[str, None] = {}
    while len(sample) < 900:
        sample[" ".join(random.choices(words, k=random.randint(2, 4)))] = None
    unfiltered_model = st_reba.build("mini", "classical", pooling="mean", **FIRST_LAYER)
    filtered_model = st_reba.fit_filter(unfiltered_model, list(sample), "whiten", power=power)
    short_texts = list(sample)
    texts = [*NEW_TEXTS, *short_texts[:200:8]]
    for start in range(20):
        texts.append(" ".join(short_texts[start : start + 1 + start % 9]))
    alone = np.stack([filtered_model.encode(text) for text in texts])
    for batch_size in (3, 16, len(texts)):
        assert np.abs(filtered_model.encode(texts, batch_size=batch_size) - alone).max() < 1e-5


@pytest.mark.parametrize("kind", KIND_OPTIONS)
def test_model_gives_filtered_vectors(
    model: SentenceTransformer, fitted_filters: dict[str, Filter], kind: str
) -> None:
    filtered_model = with_filter(model, fitted_filters[kind])
    dense: Any = filtered_model[3]
    assert type(dense) is Dense
    assert isinstance(dense.activation_function, torch.nn.Identity)
    expected = unit_rows(fitted_filters[kind].apply(model.encode(NEW_TEXTS)))
    assert filtered_model.get_embedding_dimension() == expected.shape[1]
    assert np.abs(filtered_model.encode(NEW_TEXTS) - expected).max() < 2e-6


def test_vectors_of_tokens_are_not_filtered(
    model: SentenceTransformer, fitted_filters: dict[str, Filter]
) -> None:
    filtered_model = with_filter(model, fitted_filters["abtt"])
    expected = st_reba.encode_tokens(model, ["你好 world"])[0]
    assert np.array_equal(st_reba.encode_tokens(filtered_model, ["你好 world"])[0], expected)


def test_queries_lose_the_mean_of_sentences_encoded_as_queries(
    search_model: SentenceTransformer,
) -> None:
    filtered_model = st_reba.fit_filter(search_model, TEXTS, "whiten", power=0.25, queries=True)
    names = [type(module).__name__ for module in filtered_model]
    assert names[2:] == ["Normalize", "QueryShift", "Dense", "Normalize"]
    sentences = sample_sentences(TEXTS, QUERY_SAMPLE)
    expected_filter = Filter.fit(
        encode_texts(search_model, TEXTS, task="document"),
        "whiten",
        power=0.25,
        query_vectors=encode_texts(search_model, sentences, task="query"),
    )
    assert expected_filter.description == "whiten:power=0.25,texts=256,queries=200"
    query_vectors = search_model.encode_query(NEW_TEXTS)
    expected_queries = unit_rows(expected_filter.apply(query_vectors, "query"))
    assert np.abs(filtered_model.encode_query(NEW_TEXTS) - expected_queries).max() < 2e-5
    document_vectors = search_model.encode_document(NEW_TEXTS)
    expected_documents = unit_rows(expected_filter.apply(document_vectors, "document"))
    assert np.abs(filtered_model.encode_document(NEW_TEXTS) - expected_documents).max() < 2e-5
    unshifted_queries = unit_rows(expected_filter.apply(query_vectors, "document"))
    assert np.abs(unshifted_queries - expected_queries).max() > 1e-3


def test_encode_of_a_model_for_search_encodes_documents(search_model: SentenceTransformer) -> None:
    filtered_model = st_reba.fit_filter(search_model, TEXTS, queries=True)
    assert np.array_equal(
        filtered_model.encode(NEW_TEXTS), filtered_model.encode_document(NEW_TEXTS)
    )
    assert not np.allclose(search_model.encode(NEW_TEXTS), search_model.encode_document(NEW_TEXTS))


def test_filter_of_what_encode_takes_drops_the_wordings_of_search(
    search_model: SentenceTransformer,
) -> None:
    filtered_model = st_reba.fit_filter(search_model, TEXTS, "abtt")
    expected = unit_rows(
        Filter.fit(search_model.encode(TEXTS), "abtt").apply(search_model.encode(NEW_TEXTS))
    )
    for encode in (
        filtered_model.encode,
        filtered_model.encode_query,
        filtered_model.encode_document,
    ):
        assert np.abs(encode(NEW_TEXTS) - expected).max() < 2e-5


def test_fitting_leaves_the_model_unchanged(model: SentenceTransformer) -> None:
    first: Any = model[0]
    vectors = model.encode(NEW_TEXTS)
    config = first.get_config_dict()
    filtered_model: Any = st_reba.fit_filter(model, [*TEXTS[:100], *TEXTS[:10], " "], "center")
    assert len(model) == 3
    assert np.array_equal(model.encode(NEW_TEXTS), vectors)
    assert first.get_config_dict() == config
    assert filtered_model[0].model is first.model
    assert filtered_model.model_card_data.model is filtered_model
    assert model.model_card_data.model is model
    assert str(method_of(filtered_model)) == 'echo:pooling=mean,layer=1,filter="center:texts=100"'


def test_settings_of_the_model_are_carried_over() -> None:
    prompts = {"query": "Query: ", "document": "Text: "}
    options = {**FIRST_LAYER, "pooling": "mean", "prompts": prompts, "normalize": False}
    model: Any = st_reba.build("mini", "reba", **options)
    model.similarity_fn_name = "dot"
    model.truncate_dim = 20
    model.default_prompt_name = "document"
    model.max_seq_length = 90
    filtered_model: Any = st_reba.fit_filter(model, TEXTS, "abtt")
    modules = [type(module) for module in filtered_model]
    assert modules == [*(type(module) for module in model), Dense]
    assert filtered_model.prompts == prompts
    assert filtered_model.truncate_dim == 20
    assert filtered_model.similarity_fn_name == "dot"
    assert filtered_model.default_prompt_name == "document"
    assert filtered_model.max_seq_length == 90
    filtered_model.prompts["query"] = ""
    assert model.prompts == prompts
    # The filter is fitted on whole vectors, with the default prompt, and cut after it.
    model.truncate_dim = None
    expected = Filter.fit(model.encode(TEXTS), "abtt").apply(model.encode_document(NEW_TEXTS))
    vectors = filtered_model.encode_document(NEW_TEXTS)
    assert vectors.shape == (5, 20)
    assert np.abs(vectors - expected[:, :20]).max() < 1e-3 * np.abs(expected).max()


# Texts, a kind and options, and a part of the message that refuses them.
REFUSED_FITS: dict[str, tuple[Any, Any, dict[str, Any], str]] = {
    "19 texts": (TEXTS[:19], "center", {}, "19 different texts"),
    "99 texts": (TEXTS[:99], "whiten", {"power": 0.25}, "99 different texts"),
    "5 different texts": (TEXTS[:5] * 50, "center", {}, "5 different texts"),
    "fewer texts than dimensions": (TEXTS[:191], "abtt", {}, "abtt: 191 different texts"),
    "fewer texts than four a dimension": (TEXTS, "whiten", {}, "whiten: 256 different texts"),
    "one text": ("".join(map(chr, range(200, 500))), "center", {}, "is one text. Give a list"),
    "a number among the texts": ([*TEXTS, 5], "abtt", {}, "texts[256]=5 is a int"),
    "a table": (pd.DataFrame({"text": TEXTS}), "center", {}, "a table"),
    "vectors that are scaled afterwards": (
        TEXTS,
        "center",
        {"normalize_embeddings": True},
        "normalize_embeddings=True",
    ),
    "vectors that are cut": (TEXTS, "center", {"truncate_dim": 5}, "truncate_dim=5"),
    "an unknown kind": (TEXTS, "zca", {}, "kind='zca'"),
    "r of another kind": (TEXTS, "center", {"r": 4}, "r=4 belongs to kind='abtt'"),
    "dimensions of another kind": (
        TEXTS,
        "abtt",
        {"dimensions": 4},
        "dimensions=4 belongs to kind='whiten'",
    ),
    "power of another kind": (
        TEXTS,
        "abtt",
        {"power": 0.25},
        "power=0.25 belongs to kind='whiten'",
    ),
    "r below 1": (TEXTS, "abtt", {"r": 0}, "r=0 must"),
    "r that is not a number": (TEXTS, "abtt", {"r": True}, "r=True must"),
    "r of all dimensions": (TEXTS, "abtt", {"r": 192}, "r=192 must"),
    "too many dimensions": (TEXTS, "whiten", {"dimensions": 193}, "dimensions=193 must"),
    "a fraction of a dimension": (TEXTS, "whiten", {"dimensions": 2.0}, "dimensions=2.0 must"),
    "power 0": (TEXTS, "whiten", {"power": 0}, "power=0 must"),
    "power above a half": (TEXTS, "whiten", {"power": 0.6}, "power=0.6 must"),
    "power that is not a number": (TEXTS, "whiten", {"power": True}, "power=True must"),
    "texts without sentences": (
        list(map(str, range(200))),
        "center",
        {"queries": True},
        "0 different sentences",
    ),
    "a task for both": (TEXTS, "center", {"queries": True, "task": "query"}, "task='query'"),
    "a prompt for both": (TEXTS, "center", {"queries": True, "prompt": "x"}, "prompt='x'"),
    "tokens without queries": (TEXTS, "whiten", {"tokens": True}, "tokens=True"),
    "tokens of another kind": (TEXTS, "center", {"queries": True, "tokens": True}, "tokens=True"),
}


@pytest.mark.parametrize("case", REFUSED_FITS)
def test_fit_filter_refuses_before_it_encodes(
    model: SentenceTransformer, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    texts, kind, options, part_of_message = REFUSED_FITS[case]
    monkeypatch.setattr("st_reba.filters.encode_texts", lambda *_, **__: pytest.fail("it ran"))
    with pytest.raises((ValueError, TypeError), match=re.escape(part_of_message)):
        st_reba.fit_filter(model, texts, kind, **options)


def test_tokens_go_with_no_cut_and_no_input_of_the_base(model: SentenceTransformer) -> None:
    options: Any = {"kind": "whiten", "power": 0.25, "queries": True, "tokens": True}
    cut_model = copy.copy(model)
    cut_model.truncate_dim = 8
    with pytest.raises(ValueError, match="truncate_dim=8 would cut them off"):
        st_reba.fit_filter(cut_model, TEXTS, **options)
    nosink_model: Any = st_reba.build("mini", "nosink:setting=mask0-bidir,k=1")
    nosink_model[0].own_input = True
    with pytest.raises(ValueError, match="keeps the base's own input"):
        st_reba.fit_filter(nosink_model, TEXTS, **options)


def test_task_of_a_template_with_three_wordings_is_refused(
    search_model: SentenceTransformer,
) -> None:
    with pytest.raises(ValueError, match="task='document'.*queries=True"):
        st_reba.fit_filter(search_model, TEXTS, task="document")


def test_model_with_a_filter_takes_no_other(
    model: SentenceTransformer, fitted_filters: dict[str, Filter]
) -> None:
    with pytest.raises(ValueError, match="has a filter already"):
        st_reba.fit_filter(with_filter(model, fitted_filters["abtt"]), TEXTS, "center")


def test_model_of_other_modules_takes_no_filter() -> None:
    foreign_model = SentenceTransformer(modules=[torch.nn.Identity()], device="cpu")
    with pytest.raises(ValueError, match="starts with Identity"):
        st_reba.fit_filter(foreign_model, TEXTS, "center")
    with pytest.raises(TypeError, match="model='mini' is a name"):
        st_reba.fit_filter("mini", TEXTS, "center")  # type: ignore[arg-type]


def test_a_filter_that_is_not_there_is_refused_before_the_base_is_loaded(tmp_path: Path) -> None:
    file = tmp_path / "no.safetensors"
    with pytest.raises(FileNotFoundError, match=r"^filter='.*no.safetensors' cannot be read"):
        st_reba.build("no-such-base", "echo", filter=file)


def test_filter_of_another_model_is_refused(fitted_filters: dict[str, Filter]) -> None:
    other_model = st_reba.build("mini", **{**ECHO, "layer": 2})
    with pytest.raises(ValueError, match="cannot be used with mini .*layer=2"):
        with_filter(other_model, fitted_filters["abtt"])
    narrow_filter = Filter.fit(np.random.default_rng(0).normal(size=(200, 6)), "center")
    with pytest.raises(ValueError, match="takes 6 dimensions, but the model gives 192"):
        with_filter(other_model, narrow_filter)


def test_filter_of_whole_vectors_fits_a_model_that_cuts_them(model: SentenceTransformer) -> None:
    cut_model = copy.copy(model)
    cut_model.truncate_dim = 8
    fitted_filter = Filter.fit(model.encode(TEXTS), "center", model=cut_model)
    vectors = with_filter(cut_model, fitted_filter).encode(NEW_TEXTS)
    assert np.array_equal(vectors, with_filter(model, fitted_filter).encode(NEW_TEXTS)[:, :8])
    assert cut_model.truncate_dim == 8


def test_dense_layer_of_others_is_part_of_the_model(model: SentenceTransformer) -> None:
    trained_model = SentenceTransformer(modules=[*model, Dense(192, 16)], device="cpu")
    modules = [type(module) for module in st_reba.fit_filter(trained_model, TEXTS)]
    assert modules[-2:] == [Dense, Dense]


def test_saved_filter_is_the_same_filter(
    model: SentenceTransformer, fitted_filters: dict[str, Filter], tmp_path: Path
) -> None:
    file = tmp_path / "filter.safetensors"
    fitted_filter = fitted_filters["whiten"]
    fitted_filter.save(file)
    assert [path.name for path in tmp_path.iterdir()] == ["filter.safetensors"]
    loaded_filter = Filter.load(file)
    assert np.array_equal(loaded_filter.weight, fitted_filter.weight)
    assert np.array_equal(loaded_filter.mean, fitted_filter.mean)
    assert loaded_filter.query_mean is None
    built_model = st_reba.build("mini", **{**ECHO, "filter": file})
    expected = with_filter(model, fitted_filter).encode(NEW_TEXTS)
    assert np.array_equal(built_model.encode(NEW_TEXTS), expected)


def test_filter_has_the_number_type_of_the_model(
    fitted_filters: dict[str, Filter], tmp_path: Path
) -> None:
    file = tmp_path / "filter.safetensors"
    fitted_filters["whiten"].save(file)
    half_model = st_reba.build("mini", **{**ECHO, "filter": file, "dtype": "bfloat16"})
    assert {parameter.dtype for parameter in half_model.parameters()} == {torch.bfloat16}


def test_code_that_travels_holds_the_shift_of_queries(
    search_model: SentenceTransformer, tmp_path: Path
) -> None:
    st_reba.fit_filter(search_model, TEXTS, queries=True).save_pretrained(str(tmp_path))
    assert "class QueryShift(FittedModule):" in (tmp_path / "st_reba.py").read_text(
        encoding="utf-8"
    )
    search_model.save_pretrained(str(tmp_path / "unfiltered"))
    assert "QueryShift(FittedModule)" not in (tmp_path / "unfiltered" / "st_reba.py").read_text(
        encoding="utf-8"
    )
