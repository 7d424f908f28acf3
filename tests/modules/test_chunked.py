"""Chunked ReBA against its float64 oracle, what runs for it, and what is refused."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any

import pytest
import torch
from marks import slow_but
from oracle import TEXTS, assert_close, double, loaded
from pipelines import encoded, features_of, pipeline, sentences, transformer
from reference import Layout, hidden_and_attention, layout, symmetrized_max
from reference_chunked import Run, chunked_pooled, chunked_tokens, cut
from sentence_transformers import SentenceTransformer
from torch import Tensor

import st_reba
from st_reba import ChunkedReBAPooling, NoSink, Prepend, RepeatTransformer, encode_words
from st_reba.modules import chunked
from st_reba.modules.capture import Capture

Base = Callable[..., str]
NAMES = ["llama", "gpt2", "mistral", "gemma2", "falcon", "mini", "stories260K"]
ALL = (*TEXTS, "The bank of the river is steep. 他在银行取了钱。 She put her money there.")
POOLINGS: Any = ("last", "mean")


@lru_cache(maxsize=4096)
def run(base: str, ids: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    hidden, attention = hidden_and_attention(double(base), ids)
    return hidden, symmetrized_max(attention)


def placed(base: str, text: str, pieces: tuple[str | None, ...] = (None,)) -> Layout:
    return layout(loaded(base)[1], text, list(pieces))


@lru_cache(maxsize=512)
def wanted(
    base: str, text: str, chunk: int, k: int = 2, pieces: tuple[str | None, ...] = (None,), **kw: bool
) -> Tensor:
    """The oracle's e_i."""
    runs: Run = partial(run, base)
    return chunked_tokens(runs, placed(base, text, pieces), chunk, k, **kw)


def tokens(model: SentenceTransformer, **kw: Any) -> list[Tensor]:
    return list(model.encode(list(ALL), batch_size=len(ALL), output_value="token_embeddings", **kw))


