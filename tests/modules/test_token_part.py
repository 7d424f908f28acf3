"""TokenPart: which tokens it reads, and what it refuses.

What it gives is compared in tests/index/test_token_means.py.
"""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from tiny import WORDS
from torch import Tensor

import st_reba
from st_reba import TokenPart

LONG_TEXT = "gold ship " * 40
LONG_TEXTS = ["a moon and a king", LONG_TEXT, LONG_TEXT + "zebra"]


def make_texts() -> list[str]:
    rows = np.random.default_rng(0).choice(WORDS[:14], size=(120, 7))
    return [" ".join(row) + f" {number}." for number, row in enumerate(rows)]


def fit(model: SentenceTransformer) -> SentenceTransformer:
    return st_reba.fit_filter(model, make_texts(), "whiten", power=0.25, queries=True, tokens=True)


@pytest.fixture(scope="module")
def short_model() -> SentenceTransformer:
    """It reads 40 positions at most, and its texts have two rows."""
    model = st_reba.build("mini", "prompteol", template="reverseol-word", device="cpu")
    model.max_seq_length = 40
    return fit(model)


def token_dimensions(model: SentenceTransformer, texts: list[str]) -> Any:
    vectors = model.encode(texts, batch_size=2)
    return vectors[:, model[-1].in_features :]  # type: ignore[operator, union-attr, unused-ignore]


def test_tokens_count_that_the_model_does_not_read(short_model: SentenceTransformer) -> None:
    vectors = short_model.encode(LONG_TEXTS)
    width: Any = short_model[-1].in_features
    assert np.allclose(vectors[1, :width], vectors[2, :width], atol=1e-6)
    assert not np.allclose(vectors[1, width:], vectors[2, width:], atol=1e-2)


def test_a_text_alone_has_the_tokens_that_it_has_in_a_batch(
    short_model: SentenceTransformer,
) -> None:
    texts = [*LONG_TEXTS, "", "gold"]
    alone = [token_dimensions(short_model, [text])[0] for text in texts]
    assert np.abs(token_dimensions(short_model, texts) - np.array(alone)).max() < 1e-6


def test_a_split_batch_keeps_its_tokens() -> None:
    """As losses do that compute gradients of parts of a batch."""
    model = fit(st_reba.build("mini", "classical", device="cpu"))
    features: Any = model.preprocess(LONG_TEXTS)
    tensors = {name: value for name, value in features.items() if isinstance(value, torch.Tensor)}
    with torch.inference_mode():
        parts = [
            model({name: value[rows] for name, value in tensors.items()})["sentence_embedding"]
            for rows in (slice(0, 1), slice(1, 3))
        ]
    assert np.abs(torch.cat(parts).numpy() - model.encode(LONG_TEXTS)).max() < 1e-6


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_a_copy_reads_its_own_embeddings(short_model: SentenceTransformer, copied: Any) -> None:
    expected = token_dimensions(short_model, LONG_TEXTS)
    copied_model = copied(short_model)
    assert np.array_equal(token_dimensions(copied_model, LONG_TEXTS), expected)
    with torch.no_grad():
        copied_model[0].model.get_input_embeddings().weight.normal_()
    assert not np.allclose(token_dimensions(copied_model, LONG_TEXTS), expected, atol=1e-2)
    assert np.array_equal(token_dimensions(short_model, LONG_TEXTS), expected)


def test_its_weights_are_neither_trained_nor_the_models_again(
    short_model: SentenceTransformer,
) -> None:
    token_part: Any = short_model[-1]
    assert list(token_part.parameters()) == []
    assert set(token_part.state_dict()) == {
        "token_weights",
        "document_mean",
        "query_mean",
        "weight",
    }


def test_a_token_without_an_embedding_is_refused_where_it_is_cut_too() -> None:
    model = st_reba.build("mini", "classical", device="cpu", max_seq_length=16)
    filtered_model = fit(model)
    filtered_model.tokenizer.add_tokens("quokka")
    with pytest.raises(ValueError, match="The tokenizer has token .* only .* embeddings"):
        filtered_model.encode(LONG_TEXT + "quokka")


def test_a_model_without_it_computes_no_tokens() -> None:
    features: Any = st_reba.build("mini", "classical", device="cpu").preprocess(["gold"])
    assert "content_ids" not in features


