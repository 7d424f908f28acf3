"""Try every architecture that transformers lists for causal language modelling, and record which are exact.

    python scripts/architectures.py                 all types: writes tests/data/architectures.json and
                                                    docs/explanation/architectures.md (two minutes on one core)
    python scripts/architectures.py llama mamba     some types, printed as JSON

tests/test_every_architecture.py says when either file is stale.

The record holds the newest and the oldest supported release of transformers: run it with each of the two installed.
"""

from __future__ import annotations

import json
import logging
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT)]

import torch  # noqa: E402
import transformers  # noqa: E402
from families import CAUSAL_LMS  # noqa: E402
from sweep import Record, sweep  # noqa: E402
from sweep_record import PAGE, RECORDS, as_json, page, read  # noqa: E402


def find(types: list[str]) -> dict[str, Record]:
    """Model type → what it is here, and on the standard error whatever is neither exact nor refused."""
    found: dict[str, Record] = {}
    for model_type in types:
        with tempfile.TemporaryDirectory() as folder:
            outcome = sweep(model_type, Path(folder))
        found[model_type] = outcome.record()
        wrong = [f"{method} {status}" for method, status in outcome.methods.items() if status[:4] in ("inex", "fail")]
        for text in (*wrong, *outcome.unfit):
            print(f"{model_type}: {text}", file=sys.stderr)
    return found


def write(found: dict[str, Record]) -> None:
    """Write the record and the page: this release takes the place of itself, or of the one that was newest."""
    known = read() if RECORDS.is_file() else {}
    number = transformers.__version__
    if number not in known and len(known) > 1:
        del known[list(known)[-1]]
    releases = {**known, number: found}
    RECORDS.write_text(as_json(releases), encoding="utf-8")
    PAGE.write_text(page(releases), encoding="utf-8")
    print(f"wrote {RECORDS.relative_to(ROOT)} and {PAGE.relative_to(ROOT)}, for transformers {number}")


def main() -> None:
    if unknown := set(sys.argv[1:]) - set(CAUSAL_LMS):
        raise SystemExit(f"{unknown}: no model types that transformers {transformers.__version__} lists")
    logging.disable(logging.WARNING)
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    torch.set_num_threads(1)
    found = find(sys.argv[1:] or sorted(CAUSAL_LMS))
    if sys.argv[1:]:
        print(json.dumps(found, indent=1))
    else:
        write(found)


if __name__ == "__main__":
    main()
