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
from oracle import assert_close
from pipelines import PIPELINES, build_pipeline
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Normalize, Pooling, Transformer
from tiny import tiny_model

import st_reba
from st_reba.bases import BUNDLED
from st_reba.encode import (
    DEFAULT_BATCH_TOKENS,
    FREE_PADDING,
    MAX_PADDING,
    encode_texts,
    measure_lengths,
    token_batches,
)

FEW_TEXTS: list[str] = []
for number in range(11):
    adverbs = "very " * (number * 7 % 5)
    FEW_TEXTS.append(f"Text {adverbs}number {number}, 第{number}句。")
# Short and long, twice the same, without a token, and one longer than any budget below.
TEXTS = [*FEW_TEXTS, "", "天", "The bank of the river is steep. " * 20, FEW_TEXTS[3], " ", ""]
for number in range(24):
    TEXTS.append(f"{'很' * (number * 13 % 60)} number {number}")
TEXTS += ["the same"] * 36
BATCH_TOKENS = (1, 100, 1500, None)


@pytest.fixture
def base_path(base: Callable[..., str]) -> str:
    return base("llama", "bos_eos")


@pytest.fixture
def reba_model(base_path: str) -> SentenceTransformer:
    return st_reba.build(base_path, "reba", check=False)


def watch_shapes(model: SentenceTransformer) -> list[tuple[int, int]]:
    """Rows and columns of every forward pass from now on."""
    shapes: list[tuple[int, int]] = []

    def keep_shape(module: torch.nn.Module, inputs: tuple[dict[str, torch.Tensor]]) -> None:
        row_count, length = inputs[0]["attention_mask"].shape
        shapes.append((row_count, length))

    model[0].register_forward_pre_hook(keep_shape)
    return shapes


def plain_model(base_path: str) -> SentenceTransformer:
    """A model of sentence-transformers alone."""
    transformer = Transformer(base_path, max_seq_length=256)
    transformer.tokenizer.pad_token = transformer.tokenizer.eos_token
    return SentenceTransformer(modules=[transformer, Pooling(32, "mean")], device="cpu")


def model_of_kind(base_path: str, kind: str) -> SentenceTransformer:
    if kind in PIPELINES:
        return build_pipeline(base_path, kind)
    return plain_model(base_path) if kind == "plain" else tiny_model()


def texts_of_kind(kind: str) -> list[str]:
    """The texts for a kind of model, without blank ones where it is not ours.

    There a plain model has no token to run, and a bag of words gives zeros.
    """
    if kind in PIPELINES:
        return TEXTS
    return [text for text in TEXTS if text.strip()]


@pytest.mark.parametrize("batch_tokens", BATCH_TOKENS)
@pytest.mark.parametrize("kind", ["reba mean", "mask0", "plain", "bag of words"])
def test_each_text_has_the_vector_that_it_has_alone(
    base_path: str,
    kind: str,
    batch_tokens: int | None,
) -> None:
    model = model_of_kind(base_path, kind)
    texts = texts_of_kind(kind)
    expected_vectors = np.stack([model.encode(text) for text in texts])
    batch_sizes: list[int] = []
    vectors = encode_texts(model, texts, batch_tokens=batch_tokens, progress=batch_sizes.append)
    assert vectors.dtype == np.float32
    assert_close(vectors, expected_vectors)
    assert sum(batch_sizes) == len(texts)
    assert len(batch_sizes) > 1


@pytest.mark.parametrize("batch_tokens", BATCH_TOKENS)
@pytest.mark.parametrize("kind", ["reba mean", "mask0", "plain"])
def test_no_batch_takes_more_positions_than_it_may(
    base_path: str,
    kind: str,
    batch_tokens: int | None,
) -> None:
    model = model_of_kind(base_path, kind)
    shapes = watch_shapes(model)
    batch_sizes: list[int] = []
    encode_texts(model, texts_of_kind(kind), batch_tokens=batch_tokens, progress=batch_sizes.append)
    assert [row_count for row_count, _ in shapes] == batch_sizes
    assert shapes[0][1] > 150 > 30 > shapes[-1][1]
    for row_count, length in shapes:
        assert row_count == 1 or row_count * length <= (batch_tokens or DEFAULT_BATCH_TOKENS)
    assert (max(batch_sizes) == 1) == (batch_tokens == 1)
    assert (max(batch_sizes) > 32) == (batch_tokens in (1500, None))


