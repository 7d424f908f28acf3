"""Batches by token budget: what each holds, how much of it is padding, and how long a text is."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from architectures import TOKENIZERS
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Pooling, StaticEmbedding, Transformer

import st_reba
from st_reba.batches import (
    DEFAULT_BATCH_TOKENS,
    MAX_PADDING,
    check_sizes,
    padding_share,
    position_counts,
    sized_batches,
    token_batches,
)
from st_reba.cli.options import BATCH_TOKENS

Base = Callable[..., str]
STS = Path(__file__).parents[2] / "shared" / "data" / "sts" / "cnsd-sts-test.txt"


def lengths_of(seed: int, count: int) -> list[int]:
    """Short texts and long ones, as a corpus has them: log-normal, a median of 40 positions and a long tail."""
    source = random.Random(seed)
    return [max(1, round(source.lognormvariate(3.7, 1))) for _ in range(count)]


@pytest.mark.parametrize("max_padding", [0, 0.05, 0.3, 1])
@pytest.mark.parametrize("budget", [1, 100, 1000, 8192])
@pytest.mark.parametrize("count", [1, 2, 50, 700])
def test_every_batch(count: int, budget: int, max_padding: float) -> None:
    lengths = lengths_of(count, count)
    batches = token_batches(lengths, budget, max_padding=max_padding)
    order = [index for batch in batches for index in batch]
    assert sorted(order) == list(range(count))
    assert [lengths[index] for index in order] == sorted(lengths, reverse=True)
    for batch in batches:
        assert len(batch) == 1 or len(batch) * max(lengths[index] for index in batch) <= budget
        assert padding_share(lengths, [batch]) <= max_padding + 1e-12
    # None ends early: with one more text it would break a bound.
    for batch, following in zip(batches, batches[1:], strict=False):
        more = [*batch, following[0]]
        share = padding_share(lengths, [more])
        assert len(more) * lengths[batch[0]] > budget or share > max_padding - 1e-12


def test_corner_cases() -> None:
    assert token_batches([], 10) == []
    assert token_batches([7], 10) == [[0]]
    assert token_batches([11, 4, 11, 4], 10) == [[0], [2], [1, 3]]
    assert token_batches([5] * 7, 10) == [[0, 1], [2, 3], [4, 5], [6]]
    assert token_batches([5] * 7, 35, max_padding=0) == [list(range(7))]
    # Texts without positions do not fill a batch without end.
    assert [len(batch) for batch in token_batches([0] * 25, 10)] == [10, 10, 5]
    # 20 of 400 positions are padding: a twentieth is allowed, more is not.
    assert token_batches([100, 100, 100, 80], 400) == [[0, 1, 2, 3]]
    assert token_batches([100, 100, 100, 79], 400) == [[0, 1, 2], [3]]


def test_padding_share() -> None:
    assert padding_share([], []) == padding_share([0, 0], [[0, 1]]) == 0
    assert padding_share([10, 10, 10], [[0, 1, 2]]) == 0
    assert padding_share([10, 5, 2, 2], [[0, 1], [2, 3], []]) == pytest.approx(5 / 24)


@pytest.mark.parametrize("budget", [2048, DEFAULT_BATCH_TOKENS, 8192, 65536])
@pytest.mark.parametrize("count", [100, 1024, 5000])
def test_padding_of_realistic_lengths(count: int, budget: int) -> None:
    """Under a twentieth, which the budget alone would pass; yet the texts do not run one by one."""
    assert MAX_PADDING == 0.05
    lengths = lengths_of(1, count)
    batches = token_batches(lengths, budget)
    assert 0 < padding_share(lengths, batches) < 0.05
    assert len(batches) <= max(count / 3, sum(lengths) / budget)
    if budget >= 8192 and count <= 1024:
        assert padding_share(lengths, token_batches(lengths, budget, max_padding=1)) > 0.15


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
    assert padding_share(lengths, by_characters) > 0.15
    batches = token_batches(lengths, DEFAULT_BATCH_TOKENS)
    assert padding_share(lengths, batches) < 0.05
    assert len(batches) <= len(by_characters)


def test_sizes() -> None:
    lengths = lengths_of(3, 400)
    assert sized_batches(lengths, None, 500) == token_batches(lengths, 500) != token_batches(lengths, 4096)
    assert sized_batches(lengths, None, None) == token_batches(lengths, DEFAULT_BATCH_TOKENS)
    by_size = sized_batches(lengths, 7, None)
    assert [len(batch) for batch in by_size] == [7] * 57 + [1]
    order = [index for batch in by_size for index in batch]
    assert sorted(order) == list(range(400))
    assert [lengths[index] for index in order] == sorted(lengths, reverse=True)


@pytest.mark.parametrize("bad", [0, -1, 1.5, "8", True])
def test_bad_sizes(bad: Any) -> None:
    for call in (
        lambda: check_sizes(None, bad),
        lambda: sized_batches([1, 2], None, bad),
        lambda: token_batches([1, 2], bad),
    ):
        with pytest.raises(ValueError, match=rf"batch_tokens={bad!r} must be a whole number from 1 on"):
            call()
    with pytest.raises(ValueError, match=rf"batch_size={bad!r} must be a whole number from 1 on"):
        check_sizes(bad, None)
    for size in (check_sizes, lambda *sizes: sized_batches([1], *sizes)):
        with pytest.raises(ValueError, match="batch_size=8 and batch_tokens=512 exclude each other"):
            size(8, 512)


def test_the_command_line_tells_the_same_default() -> None:
    assert BATCH_TOKENS == DEFAULT_BATCH_TOKENS


TEXTS = [
    "他在银行取了钱，then went home.",
    "",
    "天",
    "The bank of the river is steep. " * 40,
    " ",
    "a\ud800b",
    "</s> is text",
    "The bank of the river is steep.",
    *[f"{'很' * (number * 13 % 90)} number {number}" for number in range(90)],
]

LAYOUTS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "reba": ({}, {}),
    "prompt": ({"repeats": 3, "separator": " "}, {"prompt": "Query: "}),
    "classical": ({"method": "classical"}, {}),
    "nosink": ({"method": "nosink", "setting": "mask0-bidir", "k": 1}, {"prompt": "Text: "}),
    "template": ({"method": "echo", "template": "echo"}, {"task": "document"}),
    "query": ({"method": "echo", "template": "echo-instruct"}, {"task": "query", "instruction": "Find the answer."}),
    "instruction": ({"method": "echo", "template": "echo-instruct"}, {"task": "query", "prompt": "Find it, quickly."}),
    "document": ({"method": "echo", "template": "echo-instruct", "instruction": "Find."}, {"task": "document"}),
    "cut": ({"max_seq_length": 50}, {}),
    "halved": ({"max_seq_length": 50, "compute_matched": True}, {"prompt": "Q: "}),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_positions_of_copies(base: Base, name: str) -> None:
    """Exactly those of the model's input, whatever stands around the copies and however they are cut."""
    options, given = LAYOUTS[name]
    for path in (base("llama", "bos_eos"), base("mini")):
        model = st_reba.build(path, **options)
        wanted = [int(model.preprocess([text], **given)["attention_mask"].sum()) for text in TEXTS]
        assert position_counts(model, TEXTS, **given) == wanted
        assert (max(wanted) <= 50) == (name in ("cut", "halved"))
    assert position_counts(model, [], **given) == []