@pytest.fixture
def lengths(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """The shape [B, T] of every forward pass from here on."""
    shapes: list[tuple[int, int]] = []
    forward = RepeatTransformer.forward

    def noted(self: RepeatTransformer, features: dict[str, Any], **kw: Any) -> dict[str, Any]:
        shapes.append(tuple(features["input_ids"].shape))
        return forward(self, features, **kw)

    monkeypatch.setattr(RepeatTransformer, "forward", noted)
    return shapes


# Numbers


@pytest.mark.parametrize("chunk", slow_but([1, 3, 8, 80], 3, 80))
@pytest.mark.parametrize("name", slow_but(NAMES, "llama", "gpt2"))
def test_exact(base: Base, name: str, chunk: int) -> None:
    """last, mean and token vectors, in a batch of mixed lengths and alone; one piece is plain ReBA."""
    path = base(name)
    oracle = [wanted(path, text, chunk) for text in ALL]
    counts = {math.ceil(len(one) / chunk) for one in oracle}
    assert counts == {1} if chunk == 80 else max(counts) > 3 <= len(counts)
    for pooling in POOLINGS:
        model = pipeline(path, pooling=pooling, chunk=chunk)
        for got, one in zip(encoded(model, ALL), oracle, strict=True):
            assert_close(got, chunked_pooled(one, pooling))
        assert_close(encoded(model, ALL[-1:])[0], chunked_pooled(oracle[-1], pooling))
        if chunk == 80:
            # A causal decoder's copy 1 sees what the text alone sees, so that v'_i = v_i.
            for got, one in zip(encoded(model, ALL), encoded(pipeline(path, pooling=pooling), ALL), strict=True):
                assert_close(got, one.double())
    for got, one in zip(tokens(model), oracle, strict=True):
        assert_close(got, one)


@pytest.mark.parametrize("tokenizer", ["plain", "bos_eos"])
@pytest.mark.parametrize(
    "options", [{"k": 1}, {"k": 3}, {"include_special": True}, {"normalize_weights": True}], ids=str
)
def test_options(base: Base, tokenizer: str, options: dict[str, Any]) -> None:
    path = base("llama", tokenizer)
    oracle = [wanted(path, text, 5, **options) for text in ALL]
    given = {"repeats" if name == "k" else name: value for name, value in options.items()}
    for pooling in POOLINGS:
        model = pipeline(path, pooling=pooling, chunk=5, **given)
        for got, one in zip(encoded(model, ALL), oracle, strict=True):
            assert_close(got, chunked_pooled(one, pooling))
    for got, one in zip(tokens(model), oracle, strict=True):
        assert_close(got, one)


def test_prompt_and_template_stand_around_each_piece(base: Base) -> None:
    path = base("qwen2", "bos_eos")
    cases: list[tuple[dict[str, Any], dict[str, Any], tuple[str | None, ...]]] = [
        ({}, {"prompt": "Query: "}, ("Query: ", None)),
        ({"template": "Find: {text} End"}, {}, ("Find: ", None, " End")),
        ({"template": "{instruction}: {text}"}, {"prompt": "Find"}, ("Find: ", None)),
    ]
    for options, call, pieces in cases:
        model = pipeline(path, pooling="mean", chunk=4, **options)
        for text, got, one in zip(ALL, encoded(model, ALL, **call), tokens(model, **call), strict=True):
            oracle = wanted(path, text, 4, pieces=pieces)
            assert_close(got, chunked_pooled(oracle, "mean"))
            assert_close(one, oracle)


@pytest.mark.parametrize("setting", ["inplace-bidir", "mask0-bidir", "inter-back"])
def test_one_piece_of_a_converted_model(base: Base, setting: Any) -> None:
    """Where layers look ahead, ReBA-2 comes out but for the diagonal, which weighs v_i of the first pass, not v'_i."""
    path, stages = base("llama"), [NoSink(setting, k=1)]
    plain, model = (pipeline(path, stages=stages, chunk=chunk) for chunk in (None, 80))
    for text, got, one in zip(ALL, tokens(model), tokens(plain), strict=True):
        with torch.inference_mode():
            repeated = plain[0](features_of(plain, [text]), watch=[Capture("copy")])
            alone = model[0](features_of(model, [text]))
        here = (repeated["copy_ids"][0] == 1).nonzero()[:, 0]
        diagonal = repeated["backward_attention"][0, torch.arange(len(here)), here]
        change = alone["token_embeddings"][0, alone["copy_ids"][0] == 1] - repeated["token_embeddings"][0, here]
        assert change.abs().max() > 0.01
        assert_close(got, (one + diagonal[:, None] * change).double())


@pytest.mark.parametrize(("chunk", "pooling"), [(3, "last"), (20, "mean")])
def test_bfloat16(chunk: int, pooling: str) -> None:
    exact = encoded(pipeline("mini", pooling=pooling, chunk=chunk))
    model = pipeline("mini", pooling=pooling, chunk=chunk, dtype="bfloat16")
    together, alone = encoded(model).float(), encoded(model, alone=True).float()
    assert (1 - torch.cosine_similarity(exact, together)).max() <= 1e-3
    assert (1 - torch.cosine_similarity(together, alone)).max() <= 1e-3


@pytest.mark.parametrize("chunk", [1, 4, 80])
@pytest.mark.parametrize("normalize", [False, True])
def test_words(chunk: int, normalize: bool) -> None:
    """A word is the mean of its e_i, in one piece or across two."""
    text = ALL[-1]
    offsets = loaded("mini")[1](text, add_special_tokens=False, return_offsets_mapping=True)["offset_mapping"]
    oracle = wanted("mini", text, chunk, normalize_weights=normalize)
    bounds = [piece.start for piece in cut(len(oracle), chunk)]
    spans = ((0, 1), (2, 6), (1, 9), (len(offsets) - 2, len(offsets)))
    items = [(text, (offsets[first][0], offsets[last - 1][1])) for first, last in spans]
    across = {sum(first < start < last for start in bounds) for first, last in spans}
    assert across >= ({0} if chunk == 80 else {0, 1})
    model = pipeline("mini", pooling="mean", chunk=chunk)
    for batch_size in (1, 4):
        vectors = encode_words(model, items, batch_size=batch_size, normalize=normalize)
        for got, (first, last) in zip(vectors, spans, strict=True):
            assert_close(got, oracle[first:last].mean(dim=0))


@pytest.mark.parametrize("pooling", POOLINGS)
def test_a_text_that_is_not_finite(base: Base, pooling: str) -> None:
    """It is named wherever the fault is: in its own run, or in a piece's alone."""
    path = base("gpt2", "plain")
    model: Any = pipeline(path, pooling=pooling, chunk=3)
    with torch.no_grad():
        model[0].model.wte.weight[model[0].content([ALL[3]])["input_ids"][0][-1]] = float("nan")
    with pytest.raises(ValueError, match="NaN or infinity.*'hi'"):
        encoded(model, ALL)
    # Beyond the positions of the text's own run, within those of its only piece.
    model = pipeline(path, pooling=pooling, chunk=80)
    with torch.no_grad():
        model[0].model.wpe.weight[len(model[0].content([ALL[2]])["input_ids"][0])] = float("nan")
    with pytest.raises(ValueError, match="NaN or infinity.*'The bank of the river"):
        model.encode(ALL[2])
    assert bool(model.encode("A").any())


# What runs


def test_cuts() -> None:
    """As few pieces as can be, of sizes that differ by one at most, the last among the largest."""
    for count in range(1, 60):
        for chunk in (1, 2, 3, 7, 8, 59, 100):
            bounds = chunked.cuts(count, chunk)
            sizes = [stop - start for start, stop in zip(bounds, bounds[1:], strict=False)]
            assert bounds[0] == 0 and bounds[-1] == count and len(sizes) == math.ceil(count / chunk)
            assert chunk >= max(sizes) == sizes[-1] <= min(sizes) + 1


def test_only_what_is_needed_runs(lengths: list[tuple[int, int]]) -> None:
    """last and words run the pieces that they need; mean runs all; nobody runs the text twice."""
    last, mean = (pipeline("mini", pooling=pooling, chunk=10) for pooling in POOLINGS)
    text = "银行的利率又下调了，投资者很担心。" * 20
    count = len(mean[0].content([text])["input_ids"][0])
    sizes = [len(piece) for piece in cut(count, 10)]
    last.encode(text)
    assert lengths == [(1, count + 1), (1, 2 * sizes[-1] + 1)]
    lengths.clear()
    mean.encode(text)
    assert lengths == [(1, count + 1), (len(sizes), 2 * max(sizes) + 1)]
    lengths.clear()
    encode_words(mean, [(text, (0, 2)), (text, (0, 1))])
    assert lengths == [(1, count + 1), *[(1, 2 * sizes[0] + 1)] * 2]


def test_positions_of_a_pass_are_bounded(monkeypatch: pytest.MonkeyPatch, lengths: list[tuple[int, int]]) -> None:
    """Pieces run in batches of at most so many positions, or one by one, the longest first, to equal effect."""
    model = pipeline("mini", pooling="mean", chunk=7)
    usual = encoded(model, ALL), tokens(model)
    for bound in (1, 40):
        monkeypatch.setattr(chunked, "POSITIONS", bound)
        lengths.clear()
        for got, one in zip(encoded(model, ALL), usual[0], strict=True):
            assert_close(got, one.double())
        passes = lengths[1:]
        assert passes == sorted(passes, key=lambda shape: -shape[1])
        assert all(rows == 1 or rows * positions <= bound for rows, positions in passes)
        assert bound == 1 or max(rows for rows, _ in passes) == 40 // 11
        for got, one in zip(tokens(model), usual[1], strict=True):
            assert_close(got, one.double())


def test_long_texts_keep_their_tokens() -> None:
    """max_seq_length bounds one copy of the text, not two."""
    model: Any = pipeline("mini", pooling="mean", chunk=16, max_seq_length=101)
    assert model[0].budget() == 100
    ids = model[0].preprocess(["cat " * 300])["copy_ids"]
    assert ids.shape == (1, 101) and int(ids.sum()) == 100
    word = "cat " * 35
    assert float((encoded(model, [word + "bank " * 5]) - encoded(model, [word + "fish " * 5])).abs().max()) > 1e-4


def test_copies_of_a_model(base: Base) -> None:
    """A deep copy runs its own pieces, and learns in both passes; changed stages are changed for the pieces too."""
    model: Any = pipeline(base("llama"), pooling="mean", chunk=4)
    before = encoded(model, ALL)
    twin = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in model[0].parameters():
            parameter.zero_()
    assert torch.equal(encoded(twin, ALL), before)
    twin.train()
    sentences(twin, features_of(twin, ALL)).sum().backward()
    assert all(each.grad is not None and bool(each.grad.any()) for each in twin.parameters())
    stages = [NoSink("mask0-bidir", k=1)]
    twin.eval()[0].rebind(stages)
    assert torch.equal(
        encoded(twin, ALL), encoded(pipeline(base("llama"), stages=stages, pooling="mean", chunk=4), ALL)
    )


# What is refused


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"chunk": 0}, ["chunk=0", "1"]),
        ({"chunk": True}, ["chunk=True", "whole number"]),
        ({"chunk": 8, "variant": "published"}, ["chunk=8", "variant='paper'", "'published'"]),
        ({"chunk": 8, "compute_matched": True}, ["chunk=8", "compute_matched=False"]),
        ({"chunk": 8, "pooling": "cls"}, ["pooling='cls'", "last", "mean"]),
        ({"chunk": 8, "template": "echo"}, ["chunk=8", "2 copies", "one {text} slot"]),
        ({"chunk": 8, "stages": [Prepend(1)]}, ["prepend", "(chunk)"]),
        ({"chunk": 512}, ["chunk=512", "1025", "max_seq_length=1024", "chunk=511"]),
        ({"chunk": 50, "repeats": 3, "max_seq_length": 100}, ["chunk=50", "3 copies", "151", "chunk=33"]),
        ({"chunk": 1, "repeats": 9, "max_seq_length": 8}, ["chunk=1", "10 positions", "Shorten"]),
    ],
    ids=str,
)
def test_refused(options: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(ValueError) as error:
        st_reba.build("mini", check=False, device="cpu", **options)
    assert [word for word in words if word not in str(error.value)] == []


def test_the_largest_piece_fits() -> None:
    model = pipeline("mini", chunk=511, pooling="mean")
    assert model.encode("cat " * 900).shape == (192,)
    with pytest.raises(ValueError, match="chunk=511: 2 copies .* 6 special.* 1028 positions.*max_seq_length=1024"):
        model.encode("cat", prompt="cat cat ")
    model.max_seq_length = 100
    with pytest.raises(ValueError, match="chunk=511.*max_seq_length=100.*chunk=49 or less"):
        model.encode("cat")


def test_pipelines_that_do_not_fit() -> None:
    with pytest.raises(ValueError, match="chunk=8: .*lays out 2 copies.*repeats=1"):
        SentenceTransformer(modules=[transformer("mini"), ChunkedReBAPooling(192, 8)], device="cpu")
    once = transformer("mini", "classical")
    with pytest.raises(ValueError, match="embedding_dimension=100.*192"):
        SentenceTransformer(modules=[once, ChunkedReBAPooling(100, 8)], device="cpu").encode("hi")
    with pytest.raises(ValueError, match="RepeatTransformer there and hand both.*together"):
        ChunkedReBAPooling(192, 8)(once(dict(once.preprocess(["hi"]))))