INSTRUCTED_OPTIONS: dict[str, Any] = {
    "template": "echo-instruct",
    "instruction": "Search.",
    "prompts": {
        "query": "Tell me, which is it: ",
        "passage": "This is a passage of some document, as it stands: ",
    },
}


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"task": "document"},
        {"task": "query", "prompt": "Other: "},
        {"prompt": ""},
        {"task": "document", "prompt_name": "query"},
        {"normalize_embeddings": True},
        {"convert_to_numpy": False, "truncate_dim": 20},
        {"task": "query", "instruction": "Find what answers it."},
    ],
    ids=str,
)
def test_options_of_encode_reach_the_input_and_its_length(
    base_path: str, options: dict[str, Any]
) -> None:
    model = st_reba.build(base_path, "reba", normalize=False, check=False, **INSTRUCTED_OPTIONS)
    model.prompts.pop("document", None)
    model.default_prompt_name = "query"
    texts = TEXTS[1::3]
    encode_options = dict(options)
    task = encode_options.pop("task", None)
    encode = getattr(model, f"encode_{task}") if task else model.encode
    expected_vectors = np.stack(
        [np.asarray(row) for row in encode(texts, batch_size=1, **encode_options)]
    )
    shapes = watch_shapes(model)
    assert_close(encode_texts(model, texts, batch_tokens=400, **options), expected_vectors)
    # A prompt that is not counted would leave the batches less than full, or over the budget.
    largest_batch = max(row_count * length for row_count, length in shapes if row_count > 1)
    assert 300 < largest_batch <= 400


@pytest.mark.parametrize(
    "texts",
    [
        pd.Series(FEW_TEXTS, index=[5, 3, 0, 1, 9, 2, 4, 8, 7, 6, 10]),
        np.array(FEW_TEXTS),
        np.array(FEW_TEXTS, object),
        iter(FEW_TEXTS),
        tuple(FEW_TEXTS),
        pa.array(FEW_TEXTS),
        pa.chunked_array([FEW_TEXTS]),
        pl.Series(FEW_TEXTS),
    ],
    ids=lambda texts: type(texts).__name__,
)
def test_texts_are_taken_by_position(reba_model: SentenceTransformer, texts: Any) -> None:
    expected_vectors = encode_texts(reba_model, FEW_TEXTS)
    np.testing.assert_array_equal(encode_texts(reba_model, texts), expected_vectors)


@pytest.mark.parametrize("texts", [{"a": "text"}, {"a", "b"}])
def test_texts_without_an_order_are_refused(reba_model: SentenceTransformer, texts: Any) -> None:
    with pytest.raises(TypeError, match="Give a list"):
        encode_texts(reba_model, texts)


@pytest.mark.parametrize(
    "texts",
    [
        pd.DataFrame({"text": FEW_TEXTS}),
        pl.DataFrame({"text": FEW_TEXTS}),
        pa.table({"text": FEW_TEXTS}),
        np.array([FEW_TEXTS]),
        5,
        None,
    ],
    ids=lambda texts: type(texts).__name__,
)
def test_what_is_no_list_of_texts_is_refused(base_path: str, texts: Any) -> None:
    """A table's names of columns would be encoded in place of its texts."""
    with pytest.raises(TypeError, match=r"^texts.*Give (one of its columns|a list of texts)\."):
        encode_texts(plain_model(base_path), texts)


@pytest.mark.parametrize("item", [None, float("nan"), 5, b"text", ["text"]], ids=repr)
def test_what_is_no_text_is_named_with_its_place(base_path: str, item: Any) -> None:
    with pytest.raises(TypeError, match=r"^texts\[1\]=.* is a \w+\. Give strings\.$"):
        encode_texts(plain_model(base_path), ["A cat", item])


def test_no_texts_give_no_vectors(base_path: str) -> None:
    model = plain_model(base_path)
    assert encode_texts(model, []).shape == (0, model.get_embedding_dimension())
    assert encode_texts(model, [], truncate_dim=7).shape == (0, 7)


def short_reading_model(base_path: str, kind: str) -> SentenceTransformer:
    if kind == "echo":
        return st_reba.build(base_path, "echo", max_seq_length=32, check=False)
    model = plain_model(base_path)
    model.max_seq_length = 16
    return model