def test_the_first_token_of_the_vocabulary_counts() -> None:
    model = fit(st_reba.build("mini", "classical", device="cpu"))
    token_part: Any = model[-1]
    vectors = torch.ones(3, 192)
    # -1 stands after a text's tokens.
    content_ids = torch.tensor([[0, 5], [5, -1], [5, 5]])
    joined: Any = token_part({"sentence_embedding": vectors, "content_ids": content_ids})
    first, second, third = joined["sentence_embedding"]
    assert torch.equal(second, third)
    assert not torch.equal(first, second)


def test_a_part_in_16_bits_computes_in_32() -> None:
    """But for what its buffers lose, and the vectors that it gives."""
    generator = torch.Generator().manual_seed(0)
    token_part = TokenPart(2, 5, 3, 2, share=0.4)
    for buffer in token_part.buffers():
        buffer.copy_(torch.randn(buffer.shape, generator=generator).bfloat16())
    vectors = torch.randn(4, 2, generator=generator).bfloat16()
    means = torch.randn(4, 3, generator=generator)
    expected = token_part.join(vectors.float(), means, "query")
    joined = token_part.bfloat16().join(vectors, means, "query")
    assert torch.equal(joined, expected.bfloat16())


@pytest.mark.parametrize("features", [{}, {"content_ids": torch.tensor([[1, -1]])}])
def test_a_module_without_embeddings_is_refused(features: dict[str, Tensor]) -> None:
    with pytest.raises(ValueError, match="no tokens of the texts are there"):
        TokenPart(2, 5, 3, 2, share=0.4)({"sentence_embedding": torch.ones(1, 2), **features})


def test_tokens_that_are_missing_are_refused() -> None:
    token_part: Any = fit(st_reba.build("mini", "classical", device="cpu"))[-1]
    with pytest.raises(ValueError, match="no tokens of the texts are there"):
        token_part({"sentence_embedding": torch.ones(1, 192)})


CHANGES = {
    "a share of nothing": ('"share": 0.4', '"share": 0', "share=0 must be a number"),
    "a share that is a text": ('"share": 0.4', '"share": "0.4"', r"a wrong type \(TypeError"),
    "too many dimensions": (
        '"in_features": 192',
        '"in_features": 10000000000',
        "is not a value of a TokenPart",
    ),
    "other weights": ('"dimensions": 192', '"dimensions": 100000', "configuration asks for"),
}


@pytest.mark.parametrize("case", CHANGES)
def test_a_changed_configuration_is_refused(tmp_path: Path, case: str) -> None:
    fit(st_reba.build("mini", "classical", device="cpu")).save_pretrained(str(tmp_path))
    (config_path,) = tmp_path.glob("*_TokenPart/config.json")
    old, new, message = CHANGES[case]
    saved = config_path.read_text(encoding="utf-8")
    assert old in saved
    config_path.write_text(saved.replace(old, new), encoding="utf-8")
    with pytest.raises((ValueError, TypeError), match=message):
        st_reba.load(tmp_path)


def test_embeddings_that_it_was_not_fitted_for_are_refused(
    short_model: SentenceTransformer,
) -> None:
    for wrong_sizes in ({"vocabulary_size": 9}, {"embedding_width": 9}):
        sizes = {"vocabulary_size": len(short_model.tokenizer), "embedding_width": 192}
        token_part = TokenPart(192, **{**sizes, **wrong_sizes}, dimensions=2, share=0.4)
        with pytest.raises(ValueError, match="Fit the filter again"):
            token_part.on_model_ready(short_model)
    with pytest.raises(ValueError, match="Identity hands on no tokens"):
        token_part.on_model_ready([torch.nn.Identity()])


def test_a_model_that_keeps_the_input_of_its_base_is_refused() -> None:
    model: Any = st_reba.build("mini", "nosink", setting="baseline", check=False)
    token_part = TokenPart(192, len(model.tokenizer), 192, dimensions=2, share=0.4)
    token_part.on_model_ready(model)
    model[0].own_input = True
    with pytest.raises(ValueError, match="NoSinkTransformer hands on no tokens"):
        token_part.on_model_ready(model)
