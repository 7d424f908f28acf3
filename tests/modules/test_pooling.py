"""ReBA, whole and by pieces, Echo, classical and PromptEOL against the float64 oracle, in a batch of mixed lengths."""

from __future__ import annotations

from functools import cache
from itertools import product
from typing import Any

import pytest
import reference
import torch
from marks import Base
from oracle import TEXTS, Pieces, assert_close, float64_model, oracle
from pipelines import build, encoded, features_of
from reference import hidden_and_attention, symmetrized_max
from reference_chunked import chunked_pooled, chunked_tokens, cut_into_pieces
from sentence_transformers import SentenceTransformer
from torch import Tensor
from transformers import AutoModel

from st_reba.modules import ChunkedReBAPooling, ReBAPooling, blocks, both_ways, chunks
from st_reba.modules.blocks import ScoreTerms

TWO_COPIES: Pieces = (None, None)
SPECIAL = {"include_special": True}
NORMALIZED = {"normalize_weights": True}
# Base and tokenizer, options of ReBA, pieces of the input, and what the oracle calls the options.
CASES: list[tuple[tuple[str, str], dict[str, Any], Pieces, dict[str, bool]]] = [
    (("gpt2", "plain"), {"repeats": 1}, (None,), {}),
    (("llama", "bos_eos"), {"repeats": 3}, (None, None, None), {}),
    (("gemma2", "cls_sep"), SPECIAL, TWO_COPIES, SPECIAL),
    (("gpt2", "plain"), NORMALIZED, TWO_COPIES, NORMALIZED),
    (
        ("llama", "bos_eos"),
        {"template": "A {text} B {text} C {{}}"},
        ("A ", None, " B ", None, " C {}"),
        {},
    ),
    (
        ("gemma2", "cls_sep"),
        {"template": "{text}{text} 又", **SPECIAL},
        (None, None, " 又"),
        SPECIAL,
    ),
    # Windows alone, sinks, hooks in place of the attention interface, the bundled model.
    (("gemma3_text", "bos"), {}, TWO_COPIES, {}),
    (("gpt_oss", "bos"), {}, TWO_COPIES, {}),
    (("bloom", "bos"), {}, TWO_COPIES, {}),
    (("mini", "bos"), {}, TWO_COPIES, {}),
]


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of a few texts, and some of their queries."""
    monkeypatch.setattr(blocks, "BLOCK_SIZE", 1 << 13)


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize(
    ("base_and_tokenizer", "options", "template_pieces", "oracle_options"),
    CASES,
    ids=str,
)
def test_reba_equals_the_oracle(
    base: Base,
    base_and_tokenizer: tuple[str, str],
    options: dict[str, Any],
    template_pieces: Pieces,
    oracle_options: dict[str, bool],
) -> None:
    path = base(*base_and_tokenizer)
    last_vectors = encoded(build(path, pooling="last", **options))
    mean_model = build(path, pooling="mean", **options)
    mean_vectors = encoded(mean_model)
    token_vectors = mean_model.encode(list(TEXTS), output_value="token_embeddings", batch_size=9)
    for row, text in enumerate(TEXTS):
        text_layout, hidden_states, fused_attention = oracle(path, text, template_pieces)
        expected_tokens = reference.reba_tokens(
            hidden_states, fused_attention, text_layout, **oracle_options
        )
        assert_close(last_vectors[row], expected_tokens[-1])
        assert_close(mean_vectors[row], expected_tokens.mean(dim=0))
        assert_close(token_vectors[row], expected_tokens)


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize(
    ("pooling", "published_pooling"),
    [("last", reference.published_last), ("mean", reference.published_mean)],
)
@pytest.mark.parametrize(
    ("base_name", "tokenizer"),
    [("gpt2", "plain"), ("gpt_oss", "bos_eos"), ("bloom", "cls_sep")],
)
def test_the_authors_count_special_tokens_and_look_both_ways(
    base: Base,
    base_name: str,
    tokenizer: str,
    pooling: Any,
    published_pooling: Any,
) -> None:
    path = base(base_name, tokenizer)
    model = build(path, implementation="authors", pooling=pooling)
    for text, vector in zip(TEXTS, encoded(model), strict=True):
        _, hidden_states, fused_attention = oracle(path, text, TWO_COPIES)
        assert_close(vector, published_pooling(hidden_states, fused_attention))


def test_terms_of_one_of_two_heads() -> None:
    two_heads = torch.rand(1, 2, 3, 3)
    terms = both_ways.terms_of_heads(ScoreTerms(mask=two_heads, bias=two_heads), slice(1, 2))
    for term in (terms.mask, terms.bias):
        assert term is not None and torch.equal(term, two_heads[:, 1:])


@pytest.mark.parametrize("tokenizer", ["plain", "bos_eos", "cls_sep"])
@pytest.mark.parametrize(
    ("pooled", "pooling"),
    [
        ("last_copy", "last"),
        ("last_copy", "mean"),
        ("repeats", "mean"),
        ("last_copy_and_end", "mean"),
        ("end", "mean"),
        ("all", "mean"),
    ],
)
def test_echo_equals_the_oracle(base: Base, tokenizer: str, pooled: Any, pooling: Any) -> None:
    """The end is special tokens but no template words."""
    path = base("llama", tokenizer)
    template_pieces = ("A ", None, " B ", None, None, " C")
    model = build(
        path,
        "echo",
        template="A {text} B {text}{text} C",
        pooling=pooling,
        pooled=pooled,
    )
    for text, vector in zip(TEXTS, encoded(model), strict=True):
        text_layout, hidden_states, _ = oracle(path, text, template_pieces)
        if pooled == "end":
            expected = reference.very_last(hidden_states)
        elif pooled == "all":
            expected = hidden_states.mean(dim=0)
        else:
            expected = reference.echo(hidden_states, text_layout, pooling, pooled)
        assert_close(vector, expected)


def test_prompteol_is_the_very_last_state(base: Base) -> None:
    path = base("llama", "bos")
    template_pieces = ('This sentence: "', None, '" means in one word:"')
    model = build(path, "prompteol")
    for text, vector in zip(TEXTS, encoded(model), strict=True):
        _, hidden_states, _ = oracle(path, text, template_pieces)
        assert_close(vector, reference.very_last(hidden_states))


@pytest.mark.parametrize("options", [{}, {"implementation": "authors"}], ids=str)
def test_pipelines_share_no_transformer(base: Base, options: dict[str, Any]) -> None:
    """The second pipeline's pooling asks for other rows; the first does not give a wrong vector."""
    model = build(base("llama"), **options)
    second_pooling = ReBAPooling(32, "mean")
    assert not second_pooling.include_special
    assert not second_pooling.normalize_weights
    SentenceTransformer(modules=[model[0], second_pooling])
    with pytest.raises(ValueError, match="RepeatTransformer of its own"):
        model.encode("a")


