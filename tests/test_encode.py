"""Encoding by token budget: order, equality with model.encode, and batches of bounded size."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pipelines import PIPELINES
from pipelines import build_pipeline as made
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Normalize, Pooling, Transformer
from tiny import tiny_model

import st_reba
from st_reba.bases import EMBEDDED
from st_reba.encode import (
    DEFAULT_BATCH_TOKENS,
    FREE_PADDING,
    MAX_PADDING,
    encode_texts,
    measure_lengths,
    positions,
    token_batches,
)

# Short and long, twice the same, without a token, and one longer than any budget below.
SOME = [f"Text {'very ' * (number * 7 % 5)}number {number}, 第{number}句。" for number in range(11)]
TEXTS = [*SOME, "", "天", "The bank of the river is steep. " * 20, SOME[3], " ", ""]
TEXTS += [f"{'很' * (number * 13 % 60)} number {number}" for number in range(24)] + ["the same"] * 36


@pytest.fixture
def path(base: Callable[..., str]) -> str:
    return base("llama", "bos_eos")


def forward_shapes(model: SentenceTransformer) -> list[tuple[int, int]]:
    """Rows and columns of every forward pass from now on."""
    shapes: list[tuple[int, int]] = []
    model[0].register_forward_pre_hook(lambda _, given: shapes.append(tuple(given[0]["attention_mask"].shape)))
    return shapes


def plain(path: str) -> SentenceTransformer:
    transformer = Transformer(path, max_seq_length=256)
    transformer.tokenizer.pad_token = transformer.tokenizer.eos_token
    return SentenceTransformer(modules=[transformer, Pooling(32, "mean")], device="cpu")


@pytest.mark.parametrize("kind", ["reba mean", "mask0", "plain", "bag of words"])
def test_token_batches_give_each_text_its_own_vector(path: str, kind: str) -> None:
    """Those of each text alone, in the order of the texts; no batch takes more positions than it may."""
    model = made(path, kind) if kind in PIPELINES else plain(path) if kind == "plain" else tiny_model()
    # Alone and without a token, a plain model has nothing to run on, and a bag of words is zero.
    texts = TEXTS if kind in PIPELINES else [text for text in TEXTS if text.strip()]
    wanted = np.stack([model.encode(text) for text in texts])
    shapes = forward_shapes(model) if kind != "bag of words" else []
    for batch_tokens in (1, 100, 1500, None):
        shapes.clear()
        done: list[int] = []
        vectors = encode_texts(model, texts, batch_tokens=batch_tokens, progress=done.append)
        assert vectors.dtype == np.float32 and vectors.shape == wanted.shape
        np.testing.assert_allclose(vectors, wanted, atol=1e-5 * np.abs(wanted).max())
        assert sum(done) == len(texts) and len(done) > 1
        if not shapes:
            continue
        assert [rows for rows, _ in shapes] == done
        assert shapes[0][1] > 150 > 30 > shapes[-1][1]
        assert all(rows == 1 or rows * length <= (batch_tokens or DEFAULT_BATCH_TOKENS) for rows, length in shapes)
        assert (max(done) == 1) == (batch_tokens == 1) and (max(done) > 32) == (batch_tokens in (1500, None))


def test_options_in_token_batches(path: str) -> None:
    """What encode takes, it goes on taking, and the positions counted are those of its input."""
    prompts = {"query": "Tell me, which is it: ", "passage": "This is a passage of some document, as it stands: "}
    build: dict[str, Any] = {"template": "echo-instruct", "instruction": "Search.", "prompts": prompts}
    model = st_reba.build(path, "reba", normalize=False, check=False, **build)
    model.prompts.pop("document", None)
    model.default_prompt_name = "query"
    shapes, texts = forward_shapes(model), TEXTS[1::3]
    for options in (
        {}, {"task": "document"}, {"task": "query", "prompt": "Other: "}, {"prompt": ""},
        {"task": "document", "prompt_name": "query"}, {"normalize_embeddings": True},
        {"convert_to_numpy": False, "truncate_dim": 20}, {"task": "query", "instruction": "Find what answers it."},
    ):  # fmt: skip
        task, passed = options.get("task"), {name: value for name, value in options.items() if name != "task"}
        found = getattr(model, f"encode_{task}" if task else "encode")(texts, batch_size=1, **passed)
        wanted = np.asarray(torch.stack(found) if isinstance(found, list) else found)
        shapes.clear()
        vectors = encode_texts(model, texts, batch_tokens=400, **options)
        np.testing.assert_allclose(vectors, wanted, rtol=0, atol=1e-5 * np.abs(wanted).max(), err_msg=str(options))
        # A prompt that is not counted would leave the batches less than full, or over the budget.
        assert 300 < max(rows * length for rows, length in shapes if rows > 1) <= 400, options


def test_texts_are_taken_by_position(path: str) -> None:
    model = st_reba.build(path, "reba", check=False)
    texts = SOME[:6]
    wanted = encode_texts(model, texts)
    series = pd.Series(texts, index=[5, 3, 0, 1, 9, 2])
    for same in (series, np.array(texts), iter(texts), tuple(texts)):
        np.testing.assert_array_equal(encode_texts(model, same), wanted)
    for unordered in ({"a": "text"}, {"a", "b"}):
        with pytest.raises(TypeError, match="Give a list"):
            encode_texts(model, unordered)


def test_texts_that_are_longer_than_the_model_reads_are_counted(path: str, caplog: pytest.LogCaptureFixture) -> None:
    texts = ["short", "long " * 40, "long " * 50]
    echo = st_reba.build(path, "echo", max_seq_length=32, check=False)
    sentence_transformer = plain(path)
    sentence_transformer.max_seq_length = 16
    for model in (echo, sentence_transformer):
        caplog.clear()
        encode_texts(model, texts)
        told = [record.getMessage() for record in caplog.records if record.name == "st_reba.encode"]
        assert len(told) == 1 and told[0].startswith("2 of 3 texts are longer than the model reads")
        truncated: list[list[int]] = []
        encode_texts(model, texts, on_truncated=truncated.append)
        encode_texts(model, texts[:1], on_truncated=truncated.append)
        assert truncated == [[1, 2]]
        fitting = model.tokenizer.decode(model.tokenizer("long " * 40)["input_ids"][:5], skip_special_tokens=True)
        assert measure_lengths(model, [fitting]).truncated == []


def test_refused(path: str) -> None:
    model = st_reba.build(path, "reba", check=False)
    for options in (
        {"batch_tokens": 0}, {"batch_tokens": True}, {"prompt_name": "qeury"}, {"output_value": "token_embeddings"},
        {"colour": "red"}, {"precision": "int8"}, {"processing_kwargs": {"text": {"max_length": 9}}}, {"pool": {}},
        {"texts": SOME[0]}, {"model": plain(path), "task": "passage"},
    ):  # fmt: skip
        with pytest.raises((ValueError, TypeError)):
            encode_texts(**{"model": model, "texts": SOME, **options})


@given(st.lists(st.integers(0, 500), max_size=60), st.integers(1, 1500))
def test_token_batches(lengths: list[int], budget: int) -> None:
    """Each text once, the longest first; no batch of several is over the budget, or has more padding than it may."""
    batches = token_batches(lengths, budget)
    assert sorted(index for batch in batches for index in batch) == list(range(len(lengths)))
    flat = [lengths[index] for batch in batches for index in batch]
    assert flat == sorted(flat, reverse=True)
    for batch in batches:
        kept = [max(1, lengths[index]) for index in batch]
        padded = max(kept) * len(kept)
        assert len(kept) == 1 or padded <= budget
        assert padded - sum(kept) <= max(FREE_PADDING, MAX_PADDING * padded)


def test_batches_are_no_smaller_than_they_must() -> None:
    for lengths, budget, sizes in (
        ([10] * 100, 100, [10] * 10), ([100] * 19 + [40], 2000, [20]), ([100] * 19 + [0], 2000, [20]), ([], None, []),
        ([100] * 10 + [36], 2000, [11]), ([100] * 10 + [35], 2000, [10, 1]), ([1] * 5000, None, [4096, 904]),
    ):  # fmt: skip
        assert [len(batch) for batch in token_batches(lengths, budget)] == sizes


def test_counted_positions(path: str) -> None:
    """Those of the input, for an ensemble too."""
    echo = st_reba.build(path, "echo", template="echo", max_seq_length=120, check=False)
    several = st_reba.build(path, "prompteol", template="contrastive", check=False)
    for model in (echo, several, plain(path)):
        counts = [model.preprocess([text], prompt="Query: ")["attention_mask"].numel() for text in TEXTS]
        assert positions(model, TEXTS, prompt="Query: ") == counts
    assert positions(tiny_model(), TEXTS) == [len(text) for text in TEXTS]


@pytest.mark.parametrize("values", [pa.array(SOME), pa.chunked_array([SOME]), pl.Series(SOME), np.array(SOME, object)])
def test_texts_of_any_table_library(path: str, values: Any) -> None:
    model = plain(path)
    assert np.array_equal(encode_texts(model, values), encode_texts(model, SOME))


def test_no_texts_give_no_vectors(path: str) -> None:
    model = plain(path)
    assert encode_texts(model, []).shape == (0, model.get_embedding_dimension())


@pytest.mark.parametrize(
    "values",
    [pd.DataFrame({"text": SOME}), pl.DataFrame({"text": SOME}), pa.table({"text": SOME}), np.array([SOME]), 5, None],
    ids=lambda value: type(value).__name__,
)
def test_what_is_no_list_of_texts_is_refused(path: str, values: Any) -> None:
    """A table's names of columns would be encoded in place of its texts."""
    with pytest.raises(TypeError, match=r"^texts.*Give (one of its columns|a list of texts)\."):
        encode_texts(plain(path), values)


def test_modules_that_do_not_go_together_are_named() -> None:
    model = SentenceTransformer(modules=[Transformer(str(EMBEDDED["mini"])), Normalize()], device="cpu")
    with pytest.raises(ValueError, match="A pipeline of Transformer, Normalize does not encode a text"):
        encode_texts(model, ["hi"])