@pytest.mark.parametrize("side", ["left", "right"])
def test_positions_of_other_models(base: Base, side: str) -> None:
    """Of any model: what its own tokenizer makes of each text."""
    transformer = Transformer(base("llama", "bos_eos"), max_seq_length=64)
    tokenizer = transformer.tokenizer
    tokenizer.padding_side, tokenizer.pad_token = side, tokenizer.eos_token
    plain = SentenceTransformer(modules=[transformer, Pooling(32, "mean")], device="cpu")
    adopted = st_reba.DecoderTransformer.adopt(transformer, layers=st_reba.LayerPlan(kind="bidirectional", k="all"))
    texts = [text for text in TEXTS if "\ud800" not in text]
    for model in (plain, SentenceTransformer(modules=[adopted, Pooling(32, "mean")], device="cpu")):
        for prompt in (None, "Query: "):
            tokens = tokenizer([(prompt or "") + text for text in texts])["input_ids"]
            wanted = [min(64, len(ids)) for ids in tokens]
            assert position_counts(model, texts, prompt=prompt) == wanted
            assert position_counts(model, texts, prompt=prompt, task="query") == wanted
            assert len(set(wanted)) > 20 and max(wanted) == 64
    short = position_counts(plain, texts, processing_kwargs={"text": {"max_length": 9, "truncation": True}})
    assert max(short) == 9
    assert position_counts(plain, []) == []


def test_models_without_positions() -> None:
    """A bag of words has no padding."""
    static = StaticEmbedding(TOKENIZERS["plain"]().backend_tokenizer, embedding_dim=8)
    model = SentenceTransformer(modules=[static], device="cpu")
    texts = [text for text in TEXTS if "\ud800" not in text]
    assert position_counts(model, texts) is None


def test_a_field_without_a_value() -> None:
    model = st_reba.build("mini", "echo", template="echo-instruct")
    with pytest.raises(ValueError, match="needs a value for {instruction}"):
        position_counts(model, ["a"], task="query")
