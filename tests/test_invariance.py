"""A vector depends on its text alone: not on the batch, its order or size, padding, or other threads."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from itertools import cycle
from typing import Any

import pytest
import torch
from marks import Base, slow_but
from oracle import assert_close
from pipelines import PIPELINES, build, encoded, made

HOSTILE = (
    "", "a", "今天天气很好，我们去公园散步吧。", "🙂👩‍👩‍👧‍👦🇨🇳", "<s></s> <|endoftext|> [PAD][CLS]",
    "\ud83d lone \udc00", "\x00\n\t ", "{text} {instruction} {{",
    "The river runs past the old mill and under the bridge. " * 12, "e\u0301" * 40,
)  # fmt: skip
# Every pipeline on one base, and at night on another, in turn.
QUICK = [("llama", name) for name in PIPELINES] + [("gemma2", "mask0"), ("gpt_oss", "reba mask0"), ("gpt_oss", "inter")]
CASES = [*QUICK, *(pair for pair in zip(cycle(("gpt2", "gemma2", "gpt_oss")), PIPELINES) if pair not in QUICK)]


@pytest.mark.parametrize(("of", "name"), slow_but(CASES, *QUICK, rows=True))
def test_batches(base: Base, of: str, name: str) -> None:
    model = made(base(of), name)
    alone = encoded(model, HOSTILE, alone=True)
    assert alone.isfinite().all() and (alone.norm(dim=1) > 0).all()
    order = random.Random(0).sample(range(len(HOSTILE)), len(HOSTILE))
    for got, index in zip(encoded(model, [HOSTILE[index] for index in order]), order, strict=True):
        assert_close(got, alone[index].double())
    assert_close(model.encode(list(HOSTILE), batch_size=3, convert_to_tensor=True), alone.double())


def test_special_tokens_in_a_text_are_text(base: Base) -> None:
    first: Any = build(base("llama", "bos_eos"), "echo")[0]
    (ids,) = first.content(["<s> </s>"])["input_ids"]
    assert not {first.tokenizer.bos_token_id, first.tokenizer.eos_token_id} & {*ids}


def test_threads(base: Base) -> None:
    """Models of several kinds in many threads at once, each in a pass of its own."""
    names = ("reba mean", "mask0", "inter", "echo last", "layers", "chunk mean", "ensemble")
    models = {name: made(base("llama"), name) for name in names}
    wanted = {name: encoded(model, HOSTILE, alone=True) for name, model in models.items()}

    def run(job: tuple[str, int]) -> None:
        name, start = job
        got = encoded(models[name], [*HOSTILE[start:], *HOSTILE[:start]])
        assert_close(torch.roll(got, start, dims=0), wanted[name].double())

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(run, [(name, start) for start in range(5) for name in names]))