@pytest.mark.parametrize(
    ("base_name", "pooling"),
    [("gpt_oss", "last"), ("llama", "mean"), ("mini", "mean")],
)
def test_bfloat16_rounds_by_less_than_a_thousandth(
    base: Base, base_name: str, pooling: Any
) -> None:
    """8 bits of every number: 1 − cosine to float32, and between a text alone and in a batch."""
    exact_vectors = encoded(build(base(base_name), pooling=pooling))
    model = build(base(base_name), pooling=pooling, dtype="bfloat16")
    assert model.dtype == torch.bfloat16
    batch_vectors = encoded(model).float()
    single_vectors = encoded(model, alone=True).float()
    assert (1 - torch.cosine_similarity(exact_vectors, batch_vectors)).max() <= 1e-3
    assert (1 - torch.cosine_similarity(batch_vectors, single_vectors)).max() <= 1e-3


def test_reba_refuses_attention_that_is_not_the_models_own(base: Base) -> None:
    """Falcon's eager attention counts ALiBi twice."""
    with pytest.raises(ValueError, match="hidden states change"):
        build(base("falcon_alibi"))


def test_echo_runs_the_models_own_attention(base: Base) -> None:
    path = base("falcon_alibi")
    model = build(path, "echo")
    texts = ["他在银行"]
    token_ids = features_of(model, texts)["input_ids"]
    base_model = AutoModel.from_pretrained(path, attn_implementation="sdpa").eval()
    with torch.no_grad():
        output = base_model(token_ids, attention_mask=torch.ones_like(token_ids))
    expected = output.last_hidden_state[0, -1]
    assert_close(encoded(model, texts)[0], expected.double())


