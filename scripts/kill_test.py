"""Kill encodes, builds and changes of indexes at random moments, run each again, and compare with the undisturbed.

    python scripts/kill_test.py --kills 200 --seed 0            a table; exit status 1 if anything differed
    python scripts/kill_test.py --kills 50 --json

Every operation is killed (SIGKILL) after a time drawn uniformly from what it took undisturbed. Then a reader must see
the state before or the state after it, whole; the same call is run again; and ids, texts, metadata, vectors bit for
bit, counts, search results and the names of all files must be those of the undisturbed run.
"""

from __future__ import annotations

import argparse
import json
import logging
import random
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT)]


def main() -> int:
    """Run; returns the exit status."""
    parser = argparse.ArgumentParser(
        description=(__doc__ or "").split("\n\n")[0], formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=200, help="how many (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the moments (default: %(default)s)")
    parser.add_argument("--size", type=int, default=60, help="documents of an index (default: %(default)s)")
    parser.add_argument("--folder", type=Path, help="where to work (default: a temporary folder)")
    parser.add_argument("--json", action="store_true", help="print one JSON object an operation")
    options = parser.parse_args()

    import faiss
    import torch
    from kills import Trial
    from operations import operations
    from tqdm.auto import tqdm

    torch.set_num_threads(1)
    faiss.omp_set_num_threads(1)
    logging.disable(logging.WARNING)
    moments = random.Random(options.seed)
    wrong = 0
    with tempfile.TemporaryDirectory(dir=options.folder) as scratch:
        trials = [
            Trial(operation, Path(scratch) / str(number)) for number, operation in enumerate(operations(options.size))
        ]
        counts = [{"kills": 0, "before": 0, "after": 0, "faster": 0, "equal": 0} for _ in trials]
        for number in tqdm(range(options.kills), unit=" kills", disable=None):
            trial, count = trials[number % len(trials)], counts[number % len(trials)]
            delay = moments.uniform(0, trial.seconds)
            outcome = trial.kill(delay=delay)
            # An operation may be done a little sooner than it was undisturbed: that is another draw.
            while outcome.problem is None and not outcome.killed:
                count["faster"] += 1
                delay = moments.uniform(0, trial.seconds)
                outcome = trial.kill(delay=delay)
            count["kills"] += 1
            count["after" if outcome.after else "before"] += 1
            count["equal"] += outcome.problem is None
            if outcome.problem is not None:
                wrong += 1
                print(f"{trial.operation.name}, killed after {delay:.4f} s: {outcome.problem}", file=sys.stderr)
    if options.json:
        for trial, count in zip(trials, counts, strict=True):
            print(json.dumps({"operation": trial.operation.name, "seconds": round(trial.seconds, 4), **count}))
    else:
        print(f"{'operation':26} {'seconds':>8} {'kills':>6} {'before':>7} {'after':>6} {'equal':>6}")
        for trial, count in zip(trials, counts, strict=True):
            numbers = f"{count['kills']:6} {count['before']:7} {count['after']:6} {count['equal']:6}"
            print(f"{trial.operation.name:26} {trial.seconds:8.3f} {numbers}")
        total = {key: sum(count[key] for count in counts) for key in counts[0]}
        numbers = f"{total['kills']:6} {total['before']:7} {total['after']:6} {total['equal']:6}"
        print(f"{'all':26} {'':8} {numbers}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
