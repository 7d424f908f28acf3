"""Run every arm of a base over all texts of the evidence once, and keep the vectors of all readings.

    python scripts/tune_evidence/encode.py FOLDER bases/shallow out/shallow

A base ``mini`` is the embedded one. A base without Chinese takes ``--languages en``.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

from sets import arms, reads, sets

import st_reba
from st_reba.evaluation.passes import Encoded, encode_arm

DONE = "done.json"


def texts_of(shared: Path, languages: list[str]) -> list[str]:
    """All texts, each once."""
    found = sets(shared / "data", shared / "mini/tokens-30M.u16.xz", languages)
    return list(dict.fromkeys(text for each in found for text in each.everything()))


def opened(folder: Path, number: int, depth: int, texts: int) -> Encoded:
    """What an earlier run left of an arm."""
    return Encoded(folder / str(number), reads(arms(depth)[number], depth), texts, 0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shared", type=Path, help="the folder with data and mini")
    parser.add_argument("base", help="a model folder, or mini")
    parser.add_argument("out", type=Path, help="where the vectors go")
    parser.add_argument("--languages", nargs="+", default=["zh", "en"])
    parser.add_argument("--prompteol", action="store_true", help="run PromptEOL too, the last arm")
    options = parser.parse_args()
    texts = texts_of(options.shared, options.languages)
    transformer: Any = st_reba.build(options.base, "classical", dtype="float32")[0]
    depth = transformer.depth
    for number, arm in enumerate(arms(depth)[: None if options.prompteol else -1]):
        folder = options.out / str(number)
        if (folder / DONE).exists():
            continue
        folder.mkdir(parents=True, exist_ok=True)
        began = time.process_time()
        encoded = encode_arm(transformer, arm, reads(arm, depth), texts, folder)
        facts = {
            "arm": str(arm),
            "depth": depth,
            "tokens": encoded.tokens,
            "texts": len(texts),
            "seconds": round(time.process_time() - began, 1),
            "languages": options.languages,
        }
        (folder / DONE).write_text(json.dumps(facts), encoding="utf-8")
        print(json.dumps(facts), flush=True)


if __name__ == "__main__":
    main()
