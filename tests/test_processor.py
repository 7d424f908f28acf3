"""What the processor is fast at, and the hint at bfloat16: once, before a long run in float32."""

from __future__ import annotations

import logging
from pathlib import Path
from types import MappingProxyType

import pytest
import torch
from marks import Base
from pipelines import build
from tiny import tiny_model

from st_reba import processor
from st_reba.corpus import encode_corpus
from st_reba.encode import encode_texts, positions

TEXTS = ["Cats sleep.", "Ships sail slowly.", "猫在睡觉。"] * 4


@pytest.fixture(autouse=True)
def _fresh_hint(monkeypatch: pytest.MonkeyPatch) -> None:
    """A processor that gains, and no hint yet."""
    monkeypatch.setattr(processor.bfloat16_hint, "was_given", False)
    monkeypatch.setattr(processor, "multiplies_bfloat16", lambda: True)


def hints(caplog: pytest.LogCaptureFixture) -> list[str]:
    """The hints that were logged."""
    return [record.message for record in caplog.records if "bfloat16" in record.message]


@pytest.mark.parametrize(
    ("capabilities", "expected"),
    [
        ({"avx512_bf16": True, "amx_bf16": False}, True),
        ({"avx512_bf16": False, "amx_bf16": True}, True),
        ({"avx512_bf16": False, "avx512_f": True, "amx_int8": True}, False),
        ({"neon": True}, False),
        (None, False),
    ],
)
def test_instructions_for_bfloat16_are_told_by_torch(
    monkeypatch: pytest.MonkeyPatch,
    capabilities: dict[str, bool] | None,
    expected: bool,
) -> None:
    """None: a torch that cannot say."""
    monkeypatch.undo()
    monkeypatch.setattr(torch.cpu, "get_capabilities", None, raising=False)
    if capabilities is not None:
        monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: MappingProxyType(capabilities))
    assert processor.multiplies_bfloat16() is expected


@pytest.mark.skipif(not Path("/proc/cpuinfo").is_file(), reason="the system has no /proc/cpuinfo")
@pytest.mark.skipif(not hasattr(torch.cpu, "get_capabilities"), reason="this torch cannot say")
def test_torch_tells_what_the_system_tells(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    flags = Path("/proc/cpuinfo").read_text(encoding="utf-8").split()
    assert processor.multiplies_bfloat16() is ("avx512_bf16" in flags or "amx_bf16" in flags)


def test_a_long_encode_in_float32_gets_one_hint(
    base: Base, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    model = build(base("llama"), "prompteol")
    position_count = sum(positions(model, TEXTS, is_batched=True))
    monkeypatch.setattr(processor, "LONG_RUN", position_count + 1)
    encode_texts(model, TEXTS)
    assert hints(caplog) == []
    monkeypatch.setattr(processor, "LONG_RUN", position_count)
    encode_texts(model, TEXTS)
    encode_texts(model, TEXTS)
    assert len(hints(caplog)) == 1 and caplog.records[-1].levelno == logging.WARNING


@pytest.mark.parametrize("case", ["bfloat16", "no instructions", "no transformer"])
def test_no_hint_where_nothing_is_gained(
    base: Base, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, case: str
) -> None:
    monkeypatch.setattr(processor, "LONG_RUN", 1)
    if case == "no instructions":
        monkeypatch.setattr(processor, "multiplies_bfloat16", lambda: False)
    if case == "no transformer":
        model = tiny_model()
    else:
        model = build(base("llama"), "prompteol", dtype="bfloat16" if case == "bfloat16" else "float32")
    encode_texts(model, TEXTS)
    assert hints(caplog) == []


def test_a_corpus_gets_the_hint_before_its_first_part(
    base: Base, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """By its whole length, though no part is long; one that was begun keeps its number type."""
    model = build(base("llama"), "prompteol")
    position_count = sum(positions(model, TEXTS, "document", is_batched=True))
    # Between the length of a part and that of the corpus.
    monkeypatch.setattr(processor, "LONG_RUN", position_count * 2 // 3)
    texts = [{"id": str(number), "text": text} for number, text in enumerate(TEXTS)]
    corpus = encode_corpus(model, texts, tmp_path / "corpus", part_size=4)
    assert len(hints(caplog)) == 1 and corpus.parts() == 3

    caplog.clear()
    monkeypatch.setattr(processor.bfloat16_hint, "was_given", False)
    corpus.reopen()
    corpus.remove_vectors(2)
    encode_corpus(model, texts, tmp_path / "corpus")
    assert hints(caplog) == []