CHUNKED_CASES: list[tuple[str, int, dict[str, Any]]] = [
    ("gpt2", 4, {}),
    ("llama", 3, SPECIAL),
    ("llama", 1, NORMALIZED),
    ("gemma2", 7, {"repeats": 3}),
    ("gpt_oss", 64, {}),
    ("llama", 3, NORMALIZED),
]


@pytest.mark.parametrize(("base_name", "chunk", "options"), CHUNKED_CASES, ids=str)
def test_pieces_equal_the_oracle(
    base: Base,
    base_name: str,
    chunk: int,
    options: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = base(base_name, "bos_eos")

    @cache
    def run_model(token_ids: tuple[int, ...]) -> tuple[Tensor, Tensor]:
        hidden_states, attention = hidden_and_attention(float64_model(path), token_ids)
        return hidden_states, symmetrized_max(attention)

    monkeypatch.setattr(chunks, "_POSITIONS", 64)  # several passes
    last_vectors = encoded(build(path, pooling="last", chunk=chunk, **options))
    mean_model = build(path, pooling="mean", chunk=chunk, **options)
    mean_vectors = encoded(mean_model)
    token_vectors = token_vectors_of(mean_model)
    weight_options = {name: value for name, value in options.items() if name != "repeats"}
    copy_count = options.get("repeats", 2)
    for row, text in enumerate(TEXTS):
        text_layout, _, _ = oracle(path, text, (None,))
        expected_tokens = chunked_tokens(
            run_model, text_layout, chunk, copy_count, **weight_options
        )
        assert_close(last_vectors[row], chunked_pooled(expected_tokens, "last"))
        assert_close(mean_vectors[row], chunked_pooled(expected_tokens, "mean"))
        assert_close(token_vectors[row][: text_layout.n], expected_tokens)


def token_vectors_of(model: Any) -> Tensor:
    transformer, pooling, *_ = model
    with torch.inference_mode():
        features = transformer(features_of(model), capture=pooling.token_capture)
        token_vectors: Tensor = pooling.token_vectors(features)
    return token_vectors


@pytest.mark.parametrize(("base_name", "chunk", "options"), CHUNKED_CASES, ids=str)
def test_last_pooling_runs_the_last_pieces_alone(
    base: Base, base_name: str, chunk: int, options: dict[str, Any]
) -> None:
    transformer, pooling, *_ = build(
        base(base_name, "bos_eos"), pooling="last", chunk=chunk, **options
    )
    features = dict(transformer.preprocess(list(TEXTS)))
    with torch.inference_mode():
        token_vectors = pooling.token_vectors(transformer(features))
    assert token_vectors.shape[1] == 1


def test_pieces_may_not_need_more_positions_than_there_are(base: Base) -> None:
    """Those of the longest, wherever its text stands."""
    model: Any = build(base("llama"), chunk=20, check=False)
    features = features_of(model, ["a", "x y z"])
    needed_positions = 1 + 2 * features["spans"][1].text_length
    model[0].config.max_position_embeddings = needed_positions
    model(dict(features))
    model[0].config.max_position_embeddings = needed_positions - 1
    with pytest.raises(ValueError, match="chunk=20"):
        model(dict(features))


def test_a_text_is_cut_as_in_the_reference() -> None:
    for token_count, chunk in product(range(1, 40), range(1, 12)):
        starts = [piece.start for piece in cut_into_pieces(token_count, chunk)]
        assert chunks.chunk_bounds(token_count, chunk) == [*starts, token_count]


def test_pieces_have_two_copies_unless_told_otherwise() -> None:
    assert ChunkedReBAPooling(32, chunk=4).repeats == 2
    for repeats in (1, 64):
        assert ChunkedReBAPooling(32, chunk=4, repeats=repeats).repeats == repeats
    with pytest.raises(ValueError, match="repeats=65"):
        ChunkedReBAPooling(32, chunk=4, repeats=65)
