"""What every consumer gets, and the environment of its process."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import st_reba

ROOT = Path(st_reba.__file__).parents[1]
# More of each kind than the page has, of both languages, and short and long ones in turn.
SENTENCES = ROOT / "examples" / "sentences.jsonl"
TEXTS = [json.loads(line)["text"] for line in SENTENCES.read_text(encoding="utf-8").splitlines()[::5]]
QUESTIONS = [
    "出国证件快到期了还能过关吗？",
    "苹果公司发布新电脑",
    "股票为什么下跌",
    "Should I chill an onion before chopping it?",
    "Will it rain tomorrow?",
]
GIVEN: dict[str, Any] = {
    "texts": TEXTS,
    "questions": QUESTIONS,
    "relevant": [[row for row in range(len(TEXTS)) if row % 7 == number] for number in range(len(QUESTIONS))],
    "pairs": [[TEXTS[row], TEXTS[(row * 5 + 1) % len(TEXTS)], (row * 3) % 11 / 2.0] for row in range(24)],
}
# Nothing is asked of the Hub; the rest are the consumers' own ways to send no figures of use.
QUIET = {
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "HAYSTACK_TELEMETRY_ENABLED": "False",
    "ANONYMIZED_TELEMETRY": "False",
}
