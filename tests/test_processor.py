"""What the processor is fast at, and the hint at bfloat16: once, before a long run in float32."""

from __future__ import annotations

import logging
import runpy
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import MappingProxyType

import pytest
import torch
from marks import Base
from pipelines import build
from sentence_transformers import SentenceTransformer
from tiny import tiny_model

from st_reba import processor
from st_reba.corpus import encode_corpus
from st_reba.encode import encode_texts, measure_lengths

TEXTS = ["Cats sleep.", "Ships sail slowly.", "猫在睡觉。"] * 4
SYSTEM_FILE = Path("/proc/cpuinfo")
torch_can_tell = pytest.mark.skipif(
    not hasattr(torch.cpu, "get_capabilities"),
    reason="this torch does not tell what the processor can do",
)


@pytest.fixture
def set_long_run(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Sets from how many positions on a run is long.

    No hint was given yet, and the processor would gain.
    """
    monkeypatch.setattr(processor, "_has_hinted", False)
    monkeypatch.setattr(processor, "multiplies_bfloat16", lambda: True)
    return partial(monkeypatch.setattr, processor, "LONG_RUN")


@pytest.fixture
def float32_model(base: Base) -> SentenceTransformer:
    return build(base("llama"), "prompteol")


def logged_hints(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    """The hints among what was logged."""
    hints: list[logging.LogRecord] = []
    for log_record in caplog.records:
        if log_record.name == processor.__name__:
            hints.append(log_record)
    return hints


@pytest.mark.parametrize(
    ("capabilities", "expected_answer"),
    [
        ({"avx512_bf16": True, "amx_bf16": False}, True),
        ({"avx512_bf16": False, "amx_bf16": True}, True),
        ({"avx512_bf16": False, "avx512_f": True, "amx_int8": True}, False),
        ({"neon": True}, False),
    ],
)
def test_instructions_for_bfloat16_are_told_by_torch(
    monkeypatch: pytest.MonkeyPatch,
    capabilities: dict[str, bool],
    expected_answer: bool,
) -> None:
    capability_mapping = MappingProxyType(capabilities)
    monkeypatch.setattr(
        torch.cpu,
        "get_capabilities",
        lambda: capability_mapping,
        raising=False,
    )
    assert processor.multiplies_bfloat16() is expected_answer


def test_a_torch_that_cannot_tell_means_no(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torch.cpu, "get_capabilities", raising=False)
    assert processor.multiplies_bfloat16() is False


@torch_can_tell
@pytest.mark.skipif(not SYSTEM_FILE.is_file(), reason="the system has no /proc/cpuinfo")
def test_torch_tells_what_the_system_tells() -> None:
    processor_flags = SYSTEM_FILE.read_text(encoding="utf-8").split()
    has_instructions = "avx512_bf16" in processor_flags or "amx_bf16" in processor_flags
    assert processor.multiplies_bfloat16() is has_instructions


def test_no_hint_was_given_at_first() -> None:
    assert not runpy.run_path(str(processor.__file__))["_has_hinted"]


def test_a_long_encode_in_float32_gets_one_hint(
    float32_model: SentenceTransformer,
    set_long_run: Callable[[int], None],
    caplog: pytest.LogCaptureFixture,
) -> None:
    position_count = sum(measure_lengths(float32_model, TEXTS, is_batched=True).positions)
    set_long_run(position_count + 1)
    encode_texts(float32_model, TEXTS)
    assert logged_hints(caplog) == []
    set_long_run(position_count)
    encode_texts(float32_model, TEXTS)
    encode_texts(float32_model, TEXTS)
    (only_hint,) = logged_hints(caplog)
    assert only_hint.levelno == logging.WARNING and "--dtype bfloat16" in only_hint.message


def test_the_hint_tells_how_long_the_run_is(
    float32_model: SentenceTransformer,
    set_long_run: Callable[[int], None],
    caplog: pytest.LogCaptureFixture,
) -> None:
    set_long_run(1)
    processor.hint_at_bfloat16(float32_model, 2_600_000)
    (only_hint,) = logged_hints(caplog)
    assert only_hint.message.startswith("About 3 million positions")


def test_a_model_in_bfloat16_gets_no_hint(
    base: Base,
    set_long_run: Callable[[int], None],
    caplog: pytest.LogCaptureFixture,
) -> None:
    set_long_run(1)
    bfloat16_model = build(base("llama"), "prompteol", dtype="bfloat16")
    encode_texts(bfloat16_model, TEXTS)
    assert logged_hints(caplog) == []


def test_a_processor_without_instructions_gets_no_hint(
    float32_model: SentenceTransformer,
    set_long_run: Callable[[int], None],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    set_long_run(1)
    monkeypatch.setattr(processor, "multiplies_bfloat16", lambda: False)
    encode_texts(float32_model, TEXTS)
    assert logged_hints(caplog) == []


def test_a_model_without_a_transformer_gets_no_hint(
    set_long_run: Callable[[int], None],
    caplog: pytest.LogCaptureFixture,
) -> None:
    set_long_run(1)
    encode_texts(tiny_model(), TEXTS)
    assert logged_hints(caplog) == []


def test_a_corpus_gets_the_hint_before_its_first_part(
    float32_model: SentenceTransformer,
    tmp_path: Path,
    set_long_run: Callable[[int], None],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """By its whole length, though no part is long; one that was begun keeps its number type."""
    position_count = sum(
        measure_lengths(float32_model, TEXTS, "document", is_batched=True).positions
    )
    # Between the length of a part and that of the corpus.
    set_long_run(position_count * 2 // 3)
    corpus_folder = tmp_path / "corpus"
    corpus = encode_corpus(float32_model, TEXTS, corpus_folder, part_size=4)
    assert len(logged_hints(caplog)) == 1 and corpus.part_count() == 3

    caplog.clear()
    monkeypatch.setattr(processor, "_has_hinted", False)
    corpus.reopen()
    corpus.remove_vectors(2)
    encode_corpus(float32_model, TEXTS, corpus_folder)
    assert logged_hints(caplog) == []
