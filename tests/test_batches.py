"""Batches by token budget: what each holds, how much of it is padding, and how long a text is."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from architectures import TOKENIZERS
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Pooling, StaticEmbedding, Transformer

import st_reba
from st_reba.batches import (
    DEFAULT_BATCH_TOKENS,
    FREE_PADDING,
    MAX_PADDING,
    check_sizes,
    position_counts,
    sized_batches,
    token_batches,
)

Base = Callable[..., str]
STS = Path(__file__).parents[2] / "shared" / "data" / "sts" / "cnsd-sts-test.txt"


def padding_of(lengths: Sequence[int], batch: Sequence[int]) -> tuple[int, int]:
    """How many positions a batch takes, and how many of them are padding."""
    padded = len(batch) * max(lengths[index] for index in batch)
    return padded, padded - sum(lengths[index] for index in batch)


def padding_share(lengths: Sequence[int], batches: Sequence[Sequence[int]]) -> float:
    """The share of padding among all positions that batches take."""
    padded, padding = zip(*(padding_of(lengths, batch) for batch in batches), strict=True)
    return sum(padding) / sum(padded)


def lengths_of(seed: int, count: int) -> list[int]:
    """Short texts and long ones, as a corpus has them: log-normal, a median of 40 positions and a long tail."""
    source = random.Random(seed)
    return [max(1, round(source.lognormvariate(3.7, 1))) for _ in range(count)]


@pytest.mark.parametrize("max_padding", [0, MAX_PADDING, 1])
@pytest.mark.parametrize("budget", [1, 100, 1000, 8192])
@pytest.mark.parametrize("count", [1, 2, 700])
def test_every_batch(count: int, budget: int, max_padding: float) -> None:
    lengths = lengths_of(count, count)
    batches = token_batches(lengths, budget, max_padding=max_padding)
    order = [index for batch in batches for index in batch]
    assert sorted(order) == list(range(count))
    assert [lengths[index] for index in order] == sorted(lengths, reverse=True)
    for batch in batches:
        padded, padding = padding_of(lengths, batch)
        assert len(batch) == 1 or padded <= budget
        assert padding <= max(FREE_PADDING, max_padding * padded)
    # None ends early: with one more text it would break a bound.
    for batch, following in zip(batches, batches[1:], strict=False):
        padded, padding = padding_of(lengths, [*batch, following[0]])
        assert padded > budget or padding > max(FREE_PADDING, max_padding * padded)


def test_corner_cases() -> None:
    assert token_batches([], 10) == []
    assert token_batches([11, 4, 11, 4], 10) == [[0], [2], [1, 3]]
    assert token_batches([5] * 7, 10) == [[0, 1], [2, 3], [4, 5], [6]]
    # Texts without positions do not fill a batch without end.
    assert [len(batch) for batch in token_batches([0] * 25, 10)] == [10, 10, 5]
    # 200 of 4,000 positions are padding: a twentieth is allowed, more is not.
    assert token_batches([1000, 1000, 1000, 800], 4000) == [[0, 1, 2, 3]]
    assert token_batches([1000, 1000, 1000, 799], 4000) == [[0, 1, 2], [3]]
    # 64 positions are less than a further pass costs.
    assert token_batches([100, 100, 36], 400) == [[0, 1, 2]]
    assert token_batches([100, 100, 35], 400) == [[0, 1], [2]]


def test_sizes() -> None:
    lengths = lengths_of(3, 400)
    assert sized_batches(lengths, None, 500) == token_batches(lengths, 500) != token_batches(lengths, 4096)
    assert sized_batches(lengths, None, None) == token_batches(lengths, DEFAULT_BATCH_TOKENS)
    # Realistic lengths do not run one by one, and waste little.
    assert padding_share(lengths, token_batches(lengths, DEFAULT_BATCH_TOKENS)) < 0.06
    assert len(token_batches(lengths, DEFAULT_BATCH_TOKENS)) <= 400 / 3
    by_size = sized_batches(lengths, 7, None)
    assert [len(batch) for batch in by_size] == [7] * 57 + [1]
    assert [lengths[index] for batch in by_size for index in batch] == sorted(lengths, reverse=True)
    for bad in (0, -1, 1.5, "8", True):
        wrong: Any = bad
        for call in (check_sizes, lambda *sizes: sized_batches([1, 2], *sizes)):
            with pytest.raises(ValueError, match=rf"batch_tokens={bad!r} must be a whole number from 1 on"):
                call(None, wrong)
            with pytest.raises(ValueError, match=rf"batch_size={bad!r} must be a whole number from 1 on"):
                call(wrong, None)
    with pytest.raises(ValueError, match="batch_size=8 and batch_tokens=512 exclude each other"):
        sized_batches([1], 8, 512)


def test_padding_of_real_texts() -> None:
    """Real sentences and some long texts, by the true number of positions; characters waste a fifth and more."""
    if not STS.is_file():
        pytest.skip("cnsd-sts-test.txt is not on this machine: its sentences are not batched here")
    pairs = [line.split("||")[1:3] for line in STS.read_text(encoding="utf-8").splitlines()]
    texts = [text for pair in pairs for text in pair][:1000]
    texts += [" ".join(texts[start : start + 1 + start % 17]) for start in range(0, 240, 10)]
    model = st_reba.build("mini")
    lengths = [int(model.preprocess([text])["attention_mask"].sum()) for text in texts]
    assert position_counts(model, texts) == lengths
    order = sorted(range(len(texts)), key=lambda index: -len(texts[index]))
    by_characters = [order[start : start + 32] for start in range(0, len(order), 32)]
    batches = token_batches(lengths, DEFAULT_BATCH_TOKENS)
    assert padding_share(lengths, batches) < 0.06 < 0.15 < padding_share(lengths, by_characters)
    assert len(batches) <= len(by_characters)


TEXTS = [
    "他在银行取了钱，then went home.",
    "",
    "天",
    "The bank of the river is steep. " * 40,
    " ",
    "a\ud800b",
    "</s> is text",
    *[f"{'很' * (number * 13 % 90)} number {number}" for number in range(60)],
]
INSTRUCTED = {"template": "echo-instruct"}
LAYOUTS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "prompt": ("reba", {"template": "{text} {text} {text}"}, {"prompt": "Query: "}),
    "nosink": ("nosink", {"setting": "mask0-bidir", "k": 1}, {}),
    "query": ("echo", INSTRUCTED, {"task": "query", "instruction": "Find the answer."}),
    "instruction": ("echo", INSTRUCTED, {"task": "query", "prompt": "Find it, quickly."}),
    "document": ("echo", {**INSTRUCTED, "instruction": "Find."}, {"task": "document"}),
    "placeholder": ("classical", {"stages": [st_reba.Prepend(1)]}, {}),
    "cut": ("reba", {"max_seq_length": 50}, {}),
    "halved": ("reba", {"max_seq_length": 50, "compute_matched": True}, {"prompt": "Q: "}),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_positions_of_copies(base: Base, name: str) -> None:
    """Exactly those of the model's input, whatever stands around the copies and however they are cut."""
    method, options, given = LAYOUTS[name]
    for path in (base("llama", "bos_eos"), base("mini")):
        model = st_reba.build(path, method, **options)
        wanted = [int(model.preprocess([text], **given)["attention_mask"].sum()) for text in TEXTS]
        assert position_counts(model, TEXTS, **given) == wanted
        assert (max(wanted) <= 50) == (name in ("cut", "halved"))
    assert position_counts(model, [], **given) == []
    if name == "query":
        with pytest.raises(ValueError, match="needs a value for {instruction}"):
            position_counts(model, ["a"], task="query")


