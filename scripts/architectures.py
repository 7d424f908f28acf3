"""Try every architecture that transformers lists for causal language modelling, and record which are exact.

    python scripts/architectures.py
    python scripts/architectures.py llama mamba

The first tries all types, and writes tests/data/architectures.json and
docs/explanation/architectures.md (two minutes on one core); the second tries some, and prints JSON.

tests/test_every_architecture.py says when either file is stale.

The record holds the newest and the oldest supported release of transformers: run it with each of
the two installed.
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
from sweep import sweep  # noqa: E402
from sweep_record import PAGE, RECORDS, Records, as_json, page, read  # noqa: E402


def try_types(model_types: list[str]) -> Records:
    """Model type → what it is here, and on the standard error whatever is neither exact nor refused."""
    records: Records = {}
    for model_type in model_types:
        with tempfile.TemporaryDirectory() as folder:
            outcome = sweep(model_type, Path(folder))
        records[model_type] = outcome.record()
        for method, status in outcome.methods.items():
            if status.startswith(("inexact", "failed")):
                print(f"{model_type}: {method} {status}", file=sys.stderr)
        for premise in outcome.unfit:
            print(f"{model_type}: {premise}", file=sys.stderr)
    return records


def write_record(records: Records) -> None:
    """Write the record and the page: this release takes the place of itself, or of the one that was newest."""
    releases = read() if RECORDS.is_file() else {}
    installed = transformers.__version__
    if installed not in releases and len(releases) > 1:
        newest_release = list(releases)[-1]
        del releases[newest_release]
    releases[installed] = records
    RECORDS.write_text(as_json(releases), encoding="utf-8")
    PAGE.write_text(page(releases), encoding="utf-8")
    print(
        f"wrote {RECORDS.relative_to(ROOT)} and {PAGE.relative_to(ROOT)}, for transformers {installed}"
    )


def main() -> None:
    requested_types = sys.argv[1:]
    unknown_types = set(requested_types) - set(CAUSAL_LMS)
    if unknown_types:
        raise SystemExit(
            f"{unknown_types}: no model types that transformers {transformers.__version__} lists"
        )
    logging.disable(logging.WARNING)
    transformers.utils.logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    transformers.utils.logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    torch.set_num_threads(1)
    if requested_types:
        print(json.dumps(try_types(requested_types), indent=1))
        return
    write_record(try_types(sorted(CAUSAL_LMS)))


if __name__ == "__main__":
    main()
