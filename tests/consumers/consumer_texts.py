"""Texts, questions and prompts of the tests of consumers, and the exported folder that some of them read."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
SENTENCES = ROOT / "examples" / "sentences.jsonl"


def every_fifth_sentence() -> list[str]:
    lines = SENTENCES.read_text(encoding="utf-8").splitlines()
    return [json.loads(line)["text"] for line in lines[::5]]


TEXTS = every_fifth_sentence()
QUESTIONS = [
    "出国证件快到期了还能过关吗？",
    "苹果公司发布新电脑",
    "股票为什么下跌",
    "Should I chill an onion before chopping it?",
    "Will it rain tomorrow?",
]
PROMPTS = {"query": "Query: ", "document": "Document: "}


def page_names() -> dict[str, Any]:
    """The names that the first section of docs/how-to/tools.md defines, with more texts."""
    relevant_rows: list[list[int]] = []
    for question_index in range(len(QUESTIONS)):
        relevant_rows.append(list(range(question_index, len(TEXTS), 7)))
    scored_pairs: list[list[Any]] = []
    for row in range(24):
        other_row = (row * 5 + 1) % len(TEXTS)
        scored_pairs.append([TEXTS[row], TEXTS[other_row], (row * 3) % 11 / 2.0])
    return {
        "texts": TEXTS,
        "questions": QUESTIONS,
        "relevant": relevant_rows,
        "pairs": scored_pairs,
    }


PAGE_NAMES = page_names()


@dataclass(frozen=True)
class ExportedFolder:
    """A folder that ``st-reba onnx`` wrote, and its golden texts and vectors."""

    path: Path
    texts: list[str]
    vectors: list[list[float]]


def exported_folder() -> ExportedFolder:
    """That of ST_REBA_ONNX; without one a test file is skipped."""
    if "ST_REBA_ONNX" not in os.environ:
        pytest.skip(
            "set ST_REBA_ONNX to a folder that st-reba onnx wrote",
            allow_module_level=True,
        )
    path = Path(os.environ["ST_REBA_ONNX"]).resolve()
    golden = json.loads((path / "golden.json").read_text(encoding="utf-8"))
    stored_texts = golden["texts"]
    assert len(stored_texts) >= 19
    return ExportedFolder(
        path=path,
        texts=[stored["text"] for stored in stored_texts],
        vectors=[stored["vector"] for stored in stored_texts],
    )