def test_positions_of_an_ensemble() -> None:
    """Every row of a text counts, padded to the longest."""
    model = st_reba.build("mini", "prompteol", stages=[st_reba.Ensemble("metaeol")])
    wanted = [model.preprocess([text])["attention_mask"].numel() for text in TEXTS]
    assert position_counts(model, TEXTS) == wanted


def test_positions_of_other_models(base: Base) -> None:
    """Of any model: what its own tokenizer makes of each text; None of a bag of words, which has no padding."""
    transformer = Transformer(base("llama", "bos_eos"), max_seq_length=64)
    tokenizer = transformer.tokenizer
    tokenizer.pad_token = tokenizer.eos_token
    plain = SentenceTransformer(modules=[transformer, Pooling(32, "mean")], device="cpu")
    adopted = st_reba.DecoderTransformer.adopt(transformer, [st_reba.LayerPlan(kind="bidirectional", k="all")])
    texts = [text for text in TEXTS if "\ud800" not in text]
    for model in (plain, SentenceTransformer(modules=[adopted, Pooling(32, "mean")], device="cpu")):
        for prompt in (None, "Query: "):
            tokens = tokenizer([(prompt or "") + text for text in texts])["input_ids"]
            wanted = [min(64, len(ids)) for ids in tokens]
            assert position_counts(model, texts, prompt=prompt, task="query") == wanted
            assert len(set(wanted)) > 20 and max(wanted) == 64
    short = position_counts(plain, texts, processing_kwargs={"text": {"max_length": 9, "truncation": True}})
    assert short is not None and max(short) == 9 and position_counts(plain, []) == []
    static = StaticEmbedding(TOKENIZERS["plain"]().backend_tokenizer, embedding_dim=8)
    assert position_counts(SentenceTransformer(modules=[static], device="cpu"), texts) is None
