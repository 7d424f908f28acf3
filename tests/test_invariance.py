"""A vector depends on its text alone: not on the batch, its order or size, padding, or other threads."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from itertools import cycle
from pathlib import Path
from typing import Any

import families
import pytest
import torch
from architectures import SHORT_POSITIONS
from marks import Base, slow_but
from oracle import assert_close
from pipelines import PIPELINES, build, build_pipeline, encoded

from st_reba.encode import encode_texts

HOSTILE_TEXTS = (
    "",
    "a",
    "今天天气很好，我们去公园散步吧。",
    "🙂👩‍👩‍👧‍👦🇨🇳",
    "<s></s> <|endoftext|> [PAD][CLS]",
    "\ud83d lone \udc00",
    "\x00\n\t ",
    "{text} {instruction} {{",
    "The river runs past the old mill and under the bridge. " * 12,
    "e\u0301" * 40,
)
# Every pipeline on llama, and a few on others; the slow cases are all pipelines on three other bases
# in turn.
QUICK = [
    *(("llama", pipeline) for pipeline in PIPELINES),
    ("gemma2", "mask0"),
    ("gpt_oss", "reba mask0"),
    ("gpt_oss", "inter"),
]
OTHER_BASES = zip(cycle(("gpt2", "gemma2", "gpt_oss")), PIPELINES, strict=False)
CASES = [*QUICK, *(case for case in OTHER_BASES if case not in QUICK)]


@pytest.mark.parametrize(("base_name", "pipeline"), slow_but(CASES, *QUICK, rows=True))
def test_a_vector_does_not_depend_on_its_batch(base: Base, base_name: str, pipeline: str) -> None:
    model = build_pipeline(base(base_name), pipeline)
    expected = encoded(model, HOSTILE_TEXTS, alone=True)
    assert expected.isfinite().all()
    assert (expected.norm(dim=1) > 0).all()
    text_count = len(HOSTILE_TEXTS)
    order = random.Random(0).sample(range(text_count), text_count)
    shuffled_texts = [HOSTILE_TEXTS[index] for index in order]
    for vector, index in zip(encoded(model, shuffled_texts), order, strict=True):
        assert_close(vector, expected[index].double())
    in_small_batches = model.encode(list(HOSTILE_TEXTS), batch_size=3, convert_to_tensor=True)
    assert_close(in_small_batches, expected.double())


def test_a_long_text_does_not_change_the_rotary_factors_of_its_batch(base: Base) -> None:
    model = build(base("phi3"), "prompteol")
    assert model.max_seq_length == SHORT_POSITIONS
    texts = ["A cat.", "The river runs past the old mill. " * 12]
    alone = encoded(model, texts, alone=True)
    assert_close(encoded(model, texts), alone.double())
    assert_close(encode_texts(model, texts * 4)[:2], alone.double())
    with pytest.raises(ValueError, match="max_seq_length=41: beyond 40 positions"):
        build(base("phi3"), "prompteol", max_seq_length=41)


@pytest.mark.parametrize(
    ("model_type", "limit"),
    [
        ("roberta", 254),  # of 256 positions, as it counts from one after the padding's
        ("reformer", 64),  # a chunk: the hashes of longer texts are drawn at random
    ],
)
def test_a_text_of_all_positions_that_can_be_read(
    model_type: str, limit: int, tmp_path: Path
) -> None:
    families.save(model_type, tmp_path)
    model = build(tmp_path, "classical", pooling="mean")
    assert model.max_seq_length == limit
    texts = ["A cat.", "The river runs past the old mill. " * 40]
    alone = encoded(model, texts, alone=True)
    assert_close(encoded(model, texts), alone.double())
    build(tmp_path, "classical", max_seq_length=limit)
    with pytest.raises(ValueError, match=f"beyond {limit} positions"):
        build(tmp_path, "classical", max_seq_length=limit + 1)


def test_special_tokens_in_a_text_are_text(base: Base) -> None:
    transformer: Any = build(base("llama", "bos_eos"), "echo")[0]
    (token_ids,) = transformer.tokenize_content(["<s> </s>"])["input_ids"]
    tokenizer = transformer.tokenizer
    assert not {tokenizer.bos_token_id, tokenizer.eos_token_id} & set(token_ids)


def test_threads_do_not_mix_passes(base: Base) -> None:
    """Models of several kinds in many threads at once, each in a pass of its own."""
    pipelines = (
        "reba mean",
        "mask0",
        "inter",
        "echo last",
        "layers",
        "chunk mean",
        "ensemble",
    )
    models = {name: build_pipeline(base("llama"), name) for name in pipelines}
    expected = {name: encoded(model, HOSTILE_TEXTS, alone=True) for name, model in models.items()}

    def encode_rotated(name: str, first_row: int) -> None:
        rotated_texts = [*HOSTILE_TEXTS[first_row:], *HOSTILE_TEXTS[:first_row]]
        vectors = encoded(models[name], rotated_texts)
        assert_close(torch.roll(vectors, first_row, dims=0), expected[name].double())

    with ThreadPoolExecutor(6) as pool:
        jobs = []
        for first_row in range(5):
            for name in pipelines:
                jobs.append(pool.submit(encode_rotated, name, first_row))
        for job in jobs:
            job.result()