@pytest.mark.parametrize("kind", ["echo", "plain"])
def test_texts_that_are_longer_than_the_model_reads_are_counted(
    base_path: str,
    kind: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    texts = ["short", "long " * 40, "long " * 50]
    model = short_reading_model(base_path, kind)
    caplog.clear()
    encode_texts(model, texts)
    messages = [record.getMessage() for record in caplog.records if record.name == "st_reba.encode"]
    assert len(messages) == 1
    assert messages[0].startswith("2 of 3 texts are longer than the model reads")
    truncated: list[list[int]] = []
    encode_texts(model, texts, on_truncated=truncated.append)
    encode_texts(model, texts[:1], on_truncated=truncated.append)
    assert truncated == [[1, 2]]


@pytest.mark.parametrize("kind", ["echo", "plain"])
def test_a_text_that_just_fits_is_not_counted(base_path: str, kind: str) -> None:
    model = short_reading_model(base_path, kind)
    token_ids = model.tokenizer("long " * 40)["input_ids"][:5]
    fitting_text = model.tokenizer.decode(token_ids, skip_special_tokens=True)
    assert measure_lengths(model, [fitting_text]).truncated == []


@pytest.mark.parametrize(
    "options",
    [
        {"batch_tokens": 0},
        {"batch_tokens": True},
        {"prompt_name": "qeury"},
        {"output_value": "token_embeddings"},
        {"precision": "int8"},
        {"pool": {}},
        {"colour": "red"},
        {"processing_kwargs": {"text": {"max_length": 9}}},
        {"texts": FEW_TEXTS[0]},
        {"task": "passage"},
    ],
    ids=str,
)
def test_options_that_do_not_go_with_batches_are_refused(
    reba_model: SentenceTransformer,
    options: dict[str, Any],
) -> None:
    with pytest.raises((ValueError, TypeError)):
        encode_texts(**{"model": reba_model, "texts": FEW_TEXTS, **options})


def test_an_unknown_task_of_a_plain_model_is_refused(base_path: str) -> None:
    with pytest.raises(ValueError, match="task='passage'"):
        encode_texts(plain_model(base_path), FEW_TEXTS, task="passage")  # type: ignore[arg-type]


@given(st.lists(st.integers(0, 500), max_size=60), st.integers(1, 1500))
def test_batches_hold_each_text_once_and_no_more_than_they_may(
    lengths: list[int], budget: int
) -> None:
    batches = token_batches(lengths, budget)
    indices = [index for batch in batches for index in batch]
    assert sorted(indices) == list(range(len(lengths)))
    batched_lengths = [lengths[index] for index in indices]
    assert batched_lengths == sorted(batched_lengths, reverse=True)
    for batch in batches:
        batch_lengths = [max(1, lengths[index]) for index in batch]
        padded_positions = max(batch_lengths) * len(batch)
        assert len(batch) == 1 or padded_positions <= budget
        padding = padded_positions - sum(batch_lengths)
        assert padding <= max(FREE_PADDING, MAX_PADDING * padded_positions)


@pytest.mark.parametrize(
    ("lengths", "budget", "batch_sizes"),
    [
        ([], None, []),
        ([10] * 100, 100, [10] * 10),
        ([1] * 5000, None, [4096, 904]),
        ([100] * 19 + [40], 2000, [20]),
        ([100] * 19 + [0], 2000, [20]),
        ([100] * 10 + [36], 2000, [11]),
        ([100] * 10 + [35], 2000, [10, 1]),
    ],
)
def test_batches_are_no_smaller_than_they_must(
    lengths: list[int],
    budget: int | None,
    batch_sizes: list[int],
) -> None:
    assert [len(batch) for batch in token_batches(lengths, budget)] == batch_sizes


@pytest.mark.parametrize("kind", ["echo", "ensemble", "plain"])
def test_positions_are_those_of_the_input(base_path: str, kind: str) -> None:
    models: dict[str, Callable[[], SentenceTransformer]] = {
        "echo": lambda: st_reba.build(
            base_path, "echo", template="echo", max_seq_length=120, check=False
        ),
        "ensemble": lambda: st_reba.build(
            base_path, "prompteol", template="contrastive", check=False
        ),
        "plain": lambda: plain_model(base_path),
    }
    model = models[kind]()
    expected_positions: list[int] = []
    for text in TEXTS:
        features = model.preprocess([text], prompt="Query: ")
        expected_positions.append(features["attention_mask"].numel())
    assert measure_lengths(model, TEXTS, prompt="Query: ").positions == expected_positions


def test_characters_are_counted_without_a_tokenizer_of_transformers() -> None:
    assert measure_lengths(tiny_model(), TEXTS).positions == [len(text) for text in TEXTS]


def test_modules_that_do_not_go_together_are_named() -> None:
    modules = [Transformer(str(BUNDLED["mini"])), Normalize()]
    model = SentenceTransformer(modules=modules, device="cpu")
    with pytest.raises(
        ValueError, match="A pipeline of Transformer, Normalize does not encode a text"
    ):
        encode_texts(model, ["hi"])
